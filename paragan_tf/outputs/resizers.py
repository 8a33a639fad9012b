"""How images are resized before a network sees them, by name.

    pixels = RESIZERS["tf-legacy"](pixels, 299)   # `[b, h, w, c]`, 0 to 255

The choice moves FID by several points (arXiv 2104.11222), so it is a part of
every value's protocol.
"""

from typing import Callable, Dict

import tensorflow as tf

# From pixels `[b, h, w, c]`, float32 in 0 to 255, and a size to square ones.
Resizer = Callable[[tf.Tensor, int], tf.Tensor]


def tf_legacy(pixels: tf.Tensor, size: int) -> tf.Tensor:
  """Resizes as the original FID: TensorFlow 1's bilinear form.

  Pixel i of the result is at i * scale, not at the pixels' centers: the picture
  moves by half a pixel. torchmetrics and torch-fidelity do the same.
  """
  return tf.raw_ops.ResizeBilinear(
    images=pixels, size=(size, size), half_pixel_centers=False
  )


def pytorch(pixels: tf.Tensor, size: int) -> tf.Tensor:
  """Resizes as pytorch-fid: bilinear, by centers, without antialiasing."""
  return tf.raw_ops.ResizeBilinear(
    images=pixels, size=(size, size), half_pixel_centers=True
  )


def clean(pixels: tf.Tensor, size: int) -> tf.Tensor:
  """Resizes as clean-fid: PIL's bicubic filter with antialiasing, in float."""
  resized = tf.image.resize(pixels, (size, size), "bicubic", antialias=True)
  return tf.clip_by_value(resized, 0.0, 255.0)


RESIZERS: Dict[str, Resizer] = {
  "tf-legacy": tf_legacy,
  "pytorch": pytorch,
  "clean": clean,
}


def find(name: str) -> Resizer:
  """Returns the resizer of a name."""
  if name not in RESIZERS:
    known = ", ".join(f"'{x}'" for x in RESIZERS)
    raise ValueError(f"`resizer` must be one of {known}, got {name!r}.")
  return RESIZERS[name]
