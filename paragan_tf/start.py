"""Builds a run from what a program is started with, and says what may end it.

run = prepare(gin_files, gin_bindings, model_dir)
run.open()
run()                # ERRORS are a user's to fix, AGAIN just starts again
"""

from typing import Optional, Sequence

from paragan_tf import config, holding
from paragan_tf.data import index_files
from paragan_tf.engine import cluster, strategies
from paragan_tf.engine import estimator as estimators
from paragan_tf.engine.peers import PeerError
from paragan_tf.experiment import Experiment
from paragan_tf.outputs.patience import FolderError
from paragan_tf.outputs.run_lock import LostError
from paragan_tf.run import InputError, Run

# What ends a run with one sentence.
ERRORS = (
  FloatingPointError,
  InputError,
  FolderError,
  LostError,
  holding.OutOfMemoryError,
)
# What ends it so that the same command resumes.
AGAIN = (PeerError,)


def check_model_dir(model_dir: str) -> None:
  """Raises a `ValueError` if no folder is named."""
  if not model_dir.strip():
    raise ValueError("`--model_dir` must be a folder, got none: name one.")


def check_engine(engine: str) -> None:
  """Raises an error if this TensorFlow does not have an engine."""
  if engine == "tpu_estimator":
    estimators.check_exists()


def prepare(
  gin_files: Sequence[str],
  gin_bindings: Sequence[str],
  model_dir: str,
  device_options: Optional[strategies.DeviceOptions] = None,
  engine: str = "strategy",
) -> Run:
  """Reads the config and builds the run; what is wrong is a `ValueError`.

  Args:
    gin_files: Config files, read in order.
    gin_bindings: Single bindings, read after them.
    model_dir: The run's folder.
    device_options: Which devices to train on.
    engine: `strategy` or `tpu_estimator`.
  """
  check_engine(engine)
  by_estimator = engine == "tpu_estimator"
  config.load(gin_files, gin_bindings)
  device_options = device_options or strategies.DeviceOptions()
  choice = (
    strategies.for_estimator(device_options)
    if by_estimator
    else strategies.choose(device_options)
  )
  print(f"Training on {choice.reason}.", flush=True)
  remark = cluster.find_open_ports()
  if remark is not None:
    print(remark, flush=True)

  def make(changes: Optional[holding.Changes] = None) -> Run:
    config.load(gin_files, gin_bindings)
    changes = changes or holding.read(model_dir)
    holding.apply(changes)
    with index_files.reading_from(model_dir):
      experiment = Experiment(choice.strategy)
    estimator = None
    if by_estimator:
      estimator = experiment.estimator(model_dir, choice.tpu, saves=False)
    run = Run(
      experiment,
      model_dir,
      estimator,
      changes=changes,
      make_again=None if by_estimator else make,
    )
    run.restore()
    return run

  try:
    return make()
  except config.WRONG as e:
    raise ValueError(config.sentence(e)) from e
