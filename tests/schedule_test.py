"""Who moves when, and how many batches that takes."""

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.game import schedule

D, G, BOTH = ("d",), ("g",), ("d", "g")


class Turns(schedule.Schedule):
  """A schedule of the given turns."""

  def __init__(self, *turns):
    self.turns = turns


class ScheduleTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("one", 1, (D, G)),
    ("two", 2, (D, D, G)),
    ("five", 5, (D, D, D, D, D, G)),
  )
  def test_d_moves_so_often_and_then_g_once(self, num_d_steps, turns):
    self.assertEqual(schedule.Sequential(num_d_steps).turns, turns)

  def test_by_default_each_moves_once(self):
    self.assertEqual(schedule.Sequential().turns, (D, G))

  @parameterized.named_parameters(
    ("one_after_the_other", schedule.Sequential(1), 1),
    ("three_turns_of_d", schedule.Sequential(3), 3),
    ("both_at_once", Turns(BOTH), 1),
    ("both_at_once_after_d", Turns(D, BOTH), 2),
    ("g_moves_often", Turns(D, G, G), 1),
    ("only_g", Turns(G), 1),
  )
  def test_every_turn_of_d_takes_a_batch(self, turns, num_batches):
    self.assertEqual(turns.num_batches, num_batches)

  @parameterized.named_parameters(("zero", 0), ("negative", -2))
  def test_d_must_move_at_least_once(self, num_d_steps):
    with self.assertRaisesRegex(ValueError, f"`num_d_steps`.*{num_d_steps}"):
      schedule.Sequential(num_d_steps)


if __name__ == "__main__":
  tf.test.main()
