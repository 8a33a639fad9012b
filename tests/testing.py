"""What the tests share: four replicas on the CPU, and small random batches.

Four, so that a ring has a neighbor's neighbor. The CPU can be split only until
the first tensor is made: under pytest `conftest.py` calls `strategy` before any
test module is imported, and a file that is run by itself ends with `main`.
"""

import functools
import importlib.util
from typing import Any, Callable, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from paragan_tf.engine import strategies
from paragan_tf.game.penalties import View
from paragan_tf.types import Batch, ImageSpec, Verdict

NUM_REPLICAS = 4

# TensorFlow has both up to 2.15. Tests of them are collected where they are.
HAS_ESTIMATOR = hasattr(tf, "estimator")
HAS_TF_GAN = importlib.util.find_spec("tensorflow_gan") is not None
ENGINES = ("strategy", "tpu_estimator") if HAS_ESTIMATOR else ("strategy",)

# For the linear pair.
SPEC = ImageSpec(resolution=8, channels=1, num_classes=3)


@functools.cache
def strategy() -> tf.distribute.Strategy:
  """Returns the strategy of four replicas that the whole process shares."""
  return strategies.choose(
    strategies.DeviceOptions(num_cpu_replicas=NUM_REPLICAS)
  ).strategy


def distribute(values: Sequence[Any]) -> Any:
  """Gives each replica its value, or nest of them, out of a list."""
  values = _tensors(list(values))
  return strategy().experimental_distribute_values_from_function(
    lambda context: values[context.replica_id_in_sync_group]
  )


def main():
  """Runs the tests of the file that is the program."""
  strategy()
  tf.test.main()


def on_replicas(fn: Callable) -> Callable:
  """Returns `fn` as traced for all replicas, once; its results are arrays.

  The result takes one list for each argument of `fn`, with a value (or a nest
  of them) for each replica, and returns a list of what each replica returns.

  Args:
    fn: Returns tensors, a nest of them, or nothing.
  """
  traced = tf.function(
    lambda *args: strategy().run(fn, args=args), autograph=False
  )

  def run(*per_replica: Sequence[Any]) -> List[Any]:
    results = traced(*(distribute(values) for values in per_replica))

    def pick(i, result):
      if result is None:
        return None
      return strategy().experimental_local_results(result)[i].numpy()

    return [
      tf.nest.map_structure(functools.partial(pick, i), results)
      for i in range(NUM_REPLICAS)
    ]

  return run


def run_on_replicas(fn: Callable, *per_replica: Sequence[Any]) -> List[Any]:
  """Returns what each replica returns, once; see `on_replicas`."""
  return on_replicas(fn)(*per_replica)


def slices(values: Any) -> tf.data.Dataset:
  """Returns a data set of arrays without TensorFlow's autotuning.

  An iterator that is collected waits for the thread that tunes it.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  return tf.data.Dataset.from_tensor_slices(values).with_options(options)


def images(num: int, spec: ImageSpec = SPEC, seed: int = 0) -> np.ndarray:
  """Returns uniform noise in [-1, 1], `[num, h, w, c]`."""
  shape = [num, spec.resolution, spec.resolution, spec.channels]
  return _random(seed, 1).uniform(-1, 1, shape).astype(np.float32)


def labels(
  num: int, spec: ImageSpec = SPEC, seed: int = 0
) -> Optional[np.ndarray]:
  """Returns class ids, `[num]`, or `None` if there are no classes."""
  if not spec.num_classes:
    return None
  return _random(seed, 2).randint(spec.num_classes, size=num).astype(np.int32)


def z(num: int, z_dim: int = 4, seed: int = 0) -> np.ndarray:
  """Returns standard normal latent codes, `[num, z_dim]`."""
  return _random(seed, 3).randn(num, z_dim).astype(np.float32)


def batch(
  num: int, spec: ImageSpec = SPEC, z_dim: int = 4, seed: int = 0
) -> Batch:
  """Returns one replica's shard of a step's batch."""
  reals = images(num, spec, seed), labels(num, spec, seed)
  return _tensors(Batch(*reals, z(num, z_dim, seed)))


class Judge(tf.Module):
  """A D whose slopes are known: `w x + q x^2 / 2`, and linear heads.

  `seen` and `labels` list what it was asked about.
  """

  def __init__(self, q: float = 0.5, spec: ImageSpec = SPEC):
    super().__init__()
    size = spec.resolution**2 * spec.channels
    self.w = tf.Variable(0.2 * z(1, size, seed=1)[0], name="w")
    self.q = tf.Variable(q, name="q")
    self.classes = tf.Variable(
      z(size, spec.num_classes, seed=2), name="classes"
    )
    self.embed = tf.Variable(z(size, 4, seed=3), name="embed")
    self.proxies = tf.Variable(z(spec.num_classes, 4, seed=5), name="proxies")
    self.seen: List[tf.Tensor] = []
    self.labels: List[tf.Tensor] = []

  def __call__(self, images: tf.Tensor, labels: tf.Tensor) -> Verdict:
    self.seen.append(images)
    self.labels.append(labels)
    x = tf.reshape(images, [images.shape[0], -1])
    squares = tf.reduce_sum(x**2, 1)
    classes = tf.one_hot(labels, self.proxies.shape[0])
    return Verdict(
      logits=tf.linalg.matvec(x, self.w) + self.q * squares / 2,
      features=tf.matmul(x, self.classes),
      classes=tf.matmul(x, self.classes),
      embedding=tf.math.l2_normalize(tf.matmul(x, self.embed), 1),
      proxy=tf.math.l2_normalize(tf.matmul(classes, self.proxies), 1),
    )


class Maker(tf.Module):
  """A G of one layer; `seen` and `labels` list what it was given."""

  def __init__(self, spec: ImageSpec = SPEC):
    super().__init__()
    self.shape = [-1, spec.resolution, spec.resolution, spec.channels]
    size = spec.resolution**2 * spec.channels
    self.v = tf.Variable(z(4, size, seed=4), name="v")
    self.seen: List[tf.Tensor] = []
    self.labels: List[tf.Tensor] = []

  def __call__(self, codes: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    self.seen.append(codes)
    self.labels.append(labels)
    return tf.reshape(tf.tanh(tf.matmul(codes, self.v)), self.shape)


def view(d: Callable, g: Callable, who: str = "d", step: int = 3) -> View:
  """Returns what a player sees in its move on six images."""
  reals = batch(6)
  fakes = g(reals.z, reals.labels)
  count = tf.constant(step, tf.int64)
  labels = tf.roll(reals.labels, 1, 0)
  real, fake = d(reals.images, reals.labels), d(fakes, labels)
  return View(who, d, g, reals, fakes, labels, real, fake, 7, count)


def values(variables: Sequence[tf.Variable]) -> List[np.ndarray]:
  """Returns what the variables hold now, copied."""
  return [np.array(variable) for variable in variables]


def _tensors(nest: Any) -> Any:
  return tf.nest.map_structure(
    lambda x: None if x is None else tf.convert_to_tensor(x), nest
  )


def _random(seed: int, purpose: int) -> np.random.RandomState:
  return np.random.RandomState([seed, purpose])
