"""The Python API: bring your own G and D, and train.

    gan = pg.Estimator(Generator(), Discriminator(), model_dir="runs/mine")
    gan.train(input_fn, steps=1000)

or, driven step by step,

    scale_mgr = pg.ScalingManager(config=cfg, bs=2048, num_workers=128)
    for step in range(cfg.max_steps):
      scale_mgr.train(gan)
    scale_mgr.eval(metric="fid")

Optimizers, losses, schedules and exchanges are bound in gin, as in the files of
`gin/`.
"""

import functools
import tempfile
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple

import numpy as np
import tensorflow as tf

from paragan_tf.data import sources
from paragan_tf.data.adapted_input import AdaptedInput
from paragan_tf.data.input_fn import InputFn
from paragan_tf.engine import strategies
from paragan_tf.engine.loop import Logs
from paragan_tf.engine.strategies import DeviceOptions
from paragan_tf.experiment import Experiment
from paragan_tf.nets.adapted import adapt_d, adapt_g
from paragan_tf.outputs.export import export
from paragan_tf.outputs.metrics import OTHER_NAMES
from paragan_tf.run import Run

__all__ = ["DeviceOptions", "Estimator", "ScalingManager", "fashion_mnist"]

# Returns a `tf.data.Dataset` of images, or of images and class ids.
UserInputFn = Callable[..., tf.data.Dataset]

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
      the embedded set, and none with an `input_fn`.
    z_dim: Length of the latent code, if the net does not say it.
    device_options: Which devices to train on; the machine decides by default.
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
    self._input_fn: Optional[UserInputFn] = None
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
    input_fn: Optional[UserInputFn] = None,
    steps: Optional[int] = None,
    max_steps: Optional[int] = None,
  ) -> "Estimator":
    """Trains for `steps` more, or up to `max_steps`, and saves.

    Args:
      input_fn: Returns the images; the embedded Fashion-MNIST by default. One
        in ten, chosen by a hash of its pixels, is held out: `evaluate` measures
        with it, and nothing is trained on it. If it takes `split`, it is called
        with 'train' or 'heldout' instead, and all that it returns is used: do
        so if it crops or flips images at random.
      steps: How many more steps.
      max_steps: How many steps in all.
    """
    if (steps is None) == (max_steps is None):
      raise ValueError(
        "One of `steps` and `max_steps` must be given, got "
        f"steps={steps}, max_steps={max_steps}."
      )
    run = self.get_run(input_fn)
    run.num_steps = max_steps or run.done + (steps or 0)
    try:
      run.train(run.num_steps)
    finally:
      run.close_progress()
    run.save()
    return self

  def advance(self, steps: int = 1) -> Logs:
    """Trains a little, without saving at the end; returns the logs."""
    run = self.get_run()
    run.num_steps = max(self.max_steps or 0, run.done + steps)
    return run.train(run.done + steps)

  def evaluate(
    self,
    input_fn: Optional[UserInputFn] = None,
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
    run = self.get_run()
    start = 0
    for features in _batches(input_fn()):
      images = run.experiment.sampler(
        features.get("labels"), _PREDICT_SEED, start, features.get("z")
      )
      start += len(images)
      for image in images:
        yield {"images": image}

  def export_saved_model(self, folder: str) -> str:
    """Writes the average of G as a SavedModel; returns its path."""
    run = self.get_run()
    return export(
      run.experiment.plain_g(), bool(run.experiment.spec.num_classes), folder
    )

  def latest_checkpoint(self) -> Optional[str]:
    """Returns the newest checkpoint, or `None`."""
    return tf.train.latest_checkpoint(self.model_dir)

  def get_run(self, input_fn: Optional[UserInputFn] = None) -> Run:
    """Returns the run; the first call builds it with the data.

    Args:
      input_fn: As in `train`; must be the same in all calls, or left out.
    """
    if self._run is not None and input_fn in (None, self._input_fn):
      return self._run
    if self._run is not None:
      raise ValueError(
        "One estimator has one `input_fn`, got another one: make a new "
        f"`Estimator` with `model_dir` '{self.model_dir}', which resumes."
      )
    self._input_fn = input_fn
    choice = strategies.choose(self._device_options)
    print(f"Training on {choice.reason}, in {self.model_dir}.", flush=True)
    experiment = Experiment(
      choice.strategy,
      self._nets,
      batch_size=self.batch_size,
      input_fn=self._make_input,
      extractor="auto",
    )
    self._run = Run(experiment, self.model_dir, num_steps=experiment.step.cycle)
    self._run.restore()
    self._run.open()
    return self._run

  def _make_input(self):
    if self._input_fn is None:
      return InputFn(conditional=self._num_classes != 0)
    return AdaptedInput(self._input_fn, self._num_classes or 0)


class ScalingManager:
  """Shares the batch among workers, drives the steps and evaluates.

  With fewer devices here than `num_workers`, each does the work of several:
  the gradient is that of the whole batch either way.

  Args:
    config: Anything with `max_steps`, and maybe `input_fn`, as attributes or
      keys.
    bs: Images of one batch, over all workers; an estimator that has begun must
      have the same.
    num_workers: Among how many the batch is shared.
  """

  def __init__(self, config: Any, bs: int, num_workers: int = 1):
    if num_workers < 1 or bs < 1 or bs % num_workers:
      raise ValueError(
        f"`bs` must be a multiple of `num_workers`, got {bs} and "
        f"{num_workers}: every worker takes an equal share."
      )
    self.batch_per_worker = bs // num_workers
    self.num_workers = num_workers
    self._config = config
    self._bs = bs
    self._gan: Optional[Estimator] = None

  def train(self, gan: Estimator, steps: int = 1) -> Logs:
    """Trains `gan` for `steps`; returns the logs."""
    if gan is not self._gan:
      self._take(gan)
    return gan.advance(steps)

  def eval(self, metric: str = "fid") -> Optional[float]:
    """Returns a metric of the `gan` that was trained, and saves that.

    Without the network of FID, `fid` is the Fréchet distance of another one's
    features; a line says which.
    """
    if self._gan is None:
      raise ValueError("`eval` measures what `train` has trained: train first.")
    run = self._gan.get_run()
    run.close_progress()
    run.save()
    values = self._gan.evaluate()
    name = _find(metric, values)
    if name != metric:
      print(f"`{metric}` is `{name}` here: run `make inception` for FID.")
    return values[name]

  def _take(self, gan: Estimator) -> None:
    gan.batch_size = self._bs
    gan.max_steps = _read(self._config, "max_steps")
    run = gan.get_run(_read(self._config, "input_fn"))
    num = run.experiment.strategy.num_replicas_in_sync
    print(
      f"A batch of {self._bs} for {self.num_workers} worker(s), "
      f"{self.batch_per_worker} each, on {num} device(s) here.",
      flush=True,
    )
    self._gan = gan


def fashion_mnist() -> Tuple[np.ndarray, np.ndarray]:
  """Returns the embedded images, uint8 `[10000, 32, 32, 1]`, and class ids."""
  parts = sources.fashion()
  pixels, labels = zip(parts.train, parts.heldout)
  return np.concatenate(pixels), np.concatenate(labels)


def _find(metric: str, values: Mapping[str, Any]) -> str:
  """Returns the full name of a metric, which may end in an extractor."""
  if metric in values:
    return metric
  stem = f"{OTHER_NAMES.get(metric, metric)}_"
  names = [x for x in values if not x.endswith("_real")]
  for name in names:
    if name.startswith(stem):
      return name
  raise ValueError(
    f"`metric` must be one of {', '.join(names)}, got '{metric}'."
  )


def _read(config: Any, name: str) -> Any:
  if isinstance(config, Mapping):
    return config.get(name)
  return getattr(config, name, None)


def _batches(data: tf.data.Dataset) -> Iterator[Dict[str, np.ndarray]]:
  """Yields dicts of arrays, batched."""
  if not isinstance(data.element_spec, dict):
    data = data.map(lambda labels: {"labels": labels})
  ranks = {key: spec.shape.rank for key, spec in data.element_spec.items()}
  if ranks.get("labels") == 0 or ranks.get("z") == 1:
    data = data.batch(256)
  return data.as_numpy_iterator()
