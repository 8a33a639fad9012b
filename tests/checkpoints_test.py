"""Checkpoints are restored as saved, and left out if damaged."""

import contextlib
import io
import itertools
import multiprocessing
import os
import signal
import time
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.outputs import checkpoints, commit, stored
from paragan_tf.outputs.checkpoints import Writers
from paragan_tf.types import Entry, VectorSlice

# Forked from a process that has imported TensorFlow, which is slow, but not
# started its runtime.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.checkpoints_test"])
MOMENTS = {
  "join": (tf.raw_ops, "MergeV2Checkpoints"),
  "commit": (commit, "commit"),
  "list": (checkpoints.Checkpoints, "_write_state"),
  "remove": (commit, "remove"),
}
# Renames of a save: the data, the manifest, the index, the list.
NUM_RENAMES = 4


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
    stored.restore(path, fresh)
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
    stored.restore(path, fresh)
    self.assertEqual([float(c) for c in fresh[0].copies], [1.0, 2.0, 3.0])

  def test_another_number_of_differing_copies_is_refused(self):
    path = self.kept.save(1, entries({"g/m": [1.0, 2.0]}, agrees=False))
    for count in (1, 4):
      fresh = entries({"g/m": [0.0] * count}, agrees=False)
      with self.assertRaisesRegex(ValueError, "`g/m` of 2 replicas"):
        stored.restore(path, fresh)

  def test_oldest_checkpoints_are_removed(self):
    for step in (1, 2, 3):
      self.kept.save(step, entries({"w": [float(step)]}))
    steps = [path.split("-")[-1] for path in self.kept.paths()]
    self.assertEqual(steps, ["2", "3"])
    self.assertFalse([x for x in os.listdir(self.folder) if "-1." in x])
    fresh = checkpoints.Checkpoints(self.folder)
    self.assertEndsWith(fresh.latest(), "model.ckpt-3")

  def names(self):
    return sorted(os.listdir(self.folder))

  def test_a_checkpoint_is_its_files_and_a_manifest_of_them(self):
    self.kept.save(7, entries({"w": [1.0]}))
    files = ["data-00000-of-00001", "index", "manifest"]
    expected = ["checkpoint", *(f"model.ckpt-7.{x}" for x in files)]
    self.assertEqual(self.names(), expected)
    # TensorFlow and its estimators see it as their own.
    path = os.path.join(self.folder, "model.ckpt-7")
    self.assertEqual(tf.train.latest_checkpoint(self.folder), path)
    self.assertEqual(tf.train.load_checkpoint(path).get_tensor("w"), 1.0)

  def test_files_are_on_disk_before_the_rename_that_makes_it_one(self):
    done = []

    def note(what, call):
      def noted(*args, **kwargs):
        done.append((what, os.path.basename(str(args[0]))))
        return call(*args, **kwargs)

      return noted

    with (
      mock.patch.multiple(
        tf.io.gfile, rename=note("rename", tf.io.gfile.rename)
      ),
      mock.patch.object(commit, "sync", note("sync", commit.sync)),
    ):
      self.kept.save(7, entries({"w": [1.0]}))
    folder = os.path.basename(self.folder)
    data, index = "whole.data-00000-of-00001", "whole.index"
    self.assertCountEqual(
      done[:3], [("sync", x) for x in (data, index, "manifest")]
    )
    self.assertCountEqual(done[3:5], [("rename", data), ("rename", "manifest")])
    self.assertEqual(
      done[5:8], [("sync", folder), ("rename", index), ("sync", folder)]
    )

  def spoil(self, path, how):
    """Tears or flips the files of a checkpoint in one of several ways."""
    file = f"{path}.index" if "index" in how else f"{path}.data-00000-of-00001"
    with open(file, "rb") as f:
      whole = f.read()
    if "flip" in how:
      spoiled = whole[:30] + bytes([whole[30] ^ 4]) + whole[31:]
    else:
      spoiled = whole[: len(whole) // 2]
    if how == "no_data":
      os.remove(file)
      return
    with open(file, "wb") as f:
      f.write(spoiled)

  @parameterized.product(
    how=("tear", "flip", "tear_index", "flip_index", "no_data"),
    has_manifest=(True, False),
  )
  def test_a_damaged_one_is_named_and_the_one_before_taken(
    self, how, has_manifest
  ):
    values = np.arange(1000, dtype=np.float32)
    before = self.kept.save(1, entries({"w": [values]}))
    bad = self.kept.save(2, entries({"w": [values]}))
    if not has_manifest:  # As an older version has written them.
      for path in (before, bad):
        os.remove(f"{path}.manifest")
    self.spoil(bad, how)
    fresh = checkpoints.Checkpoints(self.folder, keep=2)
    with contextlib.redirect_stderr(io.StringIO()) as words:
      self.assertEqual(fresh.latest(), before)
      self.assertEqual(fresh.latest(), before)
    (line,) = words.getvalue().splitlines()  # Said once.
    self.assertRegex(line, "model.ckpt-2' is damaged and left out")
    # The list for TensorFlow names a whole one, too.
    fresh.recover()
    self.assertEqual(tf.train.latest_checkpoint(self.folder), before)
    # The next save takes its place.
    fresh.save(2, entries({"w": [values + 1]}))
    self.assertEqual(checkpoints.Checkpoints(self.folder).latest(), bad)

  def test_where_all_are_damaged_a_run_does_not_start_over(self):
    for step in (1, 2):
      path = self.kept.save(step, entries({"w": [np.zeros(1000, np.float32)]}))
      self.spoil(path, "flip")
    with self.assertRaisesRegex(ValueError, "All checkpoints.*model.ckpt-2'"):
      checkpoints.Checkpoints(self.folder).latest()
    self.assertIsNone(checkpoints.Checkpoints(self.folder).find_newest())

  @parameterized.named_parameters(
    ("missing", None),
    ("stale", "model.ckpt-1"),
    ("of_another_folder", "/nowhere/model.ckpt-9"),
    ("damaged", "\0"),
  )
  def test_a_list_that_is_wrong_is_made_anew(self, text):
    for step in (1, 2):
      newest = self.kept.save(step, entries({"w": [float(step)]}))
    state = os.path.join(self.folder, "checkpoint")
    os.remove(state)
    if text is not None:
      with open(state, "w") as f:
        f.write(f'model_checkpoint_path: "{text}"\n')
    fresh = checkpoints.Checkpoints(self.folder)
    self.assertEqual(fresh.latest(), newest)
    fresh.recover()
    self.assertEqual(tf.train.latest_checkpoint(self.folder), newest)

  def test_what_killed_saves_left_is_removed_and_nothing_else(self):
    good = self.kept.save(1, entries({"w": [1.0]}))
    debris = [
      "model.ckpt-2.data-00000-of-00001",
      "model.ckpt-2.manifest",
      "model.ckpt-3.tmp/whole.index",
      "model.ckpt-3.tmp/parts/00001.index",
      "model.ckpt-4.parts/00001.index",
      "model.ckpt-1.index.tempstate123",
    ]
    others = [
      "model.ckpt-5.txt",
      "model.ckpt-x.index",
      "my_model.ckpt-2.index",
      "notes.tmp/all",
    ]
    for name in (*debris, *others):
      file = os.path.join(self.folder, name)
      os.makedirs(os.path.dirname(file), exist_ok=True)
      with open(file, "w") as f:
        f.write("x")
    fresh = checkpoints.Checkpoints(self.folder)
    with contextlib.redirect_stderr(io.StringIO()) as words:
      fresh.recover()
    for name in debris:
      self.assertFalse(os.path.exists(os.path.join(self.folder, name)), name)
      self.assertIn(f"Removed '{name.split('/')[0]}'", words.getvalue())
    for name in others:
      self.assertTrue(os.path.exists(os.path.join(self.folder, name)), name)
    self.assertEqual(fresh.latest(), good)

  @parameterized.parameters("runs/*", "runs/[ab]", "runs/?")
  def test_a_folder_whose_name_is_a_pattern_is_that_folder(self, name):
    folders = [os.path.join(self.folder, x) for x in ("runs/a", "runs/b", name)]
    for folder in folders:
      for step in (1, 2, 3):
        kept = checkpoints.Checkpoints(folder, keep=3)
        kept.save(step, entries({"w": [float(step)]}))
    kept = checkpoints.Checkpoints(folders[-1], keep=1)
    kept.save(4, entries({"w": [4.0]}))
    self.assertLen(kept.paths(), 1)
    for folder in folders[:-1]:
      self.assertLen(checkpoints.Checkpoints(folder).paths(), 3)

  def test_saving_at_an_earlier_step_gives_up_the_later_ones(self):
    for step in (2, 4, 6):
      self.kept.save(step, entries({"w": [float(step)]}))
    self.kept.save(5, entries({"w": [5.0]}))
    steps = [checkpoints.step_of(path) for path in self.kept.paths()]
    self.assertEqual(steps, [4, 5])

  def test_a_copy_is_whole_or_refused(self):
    path = self.kept.save(7, entries({"w": [np.arange(1000.0)]}))
    other = checkpoints.Checkpoints(os.path.join(self.folder, "best"), keep=1)
    copy = other.adopt(path, 7)
    self.assertEqual(other.latest(), copy)
    with mock.patch.object(tf.io.gfile, "copy") as again:
      other.adopt(path, 7)
    again.assert_not_called()
    path = self.kept.save(8, entries({"w": [np.arange(1000.0)]}))
    self.spoil(path, "flip")
    with self.assertRaisesRegex(ValueError, "cannot be copied: .*checksum"):
      other.adopt(path, 8)
    self.assertEqual(other.latest(), copy)

  def test_another_model_is_refused_by_name_or_shape(self):
    path = self.kept.save(1, entries({"w": [[1.0, 2.0]]}))
    with self.assertRaisesRegex(ValueError, "lacks `v`"):
      stored.restore(path, entries({"v": [0.0]}))
    with self.assertRaisesRegex(ValueError, r"shape \[3\], got \[2\]"):
      stored.restore(path, entries({"w": [[0.0, 0.0, 0.0]]}))

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
        stored.restore(path, two)
      return
    stored.restore(path, two)
    self.assertAllEqual(two[0].copies, expected)
    self.assertAllEqual(two[1].copies, [5, 5])  # A count stays one.
    again = [e._replace(merge_rule=merged) for e in three]
    stored.restore(path, again)
    self.assertAllEqual(again[0].copies, [1.0, 2.0, 9.0])

  def test_missing_optional_entries_become_zeros(self):
    (w,) = entries({"w": [1.0]})
    path = self.kept.save(1, [w])
    (s,) = entries({"s": [[7.0, 7.0]] * 2}, agrees=False)
    stored.restore(path, [w, s._replace(merge_rule="sum", optional=True)])
    self.assertAllEqual(s.copies, np.zeros([2, 2]))
    with self.assertRaisesRegex(ValueError, "lacks `s`"):
      stored.restore(path, [w, s._replace(merge_rule="sum")])

  @parameterized.parameters(2, 3)
  def test_an_entry_takes_over_its_slice_of_a_stored_vector(self, num):
    debts = [[0.0, 1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 3.0, 4.0]]
    owed = [[[10.0], [20.0]], [[30.0], [40.0]]]
    path = self.kept.save(1, entries({"s": debts, "e": owed}, agrees=False))
    (e,) = entries({"e": [[[0.0], [0.0]]] * num}, agrees=False)
    part = VectorSlice("s", 5, 2)
    stored.restore(path, [e._replace(merge_rule="mean", residual_source=part)])
    own = owed if num == 2 else [np.mean(owed, 0)] * num
    self.assertAllEqual(e.copies, [np.add(x, [[2.0], [3.0]]) for x in own])
    # Of another size it is no such vector, and without one nothing is added.
    wrong = e._replace(merge_rule="mean", residual_source=part._replace(size=4))
    with self.assertRaisesRegex(ValueError, r"`s` .* shape \[4\], got \[5\]"):
      stored.restore(path, [wrong])
    none = e._replace(
      merge_rule="mean", residual_source=part._replace(key="no")
    )
    stored.restore(path, [none])
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

  def agree(flag):
    barrier.wait()
    return flag

  writers = Writers(index, barrier.parties, agree)
  kept = checkpoints.Checkpoints(folder, writers=writers)
  if index:  # Slow, so that a chief that does not wait would be too early.
    write = checkpoints._write
    checkpoints._write = lambda *args: (time.sleep(0.3), write(*args))
  elif isinstance(killed_at, int):
    kill_at_rename(killed_at)
  elif killed_at:
    kill_at(*MOMENTS[killed_at])
  kept.save(step, own(step, index, barrier.parties))


def kill_at_rename(number):
  """Kills this process when it is about to rename for the n-th time."""
  rename, left = tf.io.gfile.rename, itertools.count(-number)

  def rename_or_die(*args, **kwargs):
    if not next(left):
      os.kill(os.getpid(), signal.SIGKILL)
    rename(*args, **kwargs)

  mock.patch.object(tf.io.gfile, "rename", rename_or_die).start()


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
    stored.restore(path, got)
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
    # More were written than asked for, however slow the disk, and not kept. A
    # kill between a commit and the removal of the oldest leaves one more.
    self.assertGreater(last_step(self.folder), 3)
    self.assertIn(len(checkpoints.Checkpoints(self.folder).paths()), (2, 3))

  def save_together(self, step, num, killed_at=None):
    """Saves a step with several processes, and waits for their end."""
    barrier = PROCESSES.Barrier(num, timeout=30.0)
    saving = [
      self.start(save_once, step, index, barrier, killed_at)
      for index in range(num)
    ]
    saving[0].join()
    for other in saving[1:]:
      if killed_at is not None:  # It waits for the chief, which was killed.
        other.kill()
      other.join()
    code = 0 if killed_at is None else -signal.SIGKILL
    self.assertEqual(saving[0].exitcode, code)

  @parameterized.named_parameters(
    *(
      (f"one_at_rename_{i}", 1, i, i == NUM_RENAMES - 1)
      for i in range(NUM_RENAMES)
    ),
    ("one_before_the_commit", 1, "commit", False),
    ("two_before_they_are_joined", 2, "join", False),
    ("two_before_the_commit", 2, "commit", False),
    ("two_unlisted", 2, "list", True),
  )
  def test_a_kill_before_the_end_keeps_a_whole_checkpoint(
    self, num, moment, is_committed
  ):
    def make_entries(step):
      return own(step, 0, num, copies=num)

    self.save_together(1, num)
    self.assert_last(1, make_entries)
    self.save_together(2, num, killed_at=moment)
    self.assert_last(2 if is_committed else 1, make_entries)
    # What it left does no harm, to the next run either.
    checkpoints.Checkpoints(self.folder).recover()
    expected = 2 if is_committed else 1
    path = tf.train.latest_checkpoint(self.folder)
    self.assertEndsWith(path, f"-{expected}")
    self.assertNotIn("model.ckpt-2.tmp", os.listdir(self.folder))
    self.save_together(2, num)
    self.assert_last(2, make_entries)


if __name__ == "__main__":
  tf.test.main()
