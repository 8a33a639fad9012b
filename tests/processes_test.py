"""Decisions of one and two processes; `multi_process_test` has real ones."""

from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine.processes import Processes
from tests import testing


class TwoProcesses(Processes):
  """One of two processes; the value of the other is `theirs`."""

  def __init__(self, *theirs):
    super().__init__(tf.distribute.get_strategy())
    self.theirs = list(theirs)
    self.count = 2

  def _mean(self, value):
    return 0.5 * (value + self.theirs.pop(0))


class ProcessesTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("one_replica", tf.distribute.get_strategy, 1),
    ("four_replicas", testing.strategy, 4),
  )
  def test_a_single_process_is_the_chief_and_sends_nothing(self, strategy, num):
    alone = Processes(strategy())
    self.assertEqual((alone.index, alone.count), (0, 1))
    self.assertEqual(alone.num_local_replicas, num)
    self.assertTrue(alone.is_chief)
    self.assertTrue(alone.any(True))
    self.assertFalse(alone.any(False))
    self.assertTrue(alone.same(3))
    x = tf.constant([1.0, 2.0])
    self.assertIs(alone.mean(x), x)
    alone.wait()
    self.assertEqual(alone.on_chief(lambda: 5), 5)
    with self.assertRaisesRegex(ValueError, "no"):
      alone.on_chief(mock.Mock(side_effect=ValueError("no")))

  def test_any_is_true_if_one_process_has_true(self):
    self.assertFalse(TwoProcesses(False).any(False))
    self.assertTrue(TwoProcesses(True).any(False))
    self.assertTrue(TwoProcesses(False).any(True))

  def test_same_compares_the_values_of_all(self):
    # The second number is what the other one found out.
    self.assertTrue(TwoProcesses(5, False).same(5))
    self.assertFalse(TwoProcesses(6, True).same(5))

  def test_same_is_false_on_all_if_two_processes_differ(self):
    # We have the mean by chance, so the difference is seen by others only.
    self.assertFalse(TwoProcesses(5, True).same(5))


if __name__ == "__main__":
  testing.main()
