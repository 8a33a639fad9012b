"""What TensorFlow does not publish is there, and does what we need."""

import sys
import types
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized
from tensorflow.python.data.ops import multi_device_iterator_ops
from tensorflow.python.distribute import collective_all_reduce_strategy

from paragan_tf import tf_private
from tests import testing

TPU_FUNCTION = "tensorflow.python.tpu.tpu_function"


class TfPrivateTest(tf.test.TestCase, parameterized.TestCase):
  def test_the_replica_id_is_an_operation_of_xla(self):
    with tf.Graph().as_default() as graph:
      self.assertEqual(tf_private.xla_replica_id().dtype, tf.int32)
    kinds = [op.type for op in graph.get_operations()]
    self.assertEqual(kinds, ["XlaReplicaId"])

  def test_what_is_stored_is_the_same_inside_and_outside_of_xla(self):
    x = tf.constant([1.0, 2.0], tf.float64)
    for compiled in (None, False, True):
      fn = tf_private.store
      if compiled is not None:
        fn = tf.function(fn, autograph=False, jit_compile=compiled)
      self.assertAllEqual(fn(x), x)

  def test_there_are_shards_only_where_tpu_estimator_traces(self):
    self.assertEqual(tf_private.num_tpu_shards(), 0)
    with tf_private.trace_for_tpu_shards(8):
      self.assertEqual(tf_private.num_tpu_shards(), 8)
    self.assertEqual(tf_private.num_tpu_shards(), 0)

  def test_the_dataset_of_each_device_has_no_autotuning(self):
    made, ops = [], multi_device_iterator_ops
    data = testing.strategy().experimental_distribute_dataset(
      tf.data.Dataset.range(8).batch(4)
    )
    before = ops._create_device_dataset
    with tf_private.without_device_autotuning():
      create = ops._create_device_dataset

      def note(*args, **kwargs):
        made.append(create(*args, **kwargs))
        return made[-1]

      with mock.patch.object(ops, "_create_device_dataset", note):
        iter(data)
    self.assertIs(ops._create_device_dataset, before)
    self.assertLen(made, testing.NUM_REPLICAS)
    for one in made:
      self.assertIs(one.options().autotune.enabled, False)

  def test_a_multi_worker_strategy_has_all_cpu_devices(self):
    # A process has one strategy: none is made here.
    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
      tf.train.ClusterSpec({"worker": ["127.0.0.1:1"]})
    )

    def devices():
      made = extended.__new__(extended)
      return made._initialize_local_devices(resolver, "/job:worker/task:0")[0]

    with tf_private.multi_worker_on_cpus(3):
      self.assertEqual(
        devices(), tuple(f"/job:worker/task:0/device:CPU:{i}" for i in range(3))
      )
    self.assertLen(devices(), 1)

  @parameterized.named_parameters(
    ("module", None), ("name", types.ModuleType(TPU_FUNCTION))
  )
  def test_what_a_version_has_dropped_is_named(self, module):
    with (
      mock.patch.dict(sys.modules, {TPU_FUNCTION: module}),
      self.assertRaisesRegex(
        NotImplementedError,
        rf"`{TPU_FUNCTION}.get_tpu_context` .* TensorFlow {tf.__version__}:",
      ),
    ):
      tf_private.num_tpu_shards()


if __name__ == "__main__":
  testing.main()
