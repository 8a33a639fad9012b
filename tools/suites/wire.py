"""What exchanges send, and what that costs under a slow link: suite `wire`.

Bytes and hops are counted. Times are of real processes that train together, as
`tools.launch` starts them, with a network of `link.Links` between them; it is
changed while they run, and all ways take turns on it. So only the exchange
differs, and the machine's moods hit all.

What is learned is the work of `wire_quality`.
"""

import functools
import time
from typing import Dict, List, NamedTuple, Sequence, Tuple

from tools.suites import link_check, wire_figures, wire_plot, wire_quality
from tools.suites.link import Link, Links
from tools.suites.meanwhile import Meanwhile
from tools.suites.rounds import say, take_turns
from tools.suites.suite import Options, Result
from tools.suites.wire_figures import LINKS, Timed
from tools.suites.wire_sides import WAYS, Counter, Member, Said
from tools.suites.workers import Worker, ask_all, closing

_COUNTED = (2, 4, 8)
_HARDLY_LATE = Link(latency=1e-3)  # To see how late the relay is by itself.
_STEPS = 2  # Of a turn: a cycle of the way that talks on second steps.


class Plan(NamedTuple):
  """Who is timed: so many workers, in some ways, on some links."""

  num_workers: int
  ways: Sequence[str]
  links: Sequence[str]
  seconds: float  # For each link.


_QUICK = (
  Plan(8, ("all_reduce", "gossip"), ("10ms",), 20.0),
  Plan(
    4,
    ("all_reduce", "gossip", "dq8"),
    ("10gbit", "100mbit", "10ms"),
    15.0,
  ),
  Plan(2, ("all_reduce", "dq8"), ("10gbit", "100mbit"), 6.0),
)
_FULL = tuple(Plan(m, tuple(WAYS), tuple(LINKS), 15.0) for m in (8, 4, 2))


def run(options: Options) -> Result:
  """Returns a table, the figures and a plot."""
  meanwhile = Meanwhile()
  if options.quality:
    quality = wire_quality.run(options.quick)
    figures = {**wire_quality.gather(quality), **meanwhile.figures()}
    return Result(wire_quality.table(figures), figures)
  plans = _QUICK if options.quick else _FULL
  own, given = check_links({name: None for p in plans for name in p.links})
  counter = Worker("counter", functools.partial(Counter, max(_COUNTED)))
  with closing([counter]):
    said: Dict[int, Dict[str, Said]] = {
      m: counter.ask("count", tuple(WAYS), m) for m in _COUNTED
    }
  timed = [one for plan in plans for one in measure(plan, own=own)]
  figures = wire_figures.gather(said, timed, given)
  figures.update(meanwhile.figures())
  draw = functools.partial(wire_plot.draw, figures, said, timed)
  return Result(wire_figures.table(figures, said, timed), figures, draw)


def check_links(names) -> Tuple[float, Dict[str, Tuple[float, float]]]:
  """Returns how late the relay itself is, and what plain sockets find.

  That is latency and rate of each link.
  """
  say("Checking the links.")
  worker = Worker("links", functools.partial(Links, 2))
  found = {}
  with closing([worker]):
    here = worker.ask("address", 0, 1)
    with link_check.peer(worker.ask("address", 1, 1)):
      worker.ask("set", _HARDLY_LATE)
      round_trip = link_check.round_trip(here)
      own = round_trip / 2 - _HARDLY_LATE.latency
      for name in names:
        worker.ask("set", LINKS[name], own)
        num_bytes = int(min(LINKS[name].rate, 2.5e8) * 0.4)
        found[name] = (
          link_check.round_trip(here) / 2,
          link_check.bulk_rate([here], num_bytes),
        )
  return own, found


def measure(
  plan: Plan, bindings: Sequence[str] = (), own: float = 0.0
) -> List[Timed]:
  """Starts the workers of a plan, and times all ways on all links.

  `own` is how late the relay itself is, see `Links.set`.
  """
  num = plan.num_workers
  say(f"Starting {num} workers, for {len(plan.ways)} ways.")
  links = Worker("links", functools.partial(Links, num))
  make = functools.partial(Member, num, plan.ways, bindings)
  members = [
    Worker(f"worker {i} of {num}", make, environment)
    for i, environment in enumerate(links.ask("environments"))
  ]
  with closing([links, *members]):
    ask_all(members, "names")
    return [
      Timed(num, name, _on_link(links, LINKS[name], own, members, plan))
      for name in plan.links
    ]


def _on_link(links: Worker, link: Link, own: float, members, plan: Plan):
  """Returns the seconds of a step, by way."""
  say(f"{plan.num_workers} workers, {link}.")
  links.ask("set", link, own)
  turns = {
    name: functools.partial(_seconds, members, name) for name in plan.ways
  }
  for turn in turns.values():
    turn()  # Connections learn how much may be on its way.
  return take_turns(turns, time.monotonic() + plan.seconds)


def _seconds(members: Sequence[Worker], name: str) -> float:
  """Lets all train; returns the seconds of a step, until the last is done."""
  started = time.perf_counter()
  ask_all(members, "run", name, _STEPS)
  return (time.perf_counter() - started) / _STEPS
