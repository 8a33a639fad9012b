"""A run on many workers, step by step, with what the closed form leaves out.

    each worker:  wait for the next batch (some are read ahead)
                  compute (jitter, stalls, slow workers)
    at a period's end:
      collective: wait for all workers, then exchange at the slowest port's pace
      neighbors:  wait for both, then exchange at the slowest of three ports

Events are the ends of these; those of all workers are computed at once, so 4096
workers take seconds. Without disturbances a step takes what `costs.predict`
says.
"""

from typing import Dict, NamedTuple, Optional, Sequence

import numpy as np

from paragan_tf.engine.scaling.costs import (
  Machine,
  Parts,
  Prediction,
  Scheme,
  split_step,
)
from paragan_tf.engine.scaling.links import Link
from paragan_tf.engine.scaling.profile import Profile


class Disturbances(NamedTuple):
  """What differs between workers and from step to step.

  Attributes:
    jitter: Standard deviation of a worker's step, relative to its mean; gamma
      distributed, so never negative.
    steps: Measured steps of one worker, relative to their mean, to draw from in
      place of `jitter`.
    stall_rate: Share of the steps in which a worker stalls.
    stall: How long, in steps.
    slow_share: Share of the workers that are slower all the time.
    slowdown: Their time, relative to the others'.
    congestion_rate: Share of the exchanges in which other traffic shares a
      worker's port.
    congestion: How long bytes then take, relative to a free port.
    input_jitter: As `jitter`, of a batch's reading.
    read_ahead: Batches that are read ahead at most.
  """

  jitter: float = 0.0
  steps: Sequence[float] = ()
  stall_rate: float = 0.0
  stall: float = 1.0
  slow_share: float = 0.0
  slowdown: float = 1.0
  congestion_rate: float = 0.0
  congestion: float = 1.0
  input_jitter: float = 0.0
  read_ahead: int = 2


def simulate(
  profile: Profile,
  scheme: Scheme,
  num_workers: int,
  batch_per_worker: int,
  link: Link,
  machine: Optional[Machine] = None,
  disturbances: Optional[Disturbances] = None,
  num_steps: int = 200,
  seed: int = 0,
) -> Prediction:
  """Returns what a step takes, as mean over workers and steps.

  Args:
    profile: Of one worker.
    scheme: How the workers train together.
    num_workers: How many there are.
    batch_per_worker: Images of a worker, in each batch.
    link: Between the workers.
    machine: As of `costs.predict`; its `jitter` counts if `disturbances` has
      none.
    disturbances: What differs between workers and steps.
    num_steps: To simulate, at least; a tenth more comes before.
    seed: Of all draws.
  """
  machine = machine or Machine()
  disturbances = disturbances or Disturbances(jitter=machine.jitter)
  _check(disturbances, num_steps)
  parts = split_step(
    profile, scheme, num_workers, batch_per_worker, link, machine
  )
  run = _Run(scheme, parts, num_workers, link, disturbances, seed)
  num_cycles = -(-num_steps // scheme.period)
  for _ in range(1 + num_cycles // 10):  # Buffers fill, workers drift apart.
    run.cycle()
  run.forget()
  for _ in range(num_cycles):
    run.cycle()
  times = run.times(num_cycles * scheme.period)
  step = sum(times.values())
  rate = parts.images / step
  batches = parts.images / num_workers
  alone = batches / profile.step_seconds.at(batch_per_worker)
  return Prediction(
    scheme=scheme.name,
    num_workers=num_workers,
    batch_per_worker=batch_per_worker,
    step_seconds=step,
    images_per_second=rate,
    efficiency=rate / (num_workers * alone),
    bytes_sent=parts.messages.num_bytes / scheme.period,
    **times,
  )


class _Run:
  """The clocks of all workers, and where their time went."""

  def __init__(
    self,
    scheme: Scheme,
    parts: Parts,
    num_workers: int,
    link: Link,
    disturbances: Disturbances,
    seed: int,
  ):
    self._scheme, self._parts, self._d = scheme, parts, disturbances
    self._rng = np.random.default_rng(seed)
    self._m = m = num_workers
    self._free = np.zeros(m)
    self._compute = _by_role(parts, m)
    slow = self._rng.permutation(m) < round(disturbances.slow_share * m)
    self._compute = np.where(slow, disturbances.slowdown, 1.0) * self._compute
    # Workers that share a port are as near as memory: they wait as one.
    self._port = np.arange(m) // link.sharers
    self._read = np.zeros(m)
    self._taken = np.zeros((disturbances.read_ahead, m))
    self._step = 0
    self.forget()

  def forget(self) -> None:
    """Starts to count."""
    names = ("compute", "wait", "software", "wire", "input")
    self._spent: Dict[str, np.ndarray] = {n: np.zeros(self._m) for n in names}

  def times(self, num_steps: int) -> Dict[str, float]:
    """Returns the seconds of a step, by part: means over all workers."""
    return {
      name: float(spent.mean()) / num_steps
      for name, spent in self._spent.items()
    }

  def cycle(self) -> None:
    """Runs the steps of a period, and the exchange at its end."""
    for _ in range(self._scheme.period):
      self._wait_for_batch()
      self._run("compute", self._compute * self._draw_steps())
    collective = self._scheme.collective
    if collective == "none" or self._m == 1:
      return
    pace = self._draw_pace()
    if collective == "neighbors":
      pace = _over_neighbors(pace)
      self._wait_until(_over_neighbors(self._free))
    else:
      pace = np.full(self._m, pace.max())
      self._wait_until(np.full(self._m, self._free.max()))
    self._run("software", np.full(self._m, self._parts.software))
    seconds = self._parts.messages.seconds_of_bytes
    self._run("wire", self._parts.wire + (pace - 1) * seconds)

  def _wait_for_batch(self) -> None:
    """Waits for the batch that was read while others were trained on."""
    if not self._parts.input:
      return
    slot = self._step % len(self._taken)
    began = np.maximum(self._read, self._taken[slot])
    jitter = _gamma(self._rng, self._d.input_jitter, self._m)
    self._read = began + self._parts.input * jitter
    start = np.maximum(self._free, self._read)
    self._spent["input"] += start - self._free
    self._free = self._taken[slot] = start
    self._step += 1

  def _draw_steps(self) -> np.ndarray:
    """Returns the time of each worker's step, relative to its mean."""
    d, m = self._d, self._m
    if len(d.steps):
      drawn = self._rng.choice(np.asarray(d.steps, float), m)
    else:
      drawn = _gamma(self._rng, d.jitter, m)
    if d.stall_rate:
      drawn = drawn + d.stall * (self._rng.random(m) < d.stall_rate)
    return drawn

  def _draw_pace(self) -> np.ndarray:
    """Returns how long each worker's bytes take, relative to a free port."""
    if not self._d.congestion_rate:
      return np.ones(self._m)
    is_busy = self._rng.random(self._m) < self._d.congestion_rate
    return np.where(is_busy[self._port], self._d.congestion, 1.0)

  def _wait_until(self, begin: np.ndarray) -> None:
    self._spent["wait"] += begin - self._free
    self._free = begin

  def _run(self, name: str, seconds: np.ndarray) -> None:
    self._spent[name] += seconds
    self._free = self._free + seconds


def _by_role(parts: Parts, m: int) -> np.ndarray:
  """Returns the seconds of each worker's step: those of G, then those of D."""
  ends = np.cumsum(parts.shares)
  place = (np.arange(m) + 0.5) / m
  return np.asarray(parts.compute)[np.searchsorted(ends, place)]


def _over_neighbors(values: np.ndarray) -> np.ndarray:
  """Returns the maximum over each worker and its neighbors in a ring."""
  return np.maximum(values, np.maximum(np.roll(values, 1), np.roll(values, -1)))


def _gamma(rng: np.random.Generator, deviation: float, num: int) -> np.ndarray:
  """Returns numbers above 0 with mean 1 and a standard deviation."""
  if not deviation:
    return np.ones(num)
  return rng.gamma(deviation**-2, deviation**2, num)


def _check(d: Disturbances, num_steps: int) -> None:
  """Refuses what cannot be."""
  if num_steps < 1:
    raise ValueError(f"`num_steps` must be at least 1, got {num_steps}.")
  for name in ("jitter", "input_jitter", "stall"):
    if not getattr(d, name) >= 0:
      raise ValueError(f"`{name}` must be 0 or more, got {getattr(d, name)}.")
  for name in ("stall_rate", "slow_share", "congestion_rate"):
    if not 0 <= getattr(d, name) <= 1:
      raise ValueError(f"`{name}` must be in [0, 1], got {getattr(d, name)}.")
  for name in ("slowdown", "congestion", "read_ahead"):
    if not getattr(d, name) >= 1:
      raise ValueError(f"`{name}` must be at least 1, got {getattr(d, name)}.")
  if len(d.steps) and not min(d.steps) > 0:
    raise ValueError("`steps` must all be above 0.")
