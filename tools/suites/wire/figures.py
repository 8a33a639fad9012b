"""The figures of the suite `wire`, and their tables."""

from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from tools.suites import machine_load
from tools.suites.interleave import add_spread
from tools.suites.wire.network_emulator import Link
from tools.suites.wire.sides import EXCHANGES, Payload

# Latencies and rates; on most links only one of them is a limit.
LINKS: Dict[str, Link] = {
  "10gbit": Link(1e-4, 1.25e9),
  "1gbit": Link(1e-4, 1.25e8),
  "100mbit": Link(1e-4, 1.25e7),
  "1ms": Link(1e-3, 1.25e9),
  "10ms": Link(1e-2, 1.25e9),
  "10ms_100mbit": Link(1e-2, 1.25e7),
}
_LINK_TOLERANCE = 0.1
# Figure: the sign and the value of its target, and a title.
TARGETS: Dict[str, Tuple[str, float, str]] = {
  "dq8_bytes_ratio_2": ("<=", 0.26, "8 bits send, of float32"),
  "dq8_time_gain_100mbit_4": (">=", 1.5, "8 bits, times as fast, 100 Mbit/s"),
  "gossip_time_gain_10ms_8": (">=", 1.0, "gossip, times as fast, 10 ms"),
}


class Traffic(NamedTuple):
  """What one worker sends over its link in a step.

  Attributes:
    num_bytes: Bytes up; it receives as many.
    hops: Messages that are sent one after the other.
  """

  num_bytes: float
  hops: float


class LinkCheck(NamedTuple):
  """An emulated link, measured with plain sockets.

  Attributes:
    overhead: The emulator's own delay in seconds, which it subtracts.
    latency: Seconds from one end to the other.
    rate: Bytes a second.
  """

  overhead: float
  latency: float
  rate: float


class Timing(NamedTuple):
  """Seconds of a step in each repetition, by exchange."""

  num_workers: int
  link: str
  seconds: Mapping[str, np.ndarray]


def compute_traffic(name: str, payload: Payload, m: int) -> Traffic:
  """Returns the traffic of one of `m` workers that an exchange causes.

  A ring all-reduce forwards every m-th part 2 (m - 1) times. A ring all-gather
  forwards every message m - 1 times, so that a worker sends as much as it
  receives. Gossip sends to neighbors only. The two-phase form sends all parts
  at once, then all-gathers, and all-reduces what is too small for parts.
  """
  others = m - 1
  if name in ("periodic", "accumulated"):
    return Traffic(2 * others / m * payload.sent, others)
  if payload.rounds:
    return Traffic(payload.sent, payload.rounds)
  if payload.form == "gather":
    return Traffic(payload.received, others)
  if payload.form == "two_phase":
    return Traffic(payload.received, 1 + others + 2 * others)
  return Traffic(2 * others / m * payload.sent, 2 * others)


def gather(
  payloads: Mapping[int, Mapping[str, Payload]],
  timings: Sequence[Timing],
  checks: Mapping[str, LinkCheck],
) -> Dict[str, float]:
  """Returns the figures by name.

  Args:
    payloads: What each exchange sends, by the number of workers.
    timings: The times of steps.
    checks: The measured links, by name.
  """
  figures: Dict[str, float] = {}
  for m, exchanges in payloads.items():
    for name, one in exchanges.items():
      traffic = compute_traffic(name, one, m)
      figures[f"{name}_bytes_{m}"] = traffic.num_bytes
      figures[f"{name}_hops_{m}"] = traffic.hops
      figures[f"{name}_bytes_ratio_{m}"] = one.sent / one.size
  for m, link, seconds in timings:
    for name, values in seconds.items():
      add_spread(figures, f"{name}_ms_{link}_{m}", 1e3 * values)
      if name != "all_reduce":
        gain = seconds["all_reduce"] / values
        add_spread(figures, f"{name}_time_gain_{link}_{m}", gain)
  for link, (overhead, latency, rate) in checks.items():
    figures[f"link_{link}_own_ms"] = 1e3 * overhead
    figures[f"link_{link}_latency_ms"] = 1e3 * latency
    figures[f"link_{link}_mbit"] = 8e-6 * rate
    figures[f"link_{link}_latency_ratio"] = latency / LINKS[link].latency
    figures[f"link_{link}_rate_ratio"] = rate / LINKS[link].rate
  return figures


def format_table(
  figures: Dict[str, float],
  payloads: Mapping[int, Mapping[str, Payload]],
  timings: Sequence[Timing],
) -> str:
  """Returns the figures as text."""
  parts = [_format_bytes(figures, list(payloads))]
  for m in dict.fromkeys(one.num_workers for one in timings):
    own = [one for one in timings if one.num_workers == m]
    parts.append(_format_times(figures, own))
  parts.append(_format_links(figures))
  targets = _format_targets(figures)
  parts.append("\n".join([*targets, machine_load.describe(figures)]))
  return "\n\n".join(parts)


def _format_bytes(figures: Dict[str, float], counts: Sequence[int]) -> str:
  heads = "".join(f"{f'{m} workers':20}" for m in counts)
  lines = [
    "A step of one worker: MB over its link, messages one after the other",
    f"{'':26}{heads}sends, of float32",
  ]
  for name, (title, _, _) in EXCHANGES.items():
    cells = []
    for m in counts:
      cost = [figures[f"{name}_{what}_{m}"] for what in ("bytes", "hops")]
      cells.append(f"{cost[0] / 1e6:6.2f} MB {cost[1]:4.0f}".ljust(20))
    last = max(counts)
    cells.append(f"{figures[f'{name}_bytes_ratio_{last}']:.3f}")
    lines.append(f"{title:26}{''.join(cells)}")
  return "\n".join(lines)


def _format_times(figures: Dict[str, float], timings: Sequence[Timing]) -> str:
  """Returns a row an exchange and a column a link; `*` marks the fastest."""
  m = timings[0].num_workers
  num_repetitions = min(len(one.seconds["all_reduce"]) for one in timings)
  heads = "".join(f"{_format_link(one.link):26}" for one in timings)
  lines = [
    f"{m} workers: ms a step (quartiles), times as fast as all-reduce; "
    f"* is the fastest; {num_repetitions} repetitions at least",
    f"{'':26}{heads}".rstrip(),
  ]
  for name in timings[0].seconds:
    cells = (_format_time(figures, name, one).ljust(26) for one in timings)
    lines.append(f"{EXCHANGES[name][0]:26}{''.join(cells)}".rstrip())
  return "\n".join(lines)


def _format_time(figures: Dict[str, float], name: str, one: Timing) -> str:
  where = f"{one.link}_{one.num_workers}"
  ms = {n: figures[f"{n}_ms_{where}"] for n in one.seconds}
  ends = [figures[f"{name}_ms_{where}_{end}"] for end in ("low", "high")]
  star = "*" if ms[name] == min(ms.values()) else ""
  text = f"{ms[name]:.0f}{star} ({ends[0]:.0f} - {ends[1]:.0f})"
  gain = figures.get(f"{name}_time_gain_{where}")
  return text if gain is None else f"{text} {gain:.2f}x"


def _format_links(figures: Dict[str, float]) -> str:
  lines = [
    "Links, as requested and as measured with plain sockets "
    "(measured / requested)"
  ]
  for name in LINKS:
    if f"link_{name}_mbit" in figures:
      measured = _format_check(figures, f"link_{name}")
      lines.append(f"{_format_link(name):26}{measured}")
  return "\n".join(lines)


def _format_check(figures: Dict[str, float], link: str) -> str:
  """Returns what was measured, and whether it is what was requested."""
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


def _format_link(name: str) -> str:
  latency, rate = LINKS[name]
  return f"{1e3 * latency:g} ms, {8e-6 * rate:g} Mbit/s"


def _format_targets(figures: Dict[str, float]) -> List[str]:
  lines = []
  for name, (sign, target, title) in TARGETS.items():
    if name not in figures:
      continue
    value = figures[name]
    is_met = value <= target if sign == "<=" else value >= target
    verdict = "met" if is_met else "MISSED"
    lines.append(
      f"{name:26}{value:.3f}  {title}; target {sign} {target:g}, {verdict}"
    )
  return lines
