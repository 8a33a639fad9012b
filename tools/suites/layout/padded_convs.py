"""Whether a CPU gains by channels that fill its vectors: 16 of AVX-512.

A 3x3 convolution and its gradients, its channels as they are and padded to a
multiple of 16 through the net; one after the other, many times.
"""

import time
from typing import Callable, Dict, List

import numpy as np

from tools import cli

MULTIPLE = 16
WIDTHS = (12, 24, 40, 72, 104)
_NUM_IMAGES, _SIDE = 16, 32
_ROUNDS, _NUM_CALLS = 15, 3


class PaddedConvs:
  """Times both, in a process of its own."""

  def measure(self) -> Dict[int, List[float]]:
    """Returns, by width, how many times as fast each round is if padded."""
    return {width: _compare(width) for width in WIDTHS}


def _compare(width: int) -> List[float]:
  padded = -(-width // MULTIPLE) * MULTIPLE
  plain, other = _make_call(width), _make_call(padded)
  return [_time(plain) / _time(other) for _ in range(_ROUNDS)]


def _make_call(width: int) -> Callable[[], None]:
  layout = cli.import_quietly("paragan_tf.nets.layout")
  import tensorflow as tf

  draw = np.random.RandomState(0)
  shape = [_NUM_IMAGES, _SIDE, _SIDE, width]
  x = tf.constant(draw.randn(*shape), tf.float32)
  w = tf.constant(draw.randn(3, 3, width, width), tf.float32)

  @tf.function(autograph=False)
  def compute():
    with tf.GradientTape() as tape:
      tape.watch([x, w])
      y = tf.nn.relu(layout.conv(x, w))
    return [y, *tape.gradient(y, [x, w])]

  def call():
    for _ in range(_NUM_CALLS):
      compute()[-1].numpy()

  call()
  return call


def _time(call: Callable[[], None]) -> float:
  start = time.perf_counter()
  call()
  return time.perf_counter() - start
