"""Kills runs, lets calls fail, gives bad inputs, and prints what was lost.

python -m tests.soak --kills=100

A run of some hundred steps is killed with SIGKILL at random moments and started
again until it is complete; then its last checkpoint is compared, bit for bit,
with that of a run that nobody killed.
"""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import tensorflow as tf
from absl import app, flags

from paragan_tf.outputs import checkpoints, records

_KILLS = flags.DEFINE_integer("kills", 100, "How often to kill.")
_STEPS = flags.DEFINE_integer("steps", 8000, "How long the run is.")
_SAVE_EVERY = 8
# Forked from a process that has imported TensorFlow, which is slow.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.run_test"])


def train(folder, num_steps):
  """Trains a tiny run to its end, from the last checkpoint on."""
  from tests import run_test

  null = os.open(os.devnull, os.O_WRONLY)
  os.dup2(null, 1)
  os.dup2(null, 2)
  made = run_test.prepare(
    tf.distribute.OneDeviceStrategy("/cpu:0"),
    folder,
    num_steps,
    *run_test.LINEAR,
    f"run.Run.save_every = {_SAVE_EVERY}",
    f"run.Run.log_every = {_SAVE_EVERY}",
    "run.Run.sample_every = 1000000",
  )
  made.open()
  made.train(num_steps)
  made.save()
  made.folder.close()


def kill_often(folder, num_steps, kills, draw):
  """Trains with kills; returns how many, and how many found it complete."""
  killed = 0
  while killed < kills:
    process = _PROCESSES.Process(target=train, args=(folder, num_steps))
    process.start()
    before = last_step(folder)
    deadline = time.monotonic() + 120.0
    # At the start, or while it trains and saves.
    wanted = draw.choice([0, 1, 1, 1])
    while (
      wanted
      and process.is_alive()
      and last_step(folder) == before
      and time.monotonic() < deadline
    ):
      time.sleep(0.005)
    time.sleep(draw.uniform(0.0, 0.15))
    if not process.is_alive():
      break
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    killed += 1
  process = _PROCESSES.Process(target=train, args=(folder, num_steps))
  process.start()
  process.join()
  return killed


def last_step(folder):
  """Returns the step of the newest checkpoint, or 0."""
  paths = checkpoints.Checkpoints(folder).paths()
  return checkpoints.step_of(paths[-1]) if paths else 0


def count_lost(folder, whole):
  """Returns how many variables differ, and how many lines are missing."""
  readers = [
    tf.train.load_checkpoint(checkpoints.Checkpoints(x).latest())
    for x in (folder, whole)
  ]
  names = readers[1].get_variable_to_shape_map()
  wrong = sum(
    readers[0].get_tensor(x).tobytes() != readers[1].get_tensor(x).tobytes()
    for x in names
  )
  steps = [{x["step"] for x in records.read(f)} for f in (folder, whole)]
  return wrong, len(steps[1] - steps[0])


def count_faults():
  """Lets every call of a save and a resume fail; returns what was counted."""
  from tests import faults_test

  folder = tempfile.mkdtemp()
  library = os.path.join(folder, "faults.so")
  subprocess.run(
    ["cc", "-shared", "-fPIC", "-o", library, faults_test.SOURCE, "-ldl"],
    check=True,
  )
  ended = subprocess.run(
    [sys.executable, "-m", "tests.faults", f"{folder}/run"],
    env={**os.environ, "LD_PRELOAD": library},
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
    check=False,
  )
  shutil.rmtree(folder)
  if ended.returncode:
    return None
  return json.loads(ended.stdout.splitlines()[-1])


def count_inputs():
  """Fuzzes; returns how many inputs there were, and what went wrong."""
  ended = subprocess.run(
    [sys.executable, "-m", "tests.fuzz"],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
    check=False,
  )
  (row,) = (x for x in ended.stdout.splitlines() if x.startswith("all "))
  tried, _, _, *wrong = map(int, row.split()[1:])
  names = ("tracebacks", "hangs", "files outside")
  words = ", ".join(f"{n} {name}" for n, name in zip(wrong, names))
  return tried, words, sum(wrong)


def main(argv):
  """Prints the table; the exit code is 1 if anything was lost."""
  del argv
  folder = tempfile.mkdtemp()
  with contextlib.ExitStack() as stack:
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    run, whole = f"{folder}/run", f"{folder}/whole"
    killed = kill_often(run, _STEPS.value, _KILLS.value, random.Random(0))
    process = _PROCESSES.Process(target=train, args=(whole, _STEPS.value))
    process.start()
    process.join()
    wrong, missing = count_lost(run, whole)
  faults = count_faults()
  tried, words, num_wrong = count_inputs()
  rows = [
    ("kill -9 of a run", killed, f"{wrong} variables, {missing} log lines"),
    (
      "failing call of a save and a resume",
      faults["tried"] if faults else "?",
      "0 checkpoints" if faults else "failed: python -m tests.faults",
    ),
    ("bad input", tried, words),
  ]
  print(f"{'tried':40}{'how often':>12}  lost")
  for what, times, lost in rows:
    print(f"{what:40}{times:>12}  {lost}")
  if wrong or missing or num_wrong or faults is None:
    sys.exit(1)


if __name__ == "__main__":
  app.run(main)
