"""Wire format: packed messages decode to what was encoded."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.sync import compress, wire
from tests import testing

COMPRESSORS = (
  ("identity", compress.Identity()),
  ("bits_8", compress.Stochastic(8, 256)),
  ("bits_5", compress.Stochastic(5, 7)),
  ("top_k", compress.TopK(0.1)),
  ("rand_k", compress.RandK(0.2)),
  ("sign", compress.ScaledSign()),
)


class WireTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(*COMPRESSORS)
  def test_packed_message_decodes_as_by_its_compressor(self, compressor):
    v = tf.constant(np.random.RandomState(0).randn(3, 50), tf.float32)
    message = compressor.encode(v, [1, 2])
    payload = wire.pack(message)
    self.assertEqual(payload.dtype, tf.int32)
    self.assertEqual(4 * payload.shape[0], compressor.num_bytes(150))
    got = wire.decode_message(compressor, payload, 150, tf.float32)
    expected = compressor.decode(message, [150])
    self.assertAllEqual(got, expected)

  def test_parts_are_decoded_separately(self):
    values = [
      tf.constant(np.random.RandomState(i).randn(*shape), tf.float64)
      for i, shape in enumerate(([4, 5], [7], []))
    ]
    parts = [
      wire.CompressedTensor(value, compressor)
      for value, (_, compressor) in zip(values, COMPRESSORS[1:])
    ]
    seeds = [[0, i] for i in range(3)]
    got = wire.decode(wire.encode(parts, seeds), parts)
    for part, seed, q in zip(parts, seeds, got):
      message = part.compressor.encode(part.value, seed)
      expected = part.compressor.decode(message, part.value.shape)
      self.assertEqual(q.dtype, tf.float64)
      self.assertAllEqual(q, tf.cast(expected, tf.float64))

  def test_chunks_are_padded_with_zeros(self):
    rows = wire.chunks(tf.range(10.0), 4)
    self.assertAllEqual(rows.shape, [4, 3])
    self.assertAllEqual(tf.reshape(rows, [-1])[:10], tf.range(10.0))
    self.assertAllEqual(rows[3], [9.0, 0.0, 0.0])


if __name__ == "__main__":
  testing.main()
