"""Extractors by name, and networks that a user brings.

    make("inception")             the network of FID, after `make inception`
    make("inception:clean")       the same with another resizer
    make("mobilenet")             MobileNetV2, after `make cifar10`
    make("fashion")               the classifier of gray images that ships
    make("keras:PATH")            a Keras file
    make("saved_model:PATH")      a SavedModel
    make("hub:HANDLE")            a module of TensorFlow Hub
    make(fn)                      any function of images in [-1, 1]

A network of one's own returns features, or features and logits as a pair or as
a dict.
"""

import hashlib
import importlib.util
import os
import re
import sys
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

import gin
import tensorflow as tf

from paragan_tf.outputs import inception, mobile_net, resizers
from paragan_tf.outputs.features import (
  Extractor,
  FashionClassifier,
  Features,
)

AUTO = "auto"
# Beginnings of what is loaded as a program, not as numbers.
PROGRAMS = ("keras:", "saved_model:", "hub:")
_INPUT = (None, None, None, 3)

MakeExtractor = Callable[[], Extractor]
# As a config names it: 'auto', a string of `make`, a class, or `None` for none.
Choice = Union[str, MakeExtractor, None]


class Default(NamedTuple):
  """What `auto` stands for: an extractor, or why there is none."""

  make: Optional[MakeExtractor]
  note: str = ""


def default_for(channels: int) -> Default:
  """Returns the extractor for images that nobody chose one for."""
  if channels == 1:
    return Default(FashionClassifier)
  if os.path.exists(inception.DEFAULT_PATH):
    return Default(inception.Inception)
  if mobile_net.is_installed():
    return Default(mobile_net.MobileNet)
  return Default(
    None,
    "No metric is measured, as no network for color images is here: run `make "
    "inception` (FID), or `make cifar10` and set "
    "`experiment.Experiment.extractor = 'mobilenet'`.",
  )


def choose(choice: Choice, channels: int) -> Default:
  """Returns what a config's choice stands for, for images with `channels`."""
  if choice is None:
    return Default(None)
  if isinstance(choice, str) and choice == AUTO:
    return default_for(channels)
  return Default((lambda: make(choice)) if isinstance(choice, str) else choice)


def make(choice: Any) -> Extractor:
  """Returns the extractor of a string, or that of a function of images."""
  if not isinstance(choice, str):
    return choice if hasattr(choice, "sha256") else Network(choice)
  kind, _, rest = choice.partition(":")
  if kind not in _MAKERS:
    known = ", ".join(f"'{x}'" for x in _MAKERS)
    raise ValueError(f"`extractor` must begin with {known}, got '{choice}'.")
  if kind not in ("inception", "mobilenet", "fashion") and not rest:
    raise ValueError(f"`extractor` '{kind}:' must name what to load.")
  return _MAKERS[kind](rest)


@gin.register
class Network(tf.Module):
  """A user's network as an extractor.

  Args:
    fn: From images, `[b, h, w, 3]` in `value_range`, to features, a pair of
      features and logits, or a dict with `features` (or `pool_3`) and maybe
      `logits`. Features with four axes are averaged over space.
    name: What the names of its metrics end in.
    sha256: Hash of its weights.
    size: The size it takes, in pixels; images stay as they are if `None`.
    resizer: How images get that size: a name from `resizers.RESIZERS`.
    value_range: The lowest and highest value of its images.
    classes_of: The data set whose classes its logits are.
  """

  channels: Tuple[int, ...] = (1, 3)

  def __init__(
    self,
    fn: Callable[[tf.Tensor], Any],
    name: Optional[str] = None,
    sha256: str = "not hashed",
    size: Optional[int] = None,
    resizer: str = "clean",
    value_range: Tuple[float, float] = (-1.0, 1.0),
    classes_of: str = "unknown",
  ):
    super().__init__(
      name=_to_name(name or getattr(fn, "__name__", "") or "network")
    )
    self._fn, self._size, self._range = fn, size, value_range
    self._resize = resizers.find(resizer)
    self.sha256, self.classes_of = sha256, classes_of
    low, high = value_range
    how = f"{size}, {resizer}" if size else "none"
    self.resizer = f"{how}, values {low:g} to {high:g}"

  def __call__(self, images: Any) -> Features:
    """Returns features of images in [-1, 1] of any size, `[b, h, w, c]`."""
    images = tf.convert_to_tensor(images, tf.float32)
    images = tf.broadcast_to(images, [*images.shape[:3], 3])
    if self._size is not None:
      pixels = self._resize((images + 1.0) * 127.5, self._size)
      images = pixels / 127.5 - 1.0
    low, high = self._range
    images = low + (images + 1.0) * ((high - low) / 2)
    return _to_features(self._fn(images), self.name)


def _to_features(found: Any, name: str) -> Features:
  logits = None
  if isinstance(found, dict):
    logits = found.get("logits")
    values = [v for k, v in found.items() if k != "logits"]
    found = found.get("features", found.get("pool_3", (values or [logits])[0]))
  elif isinstance(found, (tuple, list)):
    found, logits = (*found, None)[:2]
  features = tf.convert_to_tensor(found)
  if features.shape.rank == 4:
    features = tf.reduce_mean(features, (1, 2))
  if features.shape.rank != 2:
    raise ValueError(
      f"The network `{name}` must return features of shape [b, d] or "
      f"[b, h, w, d], got {list(features.shape)}."
    )
  return Features(features, logits)


def _keras(path: str) -> Extractor:
  _check_exists(path, "keras")
  try:
    model = _find_keras().models.load_model(path, compile=False)
  except (ValueError, OSError, TypeError) as e:
    raise ValueError(f"'{path}' is no Keras file that loads here: {e}") from e
  return Network(
    lambda x: model(x, training=False),
    name=os.path.splitext(os.path.basename(path.rstrip("/")))[0],
    sha256=_hash_files(path),
    size=_input_size(model.input_shape, path),
  )


def _find_keras() -> Any:
  # Keras 2.15 hangs when it loads a functional model after tf_keras was
  # imported, which reads the same files. Keras 3 has another format.
  is_keras2 = tf.version.VERSION.startswith("2.15.")
  return sys.modules.get("tf_keras", tf.keras) if is_keras2 else tf.keras


def _saved_model(
  path: str,
  name: Optional[str] = None,
  value_range: Tuple[float, float] = (-1.0, 1.0),
) -> Extractor:
  _check_exists(path, "saved_model")
  try:
    loaded = tf.saved_model.load(path)
  except (ValueError, OSError) as e:
    raise ValueError(f"'{path}' is no SavedModel: {e}") from e
  fn, shape = _signature(loaded, path)
  network = Network(
    fn,
    name=name or os.path.basename(path.rstrip("/")),
    sha256=_hash_files(path),
    size=_input_size(shape, path),
    value_range=value_range,
  )
  network.loaded = loaded  # Its variables live as long as this.
  return network


def _signature(
  loaded: Any, path: str
) -> Tuple[Callable[[tf.Tensor], Any], Any]:
  """Returns the function of a SavedModel, and the shape of its images."""
  signatures: Dict[str, Any] = dict(getattr(loaded, "signatures", {}))
  if not signatures and callable(loaded):
    return loaded, _INPUT
  if not signatures:
    raise ValueError(f"The SavedModel '{path}' has nothing to call.")
  call = signatures.get("serving_default") or next(iter(signatures.values()))
  inputs = call.structured_input_signature[1]
  if len(inputs) != 1:
    raise ValueError(
      f"The SavedModel '{path}' must take images alone, got the inputs "
      f"{sorted(inputs)}."
    )
  ((key, spec),) = inputs.items()
  return (lambda x: call(**{key: x})), spec.shape


def _hub(handle: str) -> Extractor:
  if importlib.util.find_spec("tensorflow_hub") is None:
    raise ValueError(
      "`hub:` needs the package tensorflow_hub: install it, or fetch the "
      "module and give it as `saved_model:PATH`."
    )
  resolve = importlib.import_module("tensorflow_hub").resolve
  # TensorFlow Hub's rule for images is 0 to 1.
  return _saved_model(resolve(handle), handle, value_range=(0.0, 1.0))


def _input_size(shape: Any, path: str) -> Optional[int]:
  """Returns the size that images must have; `None` if it does not matter."""
  shape = tf.TensorShape(shape).as_list() if shape is not None else _INPUT
  if len(shape) != 4 or shape[3] not in (None, 3) or shape[1] != shape[2]:
    raise ValueError(
      f"The network '{path}' must take square color images, [b, h, h, 3], got "
      f"{list(shape)}: give a function of your own instead."
    )
  return shape[1]


def _check_exists(path: str, kind: str) -> None:
  if not os.path.exists(path):
    raise ValueError(f"`extractor` '{kind}:{path}': there is no such file.")


def _hash_files(path: str) -> str:
  """Returns the sha256 of a file, or of all files in a folder."""
  digest = hashlib.sha256()
  paths = [path]
  if os.path.isdir(path):
    paths = sorted(
      os.path.join(folder, name)
      for folder, _, names in os.walk(path)
      for name in names
    )
  for one in paths:
    with open(one, "rb") as f:
      digest.update(f.read())
  return digest.hexdigest()


def _to_name(text: str) -> str:
  words = re.sub(r"[^0-9a-z]+", "_", text.lower()).strip("_")
  return words if words[:1].isalpha() else f"network_{words}"


def _make_inception(resizer: str) -> Extractor:
  if not resizer:
    return inception.Inception()
  return inception.Inception(resizer=resizer)


_MAKERS: Dict[str, Callable[[str], Extractor]] = {
  "inception": _make_inception,
  "mobilenet": lambda _: mobile_net.MobileNet(),
  "fashion": lambda _: FashionClassifier(),
  "keras": _keras,
  "saved_model": _saved_model,
  "hub": _hub,
}
