"""The speed of one step, against TF-GAN training the same nets.

TF-GAN gets the nets as the papers write them, upsampling and pooling apart from
the convolutions; and, to see where a gain comes from, with our layers, then
with our memory allocator too. Each side has a process of its own, since the
allocator is a setting of the process; all trace first, then take turns.

Ratios are taken within a round. TensorFlow is imported over there only.
"""

import inspect
import os
import time
from typing import Any, Dict, List, Sequence, Tuple

import gin

from tools import cli
from tools.suites import step_figures
from tools.suites.rounds import say, take_turns
from tools.suites.work import Work, count, count_function
from tools.suites.workers import Worker

_GIN_FILE = "gin/runs/benchmark_step.gin"
_ALLOCATOR = "TF_CPU_ALLOCATOR_USE_BFC"
_QUICK_SECONDS, _FULL_SECONDS = 150, 450
_NUM_WARM_UP_STEPS = 2
_MATMUL_SIZE, _NUM_MATMULS = 2048, 3


def run(quick: bool) -> Tuple[str, Dict[str, float]]:
  """Returns a table to read and the figures by name."""
  deadline = time.monotonic() + (_QUICK_SECONDS if quick else _FULL_SECONDS)
  load = os.getloadavg()[0]
  num_steps = 1 if quick else 2
  say(f"Starting four processes; the load is {load:.1f}.")
  ours = Worker("ours", Ours)
  tfgan = Worker("tfgan_plain", PlainTFGAN, {_ALLOCATOR: None})
  layers = Worker("tfgan", TFGAN, {_ALLOCATOR: None})
  pooled = Worker("tfgan_our_allocator", TFGAN, {_ALLOCATOR: "true"})
  workers = (ours, tfgan, layers, pooled)
  try:
    _ask_all(workers, "run", _NUM_WARM_UP_STEPS)
    names = ("ours", "tfgan_plain", "tfgan")
    work = dict(zip(names, _ask_all(workers, "work")))
    summary, images = ours.ask("summary")
    turns = {
      "tfgan_estimator": lambda: tfgan.ask("run", num_steps, True),
      "tfgan_plain": lambda: tfgan.ask("run", num_steps),
      "ours": lambda: ours.ask("run", num_steps),
      "tfgan": lambda: layers.ask("run", num_steps),
      "tfgan_our_allocator": lambda: pooled.ask("run", num_steps),
      "peak": lambda: ours.ask("peak"),
    }
    results = take_turns(turns, deadline)
  finally:
    for worker in workers:
      worker.close()
  figures = step_figures.gather(results, work, num_steps, images)
  figures["load_before"] = load
  return f"{summary}\n\n{step_figures.table(figures)}", figures


def _ask_all(workers: Sequence[Worker], *order) -> List[Any]:
  """Asks all at once, for what takes long and is not timed."""
  for worker in workers:
    worker.tell(*order)
  return [worker.answer() for worker in workers]


class Ours:
  """Our own step in our own loop."""

  def __init__(self):
    experiment = _load()
    strategy = experiment.strategies.choose().strategy
    self._experiment = experiment.Experiment(strategy)
    self._inner_loop = self._experiment.inner_loop(0)

  def summary(self) -> Tuple[str, int]:
    """Returns what is trained, in words, and the images of one step."""
    return self._experiment.summary(), self._experiment.images_per_step

  def run(self, num_steps: int) -> float:
    """Trains; returns the seconds it took."""
    started = time.perf_counter()
    self._inner_loop(num_steps)
    return time.perf_counter() - started

  def work(self) -> Work:
    """Returns the work of one step."""
    import tensorflow as tf

    one = self._experiment

    @tf.function
    def step(images, labels):
      return one.strategy.run(one.step, (images, labels, 0))

    data = one.input_fn({"batch_size": one.images_per_step})
    return count_function(step.get_concrete_function(*data.element_spec))

  def peak(self) -> float:
    """Returns the multiply-adds a second of a large matmul, best of a few."""
    import tensorflow as tf

    x = tf.random.stateless_normal([_MATMUL_SIZE, _MATMUL_SIZE], [0, 0])
    seconds = []
    for _ in range(_NUM_MATMULS):
      started = time.perf_counter()
      tf.matmul(x, x)
      seconds.append(time.perf_counter() - started)
    return _MATMUL_SIZE**3 / min(seconds)


class TFGAN:
  """TF-GAN's step in TF-GAN's loop, on our nets and data.

  Its parts are put together as its `GANEstimator` and `gan_train` do it. They
  cannot be called: `gan_loss` below them asks for `inspect.getargspec`, which
  Python 3.11 took away.
  """

  bindings: Tuple[str, ...] = ()

  def __init__(self):
    self._make = _load(self.bindings)
    import tensorflow as tf
    import tensorflow_gan as tfgan

    # Not the strategy that we would choose: that chooses the allocator too.
    self._ours = self._make.Experiment(tf.distribute.get_strategy())
    with tf.Graph().as_default():
      model = self._model()
      self._losses = tfgan.GANLoss(
        tfgan.losses.wasserstein_hinge_generator_loss(model),
        tfgan.losses.wasserstein_hinge_discriminator_loss(model),
      )
      self._ops = tfgan.gan_train_ops(
        model, self._losses, self._adam("g"), self._adam("d")
      )
      hooks = tfgan.get_sequential_train_hooks()(self._ops)
      self._session = tf.compat.v1.train.MonitoredSession(hooks=hooks)

  def run(self, num_steps: int, fetch_loss: bool = False) -> float:
    """Trains; returns the seconds it took.

    Args:
      num_steps: Updates of each player; the hooks make them.
      fetch_loss: Asks for D's loss too, on a further batch, as
        `Estimator.train` does for its log.
    """
    fetches = [self._ops.global_step_inc_op]
    if fetch_loss:
      fetches.append(self._losses.discriminator_loss)
    started = time.perf_counter()
    for _ in range(num_steps):
      self._session.run(fetches)
    return time.perf_counter() - started

  def work(self) -> Work:
    """Returns the work of one step: each player's train op runs once."""
    g, d = self._ops.generator_train_op, self._ops.discriminator_train_op
    return count([g.op]).plus(count([d.op]))

  def _model(self):
    import tensorflow_gan as tfgan

    mode = inspect.getmodule(self._make.Net).Mode
    inputs, images = self._batch()
    nets = {}

    def call(name, x, mode):
      if name not in nets:  # Made in the variable scope that TF-GAN opened.
        with gin.config_scope(name):
          nets[name] = self._make.player(self._ours.spec, 0, name).net
      return _with_updates(nets[name], x, inputs["labels"], mode)

    d_modes = iter([mode.WATCH, mode.TURN])  # TF-GAN scores the fake first.
    return tfgan.gan_model(
      lambda inputs: call("g", inputs["z"], mode.TURN),
      lambda x, inputs: call("d", x, next(d_modes)),
      images,
      inputs,
    )

  def _batch(self):
    import tensorflow as tf

    size = self._ours.batch_size
    z_dim = self._ours.step.players["g"].net.z_dim

    def with_z(images, labels):
      z = tf.random.normal([size, z_dim])
      return {"z": z, "labels": labels}, images

    data = self._ours.input_fn({"batch_size": size}).map(with_z).prefetch(2)
    iterator = tf.compat.v1.data.make_initializable_iterator(data)
    tf.compat.v1.add_to_collection(
      tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer
    )
    return iterator.get_next()

  def _adam(self, name: str):
    import tensorflow as tf

    ours = self._ours.step.players[name].optimizer
    return tf.compat.v1.train.AdamOptimizer(
      ours.learning_rate, ours.beta1, ours.beta2, ours.epsilon
    )


class PlainTFGAN(TFGAN):
  """The same with the nets as the papers write them."""

  bindings = ("layers.Conv.fused = False",)


def _load(bindings: Sequence[str] = ()):
  """Returns `paragan_tf.experiment`, the suite's config read."""
  experiment = cli.import_experiment()
  import tensorflow as tf

  tf.get_logger().setLevel("ERROR")  # TF-GAN is full of deprecated calls.
  experiment.config.load([_GIN_FILE], bindings)
  return experiment


def _with_updates(net, *args):
  """Calls a net in a graph; TF-GAN runs what it assigns in its own turn."""
  import tensorflow as tf

  graph = tf.compat.v1.get_default_graph()
  before = len(graph.get_operations())
  y = net(*args)
  for op in graph.get_operations()[before:]:
    if op.type.startswith("Assign"):
      graph.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, op)
  return y
