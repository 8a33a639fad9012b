"""A plan as the gin file that realizes it.

    python -m tools.train --gin_file=gin/runs/fashion.gin --gin_file=plan.gin

It is read after a run's own file. A file of `gin/sync/` sets the scheme; the
bindings below it set batch, period, roles, rates and input, and what
`holding.Hold` compares the run with.
"""

from typing import Dict, List, Mapping, Tuple

from paragan_tf.engine.scaling import rules
from paragan_tf.engine.scaling.plan import Plan

# The file of each scheme, and what it needs beside it.
_FILES: Dict[str, Tuple[str, Tuple[str, ...]]] = {
  "sync": ("all_reduce", ()),
  "every_other_step": ("every_other_step", ()),
  "gradients_every_other_step": ("gradients_every_other_step", ()),
  "async": ("async", ()),
  "paragan": ("paragan", ()),
  "gossip": ("gossip", ()),
  "quantized": ("quantized", ("quantize.Quantized.form = 'gather'",)),
  "quantized_two_phase": (
    "quantized",
    ("quantize.Quantized.form = 'two_phase'",),
  ),
}
_PERIODS = {
  "every_other_step": "exchange.Periodic",
  "paragan": "exchange.Periodic",
  "gradients_every_other_step": "exchange.AccumulatedGradients",
}
_IMPORTS = (
  "from __gin__ import dynamic_registration",
  "from paragan_tf import experiment",
  "from paragan_tf import holding",
  "from paragan_tf import run",
  "from paragan_tf.data import input_fn",
  "from paragan_tf.data import step_timing",
  "from paragan_tf.game import schedule",
  "from paragan_tf.sync import exchange",
  "from paragan_tf.sync import quantize",
)


def to_gin(
  plan: Plan,
  intervals: Mapping[str, int],
  own_input: bool = False,
  acts: bool = False,
  own_scheme: bool = False,
) -> str:
  """Returns the gin file of a plan.

  Args:
    plan: What to realize.
    intervals: The run's `save_every` and `measure_every`, which become
      multiples of the period.
    own_input: Whether the images come from a program; its input is left alone.
    acts: Whether the run may change what the plan says, see `holding.Hold`.
    own_scheme: Whether the run keeps its own scheme, unless gradients add up.
  """
  if plan.scheme not in _FILES:
    raise ValueError(
      f"`{plan.scheme}` is not trained by one run, and has no gin file: take "
      f"one of {', '.join(_FILES)}."
    )
  file, more = _FILES[plan.scheme]
  keeps = own_scheme and plan.accumulate == 1
  scheme = [
    f"include 'gin/sync/{file}.gin'",
    *more,
    *_period(plan),
    *_roles(plan),
  ]
  rows = [
    f"# {plan.num_workers} workers, {plan.batch_per_worker} images each: "
    f"{plan.prediction.images_per_second:.0f} images a second expected.",
    *_IMPORTS,
    "",
    *([] if keeps else scheme),
    f"experiment.Experiment.batch_size = {plan.batch_size}",
    *_rates(plan),
    *_steps(plan, intervals),
    *([] if own_input else _input(plan)),
    *_expected(plan, acts),
  ]
  return "\n".join(rows) + "\n"


def _period(plan: Plan) -> List[str]:
  if plan.scheme not in _PERIODS:
    return []
  rows = [f"{_PERIODS[plan.scheme]}.period = {plan.period}"]
  if plan.scheme == "paragan":  # D takes the fakes of each step of a period.
    rows.append(f"schedule.Asynchronous.cache_depth = {plan.period}")
  return rows


def _roles(plan: Plan) -> List[str]:
  if plan.roles is None:
    return []
  return [
    f"schedule.Asynchronous.{who}_per_group = {num}"
    for who, num in zip("gd", plan.roles)
  ]


def _rates(plan: Plan) -> List[str]:
  rows = []
  for who in "gd":
    rows += [
      f"{who}/experiment.player.rate_factor = {plan.rate_factors[who]!r}",
      f"{who}/experiment.player.warm_up_steps = {plan.warm_up_steps[who]}",
    ]
  return rows


def _steps(plan: Plan, intervals: Mapping[str, int]) -> List[str]:
  rows = [f"run.Run.num_steps = {plan.num_steps}"] if plan.num_steps else []
  names = [name for name, value in intervals.items() if value]
  values = rules.round_up([intervals[name] for name in names], plan.period)
  return rows + [f"run.Run.{n} = {v}" for n, v in zip(names, values)]


def _input(plan: Plan) -> List[str]:
  if not plan.prefetch.follows_steps:
    return []
  rows = [
    "input_fn.InputFn.prefetch = 'step_timing'",
    f"step_timing.StepTiming.min_depth = {plan.prefetch.min_depth}",
  ]
  if plan.prefetch.max_bytes:
    rows.append(f"step_timing.StepTiming.max_bytes = {plan.prefetch.max_bytes}")
  return rows


def _expected(plan: Plan, acts: bool) -> List[str]:
  found = plan.prediction
  return [
    "run.Run.hold = @holding.Hold()",
    f"holding.Hold.step_seconds = {found.step_seconds!r}",
    f"holding.Hold.input_seconds = {found.input!r}",
    f"holding.Hold.exchange_seconds = {found.software + found.wire!r}",
    f"holding.Hold.memory_bytes = {plan.memory_bytes}",
    f"holding.Hold.memory_limit = {plan.memory_limit}",
    f"holding.Hold.num_workers = {plan.num_workers}",
    f"holding.Hold.acts = {acts}",
  ]
