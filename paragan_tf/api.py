"""The Python API: bring your own G and D, and train.

    gan = pg.Estimator(Generator(), Discriminator(), model_dir="runs/mine")
    gan.train(input_fn, steps=1000)

or, driven step by step,

    cfg = pg.Config(max_steps=1000)
    scale_mgr = pg.ScalingManager(config=cfg, bs=2048, num_workers=128)
    for step in cfg.max_steps:
      scale_mgr.train(gan)
    scale_mgr.eval(metric="fid")

What has no argument, such as schedules and exchanges, is bound in gin, as in
the files of `gin/`.
"""

import functools
import tempfile
from typing import Any, Callable, Dict, Iterator, Optional, Sequence

import numpy as np
import tensorflow as tf

from paragan_tf import choices, comparison, trained
from paragan_tf.callbacks import Callbacks
from paragan_tf.comparison import compare
from paragan_tf.data import array_input
from paragan_tf.data.adapted_input import AdaptedInput
from paragan_tf.data.array_input import UserData
from paragan_tf.data.input_fn import InputFn
from paragan_tf.data.sources import fashion_mnist
from paragan_tf.engine import strategies
from paragan_tf.engine.loop import Logs
from paragan_tf.engine.strategies import DeviceOptions
from paragan_tf.experiment import Experiment
from paragan_tf.game.optimizers import LearningRate
from paragan_tf.generator import Classes, Generator, Samples
from paragan_tf.gin_imports import allow_gin_imports
from paragan_tf.nets.adapted import adapt_d, adapt_g
from paragan_tf.outputs.checkpoints import Checkpoints
from paragan_tf.run import Run
from paragan_tf.scaling_manager import Config, ScalingManager
from paragan_tf.trained import load

__all__ = [
  "Config",
  "DeviceOptions",
  "Estimator",
  "ScalingManager",
  "allow_gin_imports",
  "compare",
  "fashion_mnist",
  "load",
]

_PREDICT_SEED = 3


class Estimator:
  """Trains a user's G and D, in the manner of `tf.estimator.Estimator`.

  Args:
    g: G: a `tf.Module`, a Keras model, an object with
      `model_fn(latent_var, y)`, or a class or function that makes one.
    d: D: the same, with `model_fn(x, y)`; its result, or the last of them, is
      the logits.
    model_dir: Folder of the run; an existing one resumes. A new one in the
      temporary folder by default.
    batch_size: Images of one batch, over all replicas.
    num_classes: How many class ids there are, 0 for none; by default those of
      the embedded set, as many as arrays have, and none with an `input_fn`.
    z_dim: Length of the latent code, if the net does not say it.
    device_options: Which devices to train on; the machine decides by default.
    loss: Its name, as 'hinge', or a function from `Scores` to `Losses`; like
      all that follow, by default what gin says.
    g_optimizer: Its name, as 'adam', or what makes it from a `name`.
    d_optimizer: The same of D.
    g_learning_rate: A number, or a function of the count of updates.
    d_learning_rate: The same of D.
    callbacks: Functions of (step, logs), or objects; see `callbacks.py`.
  """

  def __init__(
    self,
    g: Any,
    d: Any,
    model_dir: Optional[str] = None,
    batch_size: int = 64,
    num_classes: Optional[int] = None,
    z_dim: Optional[int] = None,
    device_options: Optional[DeviceOptions] = None,
    loss: choices.LossChoice = None,
    g_optimizer: choices.OptimizerChoice = None,
    d_optimizer: choices.OptimizerChoice = None,
    g_learning_rate: Optional[LearningRate] = None,
    d_learning_rate: Optional[LearningRate] = None,
    callbacks: Sequence[Any] = (),
  ):
    self.model_dir = model_dir or tempfile.mkdtemp(prefix="paragan_")
    self._batch_size = batch_size
    self.max_steps: Optional[int] = None
    self._nets = {
      "g": functools.partial(adapt_g, g, z_dim),
      "d": functools.partial(adapt_d, d),
    }
    self._num_classes = num_classes
    self._device_options = device_options
    self._loss = choices.find_loss(loss)
    self._optimizers = {
      "g": (g_optimizer, g_learning_rate),
      "d": (d_optimizer, d_learning_rate),
    }
    choices.find_optimizers(self._optimizers)  # Refuses what is wrong now.
    self._notes = choices.describe(
      estimator_loss=loss,
      estimator_g_optimizer=g_optimizer,
      estimator_d_optimizer=d_optimizer,
      estimator_g_learning_rate=g_learning_rate,
      estimator_d_learning_rate=d_learning_rate,
    )
    Callbacks(callbacks)  # Refuses what is wrong now.
    self._callbacks = callbacks
    self._data: Optional[UserData] = None
    self._choice: Optional[strategies.Choice] = None
    self._run: Optional[Run] = None

  @property
  def batch_size(self) -> int:
    """Images of one batch, over all replicas; it stays once training began."""
    return self._batch_size

  @batch_size.setter
  def batch_size(self, value: int) -> None:
    if self._run is not None and value != self._batch_size:
      raise ValueError(
        f"`batch_size` must stay {self._batch_size} once an estimator has "
        f"begun, got {value}: give that from the start, or make a new "
        f"`Estimator` with `model_dir` '{self.model_dir}', which resumes."
      )
    self._batch_size = value

  def train(
    self,
    input_fn: Optional[UserData] = None,
    steps: Optional[int] = None,
    max_steps: Optional[int] = None,
  ) -> "Estimator":
    """Trains for `steps` more, or up to `max_steps`, and saves.

    Args:
      input_fn: The images: a function that returns a `tf.data.Dataset`, such
        a dataset, an array of images `[n, h, w, c]`, or a pair of images and
        class ids; the embedded Fashion-MNIST by default. One in ten, chosen by
        a hash of its pixels, is held out: `evaluate` measures with it, and
        nothing is trained on it. A function that takes `split` is called with
        'train' or 'heldout' instead, and all that it returns is used: do so if
        it crops or flips images at random.
      steps: How many more steps.
      max_steps: How many steps in all.
    """
    if (steps is None) == (max_steps is None):
      raise ValueError(
        "One of `steps` and `max_steps` must be given, got "
        f"steps={steps}, max_steps={max_steps}."
      )
    run = self.get_run(input_fn)
    run.extend(max_steps or run.done + (steps or 0))
    try:
      run.train(run.num_steps)
    finally:
      run.close_progress()
    run.save()
    run.notify_end()
    return self

  def advance(self, steps: int = 1) -> Logs:
    """Trains a little, without saving at the end; returns the logs."""
    run = self.get_run()
    run.num_steps = max(self.max_steps or 0, run.done + steps)
    return run.train(run.done + steps)

  def evaluate(
    self,
    input_fn: Optional[UserData] = None,
    num_samples: Optional[int] = None,
  ) -> Dict[str, Optional[float]]:
    """Returns `global_step` and the metrics of the average of G.

    Color images have `fid`, `kid`, ... after `make inception`; without it, and
    for gray images, names end in the network: `frechet_fashion`. NAME`_real` is
    what real images get that were held out of training. Samples, values and the
    report are in `model_dir` then. Of several processes all must call it; the
    chief measures and writes, and all get its values.

    Args:
      input_fn: The images to train on, if nothing was trained yet.
      num_samples: How many samples; as many as held-out images by default.
    """
    run = self.get_run(input_fn)
    values = run.experiment.processes.on_chief(
      lambda: [value.to_json() for value in run.finish(num_samples)]
    )
    results: Dict[str, Optional[float]] = {"global_step": run.done}
    for value in values:
      results[value["name"]] = value["value"]
      results[f"{value['name']}_real"] = value["real_score"]
    return results

  def predict(
    self, input_fn: Callable[[], tf.data.Dataset]
  ) -> Iterator[Dict[str, np.ndarray]]:
    """Yields a dict with one sample of the average of G for each example.

    Args:
      input_fn: Returns a dataset of class ids, or of dicts with `labels`, `z`
        or both; batched or not.
    """
    if self._can_load():
      sampler = self.generator().make_sampler()
    else:
      sampler = self.get_run().experiment.sampler
    start = 0
    for features in array_input.read_batches(input_fn()):
      images = sampler(
        features.get("labels"), _PREDICT_SEED, start, features.get("z")
      )
      start += len(images)
      for image in images:
        yield {"images": image}

  def sample(
    self,
    num: int = 64,
    classes: Optional[Classes] = None,
    seed: int = 0,
    truncation: Optional[float] = None,
  ) -> Samples:
    """Returns images, labels and latent codes of `num` samples.

    Like the methods below, it needs no data if the folder has a checkpoint. The
    arguments are those of `generator.Generator`, which has more methods.
    """
    return self.generator().sample(num, classes, seed, truncation)

  def interpolate(
    self,
    kind: str = "z",
    num: int = 8,
    num_frames: int = 8,
    classes: Optional[Classes] = None,
    seed: int = 0,
    truncation: Optional[float] = None,
  ) -> Samples:
    """Returns `num` rows of `num_frames` samples, from one to another."""
    return self.generator().interpolate(
      kind, num, num_frames, classes, seed, truncation
    )

  def export_saved_model(
    self, folder: str, truncation: Optional[float] = None
  ) -> str:
    """Writes the average of G as a SavedModel; returns its path."""
    return self.generator().export(folder, truncation)

  def compare(
    self,
    *others: str,
    output: str = "compare.html",
    price: Optional[float] = None,
  ) -> str:
    """Writes a page that compares this run with others; returns its table.

    Args:
      others: Folders of runs. Gin's config is that of one of them afterwards.
      output: The page to write.
      price: Of an hour of one device, if costs are wanted.
    """
    generators = {self.model_dir: self.generator()}
    paths = (self.model_dir, *others)
    result = comparison.compare(paths, price, generators=generators)
    result.write(output)
    return result.table

  def generator(self) -> Generator:
    """Returns the average of G as it is now."""
    if self._can_load():
      return trained.load(self.model_dir, make_g=self._nets["g"])
    run = self.get_run()
    info = run.experiment.g_info()._replace(step=run.done)
    return Generator(run.experiment.plain_g(), info)

  def _can_load(self) -> bool:
    """Returns whether G is to be loaded, without the data of a run."""
    if self._run is None and self.latest_checkpoint() is None:
      raise ValueError(
        f"There is no G in '{self.model_dir}' yet: call `train` first."
      )
    return self._run is None and trained.has_g(self.model_dir)

  def latest_checkpoint(self) -> Optional[str]:
    """Returns the newest checkpoint, or `None`."""
    return Checkpoints(self.model_dir).latest()

  def get_run(self, input_fn: Optional[UserData] = None) -> Run:
    """Returns the run; the first call builds it with the data.

    Args:
      input_fn: As in `train`; must be the same in all calls, or left out.
    """
    if self._run is not None and (
      input_fn is None or array_input.is_same(input_fn, self._data)
    ):
      return self._run
    if self._run is not None:
      raise ValueError(
        "One estimator has one `input_fn`, got another one: make a new "
        f"`Estimator` with `model_dir` '{self.model_dir}', which resumes."
      )
    self._data = input_fn
    choice = self._choose()
    print(f"Training on {choice.reason}, in {self.model_dir}.", flush=True)
    experiment = self._make_experiment(choice.strategy, self.batch_size)
    self._run = Run(
      experiment,
      self.model_dir,
      num_steps=experiment.step.cycle,
      callbacks=self._callbacks,
      notes=self._notes,
    )
    self._run.restore()
    self._run.open()
    return self._run

  def _choose(self) -> strategies.Choice:
    """Returns the strategy, one for all: two would clash."""
    if self._choice is None:
      self._choice = strategies.choose(self._device_options)
    return self._choice

  def _make_experiment(
    self, strategy: tf.distribute.Strategy, batch_size: int
  ) -> Experiment:
    given: Dict[str, Any] = {} if self._loss is None else {"loss": self._loss}
    return Experiment(
      strategy,
      self._nets,
      batch_size=batch_size,
      input_fn=self._make_input,
      extractor="auto",
      optimizers=choices.find_optimizers(self._optimizers),
      **given,
    )

  @property
  def is_built(self) -> bool:
    """Whether training began, after which the batch size stays."""
    return self._run is not None

  def make_worker(
    self, input_fn: Optional[UserData], batch_size: int
  ) -> Experiment:
    """Returns one worker with a batch of its own, to be profiled."""
    self._data = input_fn
    strategy = self._choose().strategy
    if strategy.num_replicas_in_sync > 1:
      kind = strategy.extended.worker_devices[0]
      strategy = tf.distribute.OneDeviceStrategy(kind)
    return self._make_experiment(strategy, batch_size)

  def describe(self) -> str:
    """Returns what a profile is of: nets and arguments, as text."""
    parts = [f"{name} = {x}" for name, x in sorted(self._notes.items())]
    for net in self._nets.values():
      parts.append(choices.describe_source(net.args[0]))
    return "\n".join(parts)

  def _make_input(self):
    if self._data is None:
      return InputFn(conditional=self._num_classes != 0)
    made = array_input.make_input(self._data, self._num_classes)
    return AdaptedInput(made.input_fn, made.num_classes)
