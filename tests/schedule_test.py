"""Schedules: which player trains when, and how many batches that takes."""

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
  def test_g_trains_on_the_fakes_of_the_last_d_update(self, num, rounds):
    self.assertEqual(schedule.Sequential(num).rounds, rounds)

  @parameterized.named_parameters(
    ("one", 1, ((D,), (G,))),
    ("two", 2, ((D,), (D,), (G,))),
  )
  def test_without_reuse_g_has_a_separate_round(self, num, rounds):
    sequential = schedule.Sequential(num, reuse_fakes=False)
    self.assertEqual(sequential.rounds, rounds)

  def test_g_may_update_more_than_once(self):
    sequential = schedule.Sequential(2, 3)
    self.assertEqual(sequential.rounds, ((D,), (D, G), (G,), (G,)))
    sequential = schedule.Sequential(2, 3, reuse_fakes=False)
    self.assertEqual(sequential.rounds, ((D,), (D,), (G,), (G,), (G,)))

  def test_g_batch_size_is_refused_if_fakes_are_reused(self):
    with self.assertRaisesRegex(
      ValueError, "`g_batch_size`.* got 8: set `reuse_fakes`"
    ):
      schedule.Sequential(g_batch_size=8)

  def test_simultaneous_has_both_players_in_one_turn(self):
    self.assertEqual(schedule.Simultaneous().rounds, ((BOTH,),))

  def test_cores_need_one_replica_of_each_player_per_group(self):
    with self.assertRaisesRegex(ValueError, "`on_cores` .* got 3 and 1"):
      schedule.Asynchronous(3, 1, on_cores=True)

  def test_by_default_each_player_updates_once(self):
    self.assertEqual(schedule.Sequential().rounds, ((D, G),))

  @parameterized.named_parameters(
    ("sequential", schedule.Sequential(1), 1),
    ("new_fakes_for_g", schedule.Sequential(1, reuse_fakes=False), 1),
    ("three_turns_of_d", schedule.Sequential(3), 3),
    ("simultaneous", Rounds((BOTH,)), 1),
    ("simultaneous_after_d", Rounds((D,), (BOTH,)), 2),
    ("two_turns_of_g", Rounds((D, G), (G,)), 1),
    ("only_g", Rounds((G,)), 1),
  )
  def test_every_round_with_d_takes_a_batch(self, tested, num_batches):
    self.assertEqual(tested.num_batches, num_batches)

  @parameterized.named_parameters(("zero", 0), ("negative", -2))
  def test_both_players_must_update_at_least_once(self, count):
    for name in ("num_d_steps", "num_g_steps"):
      with self.assertRaisesRegex(ValueError, f"`{name}`.*{count}"):
        schedule.Sequential(**{name: count})


if __name__ == "__main__":
  tf.test.main()
