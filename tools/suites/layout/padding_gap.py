"""How far BigGAN with padded channels is from BigGAN without: rounding."""

from typing import List, Sequence

import numpy as np

from tools import cli

_NET = "gin/nets/biggan.gin"
_PADDED = "gin/layout/padded128.gin"
_SMALL = (
  "biggan.Generator.width = 8",
  "biggan.Discriminator.width = 8",
  "biggan.Generator.z_dim = 20",
)


class PaddingGap:
  """Computes both, in a process of its own."""

  def measure(self) -> float:
    """Returns the largest relative distance of images, logits and gradients."""
    plain = compute((_NET,), _SMALL)
    padded = compute((_NET, _PADDED), _SMALL)
    return max(
      float(np.linalg.norm(one - other) / np.linalg.norm(other))
      for one, other in zip(padded, plain)
    )


def compute(files: Sequence[str], bindings: Sequence[str]) -> List[np.ndarray]:
  """Returns images, logits, and all gradients as one vector."""
  experiment = cli.import_experiment()
  import tensorflow as tf

  cli.import_quietly("paragan_tf.config").load(files, bindings)
  spec = experiment.ImageSpec(32, 3, 10)
  draw = np.random.RandomState(0)
  nets = []
  for who in "gd":
    with experiment.gin.config_scope(who):
      nets.append(experiment.player(spec, 0, who).net)
    for v in nets[-1].trainable_variables:
      v.assign_add(0.1 * draw.randn(*v.shape))
  g, d = nets
  mode = cli.import_quietly("paragan_tf.types").Mode.TRAIN
  z = tf.constant(draw.randn(4, g.z_dim), tf.float32)
  labels = tf.constant([0, 3, 1, 9])
  with tf.GradientTape() as tape:
    images = g(z, labels, mode)
    logits = d(images, labels, mode)
    loss = tf.reduce_sum(tf.square(logits))
  weights = [*g.trainable_variables, *d.trainable_variables]
  grads = [np.ravel(x) for x in tape.gradient(loss, weights)]
  return [images.numpy(), logits.numpy(), np.concatenate(grads)]
