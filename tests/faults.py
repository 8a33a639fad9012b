"""Saves and resumes while calls of the system fail, one after the other.

LD_PRELOAD=faults.so python -m tests.faults FOLDER [STRIDE]

Prints as JSON what was tried. After each failure the folder must have a whole
checkpoint that restores, the next save must work, and what is raised must be
one of the errors that end a run with one sentence.
"""

import collections
import ctypes
import errno
import json
import shutil
import sys

import tensorflow as tf

from paragan_tf.outputs import patience, records, saving, stored
from paragan_tf.outputs.checkpoints import Checkpoints, Writers, step_of
from paragan_tf.outputs.g_info import GInfo
from paragan_tf.outputs.run_folder import RunFolder
from paragan_tf.types import Entry

ERRNOS = (errno.ENOSPC, errno.EIO)
_LIBRARY = ctypes.CDLL(None)
_INFO = GInfo(8, 1, 3, z_dim=4)
_SIZE = 3000


def set_fault(folder, n, number=errno.EIO, is_lasting=False):
  """Lets the n-th call that changes the folder fail; 0 for none."""
  _LIBRARY.fault_set(folder.encode(), ctypes.c_long(n), number, is_lasting)


def count_calls():
  """Returns the calls since a fault was set."""
  _LIBRARY.fault_count.restype = ctypes.c_long
  return _LIBRARY.fault_count()


def make_entries(step):
  """Returns what a checkpoint of a step has."""
  return [Entry("w", (tf.Variable(tf.fill([_SIZE], float(step))),), True)]


def train(folder):
  """Opens the folder, resumes, saves the next step, and closes it."""
  run = RunFolder(folder, Writers(), timeout=0.0)
  saver = saving.Saver(
    run.checkpoints, make_entries, run.make_patience("Checkpoints", 0.0)
  )
  newest = run.checkpoints.latest()
  step = step_of(newest) + 1 if newest else 1
  try:
    run.open("config", step - 1, _INFO)
    run.start(step, {"num_steps": 9})
    run.log(step, {"d/loss": 0.5})
    saver.start(step)
    saver.wait()
    run.write_report()
  finally:
    run.close()
  return step


def check(folder, least):
  """Fails unless the folder has a whole checkpoint; returns its step."""
  newest = Checkpoints(folder).latest()
  step = step_of(newest) if newest else 0
  if step < least:
    raise AssertionError(f"Only step {step} is left of {least}.")
  if newest:
    (entry,) = make_entries(-1)
    stored.restore(newest, [entry])
    if entry.copies[0].numpy().tolist() != [float(step)] * _SIZE:
      raise AssertionError(f"Step {step} has other values.")
  return step


def main(folder, stride=1):
  """Tries every n-th failure, over a save and over the resume after it."""
  found = collections.Counter()
  before, work = f"{folder}/before", f"{folder}/work"
  train(before)
  shutil.copytree(before, work)
  set_fault(work, 0)
  train(work)
  total = count_calls()
  for is_lasting in (False, True):
    for number in ERRNOS:
      for n in range(1, total + 1, stride):
        set_fault("", 0)
        shutil.rmtree(work)
        shutil.copytree(before, work)
        set_fault(work, n, number, is_lasting)
        try:
          train(work)
          found["went on"] += 1
        except (ValueError, patience.FolderError) as e:
          assert "\n" not in str(e), e
          found["one sentence"] += 1
        set_fault("", 0)
        least = check(work, 1)
        train(work)  # As the same command does.
        check(work, least + 1)
        if any("step" not in x for x in records.read(work)):
          raise AssertionError("A line has no step.")
        found["tried"] += 1
  print(json.dumps({"calls": total, **found}))


if __name__ == "__main__":
  main(sys.argv[1], *map(int, sys.argv[2:3]))
