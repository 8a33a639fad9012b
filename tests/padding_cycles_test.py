"""Which pieces of nets are compiled to see where padding pays."""

import gin
import tensorflow as tf

from tools.tpu import padding


class PaddingCyclesTest(tf.test.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def test_every_piece_is_compiled_as_it_is_and_padded(self):
    pieces = padding.list_pieces([20, 96], [8])
    self.assertLen(pieces, 8)
    self.assertLen({piece.name for piece in pieces}, 8)
    found = [(piece, 10 + i) for i, piece in enumerate(pieces)]
    rows = padding.make_table(found)
    self.assertEqual(
      rows[0], {"width": 20, "resolution": 1, "plain": 10, "padded": 11}
    )
    self.assertEqual(
      rows[-1], {"width": 96, "resolution": 8, "plain": 16, "padded": 17}
    )

  def test_whole_tiles_are_refused(self):
    with self.assertRaisesRegex(ValueError, "no multiple of 128, got 256"):
      padding.list_pieces([96, 256], [8])

  def test_a_padded_piece_carries_its_channels(self):
    for is_padded, width in ((False, 3), (True, 128)):
      piece = padding.Piece(3, 2, is_padded)
      compute, (x, dy) = padding.trace(piece, "tpu_v3")
      self.assertEqual((x.shape, dy.shape), ([16, 2, 2, width],) * 2)
      grads = compute(tf.ones(x.shape, x.dtype), tf.ones(dy.shape, dy.dtype))
      self.assertIn([3, 3, 3, 3], [grad.shape for grad in grads])
      linear = piece._replace(resolution=1)
      _, (x, _) = padding.trace(linear, "tpu_v3")
      self.assertEqual(x.shape, [16, width])


if __name__ == "__main__":
  tf.test.main()
