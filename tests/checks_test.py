"""Incompatible parts of an experiment are refused; others are not."""

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import checks
from paragan_tf.game import schedule
from paragan_tf.sync import exchange, gossip, quantize


class ChecksTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("no_exchange", exchange.Exchange, "`Exchange` of `d` does not"),
    ("gossip", gossip.Gossip, "`Gossip` of `d` does not"),
    ("quantized", quantize.Quantized, "`Quantized` of `d` does not"),
  )
  def test_role_split_needs_an_exchange_between_g_and_d(self, make, message):
    exchanges = {"g": exchange.Periodic(), "d": make()}
    with self.assertRaisesRegex(ValueError, f"{message}.*take `AllReduce` or"):
      checks.check_role_split(schedule.Asynchronous(), {}, exchanges)
    exchanges["d"] = exchange.AllReduce()
    checks.check_role_split(schedule.Asynchronous(), {}, exchanges)

  def test_batches_must_be_split_evenly_among_replicas(self):
    separate = schedule.Sequential(g_batch_size=6, reuse_fakes=False)
    for batch_size, message in ((0, "got 0: take 4"), (10, "got 10: take 8")):
      with self.assertRaisesRegex(ValueError, f"of the 4 replicas, {message}"):
        checks.check_batches(schedule.Sequential(), batch_size, 4)
    with self.assertRaisesRegex(ValueError, "`g_batch_size` .* 4 .*, got 6"):
      checks.check_batches(separate, 8, 4)
    checks.check_batches(separate, 8, 2)


if __name__ == "__main__":
  tf.test.main()
