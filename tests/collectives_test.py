"""Collectives where all replicas have one program, as on a TPU."""

from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.python.tpu import tpu_function

from paragan_tf import collectives, pairs
from tests import testing

M = testing.NUM_REPLICAS


class OneProgramTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.parameters(*range(M))
  def test_a_gather_by_shifts_has_all_rows_in_order(self, here):
    given = np.random.RandomState(0).randint(99, size=[M, 3])

    def collective_permute(value, sent):
      self.assertAllEqual(value, given[here])
      (source,) = (source for source, target in sent if target == here)
      return tf.constant(given[source])

    with (
      mock.patch.object(collectives, "num_replicas", lambda: M),
      mock.patch.object(collectives, "static_replica_id", lambda: None),
      mock.patch.object(collectives, "place", lambda: tf.constant(here)),
      mock.patch.object(collectives, "collective_permute", collective_permute),
    ):
      self.assertAllEqual(collectives.all_gather(given[here]), given)

  @parameterized.parameters(2, 3)
  def test_few_replicas_tell_each_other_their_parts(self, num):
    with tf.Graph().as_default() as graph, tpu_function.tpu_shard_context(num):
      rows = [tf.constant([i, i]) for i in range(num)]
      got = pairs.all_to_all(rows)
    self.assertLen(got, num)
    said = [op for op in graph.get_operations() if "Collective" in op.type]
    sent = {
      tuple(pair) for op in said for pair in tf.get_static_value(op.inputs[1])
    }
    each = {(i, j) for i in range(num) for j in range(num) if i != j}
    self.assertEqual(sent, each)

  def test_the_place_is_what_the_compiler_counts(self):
    with tf.Graph().as_default():
      number = tf.compat.v1.placeholder(tf.int32, [])  # A strategy's.
      with mock.patch.object(collectives, "replica_id", lambda: number):
        self.assertEqual(collectives.place().op.type, "XlaReplicaId")
    with mock.patch.object(collectives, "replica_id", lambda: tf.constant(3)):
      self.assertEqual(int(collectives.place()), 3)


class ObserveTest(tf.test.TestCase):
  def test_an_observer_runs_the_collectives_that_are_traced_inside(self):
    num_seen = []

    def observer(collective, values):
      num_seen.append(len(values))
      return [2.0 * x for x in collective([x + 1.0 for x in values])]

    def replica(x):
      means = collectives.mean([x, 2.0 * x])
      return means + collectives.receive([x[tf.newaxis]], [1, 2, 3, 0])

    given = [1.0, 2.0, 3.0, 6.0]
    with collectives.observe(observer):
      changed = testing.run_on_replicas(replica, given)
    plain = testing.run_on_replicas(replica, given)
    self.assertEqual(sorted(num_seen), [1] * M + [2] * M)
    for i, received in enumerate([2.0, 3.0, 6.0, 1.0]):
      self.assertAllClose(plain[i], [3.0, 6.0, [received]])
      self.assertAllClose(changed[i], [8.0, 14.0, [2.0 * (received + 1.0)]])

  def test_weights_pass_by_the_observer(self):
    def replica(x, w):
      return collectives.mean([x], weights=[w])

    with collectives.observe(lambda collective, values: collective(values)):
      values = testing.run_on_replicas(
        replica, [1.0, 2.0, 3.0, 6.0], [2.0, 0.0, 0.0, 2.0]
      )
    self.assertAllClose(values, [[3.5]] * M)


if __name__ == "__main__":
  testing.main()
