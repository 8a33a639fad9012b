"""What a checkpoint keeps, and what it says when it cannot be used."""

import os

import numpy as np
import tensorflow as tf

from paragan_tf.outputs import checkpoints
from paragan_tf.outputs.checkpoints import Entry


def entries(values, agrees=True):
  """Makes an entry a name, with a copy for each value."""
  return [
    Entry(name, tuple(tf.Variable(v) for v in copies), agrees)
    for name, copies in values.items()
  ]


class CheckpointsTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)
    os.makedirs(self.folder)
    self.kept = checkpoints.Checkpoints(self.folder, keep=2)

  def test_values_come_back_on_every_copy(self):
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

  def test_copies_that_differ_are_all_kept(self):
    path = self.kept.save(1, entries({"w": [1.0, 2.0, 3.0]}, agrees=False))
    fresh = entries({"w": [0.0, 0.0, 0.0]}, agrees=False)
    checkpoints.restore(path, fresh)
    self.assertEqual([float(c) for c in fresh[0].copies], [1.0, 2.0, 3.0])

  def test_another_number_of_differing_copies_is_refused_by_name(self):
    path = self.kept.save(1, entries({"g/m": [1.0, 2.0]}, agrees=False))
    for count in (1, 4):
      fresh = entries({"g/m": [0.0] * count}, agrees=False)
      with self.assertRaisesRegex(ValueError, "2 replicas' own `g/m`"):
        checkpoints.restore(path, fresh)

  def test_old_ones_go_and_the_newest_stay(self):
    for step in (1, 2, 3):
      self.kept.save(step, entries({"w": [float(step)]}))
    steps = [path.split("-")[-1] for path in self.kept.paths()]
    self.assertEqual(steps, ["2", "3"])
    self.assertEmpty(tf.io.gfile.glob(os.path.join(self.folder, "*-1.*")))
    fresh = checkpoints.Checkpoints(self.folder)
    self.assertEndsWith(fresh.latest(), "model.ckpt-3")

  def test_an_unfinished_save_leaves_the_one_before(self):
    good = self.kept.save(1, entries({"w": [1.0]}))
    # What a kill in the middle of the next save leaves: data, but no index.
    with open(
      os.path.join(self.folder, "model.ckpt-2.data-00000-of-00001"), "wb"
    ):
      pass
    self.assertEqual(checkpoints.Checkpoints(self.folder).latest(), good)

  def test_a_damaged_one_is_named_and_changes_nothing(self):
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

  def test_removing_a_damaged_one_goes_back_to_the_one_before(self):
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

  def test_two_variables_of_one_name_are_refused(self):
    twice = entries({"w": [1.0]}) + entries({"w": [2.0]})
    with self.assertRaisesRegex(ValueError, "named `w`"):
      self.kept.save(1, twice)


if __name__ == "__main__":
  tf.test.main()
