"""Trains labels one after the other, each as a run of its own.

    trainer = LabelTrainer(model_dir)
    for label in labels:
      run = trainer.prepare(label)     # restores what is there
      run(should_stop)

A label's run is an ordinary one, unconditional, in `model_dir/labels/00003`:
what `tools.train` makes with `InputFn.label = 3`. The first one traces the
step, and the others use that trace with weights and data of their own.
"""

import gc
from typing import Any, Mapping, Optional, Sequence

import gin

from paragan_tf import config
from paragan_tf.data import index_files
from paragan_tf.engine import strategies
from paragan_tf.experiment import Experiment
from paragan_tf.outputs import labels
from paragan_tf.run import Run


class RefusedError(ValueError):
  """What the config asks for cannot be built, whatever the label."""


class LabelTrainer:
  """Makes the runs of labels; gin's config is that of all of them.

  Args:
    model_dir: The folder of all labels.
    callbacks: Of each run.
    num_devices: That a label is trained on.
  """

  def __init__(
    self,
    model_dir: str,
    callbacks: Sequence[Any] = (),
    num_devices: int = 1,
  ):
    self._model_dir = model_dir
    self._callbacks = callbacks
    self._num_devices = num_devices
    self._experiment: Optional[Experiment] = None

  def prepare(self, label: int) -> Run:
    """Returns the run of a label, restored and opened."""
    bind_label(label)
    folder = labels.folder(self._model_dir, label)
    if self._experiment is None:
      self._experiment = self._build(folder)
    else:
      gc.collect()  # The data of the last label, and its iterators.
      gc.freeze()  # What is traced stays, and need not be looked at again.
      self._experiment.restart()
    run = Run(self._experiment, folder, callbacks=self._callbacks)
    run.restore()
    run.open()
    return run

  def _build(self, folder: str) -> Experiment:
    try:
      with index_files.reading_from(folder):
        return Experiment(strategies.choose_alone(self._num_devices))
    except config.WRONG as e:
      raise RefusedError(config.sentence(e)) from e


def bind_label(label: int) -> None:
  """Changes gin's config to that of one label; all else stays.

  Metrics are measured of all labels together, by `tools.evaluate`.
  """
  bound: Mapping[str, Any] = {
    "input_fn.InputFn.label": label,
    "experiment.Experiment.extractor": None,
  }
  with gin.unlock_config():
    for name, value in bound.items():
      gin.bind_parameter(name, value)
