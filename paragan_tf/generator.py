"""A trained G: samples, interpolations and exports, without its data."""

import functools
import math
from typing import Callable, Iterator, NamedTuple, Optional, Sequence, Union

import numpy as np
import tensorflow as tf

from paragan_tf.data.input_fn import InputFn
from paragan_tf.engine.sampling import Sampler, check_truncation, draw_codes
from paragan_tf.evaluation import STANDING_SEED
from paragan_tf.nets import standing
from paragan_tf.outputs import export, nearest, onnx_export, samples
from paragan_tf.outputs.g_info import GInfo
from paragan_tf.types import Net

# Of every call of G, whatever is asked for: an image does not depend on how
# many others are drawn, and few images do not take the time of many.
_BATCH_SIZE = 16
_CHUNK = 4 * _BATCH_SIZE  # Images that are floats at the same time.
_READ_AT_ONCE = 512
_MAX_NAMES = 20

# Classes to draw: ids, or names if the run knows them.
Classes = Sequence[Union[int, str]]
Progress = Callable[[int, int], None]


class Samples(NamedTuple):
  """Images of G.

  Attributes:
    images: uint8, `[n, h, w, c]`.
    labels: Class ids, `[n]`; or weights of classes, `[n, num_classes]`; or
      `None` if G is unconditional.
    z: Latent codes, `[n, z_dim]`.
  """

  images: np.ndarray
  labels: Optional[np.ndarray]
  z: np.ndarray

  def arrays(self):
    """Returns the arrays by name; without labels if there are none."""
    found = self._asdict()
    return {name: value for name, value in found.items() if value is not None}


class Generator:
  """A trained G.

  The i-th sample of a seed depends on the seed, its class and the truncation
  only. Eager.

  Attributes:
    net: The moving average of G, with plain variables.
    info: What it is like.

  Args:
    g: See `net`.
    info: What it is like.
    num_standing: Batches of samples to compute standing batch-norm statistics
      from; 0 uses the stored ones.
  """

  def __init__(self, g: Net, info: GInfo, num_standing: int = 0):
    self.info = info
    self.net = g
    self._num_standing = num_standing

  def sample(
    self,
    num: int = 64,
    classes: Optional[Classes] = None,
    seed: int = 0,
    truncation: Optional[float] = None,
    progress: Progress = lambda done, total: None,
  ) -> Samples:
    """Draws `num` samples.

    Args:
      num: How many.
      classes: Ids or names of the classes, which are drawn in turn; all by
        default.
      seed: Of the latent codes.
      truncation: At how many standard deviations latent codes are truncated;
        by default as in the run, infinity for none.
      progress: Called with the images done and their total.
    """
    _check_num("num", num)
    ids = self._find_ids(classes)
    sampler = self.make_sampler(truncation)
    labels = None if ids is None else np.resize(ids, num).astype(np.int32)
    return self._draw(sampler, labels, sampler.codes(num, seed), progress)

  def sweep(
    self,
    truncations: Sequence[float],
    num: int = 8,
    classes: Optional[Classes] = None,
    seed: int = 0,
  ) -> Samples:
    """Draws `num` samples with each truncation, in this order.

    Those of one seed have related latent codes: each number of a code has the
    same rank in its distribution.
    """
    for truncation in truncations:
      check_truncation(truncation)
    if not truncations:
      raise ValueError("`truncations` must be some numbers above 0, got none.")
    found = [self.sample(num, classes, seed, x) for x in truncations]
    return _concatenate(found)

  def interpolate(
    self,
    kind: str = "z",
    num: int = 8,
    num_frames: int = 8,
    classes: Optional[Classes] = None,
    seed: int = 0,
    truncation: Optional[float] = None,
    progress: Progress = lambda done, total: None,
  ) -> Samples:
    """Draws `num` rows of `num_frames` images, from one sample to another.

    Args:
      kind: `z`: from one latent code to another, along an arc, in one class;
        `class`: from one class to the next, with one latent code.
      num: Rows.
      num_frames: Images in a row, both ends included.
      classes: As in `sample`; row i has the i-th of them, or begins there.
      seed: As in `sample`, like the others.
      truncation: See there.
      progress: See there.
    """
    _check_num("num", num)
    _check_num("num_frames", num_frames, 2)
    ids = self._find_ids(classes)
    sampler = self.make_sampler(truncation)
    shares = np.linspace(0.0, 1.0, num_frames)
    labels: Optional[np.ndarray] = None
    if kind == "z":
      z = sampler.codes(2 * num, seed)
      z = _interpolate_arcs(z[0::2], z[1::2], shares)
      if ids is not None:
        labels = np.resize(ids, num).repeat(num_frames).astype(np.int32)
    elif kind == "class":
      labels = self._mix(ids, num, shares)
      z = sampler.codes(num, seed).repeat(num_frames, 0)
    else:
      raise ValueError(f"`kind` must be 'z' or 'class', got '{kind}'.")
    return self._draw(sampler, labels, z, progress)

  def find_nearest(
    self,
    images: np.ndarray,
    source: str,
    num: int = 5,
    progress: Progress = lambda done, total: None,
  ) -> nearest.Nearest:
    """Returns the training images that are nearest to samples, by pixels.

    Args:
      images: uint8, `[n, h, w, c]`.
      source: The training images, as 'folder:PATH'; see `data/sources.py`.
      num: How many for each sample.
      progress: Called with the training images done and their total.
    """
    data = InputFn(source, self.info.resolution, conditional=False)
    if data.spec.channels != self.info.channels:
      raise ValueError(
        f"`nearest` must have images of {self.info.channels} channel(s), as "
        f"G's, got '{source}' with {data.spec.channels}: give the images that "
        "G was trained on."
      )
    num = min(num, data.num_images)
    return nearest.find(images, _read_in_parts(data, progress), num)

  def export(self, folder: str, truncation: Optional[float] = None) -> str:
    """Writes a SavedModel to `folder`/<time>; returns that path."""
    sampler = self.make_sampler(truncation)
    codes = functools.partial(
      _draw_from_start, z_dim=self.info.z_dim, truncation=sampler.truncation
    )
    info = self.info._replace(truncation=sampler.truncation)
    return export.export(self._make_exported(), info, folder, codes)

  def export_onnx(self, path: str) -> str:
    """Writes an ONNX file, which needs the extra `onnx`; returns its path."""
    onnx_export.check_path(path)
    z = self.make_sampler().codes(_BATCH_SIZE, seed=0)
    return onnx_export.export(self.net, self.info, path, z)

  def _draw(
    self,
    sampler: Sampler,
    labels: Optional[np.ndarray],
    z: np.ndarray,
    progress: Progress,
  ) -> Samples:
    parts = []
    for i in range(0, len(z), _CHUNK):
      rows = slice(i, i + _CHUNK)
      ids = None if labels is None else labels[rows]
      parts.append(samples.to_pixels(sampler(ids, 0, z=z[rows])))
      progress(min(i + _CHUNK, len(z)), len(z))
    return Samples(np.concatenate(parts), labels, z)

  def make_sampler(self, truncation: Optional[float] = None) -> Sampler:
    """Returns a sampler, which draws floats; `truncation` is as in `sample`."""
    sampler = self.new_sampler(self.choose_truncation(truncation), _BATCH_SIZE)
    self.settle(sampler)
    return sampler

  def new_sampler(
    self, truncation: Optional[float], batch_size: int
  ) -> Sampler:
    """Returns a sampler with the statistics that are stored."""
    return Sampler(
      tf.distribute.get_strategy(),
      self.net,
      bool(self.info.num_classes),
      batch_size,
      truncation,
    )

  def settle(self, sampler: Sampler) -> None:
    """Computes standing batch-norm statistics, if they are to be used."""
    if self._num_standing:
      num = self._num_standing * standing.BATCH_SIZE
      codes = sampler.codes(num, STANDING_SEED)
      batches = standing.make_batches(codes, self.info.num_classes)
      standing.assign_standing_statistics(self.net, batches)

  def mixture(self, num: int) -> Optional[np.ndarray]:
    """Returns `num` labels, all in turn; `None` if G is unconditional."""
    ids = self._find_ids(None)
    return None if ids is None else np.resize(ids, num).astype(np.int32)

  def _make_exported(self) -> Net:
    return self.net

  def choose_truncation(self, truncation: Optional[float]) -> Optional[float]:
    """Returns what a `truncation` of `sample` stands for, `None` for none."""
    check_truncation(truncation)
    if truncation is None:
      return self.info.truncation
    return None if math.isinf(truncation) else truncation

  def _find_ids(self, classes: Optional[Classes]) -> Optional[np.ndarray]:
    """Returns the ids of classes, `None` if G is unconditional."""
    num, names = self.info.num_classes, self.info.label_names
    if not num:
      if classes:
        raise ValueError(
          f"`classes` needs a G that was trained with classes, got {classes}, "
          "and this one has none: leave it out."
        )
      return None
    if not classes:
      return np.arange(num)
    ids = {str(i): i for i in range(num)}
    ids.update((name, i) for i, name in enumerate(names) if name not in ids)
    unknown = [x for x in classes if str(x) not in ids]
    if unknown:
      known = f", or one of {', '.join(names[:_MAX_NAMES])}" if names else ""
      known += ", ..." if len(names) > _MAX_NAMES else ""
      raise ValueError(
        f"`classes` must be from 0 to {num - 1}{known}; got '{unknown[0]}': "
        "take one of these, or leave it out for all."
      )
    return np.array([ids[str(x)] for x in classes])

  def _mix(
    self, ids: Optional[np.ndarray], num: int, shares: np.ndarray
  ) -> np.ndarray:
    """Returns the weights of classes in rows from one to the next."""
    if ids is None or len(ids) < 2 or not self.info.mixes_classes:
      raise ValueError(
        "`interpolate` between classes needs two of them, and a G that can mix "
        f"them, got {0 if ids is None else len(ids)} class(es)"
        f"{' and a net of your own' if self.info.own_net else ''}: interpolate "
        "'z'."
      )
    weights = np.eye(self.info.num_classes, dtype=np.float32)
    left = weights[np.resize(ids, num)][:, None]
    right = weights[np.resize(np.roll(ids, -1), num)][:, None]
    mixed = left + shares[None, :, None].astype(np.float32) * (right - left)
    return mixed.reshape([num * len(shares), -1])


def _draw_from_start(seed, num, z_dim, truncation) -> tf.Tensor:
  return draw_codes(seed, 0, num, z_dim, truncation)


def _read_in_parts(data: InputFn, progress: Progress) -> Iterator[np.ndarray]:
  total = data.num_images
  for i in range(0, total, _READ_AT_ONCE):
    rows = np.arange(i, min(i + _READ_AT_ONCE, total))
    yield data.train_set.images(rows).pixels
    progress(int(rows[-1]) + 1, total)


def _interpolate_arcs(
  a: np.ndarray, b: np.ndarray, shares: np.ndarray
) -> np.ndarray:
  """Returns codes on the arcs from `a` to `b`, `[n * len(shares), z_dim]`.

  A straight line would pass through codes that are shorter than G has seen.
  """
  norms = [np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b)]
  cosine = (a / norms[0] * (b / norms[1])).sum(1, keepdims=True)
  angle = np.arccos(np.clip(cosine, -1.0, 1.0)).clip(1e-6)[:, None]
  t = shares[None, :, None]
  mixed = (
    np.sin((1.0 - t) * angle) * a[:, None] + np.sin(t * angle) * b[:, None]
  )
  mixed = (mixed / np.sin(angle)).astype(np.float32)
  return mixed.reshape([-1, a.shape[1]])


def _concatenate(parts: Sequence[Samples]) -> Samples:
  columns = zip(*parts)
  return Samples(
    *(None if x[0] is None else np.concatenate(x) for x in columns)
  )


def _check_num(name: str, num: int, least: int = 1) -> None:
  if num < least:
    raise ValueError(f"`{name}` must be at least {least}, got {num}: raise it.")
