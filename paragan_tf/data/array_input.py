"""A user's data: what to train on as an `input_fn`, what to predict for."""

from typing import (
  Any,
  Callable,
  Dict,
  Iterator,
  NamedTuple,
  Optional,
  Tuple,
  Union,
)

import numpy as np
import tensorflow as tf

# A function that returns a dataset of images, or of images and class ids; such
# a dataset; images; or images and class ids.
UserData = Union[
  Callable[..., tf.data.Dataset],
  tf.data.Dataset,
  np.ndarray,
  Tuple[np.ndarray, np.ndarray],
]
_ROUNDING = 1e-3


class UserInput(NamedTuple):
  """An `input_fn`, and the number of classes of its labels."""

  input_fn: Callable[..., tf.data.Dataset]
  num_classes: int


def make_input(data: UserData, num_classes: Optional[int]) -> UserInput:
  """Returns the `input_fn` of a user's data.

  Args:
    data: See `UserData`.
    num_classes: By default as many as labels in an array say, and otherwise 0.
  """
  if isinstance(data, tf.data.Dataset):
    return UserInput(lambda: data, num_classes or 0)
  if callable(data):
    return UserInput(data, num_classes or 0)
  images, labels = data if isinstance(data, (tuple, list)) else (data, None)
  images, labels = _check_arrays(images, labels)
  if labels is not None and num_classes is None:
    num_classes = int(labels.max()) + 1
  return UserInput(_make_input_fn(images, labels), num_classes or 0)


def is_same(a: Any, b: Any) -> bool:
  """Returns whether two arguments are the same data, without looking at it."""
  if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
    return len(a) == len(b) and all(x is y for x, y in zip(a, b))
  return a is b


def _check_arrays(images: Any, labels: Any):
  images = np.asarray(images)
  if images.ndim != 4 or not (
    images.dtype == np.uint8 or np.issubdtype(images.dtype, np.floating)
  ):
    raise ValueError(
      "Images must be an array [n, h, w, c] of uint8, or of floats in [-1, 1], "
      f"got {images.dtype} {list(images.shape)}: convert them; or give a "
      "`tf.data.Dataset`, or a function that returns one."
    )
  if images.dtype != np.uint8:
    images = images.astype(np.float32)
    low, high = float(images.min()), float(images.max())
    if not (low >= -1 - _ROUNDING and high <= 1 + _ROUNDING):
      raise ValueError(
        f"Images must be in [-1, 1] if they are floats, got [{low:.4g}, "
        f"{high:.4g}]: give uint8, or divide by 127.5 and subtract 1."
      )
  if labels is not None:
    labels = np.asarray(labels)
    wrong = labels.shape != (len(images),)
    if wrong or not np.issubdtype(labels.dtype, np.integer):
      raise ValueError(
        f"Labels must be integers, one for each of the {len(images)} images, "
        f"got {labels.dtype} {list(labels.shape)}: convert them."
      )
    labels = labels.astype(np.int64)
  return images, labels


def _make_input_fn(images, labels) -> Callable[[], tf.data.Dataset]:
  def arrays() -> tf.data.Dataset:
    parts = images if labels is None else (images, labels)
    # In an order of its own in each epoch, the same in every process.
    data = tf.data.Dataset.from_tensor_slices(parts)
    return data.shuffle(len(images), seed=0)

  return arrays


def read_batches(data: tf.data.Dataset) -> Iterator[Dict[str, np.ndarray]]:
  """Yields dicts of arrays, batched."""
  if not isinstance(data.element_spec, dict):
    data = data.map(lambda labels: {"labels": labels})
  ranks = {key: spec.shape.rank for key, spec in data.element_spec.items()}
  if ranks.get("labels") == 0 or ranks.get("z") == 1:
    data = data.batch(256)
  return data.as_numpy_iterator()
