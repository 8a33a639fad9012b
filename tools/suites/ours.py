"""Our own side of a comparison, and the config that all sides share.

TensorFlow is imported only in worker processes.
"""

import time
from typing import Any, Dict, Sequence, Tuple

from tools import cli
from tools.suites.flops import MultiplyAdds, count_function

_GIN_FILE = "gin/runs/benchmark_step.gin"
_MATMUL_SIZE, _NUM_MATMULS = 2048, 3


def load_config(
  bindings: Sequence[str] = (),
  files: Sequence[str] = (),
  gin_file: str = _GIN_FILE,
) -> Any:
  """Loads the config of the benchmark; returns the module `paragan_tf.run`."""
  run = cli.import_quietly("paragan_tf.run")
  import tensorflow as tf

  tf.get_logger().setLevel("ERROR")  # TF-GAN calls many deprecated functions.
  run.config.load([gin_file, *files], bindings)
  return run


class Ours:
  """Our training step in our loop."""

  def __init__(self, bindings: Sequence[str] = (), files: Sequence[str] = ()):
    run = load_config(bindings, files)
    self._experiment = run.Experiment(run.strategies.choose().strategy)
    self._inner_loop = self._experiment.inner_loop(0)

  def summarize(self) -> Tuple[str, int]:
    """Returns a summary of what is trained, and the images of one step."""
    return self._experiment.summary(), self._experiment.images_per_step

  def run(self, num_steps: int) -> float:
    """Trains; returns the seconds it took."""
    started = time.perf_counter()
    self._inner_loop(num_steps)
    return time.perf_counter() - started

  def count_multiply_adds(self) -> MultiplyAdds:
    """Returns the multiply-adds of one step."""
    return count_step(self._experiment)

  def measure_peak(self) -> float:
    """Returns the multiply-adds a second of a large matmul, best of a few."""
    import tensorflow as tf

    x = tf.random.stateless_normal([_MATMUL_SIZE, _MATMUL_SIZE], [0, 0])
    seconds = []
    for _ in range(_NUM_MATMULS):
      started = time.perf_counter()
      tf.matmul(x, x)
      seconds.append(time.perf_counter() - started)
    return _MATMUL_SIZE**3 / min(seconds)

  def count_updates(self) -> Dict[str, int]:
    """Returns the number of updates of each player."""
    local = self._experiment.strategy.experimental_local_results
    players = self._experiment.step.players.items()
    return {who: int(local(side.optimizer.t)[0]) for who, side in players}


def count_step(experiment: Any) -> MultiplyAdds:
  """Returns the multiply-adds of one step of an experiment."""
  import tensorflow as tf

  @tf.function(autograph=False)
  def step(images, labels=None):
    arguments = images, labels, 0
    return experiment.strategy.run(experiment.step, arguments)

  data = experiment.input_fn({"batch_size": experiment.images_per_step})
  return count_function(step.get_concrete_function(*data.element_spec))
