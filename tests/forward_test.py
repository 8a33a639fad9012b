"""How layers read, assign and find what was precomputed in one pass."""

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.nets import layers
from paragan_tf.nets.forward import Forward
from paragan_tf.types import Mode


class ForwardTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(*Mode)
  def test_a_mode_is_a_pass_in_which_nothing_is_precomputed(self, mode):
    forward = Forward.of(mode)
    self.assertEqual(forward, Forward(mode))
    self.assertIs(Forward.of(forward), forward)
    self.assertIsNone(forward.result_for(tf.Module()))

  def test_variables_hold_the_values_of_the_pass(self):
    known, other = tf.Variable(1.0), tf.Variable(2.0)
    forward = Forward(Mode.TRAIN, values={id(known): tf.constant(5.0)})
    self.assertAllEqual(forward.read(known), 5.0)
    self.assertAllEqual(forward.read(other), 2.0)

  @parameterized.parameters((True, 3.0), (False, 1.0))
  def test_state_is_assigned_unless_the_pass_is_repeated(self, assigns, after):
    state = tf.Variable(1.0)
    forward = Forward(Mode.TRAIN, assigns_state=assigns)
    forward.assign_state(state, tf.constant(3.0))
    self.assertAllEqual(state, after)

  def test_results_are_added_and_the_pass_before_stays_as_it_was(self):
    first, second = tf.Module(), tf.Module()
    before = Forward(Mode.FROZEN, values={7: tf.constant(1.0)})
    one = before.with_precomputed({id(first): "a"})
    both = one.with_precomputed({id(second): "b"})
    self.assertEqual(
      [both.result_for(layer) for layer in (first, second)], ["a", "b"]
    )
    self.assertIsNone(one.result_for(second))
    self.assertIsNone(before.result_for(first))
    self.assertIs(both.mode, Mode.FROZEN)
    self.assertIs(both.values, before.values)

  def test_a_weight_returns_what_was_precomputed_for_it(self):
    weight = layers.Weight([2, 3], layers.normal_init(1.0, 0), spectral=True)
    before = weight.u.numpy()
    kernel = tf.ones([2, 3])
    forward = Forward(Mode.TRAIN).with_precomputed({id(weight): kernel})
    self.assertIs(weight(forward), kernel)
    self.assertAllEqual(weight.u, before)
    weight(Mode.TRAIN)
    self.assertNotAllClose(weight.u, before)


if __name__ == "__main__":
  tf.test.main()
