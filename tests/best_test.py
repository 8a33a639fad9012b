"""The best checkpoint by a metric is kept when the newest ones go."""

import os

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.outputs.best import Best, Record, is_better
from paragan_tf.outputs.checkpoints import Checkpoints
from paragan_tf.outputs.stored import restore
from paragan_tf.types import Entry


def value(number, name="fid", **protocol):
  return {"name": name, "value": number, "protocol": {"seed": 1, **protocol}}


class BestTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)
    os.makedirs(self.folder)
    self.variable = tf.Variable(0.0, name="x")
    self.entries = [Entry("x", (self.variable,), True)]

  def save(self, step):
    self.variable.assign(float(step))
    return Checkpoints(self.folder, keep=1).save(step, self.entries)

  def test_stays_when_newer_ones_replace_it(self):
    best = Best(self.folder)
    kept = [
      best.offer(self.save(step), step, value(number))
      for step, number in ((1, 9.0), (2, 5.0), (3, 7.0), (4, 6.0))
    ]
    self.assertEqual(kept, [True, True, False, False])
    self.assertFalse(os.path.exists(f"{self.folder}/model.ckpt-2.index"))
    found = Best(self.folder)
    self.assertEqual(found.read()[:3], (2, "fid", 5.0))
    restore(found.path(), self.entries)
    self.assertEqual(self.variable.numpy(), 2.0)
    names = os.listdir(found.folder)
    self.assertFalse([x for x in names if "ckpt-1" in x], names)

  def test_there_is_none_without_its_checkpoint(self):
    best = Best(self.folder)
    self.assertIsNone(best.read())
    best.offer(self.save(1), 1, value(9.0))
    for name in os.listdir(best.folder):
      if name.endswith(".index"):
        os.remove(os.path.join(best.folder, name))
    self.assertIsNone(best.read())
    self.assertTrue(best.offer(self.save(2), 2, value(10.0)))

  @parameterized.parameters(
    ("fid", 5.0, 4.0, True),
    ("frechet_fashion", 5.0, 6.0, False),
    ("kid_mobilenet", 0.1, 0.1, False),
    ("precision", 0.5, 0.6, True),
    ("classifier_score_fashion", 3.0, 2.0, False),
    ("label_agreement_fashion", 0.5, 0.7, True),
  )
  def test_knows_which_direction_is_better(self, name, old, new, better):
    old, new = (Record(i, name, x, {}) for i, x in enumerate((old, new)))
    self.assertEqual(is_better(new, old), better)

  def test_a_value_that_is_not_finite_is_never_the_best(self):
    best = Best(self.folder)
    self.assertFalse(best.offer(self.save(1), 1, value(float("nan"))))
    self.assertFalse(best.offer(self.save(1), 1, value(None)))
    self.assertTrue(best.offer(self.save(2), 2, value(3.0)))

  def test_a_new_protocol_starts_over(self):
    old = Record(1, "fid", 5.0, {"num_samples": 100})
    new = Record(2, "fid", 9.0, {"num_samples": 200})
    self.assertTrue(is_better(new, old))


if __name__ == "__main__":
  tf.test.main()
