"""What a worker costs: its start, each further label, memory; and scaling.

start_up    one process trains labels after each other: seconds until the
            first one trains, and between two of them; memory after each
scaling     one pool with one worker and one label, and one with two of
            each, a thread each, in turn: images a second of each worker
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Sequence

from tools.suites.interleave import log_progress
from tools.suites.workers import Worker, close_all

_GIN_FILE = "gin/runs/per_label_fashion.gin"
_SMALL = (
  "wgan_gp.Generator.width = 8",
  "wgan_gp.Discriminator.width = 8",
  "Experiment.batch_size = 16",
)
_THREADS = {
  name: "1"
  for name in (
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
  )
}
_ROUNDS, _QUICK_ROUNDS = 5, 2


class LabelWorker:
  """Trains a step of each label that it is told; in a process of its own."""

  def __init__(self) -> None:
    started = time.perf_counter()
    # Only here: their import is what is measured.
    from paragan_tf import config, label_trainer
    from paragan_tf.data import sources

    bindings = [*_SMALL, "Run.num_steps = 1", "Run.save_every = 1"]
    config.load([_GIN_FILE], bindings)
    self._folder = tempfile.TemporaryDirectory()
    self._keep = sources.keep()
    self._keep.__enter__()
    self._trainer = label_trainer.LabelTrainer(self._folder.name)
    self.import_seconds = time.perf_counter() - started

  def get_import_seconds(self) -> float:
    """Returns how long TensorFlow, the package and the config took."""
    return self.import_seconds

  def train(self, label: int) -> Dict[str, float]:
    """Trains one step of a label; returns its cost beside the step.

    A step that is traced counts as cost.
    """
    started, cpu = time.perf_counter(), time.process_time()
    run = self._trainer.prepare(label)
    run()
    seconds = time.perf_counter() - started - run.seconds.used
    cpu = time.process_time() - cpu
    # Kilobytes on Linux.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"seconds": seconds, "step": run.seconds.used, "peak_mb": peak}
    return {**found, "cpu": cpu}


def measure_start_up(num_labels: int) -> Dict[str, float]:
  """Returns the cost of the first and of further labels in one process."""
  log_progress(f"Start-up: {num_labels} labels in one process.")
  worker = Worker("start_up", LabelWorker, _THREADS)
  with close_all([worker]):
    imported = worker.call("get_import_seconds")
    rows: List[Dict[str, float]] = [
      worker.call("train", label) for label in range(num_labels)
    ]
  further = [row["seconds"] for row in rows[1:]]
  # The first step is traced and optimized: all of it counts as start-up.
  first = rows[0]["seconds"] + rows[0]["step"]
  return {
    "start_up.import_seconds": imported,
    "start_up.first_label_seconds": first,
    "start_up.further_label_seconds": statistics.median(further),
    "start_up.further_label_seconds_max": max(further),
    # With its step; of one thread, so that other programs do not count.
    "start_up.first_label_cpu_seconds": rows[0]["cpu"],
    "start_up.further_label_cpu_seconds": statistics.median(
      row["cpu"] for row in rows[1:]
    ),
    **{
      f"memory.after_{i + 1}_labels_mb": row["peak_mb"]
      for i, row in enumerate(rows)
    },
  }


def measure_scaling(quick: bool) -> Dict[str, float]:
  """Returns images a second of one and of two workers, and the efficiency."""
  rounds = _QUICK_ROUNDS if quick else _ROUNDS
  speeds: Dict[int, List[float]] = {1: [], 2: []}
  for i in range(rounds):
    for num in (1, 2):
      log_progress(f"Weak scaling: round {i + 1} of {rounds}, {num} worker(s).")
      speeds[num].append(_train_pool(num, 15 if quick else 25))
  ratios = [two / one for one, two in zip(speeds[1], speeds[2])]
  return {
    "scaling.one_worker_images_per_second": statistics.median(speeds[1]),
    "scaling.two_workers_images_per_second_each": statistics.median(speeds[2]),
    "scaling.efficiency": statistics.median(ratios),
    "scaling.efficiency_min": min(ratios),
    "scaling.efficiency_max": max(ratios),
  }


def _train_pool(num_workers: int, seconds: float) -> float:
  """Trains a label on each worker; returns the mean images a second of each."""
  from paragan_tf.outputs import labels

  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "pool")
    bindings = [
      *_SMALL,
      f"InputFn.only_labels = {list(range(num_workers))}",
      "Experiment.extractor = None",
      f"Run.max_seconds = {seconds}",
      "Run.num_steps = 1000000",
      "Run.log_every = 10",
      "Run.save_every = 100000",
      "Run.sample_every = 100000",
      f"LabelPool.num_workers = {num_workers}",
      "LabelPool.threads_per_worker = 1",
    ]
    _run_train(path, [_GIN_FILE], bindings)
    states = labels.read_manifest(path)
    # 5 updates of the critic on 16 images each.
    return statistics.mean(80 * x.steps / seconds for x in states)


def _run_train(path: str, files: Sequence[str], bindings: Sequence[Any]):
  command = [sys.executable, "-m", "paragan_tf", "train"]
  command += [f"--gin_file={file}" for file in files]
  command += [f"--gin_bindings={binding}" for binding in bindings]
  command.append(f"--model_dir={path}")
  subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def format_table(figures: Dict[str, float]) -> str:
  """Returns the costs, one a line."""
  kept = ("start_up.", "memory.", "scaling.")
  rows = [(k, v) for k, v in figures.items() if k.startswith(kept)]
  width = max(len(name) for name, _ in rows)
  return "\n".join(f"{name.ljust(width)}  {value:.3g}" for name, value in rows)
