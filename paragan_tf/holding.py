"""Holds a run to its plan while it trains; `engine/scaling/hold.py` decides.

    run.Run.hold = @holding.Hold()
    holding.Hold.step_seconds = 0.125     # as `tools.plan` writes them
    holding.Hold.acts = True

At each stop for the log, step time, input wait and memory are compared with the
plan. If `acts`, the run changes itself at the next boundary of its periods: it
saves a checkpoint that says what has changed, and is built anew from it, as a
resumed run is.
"""

import math
import re
from typing import (
  Any,
  Callable,
  Dict,
  List,
  Mapping,
  NamedTuple,
  Optional,
  Sequence,
  Set,
)

import gin
import tensorflow as tf

from paragan_tf import config, worker_profile
from paragan_tf.engine.scaling import hold
from paragan_tf.engine.scaling.hold import Levels, Measured, Options
from paragan_tf.experiment import Experiment
from paragan_tf.outputs.checkpoints import Checkpoints
from paragan_tf.sync.exchange import AccumulatedGradients, AllReduce, Periodic
from paragan_tf.types import Entry

# Of TensorFlow, where memory does not suffice.
MEMORY_ERRORS = (tf.errors.ResourceExhaustedError,)
_KEY = "hold/changes"
NOTE = "hold_changes"
_NOTED = re.compile(rf"^{NOTE} = '(.*)'$", re.M)
# What a change sets, in any scope.
CHANGED = (
  "experiment.Experiment.batch_size",
  "experiment.player.exchange",
  "exchange.AccumulatedGradients.period",
  "exchange.AccumulatedGradients.name",
  "exchange.AllReduce.name",
  "exchange.Periodic.period",
)


class OutOfMemoryError(Exception):
  """Memory ran out while a run trained."""


class Changes(NamedTuple):
  """What differs from the config, and is kept in checkpoints.

  Attributes:
    levels: Factors, see `hold.Levels`.
    extra_steps: That are trained beyond `num_steps`, as the batch was lowered.
  """

  levels: Levels = Levels()
  extra_steps: int = 0

  def to_list(self) -> List[int]:
    """Returns the numbers of a checkpoint."""
    return [*self.levels, self.extra_steps]

  @staticmethod
  def from_list(numbers: Sequence[int]) -> "Changes":
    """Returns the changes of such numbers."""
    *levels, extra_steps = (int(x) for x in numbers)
    return Changes(Levels(*levels), extra_steps)

  def describe(self, before: "Changes") -> str:
    """Returns what has changed, in one line."""
    words = hold.describe(before.levels, self.levels)
    if self.extra_steps != before.extra_steps:
      more = self.extra_steps - before.extra_steps
      words += f"; {more} steps more, for as many updates"
    return words

  def note(self) -> Dict[str, str]:
    """Returns what is recorded beside the config; nothing without changes."""
    if self == Changes():
      return {}
    return {NOTE: ", ".join(map(str, self.to_list()))}

  def entry(self) -> Entry:
    """Returns what a checkpoint keeps."""
    variable = tf.Variable(self.to_list(), trainable=False, dtype=tf.int64)
    return Entry(_KEY, (variable,), agrees=True, optional=True)


def read(model_dir: str) -> Changes:
  """Returns the changes of the newest checkpoint in a folder."""
  path = Checkpoints(model_dir).latest()
  if path is None:
    return Changes()
  reader = tf.train.load_checkpoint(path)
  if not reader.has_tensor(_KEY):
    return Changes()
  return Changes.from_list(reader.get_tensor(_KEY))


def apply(changes: Changes) -> None:
  """Changes the config that was read; call it before anything is built."""
  rows = bindings(changes.levels, _query)
  if rows:
    with gin.unlock_config():
      gin.parse_config(rows)


def bindings(levels: Levels, query) -> List[str]:
  """Returns the bindings that realize levels on top of a config.

  Args:
    levels: What to change.
    query: Returns a value of the config, or a default.
  """
  rows: List[str] = []
  if levels.accumulate > 1:
    size = query("experiment.Experiment.batch_size", 64)
    period = 1
    if "Accumulated" in str(query("experiment.player.exchange", "")):
      period = query("exchange.AccumulatedGradients.period", 2)
    rows += [
      "from paragan_tf.sync import exchange",
      f"experiment.Experiment.batch_size = {size // levels.accumulate}",
      "experiment.player.exchange = @exchange.AccumulatedGradients",
      f"exchange.AccumulatedGradients.period = {period * levels.accumulate}",
    ]
  if levels.period > 1:
    period = query("exchange.Periodic.period", 2)
    rows += [
      "from paragan_tf.sync import exchange",
      f"exchange.Periodic.period = {period * levels.period}",
    ]
  if levels.reads > 1:
    rows += _more_reads(levels.reads, query)
  head = ["from __gin__ import dynamic_registration"]
  head += ["from paragan_tf import experiment"] if rows else []
  return [*head, *rows] if rows else []


def _more_reads(factor: int, query) -> List[str]:
  prefetch = query("input_fn.InputFn.prefetch", 2)
  if prefetch == "step_timing":
    depth = query("step_timing.StepTiming.min_depth", 2)
    return [
      "from paragan_tf.data import step_timing",
      f"step_timing.StepTiming.min_depth = {factor * depth}",
    ]
  return [
    "from paragan_tf.data import input_fn",
    f"input_fn.InputFn.prefetch = {factor * prefetch}",
  ]


def _query(name: str, default: Any) -> Any:
  try:
    return gin.query_parameter(name)
  except ValueError:
    return default


@gin.configurable
class Hold:
  """Compares a run with its plan, and may change it.

  Args:
    step_seconds: Of a step, as planned.
    input_seconds: That a step waits for its batch.
    exchange_seconds: Of a step's exchange.
    memory_bytes: Of a worker.
    memory_limit: Of a worker; 0 if it is not known.
    num_workers: That the plan is for; 0 for any number.
    tolerance: How far off a measure may be.
    acts: Whether to change what does not hold: to lower the batch and add
      gradients up if memory is short, read more ahead if the input is late, and
      exchange less often if that is slow.
    max_level: The largest factor of each change.
  """

  def __init__(
    self,
    step_seconds: float = gin.REQUIRED,
    input_seconds: float = 0.0,
    exchange_seconds: float = 0.0,
    memory_bytes: int = 0,
    memory_limit: int = 0,
    num_workers: int = 0,
    tolerance: float = hold.TOLERANCE,
    acts: bool = False,
    max_level: int = 8,
  ):
    if not step_seconds > 0 or not tolerance > 0:
      raise ValueError(
        "`Hold.step_seconds` and `Hold.tolerance` must be above 0, got "
        f"{step_seconds} and {tolerance}."
      )
    self.expected = Measured(
      step_seconds, input_seconds, exchange_seconds, memory_bytes, memory_limit
    )
    self.num_workers = num_workers
    self.tolerance = tolerance
    self.acts = acts
    self._max_level = max_level
    self._said: Set[str] = set()
    self._num_seen = 0
    self._exchange_seconds: Optional[float] = None

  def measure(
    self, experiment: Experiment, logs: Mapping[str, float]
  ) -> Measured:
    """Returns a step as it is, by the logs of an inner loop."""
    seconds = experiment.images_per_step / logs["images_per_second"]
    found = Measured(
      seconds,
      logs.get("input_wait", 0.0) * seconds,
      memory_bytes=worker_profile.peak_bytes() // _count_local(experiment),
    )
    return found

  def findings(
    self, experiment: Experiment, logs: Mapping[str, float]
  ) -> List[hold.Finding]:
    """Returns what does not hold; nothing while a run is being traced.

    All processes call it: a slow step makes them time a bare exchange.
    """
    self._num_seen += 1
    if self._num_seen == 1:  # Its time is that of tracing.
      return []
    found = self.measure(experiment, logs)
    late = found.step_seconds - found.input_seconds
    planned = self.expected.step_seconds - self.expected.input_seconds
    slow = late > planned + self.tolerance * self.expected.step_seconds
    if self._exchange_counts(experiment) and experiment.processes.any(slow):
      found = found._replace(exchange_seconds=self._time_exchange(experiment))
    return hold.check(self.expected, found, self.tolerance)

  def _exchange_counts(self, experiment: Experiment) -> bool:
    exchanges = [p.exchange for p in experiment.step.players.values()]
    several = experiment.strategy.num_replicas_in_sync > 1
    return several and any(x.communicates for x in exchanges)

  def _time_exchange(self, experiment: Experiment) -> float:
    """Returns the seconds of an exchange, mean over a period; timed once."""
    if self._exchange_seconds is None:
      players = experiment.step.players.values()
      shapes = [w.shape.as_list() for p in players for w in p.weights]
      found = worker_profile.time_exchanges(
        experiment.strategy, shapes, 0.0, schemes=("sync",)
      )
      self._exchange_seconds = found["sync"] / experiment.step.exchange_cycle
    return self._exchange_seconds

  def unsaid(self, findings: List[hold.Finding]) -> List[hold.Finding]:
    """Returns the findings that were not returned before."""
    found = [x for x in findings if x.name not in self._said]
    self._said.update(x.name for x in found)
    return found

  def agree(
    self, changes: Changes, findings: List[hold.Finding], run: "Progress"
  ) -> Changes:
    """Returns the changes from the next boundary on, those of the chief."""
    if not self.acts:
      return changes
    processes = run.experiment.processes
    return Changes.from_list(
      processes.on_chief(
        lambda: self._advance(changes, findings, run).to_list()
      )
    )

  def _advance(
    self, changes: Changes, findings: List[hold.Finding], run: "Progress"
  ) -> Changes:
    options = _options(run, self._max_level)
    levels = hold.advance(changes.levels, findings, options)
    more = levels.accumulate // changes.levels.accumulate
    left = run.num_steps - boundary(run.experiment, run.step)
    extra = changes.extra_steps + (more - 1) * max(left, 0)
    return Changes(levels, extra)


class Progress(NamedTuple):
  """How far a run is."""

  experiment: Experiment
  step: int
  num_steps: int
  intervals: Sequence[int] = ()


class Held:
  """A run and its plan, if it has one.

  Attributes:
    changes: That the run trains with.
    stops: The steps of which the run's loop returns at each multiple; where
      something is to change, another one is added.
  """

  def __init__(
    self,
    held_by: Optional[Hold],
    changes: Changes,
    experiment: Experiment,
    num_steps: int,
    intervals: Mapping[str, int],
    say: Callable[[str], None],
  ):
    self._hold = held_by
    self.changes = self._next = changes
    self._experiment = experiment
    self._num_steps = num_steps
    saved = ("save_every", "measure_every")
    self._intervals = [intervals[x] for x in saved if x in intervals]
    self._say = say
    self.stops: List[int] = []

  @property
  def acts(self) -> bool:
    """Whether the run may change."""
    return self._hold is not None and self._hold.acts

  def check(self, step: int, logs: Mapping[str, float]) -> None:
    """Says what is not as planned; decides what to change. An action."""
    if self._hold is None or self._next != self.changes:
      return
    num = self._experiment.strategy.num_replicas_in_sync
    if self._hold.num_workers not in (0, num):
      self._say(
        f"The plan is for {self._hold.num_workers} workers and {num} train "
        "here: nothing is compared with it."
      )
      self._hold = None
      return
    findings = self._hold.findings(self._experiment, logs)
    for finding in self._hold.unsaid(findings):
      self._say(f"Not as planned: {finding.text}")
    progress = Progress(
      self._experiment, step, self._num_steps, self._intervals
    )
    self._next = self._hold.agree(self.changes, findings, progress)
    if self._next != self.changes:
      self.stops.append(boundary_unit(self._experiment))
      at = boundary(self._experiment, step)
      self._say(f"From step {at} on, {self._next.describe(self.changes)}.")

  def lower_batch(self, step: int) -> Optional[Changes]:
    """Returns what to change after memory ran out; `None` if nothing can be.

    With several processes nothing can: the others wait for a message.

    Args:
      step: Of the checkpoint to go back to.
    """
    several = self._experiment.processes.count > 1
    if self._hold is None or several or step % boundary_unit(self._experiment):
      return None
    progress = Progress(
      self._experiment, step, self._num_steps, self._intervals
    )
    finding = hold.Finding("memory", 0, 0, "Memory ran out.")
    changes = self._hold.agree(self.changes, [finding], progress)
    return None if changes == self.changes else changes

  def is_due(self, step: int) -> bool:
    """Returns whether the run is to change at this step."""
    if self._next == self.changes:
      return False
    return step % boundary_unit(self._experiment) == 0

  def entries(self, step: int) -> List[Entry]:
    """Returns what a checkpoint keeps: who resumes there has the changes."""
    changes = self._next if self.is_due(step) else self.changes
    return [] if changes == Changes() else [changes.entry()]


def boundary(experiment: Experiment, step: int) -> int:
  """Returns the next step at which a run may change; maybe this one."""
  unit = boundary_unit(experiment)
  return -(-step // unit) * unit


def boundary_unit(experiment: Experiment) -> int:
  """Returns the steps between boundaries: periods as they are, and doubled."""
  return math.lcm(experiment.step.cycle, 2 * experiment.step.exchange_cycle)


def _options(run: Progress, max_level: int) -> Options:
  """Returns what may be changed in a run."""
  experiment = run.experiment
  cycle = 2 * experiment.step.exchange_cycle
  fits = all(interval % cycle == 0 for interval in run.intervals)
  exchanges = [p.exchange for p in experiment.step.players.values()]
  split = experiment.step.placement.is_split
  num = experiment.strategy.num_replicas_in_sync
  return Options(
    accumulate=not split
    and fits
    and experiment.batch_size % (2 * num) == 0
    and all(type(x) in (AllReduce, AccumulatedGradients) for x in exchanges),
    reads=True,
    period=not split and fits and all(type(x) is Periodic for x in exchanges),
    max_level=max_level,
  )


def _count_local(experiment: Experiment) -> int:
  """Returns the workers that share this process's memory."""
  if tf.config.list_logical_devices("GPU"):
    return 1
  return experiment.processes.num_local_replicas


def check_resumable(
  old: Optional[str], new: str, model_dir: str, changes: Changes
) -> None:
  """Refuses another config, but for what the run itself has changed since."""
  before = _NOTED.search(old or "")
  after = changes.note().get(NOTE)
  same = (before and before[1]) == after
  config.check_resumable(old, new, model_dir, () if same else (NOTE, *CHANGED))
