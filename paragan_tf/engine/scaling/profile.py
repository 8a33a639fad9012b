"""What was measured on one worker, from which a plan is made.

A profile is of one config on one device. Times and memory are straight lines
over the batch of a worker.
"""

import json
from typing import Any, Dict, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

MEMORY_SOURCES = (
  "measured on this CPU",
  "measured on this GPU",
  "TPU compiler",
)


class Fit(NamedTuple):
  """A straight line over the batch: `fixed + per_image * batch`.

  Attributes:
    fixed: At a batch of 0.
    per_image: What each image adds.
    error: Root mean square of the relative residuals.
  """

  fixed: float
  per_image: float
  error: float = 0.0

  def at(self, batch: float) -> float:
    """Returns the value for a batch."""
    return self.fixed + self.per_image * batch


def fit(batches: Sequence[float], values: Sequence[float]) -> Fit:
  """Returns the line with the least relative residuals.

  Neither of its coefficients is negative. One point gives a line through it
  and 0.
  """
  if not len(batches) or len(batches) != len(values) or min(values) <= 0:
    raise ValueError(
      "`batches` and `values` must be as many, and values above 0, got "
      f"{list(batches)} and {list(values)}."
    )
  x, y = np.asarray(batches, float), np.asarray(values, float)
  rows = np.stack([1 / y, x / y], 1)  # Residuals relative to the values.
  fixed, slope = (0.0, float(y[0] / x[0]))
  if len(set(batches)) > 1:
    fixed, slope = np.linalg.lstsq(rows, np.ones_like(y), rcond=None)[0]
  if fixed < 0:
    fixed, slope = 0.0, rows[:, 1].sum() / (rows[:, 1] ** 2).sum()
  if slope < 0:
    fixed, slope = rows[:, 0].sum() / (rows[:, 0] ** 2).sum(), 0.0
  error = np.sqrt(np.mean((rows @ [fixed, slope] - 1) ** 2))
  return Fit(float(fixed), float(slope), float(error))


class Profile(NamedTuple):
  """One worker, measured.

  Attributes:
    device: What it ran on, as 'cpu', 'gpu_a100' or 'tpu_v3'.
    num_threads: Threads of the worker; 0 for all of the machine.
    num_cores: Cores of the machine that it ran on.
    config_hash: Of the config, without what a plan sets.
    batches: Of one worker, at which the step was timed.
    num_batches: Batches of real images that a step takes.
    step_seconds: Of one worker's whole step without input.
    scheme_seconds: The same of schemes that compute something else: 'quantized'
      and 'gossip' have optimistic optimizers and play simultaneously. With
      'quantized' a worker encodes, and decodes one message.
    player_seconds: Of the move and the update of 'g' and of 'd' alone, for
      workers with one role; those of 'd' get their fakes.
    memory_bytes: Of one worker's process or device.
    memory_limit: In bytes; 0 where it is not known.
    memory_source: One of `MEMORY_SOURCES`.
    input_images_per_second: Of the input pipeline alone.
    gradient_bytes: Of 'g' and 'd'.
    state_bytes: Of what is averaged beside the weights, of 'g' and 'd'.
    message_bytes: Of both players' gradients, quantized.
    codec_seconds: To 'encode' them, and to 'decode' one message of both.
    noise_scale: Of 'g' and 'd' (arXiv 1812.06162), in images.
    exchange_engine: How messages were exchanged for `exchange_seconds`.
    exchange_workers: How many workers exchanged them.
    exchange_seconds: Of one exchange of both players, by scheme.
  """

  device: str
  num_threads: int
  num_cores: int
  config_hash: str
  batches: Tuple[int, ...]
  num_batches: int
  step_seconds: Fit
  scheme_seconds: Mapping[str, Fit]
  player_seconds: Mapping[str, Fit]
  memory_bytes: Fit
  memory_limit: int
  memory_source: str
  input_images_per_second: float
  gradient_bytes: Mapping[str, int]
  state_bytes: Mapping[str, int]
  message_bytes: int
  codec_seconds: Mapping[str, float]
  noise_scale: Mapping[str, float]
  exchange_engine: str
  exchange_workers: int
  exchange_seconds: Mapping[str, float]

  def to_json(self) -> str:
    """Returns the profile as text."""
    return json.dumps(_plain(self), indent=2) + "\n"

  @staticmethod
  def from_json(text: str) -> "Profile":
    """Returns the profile of a text that `to_json` returned."""
    found = json.loads(text)
    missing = set(Profile._fields) ^ set(found)
    if missing:
      raise ValueError(
        "A profile must have the fields of this version, and differs in "
        f"{', '.join(sorted(missing))}: measure it again."
      )
    for name in ("step_seconds", "memory_bytes"):
      found[name] = Fit(**found[name])
    for name in ("scheme_seconds", "player_seconds"):
      found[name] = {key: Fit(**value) for key, value in found[name].items()}
    found["batches"] = tuple(found["batches"])
    return Profile(**found)


def _plain(value: Any) -> Any:
  """Returns named tuples as dictionaries, at any depth."""
  if hasattr(value, "_asdict"):
    value = value._asdict()
  if isinstance(value, Mapping):
    found: Dict[str, Any] = {key: _plain(x) for key, x in value.items()}
    return found
  return value
