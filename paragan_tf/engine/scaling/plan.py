"""A plan: how many workers train a run together, and what that takes.

    goal = Goal(num_workers=1024, bs=16384, num_images=...)
    plan = make_plan(profile, goal, SCHEMES["sync"])
    rows = compare(profile, goal)          # of all schemes, the fastest first

Pure functions of a profile.
"""

import math
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from paragan_tf.engine.scaling import costs, links, rules
from paragan_tf.engine.scaling.costs import SCHEMES, Machine, Prediction, Scheme
from paragan_tf.engine.scaling.links import LINKS, Link
from paragan_tf.engine.scaling.profile import Profile
from paragan_tf.engine.scaling.rules import Prefetch

_HOUR = 3600.0
# Schemes whose updates are those of one batch that all workers share, so that
# gradients may be added up over several steps.
_ACCUMULATES = ("sync", "gradients_every_other_step")
# A G for each label is another model: it is listed, and never the best.
_OTHER_MODELS = ("per_label",)


class Goal(NamedTuple):
  """What to plan for.

  Attributes:
    num_workers: How many train; each has one device.
    bs: Images of an update, over all workers.
    num_updates: How many updates; 0 goes by `num_images`.
    num_images: Real images to train on, instead.
    base_batch: Images that the learning rates are made for; `bs` if 0.
    rate_rule: One of `rules.RATE_RULES`.
    link: Between workers.
    machine: That workers share.
    price: Of a device for an hour.
    tile: What a worker's batch should be a multiple of, 8 on a TPU.
    config_hash: Of the config that the plan is for; not checked if empty.
  """

  num_workers: int
  bs: int
  num_updates: int = 0
  num_images: int = 0
  base_batch: int = 0
  rate_rule: str = "none"
  link: Link = LINKS["ethernet_10g"]
  machine: Machine = Machine()
  price: float = 0.0
  tile: int = 1
  config_hash: str = ""


class Plan(NamedTuple):
  """How a run is trained on many workers.

  Attributes:
    scheme: Its name.
    num_workers: How many.
    bs: Images of an update, over all workers.
    batch_per_worker: That a worker computes at once.
    accumulate: Steps whose gradients make one update.
    period: Steps from one exchange to the next.
    roles: Workers of G and of D in a group, if each trains one player.
    rate_factors: Of 'g' and 'd'.
    warm_up_steps: Updates of 'g' and 'd'.
    prefetch: Bounds of the input.
    num_steps: Of the loop, to the goal; 0 if it has none.
    prediction: Of a step.
    memory_bytes: Of a worker.
    memory_limit: Of a worker; 0 if it is not known.
    seconds: To the goal.
    device_hours: To the goal.
    price: Of all device hours.
    notes: Remarks, a sentence each.
  """

  scheme: str
  num_workers: int
  bs: int
  batch_per_worker: int
  accumulate: int
  period: int
  roles: Optional[Sequence[int]]
  rate_factors: Mapping[str, float]
  warm_up_steps: Mapping[str, int]
  prefetch: Prefetch
  num_steps: int
  prediction: Prediction
  memory_bytes: int
  memory_limit: int
  seconds: float
  device_hours: float
  price: float
  notes: Sequence[str] = ()

  @property
  def batch_size(self) -> int:
    """Images of a step of the loop, over all workers."""
    return self.batch_per_worker * self.num_workers


class Refused(NamedTuple):
  """A scheme that cannot be planned, and why."""

  scheme: str
  reason: str


def make_plan(profile: Profile, goal: Goal, scheme: Scheme) -> Plan:
  """Returns the plan of one scheme; a `ValueError` says why there is none."""
  _check(profile, goal)
  scheme = _choose_roles(profile, goal, scheme)
  limit = memory_limit(profile, goal)
  fits = rules.max_batch(*profile.memory_bytes[:2], limit)
  split = _split(goal, scheme, fits)
  if split.accumulate > 1:
    scheme = SCHEMES["gradients_every_other_step"]._replace(
      period=split.accumulate
    )
  prediction = costs.predict(
    profile,
    scheme,
    goal.num_workers,
    split.batch,
    goal.link,
    goal.machine,
  )
  num_updates = _count_updates(profile, goal)
  num_steps = num_updates * split.accumulate
  seconds = num_steps * prediction.step_seconds
  hours = goal.num_workers * seconds / _HOUR
  memory = int(profile.memory_bytes.at(split.batch / _smallest_share(scheme)))
  factors = {
    who: rules.rate_factor(
      goal.rate_rule, goal.bs, goal.base_batch or goal.bs, scale
    )
    for who, scale in _noise_scales(profile).items()
  }
  return Plan(
    scheme=scheme.name,
    num_workers=goal.num_workers,
    bs=goal.bs,
    batch_per_worker=split.batch,
    accumulate=split.accumulate,
    period=scheme.period,
    roles=scheme.roles,
    rate_factors=factors,
    warm_up_steps={
      who: rules.warm_up_steps(factor, num_updates)
      for who, factor in factors.items()
    },
    prefetch=rules.plan_prefetch(
      prediction.images_per_second / goal.num_workers,
      profile.input_images_per_second,
      limit - memory if limit else None,
    ),
    num_steps=num_steps,
    prediction=prediction,
    memory_bytes=memory,
    memory_limit=limit,
    seconds=seconds,
    device_hours=hours,
    price=hours * goal.price,
    notes=tuple(_notes(profile, goal, split.batch)),
  )


def compare(
  profile: Profile, goal: Goal, schemes: Sequence[Scheme] = ()
) -> List[Union[Plan, Refused]]:
  """Returns the plans of schemes, the fastest first, then those refused."""
  _check(profile, goal)  # What no scheme can do is an error.
  rules.split_batch(
    goal.bs,
    goal.num_workers,
    rules.max_batch(*profile.memory_bytes[:2], memory_limit(profile, goal)),
  )
  plans: List[Plan] = []
  refused: List[Refused] = []
  for scheme in schemes or tuple(SCHEMES.values()):
    try:
      plans.append(make_plan(profile, goal, scheme))
    except ValueError as e:
      refused.append(Refused(scheme.name, str(e)))
  plans = list({(p.scheme, p.period): p for p in plans}.values())
  plans.sort(key=lambda p: -p.prediction.images_per_second)
  return [*plans, *refused]


def best(rows: Sequence[Union[Plan, Refused]]) -> Plan:
  """Returns the fastest plan that trains the run's own model."""
  for row in rows:
    if isinstance(row, Plan) and row.scheme not in _OTHER_MODELS:
      return row
  reasons = "; ".join(f"{x.scheme}: {x.reason}" for x in rows)  # type: ignore
  raise ValueError(f"No scheme can be planned: {reasons}")


def why(winner: Plan, other: Plan) -> str:
  """Returns what makes a plan faster than another, in one sentence."""
  parts = ("compute", "wait", "software", "wire", "input")
  images = [p.batch_size for p in (winner, other)]
  saved: Dict[str, float] = {
    part: getattr(other.prediction, part) / images[1]
    - getattr(winner.prediction, part) / images[0]
    for part in parts
  }
  part = max(saved, key=lambda name: saved[name])
  if winner.scheme == other.scheme or saved[part] <= 0:
    return f"`{winner.scheme}` is the fastest."
  rates = winner.prediction, other.prediction
  gain = rates[0].images_per_second / rates[1].images_per_second
  return (
    f"`{winner.scheme}` is {gain:.2f} times as fast as `{other.scheme}`, most "
    f"of all by its {_NAMES[part]}."
  )


_NAMES = {
  "compute": "computation",
  "wait": "shorter waits for other workers",
  "software": "cheaper messages",
  "wire": "time on the wire",
  "input": "input",
}


def memory_limit(profile: Profile, goal: Goal) -> int:
  """Returns the bytes of a worker: those of a CPU are shared by workers."""
  if "CPU" not in profile.memory_source:
    return profile.memory_limit
  return profile.memory_limit // min(goal.num_workers, goal.machine.workers)


def _check(profile: Profile, goal: Goal) -> None:
  check_goal(goal)
  if goal.config_hash and goal.config_hash != profile.config_hash:
    raise ValueError(
      f"The profile is of another config ({profile.config_hash}, this one is "
      f"{goal.config_hash}): measure this one."
    )


def check_goal(goal: Goal) -> None:
  """Refuses a goal that no profile can meet."""
  rules.check_shares(goal.bs, goal.num_workers)
  links.check(goal.link, goal.num_workers)
  rules.rate_factor(goal.rate_rule, 1, 1)
  for name in ("num_updates", "num_images", "price", "base_batch"):
    value = getattr(goal, name)
    if not 0 <= value < math.inf:
      raise ValueError(f"`{name}` must be at least 0, got {value}.")
  if goal.num_updates and goal.num_images:
    raise ValueError(
      "One of `num_updates` and `num_images` may be given, got "
      f"{goal.num_updates} and {goal.num_images}."
    )


def _choose_roles(profile: Profile, goal: Goal, scheme: Scheme) -> Scheme:
  """Returns a scheme with the shares of roles that are the fastest."""
  if scheme.roles is None:
    return scheme
  if goal.num_workers == 1:
    return scheme
  found = [
    scheme._replace(roles=roles)
    for roles in rules.ROLES
    if rules.fits_roles(roles, goal.bs, goal.num_workers)
  ]
  if not found:
    raise ValueError(
      f"`bs` {goal.bs} and {goal.num_workers} workers fit no shares of G and "
      "D: take an even number of workers, and a multiple of it."
    )
  share = goal.bs // goal.num_workers
  return min(
    found,
    key=lambda x: (
      costs.predict(
        profile, x, goal.num_workers, share, goal.link, goal.machine
      ).step_seconds
    ),
  )


def _smallest_share(scheme: Scheme) -> float:
  """Returns the part of all workers that the smaller role has."""
  if scheme.roles is None:
    return 1.0
  return min(scheme.roles) / sum(scheme.roles)


def _split(goal: Goal, scheme: Scheme, fits: float) -> rules.Split:
  """Returns a worker's batch and accumulation, as a scheme permits it."""
  bs, num = goal.bs, goal.num_workers
  if scheme.name == "gradients_every_other_step":
    if bs // num % 2:
      raise ValueError(
        f"`bs` must give each worker an even share, got {bs} for {num}: it is "
        "computed in two parts."
      )
    split = rules.split_batch(bs // 2, num, fits, goal.tile)
    return split._replace(accumulate=2 * split.accumulate)
  fits *= _smallest_share(scheme)
  split = rules.split_batch(bs, num, fits, 1)
  if split.accumulate == 1 or scheme.name in _ACCUMULATES:
    return rules.split_batch(bs, num, fits, goal.tile)
  raise ValueError(
    f"A worker's memory takes {fits:.0f} images and each has {bs // num}, and "
    f"`{scheme.name}` cannot add gradients up: take `sync`, more workers or a "
    "smaller `bs`."
  )


def _count_updates(profile: Profile, goal: Goal) -> int:
  if goal.num_images:
    return math.ceil(goal.num_images / (goal.bs * profile.num_batches))
  return goal.num_updates


def _noise_scales(profile: Profile) -> Dict[str, float]:
  return {who: profile.noise_scale.get(who, 0.0) for who in "gd"}


def _notes(profile: Profile, goal: Goal, batch: int) -> List[str]:
  found = []
  if goal.tile > 1 and batch % goal.tile:
    better = goal.num_workers * rules.round_up([batch], goal.tile)[0]
    found.append(
      f"A worker's batch of {batch} is padded to a multiple of {goal.tile}: "
      f"`bs` {better} fills it."
    )
  for who, scale in _noise_scales(profile).items():
    if scale and goal.bs > scale:
      found.append(
        f"`bs` {goal.bs} is above the noise scale of `{who}`, {scale:.0f} "
        "images: a larger batch saves few updates."
      )
  measured = [*profile.batches]
  if measured and not min(measured) <= batch <= max(measured):
    found.append(
      f"A worker's batch of {batch} is outside of what was measured, "
      f"{min(measured)} to {max(measured)}."
    )
  return found
