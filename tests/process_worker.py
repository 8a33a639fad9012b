"""One of several processes: the jobs that `multi_process_test` gives to all.

python -m tests.process_worker JOBS.json

A job is `[kind, folder, bindings]`; what is to be looked at is written there.
"""

import json
import os
import sys
import time

import numpy as np

from paragan_tf import config, experiment
from paragan_tf.engine import strategies
from paragan_tf.run import Run


def train(strategy, folder, bindings, should_stop=lambda run: False):
  """Trains in the folder, as the program does."""
  config.load(["gin/runs/fashion.gin"], bindings)
  made = Run(experiment.Experiment(strategy), folder)
  made.open()
  made(lambda: should_stop(made))
  return made


def stop(strategy, folder, bindings):
  """Trains until one of the processes wants to stop, and writes where."""
  index = experiment.Processes(strategy).index
  made = train(
    strategy, folder, bindings, lambda run: index == 1 and run.done >= 8
  )
  _write(os.path.join(folder, "stopped"), index, made.done)
  return made


def read(strategy, folder, bindings):
  """Writes which images each replica gets, `[steps, replicas, b]`."""
  config.load(["gin/runs/fashion.gin"], bindings)
  made = experiment.Experiment(strategy)
  iterator = iter(made.dataset(0))
  ids = []
  for _ in range(10):
    images, _ = next(iterator)
    pixels = np.stack(strategy.experimental_local_results(images))[..., 0, 0, 0]
    ids.append(np.round((pixels + 1.0) * 127.5).astype(int).tolist())
  _write(folder, made.processes.index, ids)
  return made, iterator


def meet(strategy, folder, bindings):
  """Writes what the processes decide together."""
  del bindings
  processes = experiment.Processes(strategy)
  decided = {
    "place": [processes.index, processes.count, processes.num_local_replicas],
    "nobody": processes.any(False),
    "one": processes.any(processes.index == 1),
    "same": processes.same(1e6 + 1),
    "not_same": processes.same(1e6 + processes.index),
  }
  _write(folder, processes.index, decided)


def _write(folder, index, value):
  os.makedirs(folder, exist_ok=True)
  with open(os.path.join(folder, f"{index}.json"), "w") as f:
    json.dump(value, f)


def main():
  """Reads the jobs and does them, one after the other."""
  with open(sys.argv[1]) as f:
    num_cpu_replicas, jobs = json.load(f)
  strategy = strategies.choose(
    strategies.Wish(num_cpu_replicas=num_cpu_replicas, join_timeout=60.0)
  ).strategy
  kinds = {"train": train, "stop": stop, "read": read, "meet": meet}
  made = [kinds[kind](strategy, *rest) for kind, *rest in jobs]
  # To end an iterator may take TensorFlow as long as that has lived, up to a
  # minute: leave without. The others may still need our last answer.
  experiment.Processes(strategy).wait()
  time.sleep(0.5)
  sys.stdout.flush()
  os._exit(0 if made else 1)


if __name__ == "__main__":
  main()
