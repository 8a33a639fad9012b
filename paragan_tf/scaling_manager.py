"""The scaling manager: shares the batch, drives the steps and evaluates.

cfg = pg.Config(max_steps=1000)
scale_mgr = pg.ScalingManager(config=cfg, bs=2048, num_workers=128)
for step in cfg.max_steps:
  scale_mgr.train(gan)
scale_mgr.eval(metric="fid")
"""

import dataclasses
from typing import Any, Dict, Iterator, Mapping, Optional, Protocol

import gin

from paragan_tf import planning, profiling
from paragan_tf.data.array_input import UserData
from paragan_tf.engine.loop import Logs
from paragan_tf.engine.scaling import bindings, links, plan, rules
from paragan_tf.engine.scaling.profile import Profile
from paragan_tf.engine.scaling.schemes import SCHEMES
from paragan_tf.experiment import Experiment
from paragan_tf.outputs.measures import METRICS
from paragan_tf.outputs.metrics import OTHER_NAMES
from paragan_tf.run import Run

PROFILES = ("never", "cached", "measure")
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
    profile: Where the plan comes from: a 'cached' profile if there is one, so
      that nothing is slower; 'measure' measures one if there is none, which
      takes a minute or two; with 'never' the batch is only shared.
    scheme: One of `schemes.SCHEMES`; that of gin if empty.
    rate_rule: How learning rates follow the batch: 'none', 'linear', 'sqrt'.
    base_batch: The batch that the learning rates are made for; `bs` if 0.
    link: Between workers, one of `links.LINKS`.
    price: Of a device for an hour.
    cache_dir: Folder of profiles; by default in the user's cache.
  """

  max_steps: Steps
  input_fn: Optional[UserData] = None
  profile: str = "cached"
  scheme: str = ""
  rate_rule: str = "none"
  base_batch: int = 0
  link: str = "ethernet_10g"
  price: float = 0.0
  cache_dir: Optional[str] = None

  def __post_init__(self):
    object.__setattr__(self, "max_steps", _count(self.max_steps))
    for name, allowed in (
      ("profile", PROFILES),
      ("scheme", ("", *SCHEMES)),
      ("rate_rule", rules.RATE_RULES),
    ):
      if getattr(self, name) not in allowed:
        raise ValueError(
          f"`{name}` must be one of {', '.join(filter(None, allowed))}, got "
          f"{getattr(self, name)!r}."
        )
    links.find(self.link)


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

  @property
  def is_built(self) -> bool:
    """Whether its batch can no longer change."""

  def make_worker(
    self, input_fn: Optional[UserData], batch_size: int
  ) -> Experiment:
    """Returns one worker."""

  def describe(self) -> str:
    """Returns what a profile is of."""


class ScalingManager:
  """Shares the batch among workers, drives the steps and evaluates.

  It makes a plan from the profile of one worker, see `Config.profile`, and
  follows it: batches that do not fit the memory are computed in parts, whose
  gradients add up; learning rates follow `rate_rule`; the run says where it is
  not as planned. With fewer devices here than `num_workers`, each does the work
  of several: the gradient is that of the whole batch either way.

  Attributes:
    plan: What is followed, once there is one.

  Args:
    config: A `Config`; or anything with `max_steps`, and maybe `input_fn`, as
      attributes or keys, for the defaults of all else.
    bs: Images of one batch, over all workers; an estimator that has begun must
      have the same.
    num_workers: Among how many the batch is shared.
  """

  def __init__(self, config: Any, bs: int, num_workers: int = 1):
    rules.check_shares(bs, num_workers)
    self.batch_per_worker = bs // num_workers
    self.num_workers = num_workers
    max_steps = _read(config, "max_steps")
    self._max_steps = None if max_steps is None else _count(max_steps)
    self._input_fn = _read(config, "input_fn")
    # A config of another kind may have these names for something else.
    self._options = config if isinstance(config, Config) else Config(Steps(1))
    self.plan: Optional[plan.Plan] = None
    self._bs = bs
    self._gan: Optional[Gan] = None

  def train(self, gan: Gan, steps: int = 1) -> Logs:
    """Trains `gan` for `steps`, which are updates; returns the logs."""
    if gan is not self._gan:
      self._take(gan)
    return gan.advance(steps * self._parts)

  @property
  def _parts(self) -> int:
    return self.plan.accumulate if self.plan else 1

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
    gan.max_steps = self._max_steps
    if gan.is_built:
      gan.batch_size = self._bs  # Refuses another one.
    else:
      self._plan(gan)
    run = gan.get_run(self._input_fn)
    num = run.experiment.strategy.num_replicas_in_sync
    print(
      f"A batch of {self._bs} for {self.num_workers} worker(s), "
      f"{self.batch_per_worker} each, on {num} device(s) here.",
      flush=True,
    )
    self._gan = gan

  def _plan(self, gan: Gan) -> None:
    """Plans, and sets what the plan says, before `gan` is built."""
    gan.batch_size = self._bs
    found = self._profile(gan)
    if found is None:
      return
    options, steps = self._options, self._max_steps or 0
    goal = plan.Goal(
      self.num_workers,
      self._bs,
      num_updates=steps,
      base_batch=options.base_batch,
      rate_rule=options.rate_rule,
      link=links.find(options.link),
      price=options.price,
    )
    self.plan = plan.make_plan(found, goal, SCHEMES[options.scheme or "sync"])
    gan.batch_size = self.plan.batch_size
    gan.max_steps = steps * self._parts or None
    with gin.unlock_config():
      gin.parse_config(
        bindings.to_gin(
          self.plan,
          planning.read_intervals(),
          own_input=True,
          own_scheme=not options.scheme,
        )
      )
    print(planning.describe(self.plan), flush=True)

  def _profile(self, gan: Gan) -> Optional[Profile]:
    """Returns the profile of one worker, if there is one or one is asked."""
    options = self._options
    if options.profile == "never":
      return None
    hashed = profiling.config_hash(gan.describe())
    path = profiling.cache_path(options.cache_dir, hashed, 0)
    if path.is_file():
      return profiling.read(str(path), hashed)
    if options.profile == "cached":
      return None
    share = self.batch_per_worker
    found = profiling.profile_here(
      lambda batch: gan.make_worker(self._input_fn, batch),
      hashed,
      (max(1, share // 4), max(2, share), 2 * max(2, share)),
      planning.show_progress(),
    )
    profiling.write(found, path)
    return found


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
