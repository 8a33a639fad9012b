"""Numbers of a config: those that satisfy their rule pass, others do not."""

import math

from absl.testing import absltest, parameterized

from paragan_tf.game import number_checks

CHECKS = {
  "positive": number_checks.check_positive,
  "not_negative": number_checks.check_not_negative,
  "fraction": number_checks.check_fraction,
}


class NumberChecksTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("positive", "positive", (1e-12, 1, 2.5), (0, -1.0, math.inf), "above 0"),
    ("not_negative", "not_negative", (0, 3), (-1e-9, math.inf), "at least 0"),
    ("fraction", "fraction", (0, 0.5, 1 - 1e-9), (-0.1, 1, 2), r"in \[0, 1\)"),
  )
  def test_the_rule_decides(self, name, allowed, refused, rule):
    check = CHECKS[name]
    for value in allowed:
      found = check("x", value)
      self.assertIsInstance(found, float)
      self.assertEqual(found, value)
    for value in (*refused, math.nan, "1", None):
      with self.assertRaisesRegex(ValueError, f"`x` must be {rule}, got "):
        check("x", value)

  def test_the_message_has_the_value_and_the_remedy(self):
    with self.assertRaises(ValueError) as caught:
      number_checks.check_positive("rate", -2, "leave it out")
    self.assertEqual(
      str(caught.exception), "`rate` must be above 0, got -2: leave it out."
    )
    with self.assertRaises(ValueError) as caught:
      number_checks.check_fraction("decay", "x")
    self.assertEqual(
      str(caught.exception), "`decay` must be in [0, 1), got 'x'."
    )


if __name__ == "__main__":
  absltest.main()
