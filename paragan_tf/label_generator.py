"""The G of every label as one conditional G, without their data.

    g = trained.load("runs/per_label")      # reads no weights yet
    g.sample(8, classes=["Coat"]).images    # reads those of this label

An image of label y is that of `G_y(z)`, bit for bit. All labels share one net
and its trace, which gets the values of each label in turn.
"""

import collections
from typing import Callable, Dict, List, Optional, OrderedDict, Sequence

import numpy as np
import tensorflow as tf

from paragan_tf.engine.sampling import Sampler
from paragan_tf.generator import Generator
from paragan_tf.outputs.g_info import GInfo
from paragan_tf.types import Mode, Net

_MAX_BYTES = 1 << 30  # Of values that are kept.
Values = Sequence[np.ndarray]
# Reads the values of a label's G, in the order of the net's variables.
ReadValues = Callable[[int], Values]


class LabelSampler(Sampler):
  """Draws the samples of each label from its own G."""

  def __init__(self, use: Callable[[int, Sampler], None], g: Net, **more):
    super().__init__(tf.distribute.get_strategy(), g, conditional=False, **more)
    self._use = use

  def __call__(self, labels, seed, start=0, z=None):
    """Returns one image a label, `[n, h, w, c]`, in [-1, 1]."""
    if labels is None or labels.ndim != 1:
      raise ValueError(
        "`labels` must be class ids, one for each sample: each label has a G "
        "of its own, and none mixes classes."
      )
    if z is None:
      z = self.codes(len(labels), seed, start)
    parts: Dict[int, np.ndarray] = {}
    for label in np.unique(labels):
      self._use(int(label), self)
      parts[label] = super().__call__(None, seed, z=z[labels == label])
    shape = next(iter(parts.values())).shape[1:]
    images = np.empty([len(labels), *shape], np.float32)
    for label, part in parts.items():
      images[labels == label] = part
    return images


class LabelGenerator(Generator):
  """The G of every label.

  Args:
    g: A net, whose values are those of the label that is drawn.
    info: What all of them are like together.
    read_values: Reads the values of a label.
    frequencies: How many images of each label there are.
    make_g: Makes a net.
    num_standing: As in `Generator`.
  """

  def __init__(
    self,
    g: Net,
    info: GInfo,
    read_values: ReadValues,
    frequencies: Sequence[int],
    make_g: Callable[[], Net],
    num_standing: int = 0,
  ):
    super().__init__(g, info, num_standing)
    self._read_values, self._make_g = read_values, make_g
    self.frequencies = np.array(frequencies)
    self._kept: OrderedDict[int, Values] = collections.OrderedDict()
    self._plain = Generator(g, info._replace(num_classes=0), num_standing)

  @property
  def loaded(self) -> List[int]:
    """The labels whose values are in memory, the last one drawn last."""
    return list(self._kept)

  def mixture(self, num: int) -> np.ndarray:
    """Returns `num` labels in the proportions of the data, in turn."""
    ends = np.cumsum(self.frequencies / self.frequencies.sum())
    # The golden ratio's multiples are spread evenly, wherever they end.
    places = np.modf(np.arange(num) * 0.6180339887498949 + 0.5)[0]
    found = np.searchsorted(ends, places, side="right")
    return np.minimum(found, len(ends) - 1).astype(np.int32)

  def new_sampler(
    self, truncation: Optional[float], batch_size: int
  ) -> LabelSampler:
    """Returns a sampler that draws each label from its own G."""
    return LabelSampler(
      self._use, self.net, batch_size=batch_size, truncation=truncation
    )

  def settle(self, sampler: Sampler) -> None:
    """Does nothing yet: each label has statistics of its own."""

  def _use(self, label: int, sampler: Sampler) -> None:
    """Gives the net the values of a label, with standing statistics if set."""
    values = self._load(label)
    for variable, value in zip(self.net.variables, values):
      variable.assign(value)
    self._plain.settle(sampler)

  def _load(self, label: int) -> Values:
    """Returns the values of a label; as many labels are kept as have room."""
    if label not in self._kept:
      self._kept[label] = self._read_values(label)
    self._kept.move_to_end(label)
    size = sum(value.nbytes for value in self._kept[label])
    while len(self._kept) > max(1, _MAX_BYTES // max(size, 1)):
      self._kept.popitem(last=False)
    return self._kept[label]

  def _make_exported(self) -> Net:
    """Returns a net of all labels: a sub-model for each, with its values."""
    nets = []
    for label in range(self.info.num_classes):
      nets.append(self._make_g())
      for variable, value in zip(nets[-1].variables, self._load(label)):
        variable.assign(value)
    return _AllLabels(nets, self.info)

  def export_onnx(self, path: str) -> str:
    """Refuses: an ONNX file has one G."""
    del path
    raise ValueError(
      "`--format=onnx` exports one G, and here is one for each label: export "
      "the run of a label, as `--model_dir=FOLDER/labels/00003`."
    )


class _AllLabels(tf.Module):
  """Sends each row of a batch through the G of its label, in a graph."""

  def __init__(self, nets: Sequence[Net], info: GInfo):
    super().__init__(name="labels")
    self.nets = list(nets)
    self.z_dim = info.z_dim
    self._shape = [info.resolution, info.resolution, info.channels]

  def __call__(
    self, x: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps latent codes and labels to images; other labels give zeros."""
    images = tf.zeros([tf.shape(x)[0], *self._shape])
    for label, g in enumerate(self.nets):
      rows = tf.where(tf.equal(labels, label))
      part = tf.cond(
        tf.size(rows) > 0,
        lambda g=g, rows=rows: g(tf.gather_nd(x, rows), None, mode),
        lambda: tf.zeros([0, *self._shape]),
      )
      images = tf.tensor_scatter_nd_update(images, rows, part)
    return images
