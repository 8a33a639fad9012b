"""Collectives where all replicas run one program, and their observer."""

from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import collectives, pairs, tf_private
from tests import testing

M = testing.NUM_REPLICAS


class OneProgramTest(tf.test.TestCase, parameterized.TestCase):
  def exchange(self, fn, values):
    """Runs `fn` as each replica, whose all-to-all gets the others' rows."""
    sent = {}

    def run(index, all_to_all):
      with (
        mock.patch.object(collectives, "num_replicas", lambda: M),
        mock.patch.object(collectives, "static_replica_id", lambda: None),
        mock.patch.object(collectives, "row_index", lambda: tf.constant(index)),
        mock.patch.object(tf.raw_ops, "AllToAll", all_to_all),
      ):
        return fn(values[index])

    def send(index):
      return lambda input, **kwargs: sent.setdefault(index, input)

    for index in range(M):
      run(index, send(index))
    return [
      run(
        index,
        lambda input, index=index, **kwargs: tf.stack(
          [sent[source][index] for source in range(M)]
        ),
      )
      for index in range(M)
    ]

  def test_all_gather_returns_all_rows_in_order(self):
    rows = np.random.RandomState(0).randint(99, size=[M, 3])
    for gathered in self.exchange(collectives.all_gather, rows):
      self.assertAllEqual(gathered, rows)

  def test_all_to_all_is_ordered_by_the_sum_of_indices(self):
    rows = np.random.RandomState(0).randint(99, size=[M, M, 3])
    for index, got in enumerate(self.exchange(pairs.all_to_all, rows)):
      for r in range(M):
        self.assertAllEqual(got[r], rows[(r - index) % M, index])

  @parameterized.parameters(3, 1024)
  def test_gathering_is_one_operation_for_any_number_of_replicas(self, num):
    with tf.Graph().as_default() as graph, tf_private.trace_for_tpu_shards(num):
      rows = collectives.all_gather(tf.zeros([2]))
      received = pairs.all_to_all(tf.zeros([num, 2]))
    self.assertEqual(rows.shape, [num, 2])
    self.assertEqual(received.shape, [num, 2])
    sending = [op for op in graph.get_operations() if op.type == "AllToAll"]
    self.assertLen(sending, 2)
    for op in sending:
      self.assertAllEqual(tf.get_static_value(op.inputs[1]), [range(num)])
      self.assertEqual(op.get_attr("split_count"), num)
    self.assertLess(len(graph.get_operations()), 60)

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
