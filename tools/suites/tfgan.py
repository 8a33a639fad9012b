"""TF-GAN's side of a comparison: its updates on our nets and data."""

import importlib.util
import inspect
import math
import platform
import time
from typing import Any, Dict, Sequence

import gin

from tools import cli
from tools.suites import ours
from tools.suites.flops import MultiplyAdds, count_operations


def check_peer() -> None:
  """Raises a `ValueError` if there is no TF-GAN to compare with."""
  if importlib.util.find_spec("tensorflow_gan") is None:
    raise ValueError(
      "This suite compares with TF-GAN, which needs TensorFlow 2.15, and "
      f"Python {platform.python_version()} has no TF-GAN here: run it with "
      "Python 3.9 to 3.11, for which `make PYTHON=python3.11` installs both."
    )


class TfganInputs:
  """What TF-GAN is given: our own nets, data, hinge loss and Adam.

  Args:
    bindings: Gin bindings over the config of the benchmark.
  """

  def __init__(self, bindings: Sequence[str] = ()):
    ours.load_config(bindings)
    self._module = cli.import_experiment()
    import tensorflow as tf

    # Not `strategies.choose`, which sets the allocator too.
    self._ours = self._module.Experiment(
      tf.distribute.OneDeviceStrategy("/cpu:0")
    )
    types: Any = inspect.getmodule(self._module.Net)
    self._mode = types.Mode
    self._nets: Dict[str, Any] = {}
    # TF-GAN scores the fake first.
    self._d_modes = iter([self._mode.FROZEN, self._mode.TRAIN])
    self._optimizers: Dict[str, Any] = {}

  def call_generator(self, inputs):
    """TF-GAN's `generator_fn`."""
    return self._call("g", inputs["z"], inputs["labels"], self._mode.TRAIN)

  def call_discriminator(self, x, inputs):
    """TF-GAN's `discriminator_fn`."""
    return self._call("d", x, inputs["labels"], next(self._d_modes))

  def make_dataset(self):
    """Returns a dataset of `(generator_inputs, real_data)`."""
    import tensorflow as tf

    size = self._ours.batch_size
    z_dim = self._ours.step.players["g"].net.z_dim

    def add_z(images, labels):
      z = tf.random.normal([size, z_dim])
      return {"z": z, "labels": labels}, images

    return self._ours.input_fn({"batch_size": size}).map(add_z).prefetch(2)

  def make_adam(self, who: str):
    """Returns TensorFlow's optimizer with the hyper-parameters of ours."""
    import tensorflow as tf

    values = self._ours.step.players[who].optimizer
    self._optimizers[who] = tf.compat.v1.train.AdamOptimizer(
      values.learning_rate, values.beta1, values.beta2, values.epsilon
    )
    return self._optimizers[who]

  def count_updates(self, session) -> Dict[str, int]:
    """Returns each player's updates, out of Adam's power of beta2."""
    counts = {}
    for who, optimizer in self._optimizers.items():
      beta2 = self._ours.step.players[who].optimizer.beta2
      with session.graph.as_default():
        found = [v for v in optimizer.variables() if "beta2_power" in v.name]
      counts[who] = round(math.log(session.run(found[0]), beta2)) - 1
    return counts

  def _call(self, who: str, *args):
    """Calls a net; the first call makes it in TF-GAN's variable scope."""
    if who not in self._nets:
      with gin.config_scope(who):
        player = self._module.player(self._ours.spec, 0, who)
      self._nets[who] = player.net
    return _call_with_updates(self._nets[who], *args)


class Session:
  """TF-GAN's train operations in a bare session: two updates a step."""

  def __init__(self, bindings: Sequence[str] = ()):
    self._inputs = given = TfganInputs(bindings)
    import tensorflow as tf
    import tensorflow_gan as tfgan

    with tf.Graph().as_default():
      inputs, images = _get_next(given.make_dataset())
      model = tfgan.gan_model(
        given.call_generator, given.call_discriminator, images, inputs
      )
      losses = tfgan.GANLoss(
        tfgan.losses.wasserstein_hinge_generator_loss(model),
        tfgan.losses.wasserstein_hinge_discriminator_loss(model),
      )
      self._ops = tfgan.gan_train_ops(
        model, losses, given.make_adam("g"), given.make_adam("d")
      )
      hooks = tfgan.get_sequential_train_hooks()(self._ops)
      self._session = tf.compat.v1.train.MonitoredSession(hooks=hooks)

  def run(self, num_steps: int) -> float:
    """Trains by TF-GAN's hooks; returns the seconds it took."""
    started = time.perf_counter()
    for _ in range(num_steps):
      self._session.run(self._ops.global_step_inc_op)
    return time.perf_counter() - started

  def count_multiply_adds(self) -> MultiplyAdds:
    """Counts one step: each player's train operation runs once."""
    return count_train_ops(self._ops)

  def count_updates(self) -> Dict[str, int]:
    """Returns the number of updates of each player."""
    return self._session.run_step_fn(  # Without the hooks.
      lambda step_context: self._inputs.count_updates(step_context.session)
    )


def count_train_ops(ops) -> MultiplyAdds:
  """Returns the multiply-adds of TF-GAN's two train operations."""
  g, d = ops.generator_train_op, ops.discriminator_train_op
  return count_operations([g.op]).plus(count_operations([d.op]))


def _get_next(data):
  """Returns the tensors of the next element, in a graph."""
  import tensorflow as tf

  iterator = tf.compat.v1.data.make_initializable_iterator(data)
  tf.compat.v1.add_to_collection(
    tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer
  )
  return iterator.get_next()


def _call_with_updates(net, *args):
  """Calls a net in a graph, and registers its assignments for TF-GAN."""
  import tensorflow as tf

  graph = tf.compat.v1.get_default_graph()
  before = len(graph.get_operations())
  y = net(*args)
  for op in graph.get_operations()[before:]:
    if op.type.startswith("Assign"):
      graph.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, op)
  return y
