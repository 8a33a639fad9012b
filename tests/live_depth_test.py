"""Buffers whose depth changes while they run: exact depth, same elements."""

import time

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data import live_depth

NUM_SLOTS = 24


class LiveDepthTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.depth = tf.Variable(4, dtype=tf.int64)
    self.num_made = tf.Variable(0, dtype=tf.int64)

  def make(self, k):
    """Counts what is made."""
    with tf.control_dependencies([self.num_made.assign_add(1)]):
      return (tf.reshape(k, [1]),)

  def prefetch(self, num_slots=NUM_SLOTS):
    data = tf.data.Dataset.range(1 << 40).map(self.make)
    return live_depth.prefetch(data, self.depth.read_value, num_slots)

  def map_ahead(self, num_slots=NUM_SLOTS):
    data = tf.data.Dataset.range(1 << 40).map(lambda k: (k,))
    return live_depth.map_ahead(
      data, self.make, self.depth.read_value, num_slots
    )

  def map_rows(self, num_slots=NUM_SLOTS):
    data = tf.data.Dataset.range(1 << 40).batch(5).map(lambda k: (k,))
    rows = live_depth.map_rows(
      data,
      lambda k: (self.make(k)[0], k),
      self.depth.read_value,
      num_slots,
      batch_size=1,
    )
    return rows.map(lambda made, k: (k,))

  def iterate(self, data):
    """Returns an iterator over a dataset that nothing rewrites."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return iter(data.with_options(options))

  def count_ahead(self, num_taken, expected):
    """Returns how many are made in advance, once they are enough."""
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
      if int(self.num_made) - num_taken >= expected:
        break
      time.sleep(0.01)
    time.sleep(0.1)  # For more than enough.
    return int(self.num_made) - num_taken

  @parameterized.parameters("prefetch", "map_ahead", "map_rows")
  def test_elements_are_the_same_while_the_depth_changes(self, kind):
    elements = self.iterate(getattr(self, kind)())
    for i in range(120):
      if i % 7 == 0:
        self.depth.assign((1, 24, 3, 100, 0, 10)[i // 7 % 6])
      self.assertAllEqual(next(elements)[0], [i])

  @parameterized.parameters("prefetch", "map_ahead")
  def test_as_many_as_the_variable_says_are_ahead(self, kind):
    elements, num_taken = self.iterate(getattr(self, kind)()), 0
    for depth in (4, 16, 24, 7, 1):
      self.depth.assign(depth)
      for _ in range(2 * NUM_SLOTS):  # Until the change has its effect.
        next(elements)
        num_taken += 1
      found = self.count_ahead(num_taken, depth)
      self.assertBetween(found, depth, depth + 1, f"{kind}, depth {depth}")

  def test_growth_has_its_effect_within_the_old_depth(self):
    elements = self.iterate(self.prefetch())
    for _ in range(10):
      next(elements)
    self.depth.assign(24)
    for _ in range(4):
      next(elements)
    self.assertGreaterEqual(self.count_ahead(14, 20), 20)

  def test_decoders_are_as_many_as_the_variable_says(self):
    # Of 24 rows in a row, as many as the depth are no blanks.
    rows = (tf.range(100, dtype=tf.int64), tf.fill([100], "bytes"))
    for depth in (1, 5, 24):
      spaced = live_depth._space_rows(rows, tf.constant(depth), NUM_SLOTS)
      is_real, numbers, texts = (x.numpy() for x in spaced)
      self.assertAllEqual(numbers[is_real], range(100))
      self.assertEqual(set(texts[is_real]), {b"bytes"})
      self.assertNotIn(b"bytes", texts[~is_real])
      for i in range(len(is_real) - NUM_SLOTS):
        self.assertBetween(is_real[i : i + NUM_SLOTS].sum(), depth, depth + 1)

  @parameterized.parameters("prefetch", "map_ahead", "map_rows")
  def test_a_pipeline_may_end_at_any_element_and_start_again(self, kind):
    data = getattr(self, kind)()
    found = [int(x[0][0]) for x in data.take(3).repeat(2)]
    self.assertEqual(found, [0, 1, 2, 0, 1, 2])
    first, second = iter(data), iter(data)
    for i in range(30):
      self.assertAllEqual(next(first)[0], next(second)[0])
      if i == 20:
        del first
        first = iter(data.skip(21))

  def test_the_end_and_errors_arrive_in_order(self):
    data = tf.data.Dataset.range(10).map(
      lambda k: (tf.debugging.assert_less(k, np_seven()), k)[1]
    )
    ends = tf.data.Dataset.range(10)
    found = live_depth.prefetch(ends, self.depth.read_value, NUM_SLOTS)
    self.assertLen(list(found), 10)
    fails = live_depth.prefetch(data, self.depth.read_value, NUM_SLOTS)
    elements = iter(fails)
    for i in range(7):
      self.assertEqual(int(next(elements)), i)
    with self.assertRaises(tf.errors.InvalidArgumentError):
      next(elements)


def np_seven():
  """Returns the first number that is refused."""
  return tf.constant(7, tf.int64)


if __name__ == "__main__":
  tf.test.main()
