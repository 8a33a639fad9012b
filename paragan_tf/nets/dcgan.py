"""DCGAN (arXiv 1511.06434), conditional with a projection if asked."""

from typing import List, Optional

import gin
import tensorflow as tf

from paragan_tf.hardware import resolve_layout
from paragan_tf.nets import fused, heads, layers, layout, norms, plans
from paragan_tf.nets.forward import AnyMode, Forward
from paragan_tf.types import ImageSpec, Mode, Verdict


def widths(resolution: int, width: int) -> List[int]:
  """Returns the channels from half the image's resolution down to 4x4.

  They double from layer to layer, up to 16 times the first.
  """
  plans.check_resolution(resolution)
  doublings = (resolution // 4).bit_length() - 1
  return [width << min(i, 4) for i in range(doublings)]


class Deconv(tf.Module):
  """A transposed 4x4 convolution of stride 2."""

  def __init__(self, inputs: int, outputs: int, init: layers.Init, name: str):
    super().__init__(name=name)
    chosen = resolve_layout()
    self.outputs = outputs
    self.widths = layers.Widths(outputs, inputs, chosen)  # As in its kernel.
    self.product = layout.apply_precision(_deconv, chosen)
    with self.name_scope:
      self.weight = layers.Weight([4, 4, outputs, inputs], init, False)
      self.bias = tf.Variable(tf.zeros([outputs]), name="b")

  def __call__(self, x: tf.Tensor, mode: AnyMode) -> tf.Tensor:
    """Doubles the resolution."""
    x = layout.pad_channels(x, self.widths.outputs)
    kernel = self.widths.pad_kernel(self.weight(mode))
    y = self.product(x, tf.cast(kernel, x.dtype))
    y = layers.add_bias(y, self.bias, mode)
    return Forward.of(mode).note(self, x, y)


class StridedConv(tf.Module):
  """A 4x4 convolution of stride 2."""

  def __init__(
    self,
    inputs: int,
    outputs: int,
    init: layers.Init,
    spectral: bool,
    name: str,
  ):
    super().__init__(name=name)
    chosen = resolve_layout()
    self.outputs = outputs
    self.widths = layers.Widths(inputs, outputs, chosen)
    self.product = layout.apply_precision(_strided_conv, chosen)
    with self.name_scope:
      self.weight = layers.Weight([4, 4, inputs, outputs], init, spectral)
      self.bias = tf.Variable(tf.zeros([outputs]), name="b")

  def __call__(self, x: tf.Tensor, mode: AnyMode) -> tf.Tensor:
    """Halves the resolution."""
    x = self.widths.pad_input(x)
    kernel = self.widths.pad_kernel(self.weight(mode))
    y = self.product(x, tf.cast(kernel, x.dtype))
    y = layers.add_bias(y, self.bias, mode)
    return Forward.of(mode).note(self, x, y)


def _deconv(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  shape = [tf.shape(x)[0], 2 * x.shape[1], 2 * x.shape[2], w.shape[2]]
  return tf.nn.conv2d_transpose(x, w, shape, 2, "SAME")


def _strided_conv(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  return tf.nn.conv2d(x, w, 2, "SAME")


@gin.register
class Generator(tf.Module):
  """A linear layer to 4x4, then norm, relu and deconvolution to the image.

  `width` is the number of channels at half the image's resolution; it doubles
  towards 4x4, see `widths`.
  """

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 64,
    z_dim: int = 100,
    norm: norms.MakeNorm = norms.BatchNorm,
    name: str = "g",
  ):
    super().__init__(name=name)
    layers.check_dims(z_dim=z_dim, width=width)
    self.spec, self.z_dim = spec, z_dim
    channels = widths(spec.resolution, width)[::-1]
    init = layers.normal_init(0.02, seed)
    self.norms: List[norms.Norm] = []
    self.deconvs: List[Deconv] = []
    with self.name_scope:
      self.linear = layers.ToPixels(z_dim, channels[0], init)
      for i, outputs in enumerate([*channels[1:], spec.channels]):
        inputs = channels[i]
        self.norms.append(norm(inputs, spec.num_classes, name=f"norm{i}"))
        self.deconvs.append(Deconv(inputs, outputs, init, f"deconv{i}"))

  def __call__(
    self, z: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> tf.Tensor:
    """Maps `[b, z_dim]` to images in [-1, 1]."""
    forward = fused.begin(self, mode)
    x = self.linear(z, forward)
    for norm, deconv in zip(self.norms, self.deconvs):
      x = deconv(tf.nn.relu(norm(x, labels, forward)), forward)
    return tf.tanh(layout.cut_channels(x, self.spec.channels))


@gin.register
class Discriminator(heads.Judge, tf.Module):
  """Strided convolutions to 4x4, then a head, see `heads.py`.

  With `spectral` every kernel is divided by its spectral norm and there is no
  batch norm; without it the paper's batch norm follows all but the first.
  """

  def __init__(
    self,
    spec: ImageSpec,
    seed: int,
    width: int = 64,
    spectral: bool = True,
    conditioning: Optional[str] = None,
    name: str = "d",
  ):
    super().__init__(name=name)
    layers.check_dims(width=width)
    self.uses_batch_statistics = not spectral
    init = layers.normal_init(0.02, seed)
    inputs = spec.channels
    self.convs: List[StridedConv] = []
    self.norms: List[Optional[norms.BatchNorm]] = []
    with self.name_scope:
      for i, outputs in enumerate(widths(spec.resolution, width)):
        self.convs.append(
          StridedConv(inputs, outputs, init, spectral, f"conv{i}")
        )
        has_norm = i > 0 and not spectral
        self.norms.append(
          norms.BatchNorm(outputs, name=f"norm{i}") if has_norm else None
        )
        inputs = outputs
      self.head = heads.Head(16 * inputs, spec, init, spectral, conditioning)

  def judge(
    self, images: tf.Tensor, labels: Optional[tf.Tensor], mode: Mode
  ) -> Verdict:
    """Maps images to all that D predicts."""
    forward = fused.begin(self, mode)
    x = images
    for conv, norm in zip(self.convs, self.norms):
      x = conv(x, forward)
      x = tf.nn.leaky_relu(x if norm is None else norm(x, None, forward))
    x = layout.cut_channels(x, self.convs[-1].outputs)
    features = tf.reshape(x, [-1, x.shape[1:].num_elements()])
    return self.head(features, labels, forward)
