"""Blocks hold neighbors, and a pipeline asks for each one in time."""

import itertools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data.batch_shard import Shard
from paragan_tf.data.encoded import Blocks, Encoded, Streaming, needs
from paragan_tf.data.order import Order

# Two files; the second has a gap where an image was left out.
PATH = np.array([0, 0, 0, 0, 1, 1, 1])
START = np.array([10, 30, 60, 80, 0, 100, 125])
SIZE = np.array([15, 25, 15, 40, 50, 20, 30])
IMAGES = Encoded(("a", "b"), PATH, START, SIZE, np.arange(7, dtype=np.int32))


def content(path, start=0, size=None):
  """Returns bytes that tell where they are from."""
  data = bytes([{"a": 0, "b": 100}[path] + i % 100 for i in range(200)])
  return data[start : None if size is None else start + size]


class BlocksTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    (1, [0, 1, 2, 3, 4, 5, 6]),
    (50, [0, 0, 1, 2, 3, 4, 5]),
    (100, [0, 0, 0, 1, 2, 3, 3]),
    (10000, [0, 0, 0, 0, 1, 1, 1]),
  )
  def test_neighbors_of_one_file_are_one_block(self, num_bytes, expected):
    self.assertAllEqual(IMAGES.blocks(num_bytes), expected)

  def test_a_file_that_is_an_image_is_a_block(self):
    whole = Encoded(
      ("a", "b", "c"), np.arange(3), np.zeros(3, int), np.full(3, -1)
    )
    self.assertAllEqual(whole.blocks(10000), [0, 1, 2])

  @parameterized.parameters(1, 50, 100, 10000)
  def test_an_image_is_cut_out_of_its_block(self, block_bytes):
    blocks = Blocks(IMAGES, Streaming(block_bytes=block_bytes), content)
    fetched = {int(i): blocks.fetch((0, int(i))) for i in blocks.of_row}
    rows = np.array([5, 0, 6, 2, 2, 1, 4, 3])
    expected = [content("ab"[PATH[i]], START[i], SIZE[i]) for i in rows]
    self.assertEqual(list(blocks.cut(fetched, rows)), expected)
    self.assertEqual(blocks.num_bytes(fetched, rows), sum(map(len, expected)))

  def test_a_window_that_cannot_be_held_is_refused(self):
    # Seven images of 195 bytes in all.
    Blocks(IMAGES, Streaming(max_bytes=195), content)
    words = "must fit into `max_bytes`, 190, and 7 images .* 195.*: take 6,"
    with self.assertRaisesRegex(ValueError, words):
      Blocks(IMAGES, Streaming(max_bytes=190), content)
    Blocks(IMAGES, Streaming(window=6, max_bytes=190), content)

  def test_what_fits_is_kept(self):
    asked = []

    def read(path, start, size):
      asked.append((path, start))
      return content(path, start, size)

    # Blocks of 110 and 155 bytes; only the first fits.
    blocks = Blocks(IMAGES, Streaming(block_bytes=10000, cache_bytes=150), read)
    for _ in range(3):
      blocks.fetch((0, 0))
      blocks.fetch((0, 1))
    self.assertEqual(asked, [("a", 10), ("b", 0), ("b", 0), ("b", 0)])

  def test_a_part_keeps_what_belongs_together(self):
    part = IMAGES.part(np.array([1, 5]))
    self.assertLen(part, 2)
    self.assertAllEqual(part.start, [30, 100])
    self.assertAllEqual(part.labels, [1, 5])

  @parameterized.parameters(
    (dict(window=0), "`Streaming.window` must be at least 1, got 0"),
    (dict(block_bytes=0), "`Streaming.block_bytes` must be at least 1"),
    (dict(cache_bytes=-1), "`Streaming.cache_bytes` must be 0 or more"),
    (dict(max_readers=1), "`max_readers` must be at least 4, got 1"),
    (dict(max_depth=0), "`max_depth` must be at least 16, got 0"),
  )
  def test_what_cannot_be_is_refused(self, options, words):
    with self.assertRaisesRegex(ValueError, words):
      Streaming(**options)


class NeedsTest(tf.test.TestCase, parameterized.TestCase):
  OF_ROW = np.repeat(np.arange(8), [3, 1, 5, 4, 2, 6, 1, 3])  # 25 images.

  def rows(self, shares, num_shards, start=0, num_steps=10, batch=2):
    """Returns the rows of each element, of some steps."""
    order = Order(self.OF_ROW, batch * num_shards, window=6, num_lanes=4)
    share = Shard(batch, num_shards, shares, start)
    found = needs(order, self.OF_ROW, share)
    elements = list(itertools.islice(found, num_steps * len(shares)))
    return np.array([need.tag[0] for need in elements]), elements

  @parameterized.parameters(1, 2, 4)
  def test_pipelines_together_give_the_global_batch(self, num):
    whole = self.rows([0, 1, 2, 3], 4)[0].reshape([10, 8])
    local = 4 // num
    parts = [
      self.rows(list(range(i * local, (i + 1) * local)), 4)[0]
      for i in range(num)
    ]
    parts = [part.reshape([10, -1]) for part in parts]
    self.assertAllEqual(np.concatenate(parts, 1), whole)

  def test_every_image_once_an_epoch(self):
    rows = self.rows([0, 1, 2, 3], 4, num_steps=25)[0].reshape([-1])
    for epoch in rows.reshape([8, 25]):
      self.assertCountEqual(epoch, range(25))

  def test_it_can_begin_at_any_step(self):
    whole = self.rows([1, 3], 4, num_steps=12)[0]
    later = self.rows([1, 3], 4, start=5, num_steps=7)[0]
    self.assertAllEqual(later, whole[10:])

  @parameterized.parameters(([0, 1, 2, 3],), ([2],), ([1, 1, 3],))
  def test_each_block_is_asked_for_as_often_as_it_says(self, shares):
    _, elements = self.rows(shares, 4, start=3, num_steps=47)
    counts, said = {}, {}
    for need in elements:
      rows, _ = need.tag
      blocks = {block for _, block in need.keys}
      self.assertEqual(blocks, set(self.OF_ROW[rows]))
      for key, uses in zip(need.keys, need.num_uses):
        counts[key] = counts.get(key, 0) + 1
        self.assertEqual(said.setdefault(key, uses), uses)
    # 50 steps of 8 are 16 epochs to the end.
    self.assertEqual(counts, said)


if __name__ == "__main__":
  tf.test.main()
