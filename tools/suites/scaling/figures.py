"""The figures of the suite `scaling` for real runs, and their table."""

from typing import Dict, List, Mapping, Sequence

import numpy as np

from tools.suites.interleave import add_spread
from tools.suites.scaling import model
from tools.suites.scaling.measure import BATCH, Exchanged, Measured, Solo
from tools.suites.scaling.model import Case

_MAX_ERROR = 0.15
_MIN_EFFICIENCY = 0.91


def gather(
  solo: Solo, exchanged: Sequence[Exchanged], measured: Sequence[Measured]
) -> Dict[str, float]:
  """Returns the figures by name."""
  figures = {
    "step_ms": 1e3 * solo.alone["all_reduce", BATCH],
    "jitter": model.measure_jitter(solo),
    "contention": model.make_machine(solo, exchanged, 2).contention,
    "profile_fit_error": model.make_profile(solo).step_seconds.error,
  }
  for num in sorted({one.num_workers for one in exchanged}):
    software = model.fit_software(exchanged, num)
    figures[f"software_call_ms_{num}"] = 1e3 * software.call
    figures[f"software_message_ms_{num}"] = 1e3 * software.message
    figures[f"software_ms_per_mb_{num}"] = 1e9 * software.byte
    figures[f"software_fit_error_{num}"] = software.error
  for num, collective, num_bytes, taken in exchanged:
    figures[f"exchange_ms_{collective}_{num_bytes}_{num}"] = 1e3 * taken
  cases: Dict[Case, np.ndarray] = {
    (x.scheme, x.num_workers, x.link): x.seconds for x in measured
  }
  seconds = {case: float(np.median(x)) for case, x in cases.items()}
  makers = {
    "predicted": model.predict_case,
    "simulated": model.simulate_case,
  }
  for how, make in makers.items():
    found = {case: make(solo, exchanged, case) for case in cases}
    errors = model.compute_errors(found, seconds)
    for case, one in found.items():
      name = f"{case[0]}_{case[2]}_{case[1]}"
      figures[f"{how}_images_per_second_{name}"] = one.images_per_second
      figures[f"{how}_error_{name}"] = errors[case]
    for num in sorted({case[1] for case in cases}):
      worst = max(errors[case] for case in cases if case[1] == num)
      what = "prediction" if how == "predicted" else "simulation"
      figures[f"{what}_error_{num}"] = worst
  for (scheme, num, link), values in cases.items():
    name = f"measured_images_per_second_{scheme}_{link}_{num}"
    add_spread(figures, name, num * BATCH / values)
  return figures


def format_table(
  figures: Mapping[str, float], measured: Sequence[Measured]
) -> str:
  """Returns the figures of real runs as text."""
  lines = [
    "Images/s of real processes, one thread each, two cores: measured "
    "(quartiles), predicted, simulated",
  ]
  for one in measured:
    name = f"{one.scheme}_{one.link}_{one.num_workers}"
    real = f"measured_images_per_second_{name}"
    cells = [
      f"{figures[real]:8.1f} ({figures[f'{real}_low']:.1f} - "
      f"{figures[f'{real}_high']:.1f})".ljust(28)
    ]
    for how in ("predicted", "simulated"):
      value = figures[f"{how}_images_per_second_{name}"]
      cells.append(f"{value:8.1f} ({figures[f'{how}_error_{name}']:.0%})")
    title = f"{one.scheme}, {one.link}, {one.num_workers}"
    lines.append(f"{title:36}{''.join(f'{cell:20}' for cell in cells)}")
  return "\n".join([*lines, "", *_format_inputs(figures)])


def format_targets(figures: Mapping[str, float]) -> str:
  """Returns which targets are met."""
  targets = (
    ("prediction_error_2", "<=", _MAX_ERROR),
    ("prediction_error_4", "<=", _MAX_ERROR),
    ("planned_efficiency_1024_sync", "", 0.0),
    ("planned_efficiency_1024_best", ">=", _MIN_EFFICIENCY),
  )
  lines: List[str] = []
  for name, sign, target in targets:
    if name not in figures:
      continue
    value, text = figures[name], ""
    if sign:
      is_met = value <= target if sign == "<=" else value >= target
      text = f"; target {sign} {target:g}, {'met' if is_met else 'MISSED'}"
    lines.append(f"{name:32}{value:.3f}{text}")
  return "\n".join(lines)


def _format_inputs(figures: Mapping[str, float]) -> List[str]:
  """Returns what the predictions know of the machine."""
  lines = [
    f"A step alone takes {figures['step_ms']:.1f} ms (jitter "
    f"{figures['jitter']:.1%}); beside another one "
    f"{figures['contention']:.2f} times as long",
  ]
  for num in (2, 4):
    call, message, size, error = (
      figures[f"software_{name}_{num}"]
      for name in ("call_ms", "message_ms", "ms_per_mb", "fit_error")
    )
    lines.append(
      f"An exchange of {num} takes {call:.2f} ms, {message:.2f} ms a message "
      f"and {size:.2f} ms a MB; the fit is off by {error:.0%}"
    )
  return lines
