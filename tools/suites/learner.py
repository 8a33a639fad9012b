"""A pair of nets that a worker process trains and measures.

TensorFlow is imported only there.
"""

import time
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from tools.suites.ours import load_config

_NUM_CORES = 2


class Learner:
  """Trains and measures a run of a gin file, without a folder.

  Attributes:
    step: Steps so far.
    seconds: Half of the CPU time of training: the seconds that two otherwise
      idle cores would need.

  Args:
    gin_file: Of the run.
    files: Gin files that are read after it.
    bindings: Gin bindings.
    num_replicas: Logical CPU devices, each with a replica; 0 for one.
  """

  def __init__(
    self,
    gin_file: str,
    files: Sequence[str] = (),
    bindings: Sequence[str] = (),
    num_replicas: int = 0,
  ):
    run = load_config(bindings, files, gin_file)
    options = run.strategies.DeviceOptions(num_cpu_replicas=num_replicas)
    self._experiment: Any = run.Experiment(
      run.strategies.choose(options).strategy
    )
    self._inner_loop = self._experiment.inner_loop(0)
    self.step, self.seconds = 0, 0.0

  def advance(self, num_steps: int) -> float:
    """Trains for `num_steps`; returns the seconds so far."""
    started = time.process_time()
    self._inner_loop(num_steps)
    self.seconds += (time.process_time() - started) / _NUM_CORES
    self.step += num_steps
    return self.seconds

  def measure(
    self,
    num_samples: int,
    num_reference: Optional[int] = None,
    only: Optional[Sequence[str]] = None,
    title: str = "",
  ) -> List[Dict[str, Any]]:
    """Returns metric values as dicts, see `MetricValue`.

    Args:
      num_samples: As in `Evaluation.measure`, like the next two.
      num_reference: See there.
      only: See there.
      title: Named in lines of progress; there are none without it.
    """
    self._experiment.consolidate()
    values = self._experiment.evaluation.measure(
      num_samples, num_reference, _make_progress(title), only
    )
    return [value.to_json() for value in values]

  def draw_samples(self) -> np.ndarray:
    """Returns a picture of samples, a class a column."""
    return np.asarray(self._experiment.evaluation.grid())


def _make_progress(title: str) -> Any:
  from paragan_tf.outputs.progress import Counter

  return Counter(title) if title else None
