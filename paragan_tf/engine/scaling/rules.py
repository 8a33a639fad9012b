"""The rules of a plan: batches, learning rates, roles, prefetch."""

import math
from typing import List, NamedTuple, Optional, Sequence, Tuple

RATE_RULES = ("linear", "sqrt", "none")
# Of G and of D in a group, where each worker trains one player.
ROLES = ((1, 1), (2, 1), (1, 2), (3, 1), (1, 3))
# [ours] Of all updates, and at most so many.
_WARM_UP_SHARE, _MAX_WARM_UP = 0.05, 1000
# What a run keeps free of its memory for what was not measured.
MEMORY_SHARE = 0.9
_MIN_PREFETCH = 2


class Split(NamedTuple):
  """How a worker's share of a batch is computed.

  Attributes:
    batch: Images that it computes at once.
    accumulate: Gradients that are added up for one update.
  """

  batch: int
  accumulate: int


def split_batch(
  bs: int, num_workers: int, max_batch: float = math.inf, tile: int = 1
) -> Split:
  """Returns the fewest parts of a worker's share that fit its memory.

  Among parts that fit, one that fills tiles goes first.

  Args:
    bs: Images of an update, over all workers.
    num_workers: How many share them.
    max_batch: Images that fit the memory of a worker.
    tile: What a batch should be a multiple of, 8 on a TPU.
  """
  check_shares(bs, num_workers)
  share = bs // num_workers
  fitting = [k for k in divisors(share) if share // k <= max_batch]
  if not fitting:
    raise ValueError(
      f"`bs` {bs} on {num_workers} worker(s) does not fit: a worker's memory "
      f"takes {max_batch:.1f} images and each has {share}: take a smaller net, "
      "a lower resolution, or more memory."
    )
  tiled = [k for k in fitting if share // k % tile == 0]
  parts = (tiled or fitting)[0]
  return Split(share // parts, parts)


def check_shares(bs: int, num_workers: int) -> None:
  """Refuses a batch that workers cannot share equally."""
  for name, value in (("num_workers", num_workers), ("bs", bs)):
    if not isinstance(value, int) or value < 1:
      raise ValueError(f"`{name}` must be an integer above 0, got {value!r}.")
  if bs < num_workers:
    raise ValueError(
      f"`bs` must be at least `num_workers`, got {bs} and {num_workers}: every "
      "worker takes an image or more."
    )
  if bs % num_workers:
    below = bs - bs % num_workers
    raise ValueError(
      f"`bs` must be a multiple of `num_workers`, got {bs} and {num_workers}: "
      f"every worker takes an equal share; take {below} or "
      f"{below + num_workers}."
    )


def divisors(number: int) -> List[int]:
  """Returns all divisors, ascending."""
  return [k for k in range(1, number + 1) if number % k == 0]


def max_batch(fixed: float, per_image: float, limit: float) -> float:
  """Returns the images that fit the memory; infinite if that is not known."""
  if not limit:
    return math.inf
  free = MEMORY_SHARE * limit - fixed
  if free <= 0:
    return 0.0
  return free / per_image if per_image else math.inf


def rate_factor(
  rule: str, batch: int, base_batch: int, noise_scale: float = 0.0
) -> float:
  """Returns what a learning rate is multiplied by for another batch.

  The rate may grow as the batch does, `linear`, or as its root, `sqrt`, until
  the batch exceeds the noise scale N: then as `1 / (1 + N / batch)` does (arXiv
  1812.06162, equation 2.7), or its root.

  Args:
    rule: One of `RATE_RULES`.
    batch: Images of an update.
    base_batch: Images that the rate is made for.
    noise_scale: In images; 0 if it is not known, and sets no bound.
  """
  if rule not in RATE_RULES:
    raise ValueError(
      f"`rate_rule` must be one of {', '.join(RATE_RULES)}, got '{rule}'."
    )
  if min(batch, base_batch) < 1 or noise_scale < 0:
    raise ValueError(
      "Batches must be above 0 and `noise_scale` at least 0, got "
      f"{batch}, {base_batch} and {noise_scale}."
    )
  ratio = batch / base_batch
  if noise_scale:
    ratio = (1 + noise_scale / base_batch) / (1 + noise_scale / batch)
  return {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[rule]


def warm_up_steps(factor: float, num_updates: int) -> int:
  """Returns the updates of a warm-up: none unless the rate was raised."""
  if factor <= 1:
    return 0
  return min(_MAX_WARM_UP, math.ceil(_WARM_UP_SHARE * num_updates))


def fits_roles(
  roles: Tuple[int, int], batch_size: int, num_workers: int
) -> bool:
  """Returns whether a batch can be shared by workers with one role each."""
  size = sum(roles)
  if num_workers % size:
    return False
  groups = num_workers // size
  num_g, num_d = groups * roles[0], groups * roles[1]
  return batch_size % num_g == 0 and batch_size % num_d == 0


class Prefetch(NamedTuple):
  """How far the input may run ahead.

  Attributes:
    follows_steps: Whether the depth follows step timings.
    min_depth: Batches ahead, at least.
    max_bytes: Ahead, at most; 0 for the default.
  """

  follows_steps: bool = False
  min_depth: int = _MIN_PREFETCH
  max_bytes: int = 0


def plan_prefetch(
  images_per_second: float, input_rate: float, free_bytes: Optional[float]
) -> Prefetch:
  """Returns the bounds of what is read ahead.

  An input that is less than twice as fast as it must be follows the steps, and
  may take a quarter of the memory that is free.

  Args:
    images_per_second: That a worker takes.
    input_rate: That its input makes alone; 0 if it is not known.
    free_bytes: Of the worker's memory; `None` if it is not known.
  """
  if not input_rate or input_rate >= 2 * images_per_second:
    return Prefetch()
  bound = 0 if free_bytes is None else max(1 << 20, int(free_bytes / 4))
  return Prefetch(True, 2 * _MIN_PREFETCH, bound)


def round_up(values: Sequence[int], unit: int) -> List[int]:
  """Returns the next multiples of a unit."""
  return [-(-value // unit) * unit for value in values]
