"""Budgets of images and seconds: when a run ends."""

from absl.testing import absltest, parameterized

from paragan_tf.engine import budget, loop
from paragan_tf.engine.pace import Pace


class Steps:
  """Steps whose durations are known; an `Inner` for the loop."""

  def __init__(self, seconds_per_step):
    self.seconds = 0.0
    self.lengths = []
    self._seconds_per_step = seconds_per_step

  def advance(self, num_steps, is_logged):
    """Returns how long so many steps take."""
    del is_logged
    first = sum(self.lengths)
    took = sum(self._seconds_per_step(first + i) for i in range(num_steps))
    self.lengths.append(num_steps)
    self.seconds += took
    return took

  def read_logs(self):
    """Returns nothing."""
    return {}


def train(limit, seconds_per_step, used=0.0):
  """Returns the steps and the budget after training to its end."""
  steps, seconds = Steps(seconds_per_step), budget.Seconds(limit)
  seconds.used = used
  pace = Pace(budget=seconds)
  loop.train(steps, 0, 100000, [50], [], pace)
  return steps, seconds


class BudgetTest(parameterized.TestCase):
  @parameterized.parameters(
    (100, None, 100), (100, 640, 10), (100, 700, 10), (5, 6400, 5)
  )
  def test_images_are_whole_steps_and_the_smaller_limit_counts(
    self, num_steps, max_images, expected
  ):
    self.assertEqual(budget.count_steps(num_steps, max_images, 64), expected)

  def test_fewer_images_than_a_step_takes_are_refused(self):
    with self.assertRaisesRegex(ValueError, "`max_images`.*64.*got 63"):
      budget.count_steps(10, 63, 64)

  @parameterized.named_parameters(
    ("constant", lambda step: 0.07),
    ("slower", lambda step: 0.01 * (1.0 + step / 100.0)),
    ("long_first", lambda step: 0.9 if step == 0 else 0.02),
    ("uneven", lambda step: 0.03 if step % 2 else 0.05),
  )
  def test_training_ends_within_one_step_of_the_budget(self, seconds_per_step):
    steps, seconds = train(10.0, seconds_per_step)
    self.assertGreaterEqual(steps.seconds, 10.0 - 1e-9)
    longest = max(seconds_per_step(i) for i in range(1, sum(steps.lengths)))
    self.assertLess(steps.seconds, 10.0 + longest + 1e-9)
    self.assertTrue(seconds.is_spent)
    self.assertGreater(max(steps.lengths), 20)  # Not step by step.

  def test_seconds_used_before_count(self):
    steps, _ = train(10.0, lambda step: 0.1, used=7.0)
    self.assertBetween(steps.seconds, 3.0 - 1e-9, 3.1 + 1e-9)

  def test_without_a_limit_all_steps_are_made(self):
    seconds = budget.Seconds(None)
    steps = Steps(lambda step: 1e4)
    loop.train(steps, 0, 123, [50], [], Pace(budget=seconds))
    self.assertEqual(sum(steps.lengths), 123)
    self.assertFalse(seconds.is_spent)
    self.assertIsNone(seconds.left)

  def test_what_was_used_is_that_of_the_step_that_is_resumed(self):
    lines = [
      {"step": 10, "seconds": 50.0, budget.SECONDS: 4.0},
      {"step": 20, "seconds": 90.0},
      {"step": 30, "seconds": 120.0, budget.SECONDS: 12.0},
    ]
    seconds = budget.Seconds(20.0)
    seconds.resume(lines, 20)
    self.assertEqual(seconds.used, 4.0)
    seconds.resume(lines, 30)
    self.assertEqual(seconds.left, 8.0)

  def test_no_time_is_refused(self):
    with self.assertRaisesRegex(ValueError, "`max_seconds`.*got 0"):
      budget.Seconds(0)


if __name__ == "__main__":
  absltest.main()
