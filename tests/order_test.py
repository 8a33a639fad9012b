"""The order of a set on disk: each image once an epoch, by seed and epoch."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.data.order import Order

# 103 images in blocks of 1 to 12.
SIZES = (12, 1, 7, 12, 12, 5, 12, 12, 9, 12, 9)
BLOCKS = np.repeat(np.arange(len(SIZES)), SIZES)


def make(batch_size=16, num_lanes=4, window=24, seed=0, blocks=BLOCKS):
  """Returns an order of the set."""
  return Order(blocks, batch_size, seed, window, num_lanes)


class OrderTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.product(
    batch_size=[1, 7, 16, 200], num_lanes=[1, 4], window=[1, 24, 1000]
  )
  def test_every_image_once_an_epoch(self, batch_size, num_lanes, window):
    order = make(batch_size, num_lanes, window)
    for epoch in range(4):
      self.assertCountEqual(order.rows(epoch), range(len(BLOCKS)))

  def test_it_is_a_function_of_seed_and_epoch(self):
    self.assertAllEqual(make().rows(3), make().rows(3))
    self.assertNotAllEqual(make().rows(3), make().rows(4))
    self.assertNotAllEqual(make().rows(3), make(seed=1).rows(3))
    # So are both shuffles: of images in one block, and of blocks of one image.
    for blocks, window in ((0 * BLOCKS, 1000), (np.arange(103), 1)):
      order = make(1, 1, window, blocks=blocks)
      self.assertNotAllEqual(order.rows(0), np.arange(103))
      self.assertNotAllEqual(order.rows(0), order.rows(1))
      other = make(1, 1, window, seed=1, blocks=blocks)
      self.assertNotAllEqual(order.rows(0), other.rows(0))

  def test_a_graph_computes_the_same_order(self):
    order = make()

    def first_window(epoch, lane):
      span = order.span(lane, epoch)
      size = tf.minimum(span.count, order.window)
      indices = span.start + tf.range(size)
      starts = tf.fill([size], span.start)
      positions = lane.positions(span.before + tf.range(size))
      return order.shuffle(order.epoch(epoch), indices, starts), positions

    epoch = 2
    whole, n = order.rows(epoch), len(BLOCKS)
    for lane in order.lanes:
      rows, positions = tf.function(first_window)(np.int64(epoch), lane)
      self.assertLen(rows, 6)
      self.assertAllEqual(rows, whole[positions - epoch * n])
      self.assertAllEqual(positions % 16 // 4, [lane.first // 4] * 6)

  @parameterized.parameters((16, 4), (7, 3), (5, 16), (200, 4))
  def test_lanes_are_slices_of_each_global_batch(self, batch_size, num_lanes):
    order = make(batch_size, num_lanes)
    positions = np.arange(3 * batch_size + 2)
    num_lanes = min(num_lanes, batch_size)
    owners = positions % batch_size * num_lanes // batch_size
    self.assertLen(order.lanes, num_lanes)
    for i, lane in enumerate(order.lanes):
      mine = positions[owners == i]
      self.assertAllEqual(lane.positions(np.arange(len(mine))), mine)
      for position in positions:
        self.assertEqual(lane.count(position), np.sum(mine < position))

  def test_rows_of_some_positions_continue_in_the_next_epoch(self):
    order, n = make(), len(BLOCKS)
    expected = np.concatenate([order.rows(i) for i in range(4)])
    self.assertAllEqual(order.rows_from(90, 2 * n), expected[90 : 90 + 2 * n])
    self.assertAllEqual(order.rows_from(n, n), expected[n : 2 * n])

  def test_lanes_share_blocks_only_at_their_ends(self):
    # Each position of 16 belongs to one of four lanes; an epoch may begin in
    # the middle of a batch.
    for epoch in range(3):
      rows = make(window=1).rows(epoch)
      positions = (epoch * len(BLOCKS) + np.arange(len(BLOCKS))) % 16
      lanes = [set(BLOCKS[rows[positions // 4 == lane]]) for lane in range(4)]
      self.assertLessEqual(sum(map(len, lanes)), len(SIZES) + 3)

  def test_blocks_stay_together_up_to_the_window(self):
    blocks = np.repeat(np.arange(50), 10)
    rows = make(1, 1, window=20, blocks=blocks).rows(0)
    for start in range(0, 500, 20):
      self.assertLen(set(blocks[rows[start : start + 20]]), 2)
    # Shuffled within the window, and blocks are not in the order of the file.
    self.assertGreater(np.count_nonzero(np.diff(blocks[rows])), 150)
    self.assertNotAllEqual(np.sort(rows[:20]), np.arange(20))

  def test_a_window_over_the_set_shuffles_all(self):
    blocks = np.repeat(np.arange(10), 100)
    rows = make(1, 1, window=1000, blocks=blocks).rows(0)
    # Of the first 200 images, about 20 are of each block: 4.2 is one deviation.
    counts = np.bincount(blocks[rows[:200]], minlength=10)
    self.assertAllInRange(counts, 5, 38)

  def test_one_image_a_block_is_a_permutation(self):
    rows = make(1, 1, window=1, blocks=np.arange(2000)).rows(0)
    # The mean step between neighbors of a permutation is a third: 667 +- 10.
    self.assertAllInRange(np.abs(np.diff(rows)).mean(), 630, 705)


if __name__ == "__main__":
  tf.test.main()
