"""What goes over the wire: packed messages, and real bytes of processes."""

import json
import pathlib

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.sync import compress, wire
from tests import multi_process_test, process_worker, testing

COMPRESSORS = (
  ("identity", compress.Identity()),
  ("bits_8", compress.Stochastic(8, 256)),
  ("bits_5", compress.Stochastic(5, 7)),
  ("top_k", compress.TopK(0.1)),
  ("rand_k", compress.RandK(0.2)),
  ("sign", compress.ScaledSign()),
)
MODEL = 4 * process_worker.NUM_WEIGHTS
NUM = 4


class PackedTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(*COMPRESSORS)
  def test_comes_out_as_its_compressor_says(self, compressor):
    v = tf.constant(np.random.RandomState(0).randn(3, 50), tf.float32)
    message = compressor.encode(v, [1, 2])
    payload = wire.packed(message)
    self.assertEqual(payload.dtype, tf.int32)
    self.assertEqual(4 * payload.shape[0], compressor.num_bytes(150))
    got = wire.opened(compressor, payload, 150, tf.float32)
    expected = compressor.decode(message, [150])
    self.assertAllEqual(got, expected)

  def test_parts_come_out_one_by_one(self):
    values = [
      tf.constant(np.random.RandomState(i).randn(*shape), tf.float64)
      for i, shape in enumerate(([4, 5], [7], []))
    ]
    parts = [
      wire.Part(value, compressor)
      for value, (_, compressor) in zip(values, COMPRESSORS[1:])
    ]
    seeds = [[0, i] for i in range(3)]
    got = wire.decoded(wire.encoded(parts, seeds), parts)
    for part, seed, q in zip(parts, seeds, got):
      message = part.compressor.encode(part.value, seed)
      expected = part.compressor.decode(message, part.value.shape)
      self.assertEqual(q.dtype, tf.float64)
      self.assertAllEqual(q, tf.cast(expected, tf.float64))

  def test_chunks_are_filled_up(self):
    rows = wire.chunks(tf.range(10.0), 4)
    self.assertAllEqual(rows.shape, [4, 3])
    self.assertAllEqual(tf.reshape(rows, [-1])[:10], tf.range(10.0))
    self.assertAllEqual(rows[3], [9.0, 0.0, 0.0])


class SocketsTest(tf.test.TestCase, parameterized.TestCase):
  """Four processes with a replica each, and what their sockets count."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = pathlib.Path(cls.get_temp_dir(cls()), "sockets")
    folder.mkdir()
    names = list(process_worker.EXCHANGES)
    job = ["sockets", str(folder / "bytes"), names]
    multi_process_test.launch_jobs(folder, 1, NUM, [job])
    cls.found = [
      json.loads((folder / "bytes" / f"{i}.json").read_text())
      for i in range(NUM)
    ]

  def assert_near(self, got, expected, name):
    self.assertAllClose(got, expected, rtol=0.05, atol=0, msg=name)

  @parameterized.parameters(("ring", 1), ("two_rounds", 2))
  def test_a_ring_gives_two_models_a_round(self, name, rounds):
    for worker in self.found:
      given, got, told, *_ = worker[name]
      self.assert_near(given, 2 * rounds * MODEL, name)
      self.assert_near(got, 2 * rounds * MODEL, name)
      self.assert_near(told, 2 * rounds * MODEL, name)

  def test_eight_bits_are_a_quarter(self):
    for worker in self.found:
      for side in (0, 1):
        ratio = worker["int8"][side] / worker["float32"][side]
        self.assertAllClose(ratio, 0.25, rtol=0, atol=0.01)

  def test_a_gather_brings_the_messages_of_all_others(self):
    for worker in self.found:
      given, got, told, told_got, *_ = worker["int8"]
      self.assert_near(told, MODEL / 4, "told")
      self.assert_near(got, told_got, "got")
      # A ring hands on what it gets.
      self.assert_near(given, (NUM - 1) * told, "given")

  def test_two_phases_bring_what_they_say(self):
    for worker in self.found:
      _, got, _, told_got, *_ = worker["two_phase"]
      self.assert_near(got, told_got, "got")
      self.assertLess(got, 0.55 * worker["int8"][1])

  @parameterized.parameters(
    # One message each: shapes are known, and not asked for.
    ("int8", ["CollectiveGatherV2"]),
    ("ring", ["CollectiveGatherV2"] * 2),
    ("all_reduce", ["CollectiveReduceV2"]),
  )
  def test_nothing_is_said_beside(self, name, expected):
    for worker in self.found:
      self.assertEqual(worker[name][-2], expected)

  @parameterized.parameters("int8", "two_phase", "all_reduce")
  def test_weights_are_the_same_on_all_bit_for_bit(self, name):
    self.assertLen({worker[name][-1] for worker in self.found}, 1)


if __name__ == "__main__":
  testing.main()
