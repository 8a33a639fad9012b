"""What does not fit together is refused, and what does is not."""

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import checks
from paragan_tf.game import schedule
from paragan_tf.sync import exchange, gossip, quantize


class ChecksTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("all_alone", exchange.Exchange, "`Exchange` of `d` does not"),
    ("neighbors_only", gossip.Gossip, "`Gossip` of `d` does not"),
    ("words", quantize.Quantized, "`Quantized` of `d` does not"),
  )
  def test_g_and_d_apart_must_hear_of_each_other(self, make, words):
    exchanges = {"g": exchange.Periodic(), "d": make()}
    with self.assertRaisesRegex(ValueError, f"{words}.*take `AllReduce` or"):
      checks.check_role_split(schedule.Asynchronous(), {}, exchanges)
    exchanges["d"] = exchange.AllReduce()
    checks.check_role_split(schedule.Asynchronous(), {}, exchanges)

  def test_replicas_share_batches_alike(self):
    own = schedule.Sequential(g_batch_size=6, reuse_fakes=False)
    for batch_size, words in ((0, "got 0: take 4"), (10, "got 10: take 8")):
      with self.assertRaisesRegex(ValueError, f"of the 4 replicas, {words}"):
        checks.check_batches(schedule.Sequential(), batch_size, 4)
    with self.assertRaisesRegex(ValueError, "`g_batch_size` .* 4 .*, got 6"):
      checks.check_batches(own, 8, 4)
    checks.check_batches(own, 8, 2)


if __name__ == "__main__":
  tf.test.main()
