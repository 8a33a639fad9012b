"""Where padded channels pay: cycles of pieces of nets, as they are and padded.

A piece is what carries channels of one width: norm, relu and a 3x3 convolution
with a 1x1 convolution beside it, or a linear layer from a latent or an
embedding; forward and all gradients, 16 images in bfloat16.
"""

import json
import pathlib
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from tools import cli
from tools.tpu import hlo, programs

LANES = 128
_NUM_IMAGES = 16
_LINEAR_OUTPUTS = 1536
DESCRIPTION = "16 images, bfloat16, forward and gradients"


class Piece(NamedTuple):
  """What is compiled: images are `resolution` px, 1 for a linear layer."""

  width: int
  resolution: int
  is_padded: bool

  @property
  def name(self) -> str:
    """The name of its file."""
    kind = "padded" if self.is_padded else "plain"
    return f"{self.width}_{self.resolution}_{kind}"


def list_pieces(
  widths: Sequence[int], resolutions: Sequence[int]
) -> List[Piece]:
  """Returns the pieces of all widths, each as it is and padded."""
  for width in widths:
    if width < 1 or width % LANES == 0:
      raise ValueError(
        f"`--width` must be at least 1 and no multiple of {LANES}, got {width}."
      )
  return [
    Piece(width, resolution, is_padded)
    for width in widths
    for resolution in (1, *resolutions)
    for is_padded in (False, True)
  ]


def export(piece: Piece, chip: str) -> bytes:
  """Returns XLA's program of a piece."""
  import tensorflow as tf

  compute, specs = trace(piece, chip)
  traced = tf.function(compute, autograph=False, jit_compile=True)
  return traced.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")


def trace(piece: Piece, chip: str) -> Tuple[Callable[..., Any], Sequence[Any]]:
  """Returns the function of a piece, and what its arguments are like."""
  cli.import_experiment()  # Before a config is read, as gin demands.
  config = cli.import_quietly("paragan_tf.config")
  import tensorflow as tf

  multiple = LANES if piece.is_padded else 1
  config.gin.clear_config()
  config.load(
    [],
    [
      "from paragan_tf import hardware",
      f"hardware.Layout.hardware = '{chip}'",
      f"hardware.Layout.pad_channels = {multiple}",
    ],
  )
  net = _make_net(piece)
  carried = -(-piece.width // multiple) * multiple
  side = [piece.resolution] * 2 if piece.resolution > 1 else []
  x = tf.TensorSpec([_NUM_IMAGES, *side, carried], tf.bfloat16)

  def compute(x, dy):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = net(x)
    return tape.gradient(y, [x, *net.trainable_variables], dy)

  y = tf.function(net, autograph=False).get_concrete_function(x).outputs[0]
  return compute, [x, tf.TensorSpec(y.shape, y.dtype)]


def _make_net(piece: Piece) -> Any:
  import tensorflow as tf

  from paragan_tf.nets import layers, norms
  from paragan_tf.types import Mode

  def zeros(name, shape):
    return tf.zeros(shape)

  class Block(tf.Module):
    def __init__(self):
      super().__init__()
      width = piece.width
      self.norm = norms.BatchNorm(width)
      self.conv = layers.Conv(width, width, zeros, spectral=True)
      self.shortcut = layers.Conv(width, width, zeros, size=1, spectral=True)

    def __call__(self, x):
      h = tf.nn.relu(self.norm(x, None, Mode.TRAIN))
      return self.conv(h, Mode.TRAIN) + self.shortcut(x, Mode.TRAIN)

  class Line(layers.Linear):
    def __call__(self, x):
      return super().__call__(x, Mode.TRAIN)

  if piece.resolution > 1:
    return Block()
  return Line(piece.width, _LINEAR_OUTPUTS, zeros, spectral=True)


def read_cycles(path: pathlib.Path) -> int:
  """Returns the cycles of a compiled piece."""
  figures = json.loads(path.with_suffix(".json").read_text())
  if "error" in figures:
    raise ValueError(f"The TPU compiler refused a piece: {figures['error']}")
  program = hlo.parse(path.with_suffix(".txt").read_text())
  return sum(programs.count_cycles(program).values())


def make_table(found: Sequence[Tuple[Piece, int]]) -> List[Dict[str, int]]:
  """Returns a row for each width and resolution: both numbers of cycles."""
  cycles = dict(found)
  return [
    {
      "width": piece.width,
      "resolution": piece.resolution,
      "plain": cycles[piece],
      "padded": cycles[piece._replace(is_padded=True)],
    }
    for piece in cycles
    if not piece.is_padded
  ]
