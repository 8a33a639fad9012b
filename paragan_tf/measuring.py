"""Measures trained runs, exports and images in files.

    meter = RunMeter("runs/fashion", Request())
    values = meter.measure(progress=report)    # of the newest checkpoint

    values = measure_images("samples", Request(reference="photos"))

A run is compared with the images it was trained on, as at its end; with a
`reference`, with those. Values of runs are recorded in the run's folder.
"""

import os
import re
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

import gin

from paragan_tf import array_files, trained
from paragan_tf.data import index_files
from paragan_tf.data.input_fn import InputFn
from paragan_tf.engine.sampling import BATCH_SIZE, Sampler
from paragan_tf.evaluation import METRIC_SEED, Evaluation
from paragan_tf.experiment import Experiment
from paragan_tf.generator import Generator
from paragan_tf.outputs import (
  extractors,
  image_files,
  labels,
  metrics,
  statistics,
)
from paragan_tf.outputs.checkpoints import Checkpoints, Writers
from paragan_tf.outputs.features import Extractor
from paragan_tf.outputs.metrics import MetricSuite, MetricValue, Sampling
from paragan_tf.outputs.run_folder import RunFolder
from paragan_tf.outputs.statistics import Progress, Statistics
from paragan_tf.trained import Step

_NUM_SAMPLES = 10_000


class Request(NamedTuple):
  """What to measure.

  Attributes:
    metrics: Their names, as 'fid'; all that can be measured by default.
    extractor: As in `extractors.make`; by default that of the run, or the one
      for the images.
    num: How many samples or images; by default as at the end of the run, else
      at most 10,000.
    reference: What to compare with: a folder of images, an npz file of images,
      or one of statistics; by default the images that the run was trained on.
    resolution: Crops and resizes images in files to this size.
    truncation: Of the latent codes; by default as in the run.
    reference_dir: Where statistics of real images are kept.
    seed: Of the latent codes; by default as at the end of a run.
  """

  metrics: Optional[Sequence[str]] = None
  extractor: Optional[str] = None
  num: Optional[int] = None
  reference: Optional[str] = None
  resolution: Optional[int] = None
  truncation: Optional[float] = None
  reference_dir: Optional[str] = None
  seed: int = METRIC_SEED


class RunMeter:
  """Measures checkpoints of a run, or an export.

  Attributes:
    step: That of the last checkpoint; `None` of an export.

  Args:
    model_dir: Folder of the run or the export.
    request: What to measure.
  """

  def __init__(self, model_dir: str, request: Request):
    _check(request)
    self._model_dir, self._request = model_dir, request
    self.step: Optional[int] = None
    self._measure: Optional[Callable[..., List[MetricValue]]] = None

  def measure(
    self, step: Step = None, progress: Optional[Progress] = None
  ) -> List[MetricValue]:
    """Returns the metrics of a checkpoint; real images are read once."""
    generator = trained.load(self._model_dir, step)
    if self._measure is None:
      if self._request.reference is not None:
        self._measure = self._compare_with_reference(generator, progress)
      else:
        self._measure = self._compare_with_data(generator)
    if self._is_run():
      self.step = generator.info.step
    return self._measure(generator, progress)

  def _is_run(self) -> bool:
    return RunFolder(self._model_dir, Writers()).read_config() is not None

  def _compare_with_data(self, generator: Generator):
    """Returns what measures a G by the images that it was trained on."""
    if not self._is_run():
      raise ValueError(
        f"`--reference` must be set to measure an export, as '"
        f"{self._model_dir}': a folder of images, or a file of statistics."
      )
    request = self._request
    with index_files.reading_from(self._model_dir):
      input_fn = gin.get_configurable(InputFn)()
    choices = gin.get_bindings(Experiment)
    if request.extractor is None:
      _check_saved_extractor(choices.get("extractor"), self._model_dir)
    evaluation = Evaluation(
      _make_sampler(generator, request.truncation),
      input_fn,
      request.extractor or choices.get("extractor"),
      lambda: generator.net,
      # The G of a label computes its own.
      0 if labels.is_pool(self._model_dir) else choices.get("num_standing", 0),
      request.reference_dir or choices.get("reference_dir"),
      request.metrics or choices.get("metrics"),
    )
    if not evaluation.can_measure:
      raise ValueError(
        evaluation.note
        or "`--extractor` must be set, as the run's config has none: e.g. "
        "'inception' after `make inception`."
      )
    run = _query_run()
    num = request.num or run.get("num_metric_samples")
    if num is not None:
      num = min(num, input_fn.source.num_heldout)

    def measure(generator, progress):
      sampler = _make_sampler(generator, request.truncation)
      return evaluation.of(sampler, lambda: generator.net).measure(
        num, run.get("num_metric_reference"), progress, seed=request.seed
      )

    return measure

  def _compare_with_reference(self, generator: Generator, progress):
    """Returns what measures a G by the reference that is requested."""
    request, info = self._request, generator.info
    extractor = _make_extractor(request, info.channels)
    reference = _read_reference(request, extractor, info.resolution, progress)
    suite = MetricSuite(extractor, reference, knows_classes=False)
    num = request.num or _NUM_SAMPLES
    labels = generator.mixture(num)

    def measure(generator, progress):
      sampler = _make_sampler(generator, request.truncation)
      sampling = Sampling(True, sampler.truncation, "stored", request.seed)
      return suite.measure(
        lambda ids, start: sampler(ids, request.seed, start),
        sampling,
        num,
        labels,
        progress,
        request.metrics,
      )

    return measure


def measure_images(
  path: str, request: Request, progress: Optional[Progress] = None
) -> List[MetricValue]:
  """Returns the metrics of images in a folder or an npz file."""
  _check(request)
  if request.reference is None:
    raise ValueError(
      f"`--reference` must be set to measure images, as '{path}': a folder of "
      "images, or a file of statistics."
    )
  images = image_files.open_images(path, request.resolution, request.num)
  extractor = _make_extractor(request, image_files.count_channels(images))
  reference = _read_reference(request, extractor, None, progress)
  samples = statistics.cached(
    request.reference_dir, extractor, images, progress=progress
  )
  suite = MetricSuite(extractor, reference, knows_classes=False)
  return suite.compare(samples, metrics.FROM_FILES, request.metrics)


def list_steps(model_dir: str) -> List[int]:
  """Returns the steps of a run's checkpoints, oldest first."""
  paths = Checkpoints(model_dir).paths()
  return [int(re.findall(r"\d+$", path)[0]) for path in paths]


def _make_sampler(generator: Generator, truncation: Optional[float]) -> Sampler:
  """Returns a sampler with the batches of a run's, which draws the same."""
  return generator.new_sampler(
    generator.choose_truncation(truncation), BATCH_SIZE
  )


def _make_extractor(request: Request, channels: int) -> Extractor:
  choice = extractors.choose(request.extractor or extractors.AUTO, channels)
  if choice.make is None:
    raise ValueError(choice.note)
  return choice.make()


def _read_reference(
  request: Request,
  extractor: Extractor,
  resolution: Optional[int],
  progress: Optional[Progress],
) -> Statistics:
  path = request.reference
  assert path is not None
  if path.endswith(".npz") and _has_statistics(path):
    return statistics.load(path)
  images = image_files.open_images(path, request.resolution or resolution)
  return statistics.cached(
    request.reference_dir, extractor, images, progress=progress
  )


def _has_statistics(path: str) -> bool:
  if not os.path.exists(path):
    raise ValueError(f"There is no file '{path}': give another `--reference`.")
  try:
    return {"mu", "sigma"} <= set(array_files.read(path))
  except ValueError:
    return False


def _check_saved_extractor(choice: Any, model_dir: str) -> None:
  """Refuses a network that only the config of a run names.

  A run may come from elsewhere, and such networks are programs.
  """
  if isinstance(choice, str) and choice.startswith(extractors.PROGRAMS):
    raise ValueError(
      f"`--extractor` must be given, as the config of '{model_dir}' names "
      f"'{choice}', and a network of that kind can run code: if you trust it, "
      f"add `--extractor={choice}`."
    )


def _query_run() -> Any:
  """Returns what the run's config says of `Run`."""
  return gin.get_bindings("run.Run", resolve_references=False)


def _check(request: Request) -> None:
  if request.num is not None and request.num < 2:
    raise ValueError(f"`num` must be at least 2, got {request.num}.")
  resolution = request.resolution
  if resolution is not None and resolution < 1:
    raise ValueError(f"`resolution` must be at least 1, got {resolution}.")
