"""What exchanges send, and what that costs under a slow link: suite `wire`.

Bytes and hops are counted. Times are of real processes that train together, as
`tools.launch` starts them, with a network of `link.Links` between them; it is
changed while they run, and all ways take turns on it. So only the exchange
differs, and the machine's moods hit all.

What is learned is the work of `wire_quality`.
"""

import functools
import socket
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from tools.suites import link_check, wire_figures, wire_plot, wire_quality
from tools.suites.link import Link, Links
from tools.suites.meanwhile import Meanwhile
from tools.suites.rounds import say, take_turns
from tools.suites.suite import Options, Result
from tools.suites.wire_figures import LINKS, Checked, Timed
from tools.suites.wire_sides import WAYS, Counter, Member, Said
from tools.suites.workers import Worker, ask_all, closing

_COUNTED = (2, 4, 8)
_NUM_TRIES = 5
_SECONDS_OF_WORDS, _SECONDS_OF_BULK = 0.3, 0.5
_LEAST_WORDS = 11
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
  checked = check_links({name: None for p in plans for name in p.links})
  counter = Worker("counter", functools.partial(Counter, max(_COUNTED)))
  with closing([counter]):
    said: Dict[int, Dict[str, Said]] = {
      m: counter.ask("count", tuple(WAYS), m) for m in _COUNTED
    }
  timed = [one for plan in plans for one in measure(plan, checked=checked)]
  figures = wire_figures.gather(said, timed, checked)
  figures.update(meanwhile.figures())
  draw = functools.partial(wire_plot.draw, figures, said, timed)
  return Result(wire_figures.table(figures, said, timed), figures, draw)


def check_links(names) -> Dict[str, Checked]:
  """Returns what plain sockets find on each link."""
  say("Checking the links.")
  worker = Worker("links", functools.partial(Links, 2))
  with closing([worker]):
    here, there = (worker.ask("address", j, 1) for j in (0, 1))
    with socket.create_server(there) as server:
      near, far = link_check.ends(here, server)
      with near, far:
        late = {
          name: _lateness(worker, (near, far), LINKS[name]) for name in names
        }
    with link_check.peer(there):
      return {
        name: Checked(*late[name], _rate(worker, here, LINKS[name]))
        for name in names
      }


def _lateness(worker: Worker, pair, link: Link) -> Tuple[float, float]:
  """Returns what the relay takes by itself, and a latency without that."""
  num = max(_LEAST_WORDS, int(_SECONDS_OF_WORDS / link.latency))
  own = 0.0
  for i in range(_NUM_TRIES):
    worker.ask("set", link, own)
    late = link_check.latency(pair, num) - link.latency
    own += late / (1 + i)  # The mean of what was found, so that it settles.
  worker.ask("set", link, own)
  return own, link_check.latency(pair, num)


def _rate(worker: Worker, here: link_check.Address, link: Link) -> float:
  """Returns the best of some tries: what else a machine does takes of it."""
  worker.ask("set", link)
  num_bytes = int(link.rate * _SECONDS_OF_BULK)
  tries = range(_NUM_TRIES)
  return max(link_check.bulk_rate([here], num_bytes) for _ in tries)


def measure(
  plan: Plan,
  bindings: Sequence[str] = (),
  checked: Optional[Mapping[str, Checked]] = None,
) -> List[Timed]:
  """Starts the workers of a plan, and times all ways on all links.

  The relay takes off how late it was when it was checked, see `Links.set`.
  """
  num = plan.num_workers
  own = {name: one.own for name, one in (checked or {}).items()}
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
      Timed(
        num,
        name,
        _on_link(links, LINKS[name], own.get(name, 0.0), members, plan),
      )
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
