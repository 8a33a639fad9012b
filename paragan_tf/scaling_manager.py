"""The scaling manager: shares the batch, drives the steps and evaluates.

cfg = pg.Config(max_steps=1000)
scale_mgr = pg.ScalingManager(config=cfg, bs=2048, num_workers=128)
for step in cfg.max_steps:
  scale_mgr.train(gan)
scale_mgr.eval(metric="fid")
"""

import dataclasses
from typing import Any, Dict, Iterator, Mapping, Optional, Protocol

from paragan_tf.data.array_input import UserData
from paragan_tf.engine.loop import Logs
from paragan_tf.outputs.measures import METRICS
from paragan_tf.outputs.metrics import OTHER_NAMES
from paragan_tf.run import Run

# What papers call a metric, and what it is called here.
_ALIASES = {"is": "inception_score"}


class Steps(int):
  """A number of steps: an int, over which one can iterate as over a range."""

  def __iter__(self) -> Iterator[int]:
    return iter(range(self))


@dataclasses.dataclass(frozen=True)
class Config:
  """What a scaling manager is to do.

  Attributes:
    max_steps: Steps in all, a number or a range; becomes `Steps`.
    input_fn: The images, as `Estimator.train` takes them.
  """

  max_steps: Steps
  input_fn: Optional[UserData] = None

  def __post_init__(self):
    object.__setattr__(self, "max_steps", _count(self.max_steps))


class Gan(Protocol):
  """What a manager needs of an estimator, see `api.Estimator`."""

  batch_size: int
  max_steps: Optional[int]

  def get_run(self, input_fn: Optional[UserData] = None) -> Run:
    """Returns the run."""

  def advance(self, steps: int = 1) -> Logs:
    """Trains a little."""

  def evaluate(self) -> Dict[str, Optional[float]]:
    """Returns metrics."""


class ScalingManager:
  """Shares the batch among workers, drives the steps and evaluates.

  With fewer devices here than `num_workers`, each does the work of several:
  the gradient is that of the whole batch either way.

  Args:
    config: A `Config`, or anything with `max_steps`, and maybe `input_fn`, as
      attributes or keys.
    bs: Images of one batch, over all workers; an estimator that has begun must
      have the same.
    num_workers: Among how many the batch is shared.
  """

  def __init__(self, config: Any, bs: int, num_workers: int = 1):
    if num_workers < 1 or bs < 1 or bs % num_workers:
      raise ValueError(
        f"`bs` must be a multiple of `num_workers`, got {bs} and "
        f"{num_workers}: every worker takes an equal share."
      )
    self.batch_per_worker = bs // num_workers
    self.num_workers = num_workers
    max_steps = _read(config, "max_steps")
    self._max_steps = None if max_steps is None else _count(max_steps)
    self._input_fn = _read(config, "input_fn")
    self._bs = bs
    self._gan: Optional[Gan] = None

  def train(self, gan: Gan, steps: int = 1) -> Logs:
    """Trains `gan` for `steps`; returns the logs."""
    if gan is not self._gan:
      self._take(gan)
    return gan.advance(steps)

  def eval(self, metric: str = "fid") -> Optional[float]:
    """Returns a metric of the `gan` that was trained, and saves that.

    Without the network of FID, `fid` is the Fréchet distance of another one's
    features; a line says which.

    Args:
      metric: A name of `measures.METRICS`, also `is`, or a full name, as
        `frechet_fashion`.
    """
    if self._gan is None:
      raise ValueError("`eval` measures what `train` has trained: train first.")
    run = self._gan.get_run()
    run.close_progress()
    name = _ALIASES.get(metric, metric)
    asked = _check_name(name)
    evaluation = run.experiment.evaluation
    run.experiment.processes.on_chief(lambda: evaluation.check(asked))
    run.save()
    values = self._gan.evaluate()
    found = _find(name, values)
    if found != metric:
      print(f"`{metric}` is `{found}` here.", flush=True)
    return values[found]

  def _take(self, gan: Gan) -> None:
    gan.batch_size = self._bs
    gan.max_steps = self._max_steps
    run = gan.get_run(self._input_fn)
    num = run.experiment.strategy.num_replicas_in_sync
    print(
      f"A batch of {self._bs} for {self.num_workers} worker(s), "
      f"{self.batch_per_worker} each, on {num} device(s) here.",
      flush=True,
    )
    self._gan = gan


def _count(max_steps: Any) -> Steps:
  """Returns a number of steps, that of a range included."""
  count = len(max_steps) if isinstance(max_steps, range) else max_steps
  if not isinstance(count, int) or isinstance(count, bool) or count < 1:
    raise ValueError(
      f"`max_steps` must be a number or a range, at least 1, got {max_steps!r}."
    )
  return Steps(count)


def _check_name(metric: str) -> str:
  """Returns the metric of a name that may end in an extractor."""
  names = {OTHER_NAMES.get(x, x): x for x in METRICS}
  if metric in METRICS:
    return metric
  for stem, name in names.items():
    if metric == stem or metric.startswith(f"{stem}_"):
      return name
  raise ValueError(
    f"`metric` must be one of {', '.join((*_ALIASES, *METRICS))}, got "
    f"'{metric}'."
  )


def _find(metric: str, values: Mapping[str, Any]) -> str:
  """Returns the full name of a metric, which may end in an extractor."""
  if metric in values:
    return metric
  stem = f"{OTHER_NAMES.get(metric, metric)}_"
  names = [x for x in values if not x.endswith("_real") and x != "global_step"]
  for name in names:
    if name.startswith(stem):
      return name
  raise ValueError(
    f"`metric` must be one of {', '.join(names)} here, got '{metric}'."
  )


def _read(config: Any, name: str) -> Any:
  if isinstance(config, Mapping):
    return config.get(name)
  return getattr(config, name, None)
