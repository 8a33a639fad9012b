"""Which label is next: longest first, failed ones again, shards."""

from absl.testing import absltest, parameterized

from paragan_tf import label_queue

SIZES = {0: 20, 1: 50, 2: 50, 3: 0, 4: 70, 5: 10, 6: 30, 7: 25}


class LabelQueueTest(parameterized.TestCase):
  def test_the_longest_is_first_and_empty_ones_are_left_out(self):
    self.assertEqual(label_queue.order(SIZES), [4, 1, 2, 6, 7, 0, 5])

  @parameterized.parameters(1, 2, 3, 5, 9)
  def test_shards_have_every_label_once_whatever_their_number(self, count):
    shards = [label_queue.deal(SIZES, i, count) for i in range(count)]
    found = [label for shard in shards for label in shard]
    self.assertCountEqual(found, label_queue.order(SIZES))
    lengths = [len(shard) for shard in shards]
    self.assertLessEqual(max(lengths) - min(lengths), 1)

  def test_a_failed_label_is_next_until_it_failed_too_often(self):
    queue = label_queue.LabelQueue([4, 1, 2], max_restarts=2)
    self.assertEqual(queue.take(), 4)
    self.assertTrue(queue.fail(4))
    self.assertEqual([queue.take(), queue.take()], [4, 1])
    self.assertTrue(queue.fail(4))
    self.assertEqual(queue.restarts[4], 2)
    self.assertEqual(queue.take(), 4)
    self.assertFalse(queue.fail(4))
    self.assertEqual(queue.failed, [4])
    self.assertEqual([queue.take(), queue.take()], [2, None])

  def test_restarts_below_zero_are_refused(self):
    with self.assertRaisesRegex(ValueError, "`max_restarts`.*got -1"):
      label_queue.LabelQueue([], -1)

  @parameterized.parameters(
    ("2/8", {}, (2, 8)),
    ("array/8", {"SLURM_ARRAY_TASK_ID": "3"}, (3, 8)),
    ("array/8", {"JOB_COMPLETION_INDEX": "0"}, (0, 8)),
  )
  def test_a_shard_is_named_or_that_of_the_task(self, text, variables, shard):
    self.assertEqual(label_queue.parse_shard(text, variables), shard)

  @parameterized.parameters(
    ("8/8", "from 0/8 to 7/8, got '8/8'"),
    ("0/0", "got '0/0'"),
    ("1", "'i/n'.*got '1'"),
    ("-1/2", "got '-1/2'"),
    ("array/2", "SLURM_ARRAY_TASK_ID or JOB_COMPLETION_INDEX"),
  )
  def test_a_wrong_shard_is_refused(self, text, words):
    with self.assertRaisesRegex(ValueError, words):
      label_queue.parse_shard(text, {})


if __name__ == "__main__":
  absltest.main()
