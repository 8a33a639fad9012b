"""The figures of the suite `wire`, and how they are told."""

from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from tools.suites import meanwhile
from tools.suites.link import Link
from tools.suites.rounds import add_spread
from tools.suites.wire_sides import WAYS, Said

# Bytes and seconds; where one counts, the other does not.
LINKS: Dict[str, Link] = {
  "10gbit": Link(1e-4, 1.25e9),
  "1gbit": Link(1e-4, 1.25e8),
  "100mbit": Link(1e-4, 1.25e7),
  "1ms": Link(1e-3, 1.25e9),
  "10ms": Link(1e-2, 1.25e9),
  "10ms_100mbit": Link(1e-2, 1.25e7),
}
_LINK_TOLERANCE = 0.1
# A figure, the least that it must be or the most, and what it is.
AIMS: Dict[str, Tuple[str, float, str]] = {
  "dq8_bytes_ratio_2": ("<=", 0.26, "8 bits say, of float32"),
  "dq8_time_gain_100mbit_4": (">=", 1.5, "8 bits, times as fast, 100 Mbit/s"),
  "gossip_time_gain_10ms_8": (">=", 1.0, "gossip, times as fast, 10 ms"),
}


class Traffic(NamedTuple):
  """What a step costs one worker.

  Attributes:
    num_bytes: Through its link, up; down it is as much.
    hops: Messages that must wait for each other.
  """

  num_bytes: float
  hops: float


class Checked(NamedTuple):
  """What a link was when plain sockets measured it.

  Attributes:
    own: How late the relay was by itself, which it takes off.
    latency: Seconds from one end to the other.
    rate: Bytes a second.
  """

  own: float
  latency: float
  rate: float


class Timed(NamedTuple):
  """Seconds of a step, by way, then a number a round."""

  num_workers: int
  link: str
  seconds: Mapping[str, np.ndarray]


def traffic(name: str, said: Said, m: int) -> Traffic:
  """Returns what goes over the wire, of what an exchange has to say.

  A ring all-reduce of M passes every M-th part on 2 (M - 1) times. A ring
  gather passes every message on M - 1 times, so that a worker gives as much as
  it hears. Neighbors just tell each other. By parts, all tell each other their
  parts at once, then there is a gather, and an all-reduce of what is too small
  for that.
  """
  others = m - 1
  if name == "periodic":
    return Traffic(2 * others / m * said.given, others)
  if said.rounds:
    return Traffic(said.given, said.rounds)
  if said.form == "gather":
    return Traffic(said.received, others)
  if said.form == "two_phase":
    return Traffic(said.received, 1 + others + 2 * others)
  return Traffic(2 * others / m * said.given, 2 * others)


def gather(
  said: Mapping[int, Mapping[str, Said]],
  timed: Sequence[Timed],
  checked: Mapping[str, Checked],
) -> Dict[str, float]:
  """Returns the flat figures.

  Args:
    said: What each way says, by the number of workers.
    timed: The steps.
    checked: What links really gave.
  """
  figures: Dict[str, float] = {}
  for m, ways in said.items():
    for name, one in ways.items():
      cost = traffic(name, one, m)
      figures[f"{name}_bytes_{m}"] = cost.num_bytes
      figures[f"{name}_hops_{m}"] = cost.hops
      figures[f"{name}_bytes_ratio_{m}"] = one.given / one.size
  for m, link, seconds in timed:
    for name, values in seconds.items():
      add_spread(figures, f"{name}_ms_{link}_{m}", 1e3 * values)
      if name != "all_reduce":
        gain = seconds["all_reduce"] / values
        add_spread(figures, f"{name}_time_gain_{link}_{m}", gain)
  for link, (own, latency, rate) in checked.items():
    figures[f"link_{link}_own_ms"] = 1e3 * own
    figures[f"link_{link}_latency_ms"] = 1e3 * latency
    figures[f"link_{link}_mbit"] = 8e-6 * rate
    figures[f"link_{link}_latency_ratio"] = latency / LINKS[link].latency
    figures[f"link_{link}_rate_ratio"] = rate / LINKS[link].rate
  return figures


def table(
  figures: Dict[str, float],
  said: Mapping[int, Mapping[str, Said]],
  timed: Sequence[Timed],
) -> str:
  """Returns the figures as lines."""
  parts = [_bytes_table(figures, said)]
  for m in dict.fromkeys(one.num_workers for one in timed):
    parts.append(_times_table(figures, [t for t in timed if t[0] == m]))
  parts.append(_links_table(figures))
  parts.append("\n".join([*_aims(figures), meanwhile.words(figures)]))
  return "\n\n".join(parts)


def _bytes_table(figures, said) -> str:
  heads = "".join(f"{f'{m} workers':20}" for m in said)
  lines = [
    "A step of one worker: MB over its link, messages one after the other",
    f"{'':26}{heads}says, of float32",
  ]
  for name, (title, _, _) in WAYS.items():
    cells = []
    for m in said:
      cost = [figures[f"{name}_{what}_{m}"] for what in ("bytes", "hops")]
      cells.append(f"{cost[0] / 1e6:6.2f} MB {cost[1]:4.0f}".ljust(20))
    last = max(said)
    cells.append(f"{figures[f'{name}_bytes_ratio_{last}']:.3f}")
    lines.append(f"{title:26}{''.join(cells)}")
  return "\n".join(lines)


def _times_table(figures: Dict[str, float], timed: Sequence[Timed]) -> str:
  """Returns a row a way and a column a link; the best of each has a star."""
  m = timed[0].num_workers
  num_rounds = min(len(one.seconds["all_reduce"]) for one in timed)
  heads = "".join(f"{_link_title(one.link):26}" for one in timed)
  lines = [
    f"{m} workers: ms a step (quartiles), times as fast as all-reduce; "
    f"* is the fastest; {num_rounds} rounds at least",
    f"{'':26}{heads}".rstrip(),
  ]
  for name in timed[0].seconds:
    cells = (_cell(figures, name, one).ljust(26) for one in timed)
    lines.append(f"{WAYS[name][0]:26}{''.join(cells)}".rstrip())
  return "\n".join(lines)


def _cell(figures: Dict[str, float], name: str, one: Timed) -> str:
  where = f"{one.link}_{one.num_workers}"
  ms = {n: figures[f"{n}_ms_{where}"] for n in one.seconds}
  ends = [figures[f"{name}_ms_{where}_{end}"] for end in ("low", "high")]
  star = "*" if ms[name] == min(ms.values()) else ""
  text = f"{ms[name]:.0f}{star} ({ends[0]:.0f} - {ends[1]:.0f})"
  gain = figures.get(f"{name}_time_gain_{where}")
  return text if gain is None else f"{text} {gain:.2f}x"


def _links_table(figures: Dict[str, float]) -> str:
  lines = [
    "Links, as asked for and as plain sockets found them (found / asked)"
  ]
  for name in LINKS:
    if f"link_{name}_mbit" in figures:
      lines.append(f"{_link_title(name):26}{_found(figures, f'link_{name}')}")
  return "\n".join(lines)


def _found(figures: Dict[str, float], link: str) -> str:
  """Returns what a link gave, and whether that was what was asked for."""
  ratios = [figures[f"{link}_{what}_ratio"] for what in ("latency", "rate")]
  cells = [
    f"{figures[f'{link}_latency_ms']:.2f} ms ({ratios[0]:.2f})",
    f"{figures[f'{link}_mbit']:.0f} Mbit/s ({ratios[1]:.2f})",
  ]
  off = [
    what
    for what, ratio in zip(("latency", "rate"), ratios)
    if abs(ratio - 1.0) > _LINK_TOLERANCE
  ]
  verdict = f"NOT within 10 %: {', '.join(off)}" if off else "within 10 %"
  return f"{', '.join(cells)}: {verdict}"


def _link_title(name: str) -> str:
  latency, rate = LINKS[name]
  return f"{1e3 * latency:g} ms, {8e-6 * rate:g} Mbit/s"


def _aims(figures: Dict[str, float]) -> List[str]:
  lines = []
  for name, (sign, aim, title) in AIMS.items():
    if name not in figures:
      continue
    value = figures[name]
    met = value <= aim if sign == "<=" else value >= aim
    words = "met" if met else "MISSED"
    lines.append(f"{name:26}{value:.3f}  {title}; aim {sign} {aim:g}, {words}")
  return lines
