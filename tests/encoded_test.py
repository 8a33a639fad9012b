"""Blocks hold neighbors, and a pipeline requests each one in time."""

import itertools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data.batch_shard import BatchShard
from paragan_tf.data.encoded import (
  BlockReader,
  EncodedImages,
  Streaming,
  plan_requests,
)
from paragan_tf.data.order import Order

# Two files; the second has a gap where an image was left out.
PATH = np.array([0, 0, 0, 0, 1, 1, 1])
START = np.array([10, 30, 60, 80, 0, 100, 125])
SIZE = np.array([15, 25, 15, 40, 50, 20, 30])
LABELS = np.arange(7, dtype=np.int32)
IMAGES = EncodedImages(("a", "b"), PATH, START, SIZE, LABELS)


def content(path, start=0, size=None):
  """Returns bytes that show their file and position."""
  data = bytes([{"a": 0, "b": 100}[path] + i % 100 for i in range(200)])
  return data[start : None if size is None else start + size]


class BlockReaderTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    (1, [0, 1, 2, 3, 4, 5, 6]),
    (50, [0, 0, 1, 2, 3, 4, 5]),
    (100, [0, 0, 0, 1, 2, 3, 3]),
    (10000, [0, 0, 0, 0, 1, 1, 1]),
  )
  def test_neighbors_of_one_file_are_one_block(self, num_bytes, expected):
    self.assertAllEqual(IMAGES.assign_blocks(num_bytes), expected)

  def test_a_file_that_is_an_image_is_a_block(self):
    whole = EncodedImages(
      ("a", "b", "c"), np.arange(3), np.zeros(3, int), np.full(3, -1)
    )
    self.assertAllEqual(whole.assign_blocks(10000), [0, 1, 2])

  @parameterized.parameters(1, 50, 100, 10000)
  def test_an_image_is_cut_out_of_its_block(self, block_bytes):
    blocks = BlockReader(IMAGES, Streaming(block_bytes=block_bytes), content)
    fetched = {int(i): blocks.fetch((0, int(i))) for i in blocks.block_ids}
    rows = np.array([5, 0, 6, 2, 2, 1, 4, 3])
    expected = [content("ab"[PATH[i]], START[i], SIZE[i]) for i in rows]
    self.assertEqual(list(blocks.cut(fetched, rows)), expected)
    self.assertEqual(blocks.num_bytes(fetched, rows), sum(map(len, expected)))

  def test_a_window_larger_than_max_bytes_is_refused(self):
    # Seven images of 195 bytes in all.
    BlockReader(IMAGES, Streaming(max_bytes=195), content)
    words = "must fit into `max_bytes`, 190, and 7 images .* 195.*: take 6,"
    with self.assertRaisesRegex(ValueError, words):
      BlockReader(IMAGES, Streaming(max_bytes=190), content)
    BlockReader(IMAGES, Streaming(window=6, max_bytes=190), content)

  def test_blocks_that_fit_are_cached(self):
    reads = []

    def read(path, start, size):
      reads.append((path, start))
      return content(path, start, size)

    # Blocks of 110 and 155 bytes; only the first fits.
    blocks = BlockReader(
      IMAGES, Streaming(block_bytes=10000, cache_bytes=150), read
    )
    for _ in range(3):
      blocks.fetch((0, 0))
      blocks.fetch((0, 1))
    self.assertEqual(reads, [("a", 10), ("b", 0), ("b", 0), ("b", 0)])

  def test_selected_rows_keep_their_labels(self):
    images = IMAGES.select(np.array([1, 5]))
    self.assertLen(images, 2)
    self.assertAllEqual(images.start, [30, 100])
    self.assertAllEqual(images.labels, [1, 5])

  @parameterized.parameters(
    (dict(window=0), "`Streaming.window` must be at least 1, got 0"),
    (dict(block_bytes=0), "`Streaming.block_bytes` must be at least 1"),
    (dict(cache_bytes=-1), "`Streaming.cache_bytes` must be 0 or more"),
    (dict(max_readers=1), "`max_readers` must be at least 4, got 1"),
    (dict(max_depth=0), "`max_depth` must be at least 16, got 0"),
  )
  def test_bad_options_are_refused(self, options, words):
    with self.assertRaisesRegex(ValueError, words):
      Streaming(**options)


class PlanRequestsTest(tf.test.TestCase, parameterized.TestCase):
  BLOCK_IDS = np.repeat(np.arange(8), [3, 1, 5, 4, 2, 6, 1, 3])  # 25 images.

  def rows(self, shards, num_shards, start=0, num_steps=10, batch=2):
    """Returns the rows of each element, of some steps."""
    order = Order(self.BLOCK_IDS, batch * num_shards, window=6, num_lanes=4)
    shard = BatchShard(batch, num_shards, shards, start)
    found = plan_requests(order, self.BLOCK_IDS, shard)
    elements = list(itertools.islice(found, num_steps * len(shards)))
    return np.array([request.tag[0] for request in elements]), elements

  @parameterized.parameters(1, 2, 4)
  def test_pipelines_together_give_the_global_batch(self, num):
    whole = self.rows([0, 1, 2, 3], 4)[0].reshape([10, 8])
    local = 4 // num
    pipelines = [
      self.rows(list(range(i * local, (i + 1) * local)), 4)[0]
      for i in range(num)
    ]
    pipelines = [rows.reshape([10, -1]) for rows in pipelines]
    self.assertAllEqual(np.concatenate(pipelines, 1), whole)

  def test_every_image_once_an_epoch(self):
    rows = self.rows([0, 1, 2, 3], 4, num_steps=25)[0].reshape([-1])
    for epoch in rows.reshape([8, 25]):
      self.assertCountEqual(epoch, range(25))

  def test_it_can_begin_at_any_step(self):
    whole = self.rows([1, 3], 4, num_steps=12)[0]
    later = self.rows([1, 3], 4, start=5, num_steps=7)[0]
    self.assertAllEqual(later, whole[10:])

  @parameterized.parameters(([0, 1, 2, 3],), ([2],), ([1, 1, 3],))
  def test_each_block_is_requested_num_uses_times(self, shards):
    _, elements = self.rows(shards, 4, start=3, num_steps=47)
    counts, expected = {}, {}
    for request in elements:
      rows, _ = request.tag
      blocks = {block for _, block in request.keys}
      self.assertEqual(blocks, set(self.BLOCK_IDS[rows]))
      for key, uses in zip(request.keys, request.num_uses):
        counts[key] = counts.get(key, 0) + 1
        self.assertEqual(expected.setdefault(key, uses), uses)
    # 50 steps of 8 are 16 epochs to the end.
    self.assertEqual(counts, expected)


if __name__ == "__main__":
  tf.test.main()
