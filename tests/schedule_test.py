"""Who moves when, and how many batches that takes."""

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.game import schedule

D, G, BOTH = ("d",), ("g",), ("d", "g")


class Rounds(schedule.Schedule):
  """A schedule of the given rounds."""

  def __init__(self, *rounds):
    self.rounds = rounds


class ScheduleTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("one", 1, ((D, G),)),
    ("two", 2, ((D,), (D, G))),
    ("four", 4, ((D,), (D,), (D,), (D, G))),
  )
  def test_d_moves_so_often_and_g_answers_on_its_last_fakes(self, num, rounds):
    self.assertEqual(schedule.Sequential(num).rounds, rounds)

  @parameterized.named_parameters(
    ("one", 1, ((D,), (G,))),
    ("two", 2, ((D,), (D,), (G,))),
  )
  def test_without_reuse_g_has_a_round_of_its_own(self, num, rounds):
    made = schedule.Sequential(num, reuse_fakes=False)
    self.assertEqual(made.rounds, rounds)

  def test_g_may_move_more_than_once(self):
    made = schedule.Sequential(2, 3)
    self.assertEqual(made.rounds, ((D,), (D, G), (G,), (G,)))
    made = schedule.Sequential(2, 3, reuse_fakes=False)
    self.assertEqual(made.rounds, ((D,), (D,), (G,), (G,), (G,)))

  def test_a_batch_of_its_own_needs_fakes_of_its_own(self):
    with self.assertRaisesRegex(ValueError, "`g_batch_size` 8.*`reuse_fakes`"):
      schedule.Sequential(g_batch_size=8)

  def test_both_may_move_at_once(self):
    self.assertEqual(schedule.Simultaneous().rounds, ((BOTH,),))

  def test_cores_have_no_shares(self):
    with self.assertRaisesRegex(ValueError, "`on_cores` .* got 3 and 1"):
      schedule.Asynchronous(3, 1, on_cores=True)

  def test_by_default_each_moves_once(self):
    self.assertEqual(schedule.Sequential().rounds, ((D, G),))

  @parameterized.named_parameters(
    ("one_after_the_other", schedule.Sequential(1), 1),
    ("fakes_of_its_own", schedule.Sequential(1, reuse_fakes=False), 1),
    ("three_turns_of_d", schedule.Sequential(3), 3),
    ("both_at_once", Rounds((BOTH,)), 1),
    ("both_at_once_after_d", Rounds((D,), (BOTH,)), 2),
    ("g_moves_often", Rounds((D, G), (G,)), 1),
    ("only_g", Rounds((G,)), 1),
  )
  def test_every_round_with_d_takes_a_batch(self, made, num_batches):
    self.assertEqual(made.num_batches, num_batches)

  @parameterized.named_parameters(("zero", 0), ("negative", -2))
  def test_both_must_move_at_least_once(self, count):
    for name in ("num_d_steps", "num_g_steps"):
      with self.assertRaisesRegex(ValueError, f"`{name}`.*{count}"):
        schedule.Sequential(**{name: count})


if __name__ == "__main__":
  tf.test.main()
