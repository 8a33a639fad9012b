"""Plans a run on many workers from the profile of one.

goal = planning.read_goal(num_workers=1024, link="tpu_v3")
report = planning.Report(profile, goal)
print(report.text())
planning.write_gin(report.choose("paragan"), "plan.gin")
"""

import math
import pathlib
from typing import Any, Dict, List, Optional, Sequence, Union

import gin

from paragan_tf import config, profiling
from paragan_tf.engine.scaling import bindings, links, plan
from paragan_tf.engine.scaling.costs import SCHEMES, Machine
from paragan_tf.engine.scaling.links import Link
from paragan_tf.engine.scaling.plan import Goal, Plan, Refused
from paragan_tf.engine.scaling.profile import Profile
from paragan_tf.experiment import Experiment
from paragan_tf.game.schedule import Sequential
from paragan_tf.outputs import curves, plan_page
from paragan_tf.outputs.progress import Counter
from paragan_tf.profiling import Source, profile, read

__all__ = ["Link", "Machine", "Report", "Source", "plan", "profile", "read"]

_HEAD = (
  "scheme",
  "images/s",
  "efficiency",
  "step",
  "compute",
  "wait",
  "software",
  "wire",
  "input",
  "GB",
  "time",
  "device-hours",
  "price",
)
_MAX_SWEEP = 1024  # Workers, or more if a plan has more.


def read_goal(
  num_workers: int,
  bs: Optional[int] = None,
  num_updates: int = 0,
  num_images: int = 0,
  link: Union[str, Link] = "ethernet_10g",
  num_batches: int = 1,
  **values: Any,
) -> Goal:
  """Returns a goal; the config that was read says what is left open.

  By default each worker has the batch of the config, and all of them see as
  many images as the config trains on.

  Args:
    num_workers: How many train.
    bs: Images of an update, over all workers.
    num_updates: How many updates.
    num_images: Images to train on, instead.
    link: Between workers, or its name.
    num_batches: Batches of real images that a step takes.
    **values: More fields of `Goal`.
  """
  base = int(_query("experiment.Experiment.batch_size", 64))
  if not num_updates and not num_images:
    num_images = base * num_batches * int(_query("run.Run.num_steps", 0))
  return Goal(
    num_workers=num_workers,
    bs=num_workers * base if bs is None else bs,
    num_updates=num_updates,
    num_images=num_images,
    base_batch=base,
    link=links.find(link) if isinstance(link, str) else link,
    config_hash=profiling.config_hash(),
    **values,
  )


class Report:
  """The plans of all schemes for a goal, and over the number of workers.

  Attributes:
    rows: Plans, the fastest first, then schemes that were refused.
    sweep: The same by number of workers, each with the same batch.
  """

  def __init__(self, found: Profile, goal: Goal):
    self._profile, self._goal = found, goal
    self.rows = plan.compare(found, goal)
    share = goal.bs // goal.num_workers
    most = max(_MAX_SWEEP, goal.num_workers)
    self.sweep: Dict[int, List[Union[Plan, Refused]]] = {}
    for k in range(math.floor(math.log2(most)) + 1):
      num = 2**k
      try:
        self.sweep[num] = plan.compare(
          found, goal._replace(num_workers=num, bs=num * share)
        )
      except ValueError:  # The link does not connect so many.
        break

  @property
  def plans(self) -> List[Plan]:
    """Returns the plans for the goal, the fastest first."""
    return [row for row in self.rows if isinstance(row, Plan)]

  def choose(self, scheme: str = "") -> Plan:
    """Returns the plan of a scheme; by default the fastest."""
    if not scheme:
      return plan.best(self.rows)
    if scheme not in SCHEMES:
      raise ValueError(
        f"`scheme` must be one of {', '.join(SCHEMES)}, got '{scheme}'."
      )
    return plan.make_plan(self._profile, self._goal, SCHEMES[scheme])

  def winners(self) -> List[str]:
    """Returns which scheme wins for how many workers, and why."""
    found: List[List[Any]] = []
    for num, rows in self.sweep.items():
      winner = plan.best(rows)
      if not found or found[-1][2].scheme != winner.scheme:
        found.append([num, num, winner, rows])
      found[-1][1:] = [num, winner, rows]
    return [self._describe(*x) for x in found]

  def _describe(self, first: int, last: int, winner: Plan, rows) -> str:
    where = f"{first}" if first == last else f"{first} to {last}"
    others = [x for x in rows if isinstance(x, Plan) and x.scheme == "sync"]
    if not others or winner.scheme == "sync":
      others = [x for x in rows if isinstance(x, Plan) and x != winner]
      others = [x for x in others if x.scheme != "per_label"]
    words = plan.why(winner, others[0]) if others else ""
    return f"{where} worker(s): {words or f'`{winner.scheme}` is the fastest.'}"

  def text(self) -> str:
    """Returns all as text, for a terminal."""
    table = self._table()
    widths = [max(map(len, column)) for column in zip(*table)]
    rows = [
      "  ".join(
        text.ljust(width) if i == 0 else text.rjust(width)
        for i, (text, width) in enumerate(zip(row, widths))
      )
      for row in table
    ]
    refused = [x for x in self.rows if isinstance(x, Refused)]
    return "\n".join(
      [
        self._title(),
        "",
        *rows,
        "",
        *self.winners(),
        *(f"`{x.scheme}` is left out: {x.reason}" for x in refused),
        *dict.fromkeys(note for x in self.plans for note in x.notes),
      ]
    )

  def html(self) -> str:
    """Returns all as a page."""
    winner = self.choose()
    tiles = [
      ("fastest", winner.scheme),
      ("images/s", f"{winner.prediction.images_per_second:,.0f}"),
      ("efficiency", f"{winner.prediction.efficiency:.0%}"),
    ]
    if winner.seconds:
      tiles.append(("time", curves.duration(winner.seconds)))
    remarks = dict.fromkeys(note for x in self.plans for note in x.notes)
    return plan_page.render(
      self._title(),
      tiles,
      self._table(),
      self._lines(),
      [*self.winners(), *remarks],
      self._terms(),
    )

  def json(self) -> Dict[str, Any]:
    """Returns all figures."""
    return {
      "profile": _plain(self._profile),
      "goal": _plain(self._goal),
      "plans": [_plain(x) for x in self.plans],
      "refused": {
        x.scheme: x.reason for x in self.rows if isinstance(x, Refused)
      },
      "sweep": {
        str(num): {
          x.scheme: _plain(x.prediction) for x in rows if isinstance(x, Plan)
        }
        for num, rows in self.sweep.items()
      },
      "winners": self.winners(),
    }

  def _title(self) -> str:
    goal = self._goal
    return (
      f"{goal.num_workers:,} workers by {goal.link.name}, {goal.bs:,} images "
      "an update"
    )

  def _table(self) -> List[Sequence[str]]:
    rows: List[Sequence[str]] = [_HEAD]
    for x in self.plans:
      found = x.prediction
      parts = (
        found.step_seconds,
        found.compute,
        found.wait,
        found.software,
        found.wire,
        found.input,
      )
      rows.append(
        [
          x.scheme,
          f"{found.images_per_second:,.0f}",
          f"{found.efficiency:.1%}",
          *(f"{1e3 * seconds:.4g} ms" for seconds in parts),
          f"{x.memory_bytes / 1e9:.2f}",
          curves.duration(x.seconds) if x.seconds else "-",
          f"{x.device_hours:,.4g}" if x.seconds else "-",
          f"{x.price:,.2f}" if x.price else "-",
        ]
      )
    return rows

  def _lines(self) -> List[plan_page.Line]:
    found = {
      scheme: [
        (num, x.prediction)
        for num, rows in self.sweep.items()
        for x in rows
        if isinstance(x, Plan) and x.scheme == scheme
      ]
      for scheme in SCHEMES
    }
    return [
      plan_page.Line(
        scheme,
        [num for num, _ in rows],
        [x.efficiency for _, x in rows],
        [x.images_per_second for _, x in rows],
      )
      for scheme, rows in found.items()
    ]

  def _terms(self) -> Dict[str, str]:
    found, goal = self._profile, self._goal
    step = found.step_seconds
    return {
      "device": f"{found.device}, {found.num_threads or 'all'} thread(s)",
      "step": (
        f"{1e3 * step.fixed:.4g} ms + {1e3 * step.per_image:.4g} ms an image, "
        f"within {step.error:.1%}; batches {found.batches}"
      ),
      "memory": (
        f"{found.memory_bytes.fixed / 1e9:.2f} GB + "
        f"{found.memory_bytes.per_image / 1e6:.3g} MB an image, "
        f"{found.memory_source}"
      ),
      "input": f"{found.input_images_per_second:,.0f} images/s",
      "gradients": f"{sum(found.gradient_bytes.values()) / 1e6:.2f} MB",
      "noise scale": ", ".join(
        f"{who} {scale:.0f} images" for who, scale in found.noise_scale.items()
      ),
      "link": (
        f"{goal.link.name}: {goal.link.bytes_per_second / 1e9:.4g} GB/s, "
        f"{1e6 * goal.link.latency:.3g} us. {goal.link.source}"
      ),
      "machine": str(goal.machine._asdict()),
      "config": goal.config_hash,
    }


def describe(found: Plan) -> str:
  """Returns a plan in one line."""
  expected = found.prediction
  parts = [
    f"Plan: {found.num_workers:,} worker(s), {found.batch_per_worker} images "
    "each"
  ]
  if found.accumulate > 1:
    parts.append(f"gradients of {found.accumulate} parts add up")
  parts.append(
    f"{expected.images_per_second:,.0f} images/s and an efficiency of "
    f"{expected.efficiency:.0%} expected"
  )
  if found.seconds:
    parts.append(f"{curves.duration(found.seconds)} in all")
  return ", ".join(parts) + "."


def write_gin(found: Plan, path: str, acts: bool = False) -> None:
  """Writes the gin file that realizes a plan.

  Args:
    found: What to realize; the config that was read says how often to save.
    path: Of the file.
    acts: Whether the run may change what the plan says.
  """
  text = bindings.to_gin(found, read_intervals(), acts=acts)
  pathlib.Path(path).write_text(text, encoding="utf-8")


def read_intervals() -> Dict[str, int]:
  """Returns the intervals of the config that must fit a period."""
  return {
    "save_every": int(_query("run.Run.save_every", 500)),
    "measure_every": int(_query("run.Run.measure_every", 0) or 0),
  }


def show_progress() -> Counter:
  """Returns what shows how much of a profile is measured."""
  return Counter("Profiling a worker: measurements")


def read_num_batches() -> int:
  """Returns the batches of real images that a step of the config takes."""
  make = gin.get_bindings(Experiment).get("schedule") or Sequential
  return make().num_batches


def load(source: Source) -> None:
  """Reads the config of a source."""
  config.load(source.gin_files, source.gin_bindings)


def _query(name: str, default: Any) -> Any:
  try:
    return gin.query_parameter(name)
  except ValueError:
    return default


def _plain(value: Any) -> Any:
  if hasattr(value, "_asdict"):
    value = value._asdict()
  if isinstance(value, dict):
    return {key: _plain(x) for key, x in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(x) for x in value]
  return value
