"""Collectives where all replicas run one program, and their observer."""

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
  def test_all_gather_by_shifts_returns_all_rows_in_order(self, index):
    rows = np.random.RandomState(0).randint(99, size=[M, 3])

    def collective_permute(value, pairs):
      self.assertAllEqual(value, rows[index])
      (source,) = (source for source, target in pairs if target == index)
      return tf.constant(rows[source])

    with (
      mock.patch.object(collectives, "num_replicas", lambda: M),
      mock.patch.object(collectives, "static_replica_id", lambda: None),
      mock.patch.object(collectives, "row_index", lambda: tf.constant(index)),
      mock.patch.object(collectives, "collective_permute", collective_permute),
    ):
      self.assertAllEqual(collectives.all_gather(rows[index]), rows)

  @parameterized.parameters(2, 3)
  def test_all_to_all_sends_between_each_pair_of_replicas(self, num):
    with tf.Graph().as_default() as graph, tpu_function.tpu_shard_context(num):
      rows = [tf.constant([i, i]) for i in range(num)]
      got = pairs.all_to_all(rows)
    self.assertLen(got, num)
    permutes = [op for op in graph.get_operations() if "Collective" in op.type]
    sent = {
      tuple(pair)
      for op in permutes
      for pair in tf.get_static_value(op.inputs[1])
    }
    expected = {(i, j) for i in range(num) for j in range(num) if i != j}
    self.assertEqual(sent, expected)

  def test_row_index_is_the_number_that_the_compiler_gives(self):
    with tf.Graph().as_default():
      dynamic_id = tf.compat.v1.placeholder(tf.int32, [])
      with mock.patch.object(collectives, "replica_id", lambda: dynamic_id):
        self.assertEqual(collectives.row_index().op.type, "XlaReplicaId")
    with mock.patch.object(collectives, "replica_id", lambda: tf.constant(3)):
      self.assertEqual(int(collectives.row_index()), 3)


class ObserveTest(tf.test.TestCase):
  def test_observer_runs_the_collectives_that_are_traced_in_its_context(self):
    num_values = []

    def observer(collective, values):
      num_values.append(len(values))
      return [2.0 * x for x in collective([x + 1.0 for x in values])]

    def replica(x):
      means = collectives.mean([x, 2.0 * x])
      return means + pairs.receive([x[tf.newaxis]], [1, 2, 3, 0])

    values = [1.0, 2.0, 3.0, 6.0]
    with collectives.observe(observer):
      observed = testing.run_on_replicas(replica, values)
    plain = testing.run_on_replicas(replica, values)
    self.assertEqual(sorted(num_values), [1] * M + [2] * M)
    for i, received in enumerate([2.0, 3.0, 6.0, 1.0]):
      self.assertAllClose(plain[i], [3.0, 6.0, [received]])
      self.assertAllClose(observed[i], [8.0, 14.0, [2.0 * (received + 1.0)]])

  def test_weights_are_not_passed_to_the_observer(self):
    def replica(x, w):
      return collectives.mean([x], weights=[w])

    with collectives.observe(lambda collective, values: collective(values)):
      values = testing.run_on_replicas(
        replica, [1.0, 2.0, 3.0, 6.0], [2.0, 0.0, 0.0, 2.0]
      )
    self.assertAllClose(values, [[3.5]] * M)


if __name__ == "__main__":
  testing.main()
