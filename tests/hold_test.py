"""What a run does where its plan does not hold: decisions, by hand."""

from absl.testing import absltest, parameterized

from paragan_tf.engine.scaling import hold
from paragan_tf.engine.scaling.hold import Finding, Levels, Measured, Options

# 100 ms: 10 ms of input, 20 ms of exchange, the rest is computation.
PLANNED = Measured(0.1, 0.01, 0.02, 10**9, 2 * 10**9)
ALL = Options(accumulate=True, reads=True, period=True)


def finding(name):
  return Finding(name, 1.0, 2.0, "")


class HoldTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("as_planned", PLANNED, []),
    ("a_little_slower", PLANNED._replace(step_seconds=0.119), []),
    ("much_faster", PLANNED._replace(step_seconds=0.01), []),
    ("a_wait_that_is_twice_but_short", Measured(0.11, 0.02, 0, 10**9), []),
    ("input", Measured(0.131, 0.041, 0, 10**9), ["input"]),
    ("slower", Measured(0.121, 0.01, 0, 10**9), ["compute"]),
    ("exchange", Measured(0.15, 0.01, 0.07, 10**9), ["exchange"]),
    ("both", Measured(0.2, 0.01, 0.07, 10**9), ["exchange", "compute"]),
    (
      "all",
      Measured(0.25, 0.06, 0.07, 10**9),
      ["input", "exchange", "compute"],
    ),
    ("memory", PLANNED._replace(memory_bytes=1_210_000_000), ["memory"]),
    ("a_little_memory", PLANNED._replace(memory_bytes=1_190_000_000), []),
    ("unknown_memory", PLANNED._replace(memory_bytes=0), []),
  )
  def test_what_is_off_by_a_fifth_is_found(self, measured, names):
    found = hold.check(PLANNED, measured)
    self.assertEqual([x.name for x in found], names)

  def test_nearly_full_memory_is_found_even_if_it_was_planned(self):
    planned = PLANNED._replace(memory_bytes=1_900_000_000)
    full = planned._replace(memory_bytes=1_910_000_000)
    self.assertEqual([x.name for x in hold.check(planned, full)], ["memory"])
    self.assertEmpty(hold.check(planned, planned))

  def test_a_finding_says_what_was_planned(self):
    (found,) = hold.check(PLANNED, Measured(0.131, 0.041, 0, 10**9))
    self.assertEqual(
      found.text,
      "Of a step, the input takes 41.0 ms, and 10.0 ms were planned.",
    )
    memory = PLANNED._replace(memory_bytes=1_500_000_000)
    (found,) = hold.check(PLANNED, memory)
    self.assertEqual(
      found.text, "A worker takes 1.50 of 2.00 GB, and 1.00 GB were planned."
    )

  def test_the_tolerance_is_that_of_the_caller(self):
    measured = PLANNED._replace(step_seconds=0.14)
    self.assertNotEmpty(hold.check(PLANNED, measured, 0.3))
    self.assertEmpty(hold.check(PLANNED, measured, 0.5))

  @parameterized.parameters(
    (["memory"], ALL, Levels(accumulate=2)),
    (["input"], ALL, Levels(reads=2)),
    (["exchange"], ALL, Levels(period=2)),
    (["compute"], ALL, Levels()),
    (["input", "exchange"], ALL, Levels(reads=2, period=2)),
    (["memory"], Options(), Levels()),
    ([], ALL, Levels()),
  )
  def test_each_finding_has_its_remedy(self, names, options, expected):
    found = hold.advance(Levels(), [finding(x) for x in names], options)
    self.assertEqual(found, expected)

  def test_levels_end_at_their_maximum(self):
    levels, seen = Levels(), []
    for _ in range(5):
      levels = hold.advance(levels, [finding("input")], ALL)
      seen.append(levels.reads)
    self.assertEqual(seen, [2, 4, 8, 8, 8])

  def test_changes_are_described(self):
    words = hold.describe(Levels(reads=2), Levels(4, 2, 2))
    self.assertIn("over 4 parts of a batch", words)
    self.assertIn("2 times as many steps between exchanges", words)
    self.assertNotIn("read ahead", words)


if __name__ == "__main__":
  absltest.main()
