"""Checkpoints are restored as saved, and refused if damaged."""

import itertools
import multiprocessing
import os
import signal
import time
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.outputs import checkpoints
from paragan_tf.outputs.checkpoints import Writers
from paragan_tf.types import Entry, VectorSlice

# Forked from a process that has imported TensorFlow, which is slow, but not
# started its runtime.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.checkpoints_test"])
MOMENTS = {
  "join": (tf.raw_ops, "MergeV2Checkpoints"),
  "list": (checkpoints.Checkpoints, "_list"),
  "replace": (tf.io.gfile, "rename"),
}


def entries(values, agrees=True):
  """Returns an entry for each name, with a copy for each value."""
  return [
    Entry(name, tuple(tf.Variable(v) for v in copies), agrees)
    for name, copies in values.items()
  ]


class CheckpointsTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)
    os.makedirs(self.folder)
    self.kept = checkpoints.Checkpoints(self.folder, keep=2)

  def test_restore_sets_every_copy(self):
    path = self.kept.save(10, entries({"g/w": [[1.5, 2.5]], "step": [10]}))
    fresh = entries({"g/w": [[0.0, 0.0]] * 4, "step": [0] * 4})
    checkpoints.restore(path, fresh)
    for copy in fresh[0].copies:
      self.assertAllEqual(copy, [1.5, 2.5])
    self.assertEqual([int(c) for c in fresh[1].copies], [10] * 4)

  def test_keys_are_the_variables_names(self):
    path = self.kept.save(1, entries({"g/block/w": [1.0], "step": [1]}))
    keys = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    self.assertEqual(set(keys), {"g/block/w", "step"})

  def test_copies_that_differ_are_all_saved(self):
    path = self.kept.save(1, entries({"w": [1.0, 2.0, 3.0]}, agrees=False))
    fresh = entries({"w": [0.0, 0.0, 0.0]}, agrees=False)
    checkpoints.restore(path, fresh)
    self.assertEqual([float(c) for c in fresh[0].copies], [1.0, 2.0, 3.0])

  def test_another_number_of_differing_copies_is_refused(self):
    path = self.kept.save(1, entries({"g/m": [1.0, 2.0]}, agrees=False))
    for count in (1, 4):
      fresh = entries({"g/m": [0.0] * count}, agrees=False)
      with self.assertRaisesRegex(ValueError, "`g/m` of 2 replicas"):
        checkpoints.restore(path, fresh)

  def test_oldest_checkpoints_are_removed(self):
    for step in (1, 2, 3):
      self.kept.save(step, entries({"w": [float(step)]}))
    steps = [path.split("-")[-1] for path in self.kept.paths()]
    self.assertEqual(steps, ["2", "3"])
    self.assertEmpty(tf.io.gfile.glob(os.path.join(self.folder, "*-1.*")))
    fresh = checkpoints.Checkpoints(self.folder)
    self.assertEndsWith(fresh.latest(), "model.ckpt-3")

  def test_an_incomplete_save_keeps_the_previous_checkpoint(self):
    good = self.kept.save(1, entries({"w": [1.0]}))
    # What a kill in the middle of the next save leaves: data, but no index.
    with open(
      os.path.join(self.folder, "model.ckpt-2.data-00000-of-00001"), "wb"
    ):
      pass
    self.assertEqual(checkpoints.Checkpoints(self.folder).latest(), good)

  def test_a_damaged_checkpoint_is_named_and_changes_nothing(self):
    values = np.arange(1000, dtype=np.float32)
    path = self.kept.save(7, entries({"w": [values]}))
    data = f"{path}.data-00000-of-00001"
    with open(data, "rb") as f:
      whole = f.read()
    flipped = bytes([whole[0] ^ 1]) + whole[1:]
    for damaged in (whole[: len(whole) // 2], flipped):
      with open(data, "wb") as f:
        f.write(damaged)
      fresh = entries({"w": [np.zeros(1000, np.float32)]})
      with self.assertRaisesRegex(ValueError, "model.ckpt-7.*damaged"):
        checkpoints.restore(path, fresh)
      self.assertAllEqual(fresh[0].copies[0], np.zeros(1000))

  def test_a_damaged_index_is_named(self):
    path = self.kept.save(7, entries({"w": [1.0]}))
    with open(f"{path}.index", "wb") as f:
      f.write(b"not an index")
    with self.assertRaisesRegex(ValueError, "model.ckpt-7.*damaged"):
      checkpoints.restore(path, entries({"w": [0.0]}))

  def test_without_the_damaged_files_the_previous_checkpoint_is_latest(self):
    self.kept.save(1, entries({"w": [1.0]}))
    bad = self.kept.save(2, entries({"w": [2.0]}))
    for name in tf.io.gfile.glob(f"{bad}.*"):
      os.remove(name)
    self.assertEndsWith(self.kept.latest(), "model.ckpt-1")

  def test_another_model_is_refused_by_name_or_shape(self):
    path = self.kept.save(1, entries({"w": [[1.0, 2.0]]}))
    with self.assertRaisesRegex(ValueError, "lacks `v`"):
      checkpoints.restore(path, entries({"v": [0.0]}))
    with self.assertRaisesRegex(ValueError, r"shape \[3\], got \[2\]"):
      checkpoints.restore(path, entries({"w": [[0.0, 0.0, 0.0]]}))

  @parameterized.parameters(
    ("mean", [4.0, 4.0]), ("sum", [12.0, 12.0]), (None, None)
  )
  def test_other_numbers_of_replicas_are_merged(self, merged, expected):
    three = [*entries({"w": [1.0, 2.0, 9.0]}), *entries({"t": [5, 5, 5]})]
    three = [e._replace(agrees=False) for e in three]
    path = self.kept.save(1, three)
    two = [*entries({"w": [0.0, 0.0]}), *entries({"t": [0, 0]})]
    two = [e._replace(agrees=False, merge_rule=merged) for e in two]
    if expected is None:
      with self.assertRaisesRegex(ValueError, "`w` of 3 replicas.*start 3"):
        checkpoints.restore(path, two)
      return
    checkpoints.restore(path, two)
    self.assertAllEqual(two[0].copies, expected)
    self.assertAllEqual(two[1].copies, [5, 5])  # A count stays one.
    again = [e._replace(merge_rule=merged) for e in three]
    checkpoints.restore(path, again)
    self.assertAllEqual(again[0].copies, [1.0, 2.0, 9.0])

  def test_missing_optional_entries_become_zeros(self):
    (w,) = entries({"w": [1.0]})
    path = self.kept.save(1, [w])
    (s,) = entries({"s": [[7.0, 7.0]] * 2}, agrees=False)
    checkpoints.restore(path, [w, s._replace(merge_rule="sum", optional=True)])
    self.assertAllEqual(s.copies, np.zeros([2, 2]))
    with self.assertRaisesRegex(ValueError, "lacks `s`"):
      checkpoints.restore(path, [w, s._replace(merge_rule="sum")])

  @parameterized.parameters(2, 3)
  def test_an_entry_takes_over_its_slice_of_a_stored_vector(self, num):
    debts = [[0.0, 1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 3.0, 4.0]]
    owed = [[[10.0], [20.0]], [[30.0], [40.0]]]
    stored = entries({"s": debts, "e": owed}, agrees=False)
    path = self.kept.save(1, stored)
    (e,) = entries({"e": [[[0.0], [0.0]]] * num}, agrees=False)
    part = VectorSlice("s", 5, 2)
    checkpoints.restore(
      path, [e._replace(merge_rule="mean", residual_source=part)]
    )
    own = owed if num == 2 else [np.mean(owed, 0)] * num
    self.assertAllEqual(e.copies, [np.add(x, [[2.0], [3.0]]) for x in own])
    # Of another size it is no such vector, and without one nothing is added.
    wrong = e._replace(merge_rule="mean", residual_source=part._replace(size=4))
    with self.assertRaisesRegex(ValueError, r"`s` .* shape \[4\], got \[5\]"):
      checkpoints.restore(path, [wrong])
    none = e._replace(
      merge_rule="mean", residual_source=part._replace(key="no")
    )
    checkpoints.restore(path, [none])
    self.assertAllEqual(e.copies, own)

  def test_duplicate_variable_names_are_refused(self):
    twice = entries({"w": [1.0]}) + entries({"w": [2.0]})
    with self.assertRaisesRegex(ValueError, "named `w`"):
      self.kept.save(1, twice)


def large(step):
  """Returns entries of some megabytes, filled with the step."""
  return entries({n: [np.full([1 << 18], step, np.float32)] for n in "abcd"})


def own(step, first, num, copies=1):
  """Returns a process's entries: one that agrees, and one that differs."""
  values = [10.0 * step + first + i for i in range(copies)]
  own = tuple(tf.Variable(value) for value in values)
  ids = tuple(range(first, first + copies)), tuple(range(num))
  return [
    Entry("all", (tf.Variable(float(step)),), True, *ids),
    Entry("own", own, False, *ids),
  ]


def kill_at(owner, name):
  """Kills this process when it calls a function."""
  mock.patch.object(
    owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
  ).start()


def save_on(folder):
  """Saves again and again, from the last step on."""
  kept = checkpoints.Checkpoints(folder, keep=2)
  for step in itertools.count(last_step(folder) + 1):
    kept.save(step, large(step))


def save_once(folder, step, index, barrier, killed_at):
  """Saves a step as one of several processes; may kill the chief."""
  writers = Writers(index, barrier.parties, barrier.wait)
  kept = checkpoints.Checkpoints(folder, writers=writers)
  if index:  # Slow, so that a chief that does not wait would be too early.
    write = checkpoints._write
    checkpoints._write = lambda *args: (time.sleep(0.3), write(*args))
  elif killed_at:
    kill_at(*MOMENTS[killed_at])
  kept.save(step, own(step, index, barrier.parties))


def last_step(folder):
  """Returns the step of the newest checkpoint, or 0."""
  latest = checkpoints.Checkpoints(folder).latest()
  return int(latest.split("-")[-1]) if latest else 0


class KilledTest(tf.test.TestCase, parameterized.TestCase):
  """Kills real processes with SIGKILL during a save."""

  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self.id())
    os.makedirs(self.folder)

  def start(self, target, *args):
    process = PROCESSES.Process(target=target, args=(self.folder, *args))
    process.start()
    self.addCleanup(process.kill)
    return process

  def assert_last(self, step, make_entries):
    """Asserts that the newest checkpoint has all values of a step."""
    self.assertEqual(last_step(self.folder), step)
    got, expected = make_entries(-1), make_entries(step)
    path = checkpoints.Checkpoints(self.folder).latest()
    checkpoints.restore(path, got)
    for entry, wanted in zip(got, expected):
      for copy, value in zip(entry.copies, wanted.copies):
        self.assertAllEqual(copy, value, entry.name)

  def wait_for(self, is_so):
    deadline = time.monotonic() + 60.0
    while not is_so():
      self.assertLess(time.monotonic(), deadline, "It took too long.")
      time.sleep(0.002)

  def test_a_kill_at_any_time_keeps_the_previous_checkpoint(self):
    moments = np.random.RandomState(0).uniform(0.0, 0.1, [6])
    for moment in moments:
      before = last_step(self.folder)
      process = self.start(save_on)
      self.wait_for(lambda before=before: last_step(self.folder) > before)
      time.sleep(moment)
      process.kill()
      process.join()
      self.assertEqual(process.exitcode, -signal.SIGKILL)
      self.assert_last(last_step(self.folder), large)
    # More were written than asked for, however slow the disk, and not kept.
    self.assertGreater(last_step(self.folder), 2)
    self.assertLen(checkpoints.Checkpoints(self.folder).paths(), 2)

  def save_together(self, step, num, killed_at=None):
    """Saves a step with several processes, and waits for their end."""
    barrier = PROCESSES.Barrier(num, timeout=30.0)
    saving = [
      self.start(save_once, step, index, barrier, killed_at)
      for index in range(num)
    ]
    saving[0].join()
    for other in saving[1:]:
      if killed_at:  # It waits for the chief, which was killed.
        other.kill()
      other.join()
    code = -signal.SIGKILL if killed_at else 0
    self.assertEqual(saving[0].exitcode, code)

  @parameterized.named_parameters(
    ("one_unlisted", 1, "list", True),
    ("one_as_the_list_is_replaced", 1, "replace", True),
    ("two_before_they_are_joined", 2, "join", False),
    ("two_unlisted", 2, "list", True),
  )
  def test_a_kill_before_the_end_keeps_the_previous_checkpoint(
    self, num, moment, is_written
  ):
    def make_entries(step):
      return own(step, 0, num, copies=num)

    def is_there(name):
      return os.path.exists(os.path.join(self.folder, f"model.ckpt-{name}"))

    self.save_together(1, num)
    self.assert_last(1, make_entries)
    self.save_together(2, num, killed_at=moment)
    self.assertEqual(is_there("2.index"), is_written)
    self.assertEqual(is_there("2.parts"), not is_written)
    self.assert_last(1, make_entries)
    self.save_together(2, num)
    self.assert_last(2, make_entries)
    self.assertFalse(is_there("2.parts"))


if __name__ == "__main__":
  tf.test.main()
