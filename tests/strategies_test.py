"""Variables are replica-local, and a choice has its reason."""

import gc
import os
import time
from unittest import mock

import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.data import input_fn, sources
from paragan_tf.engine import strategies
from tests import testing


class StrategiesTest(tf.test.TestCase):
  def test_each_replica_owns_its_copy(self):
    with strategies.scope(testing.strategy()):
      w = tf.Variable(1.0, name="w")
      count = tf.Variable(0, trainable=False, name="count")
    self.assertTrue(w.trainable)
    self.assertFalse(count.trainable)

    def replica():
      w.assign_add(tf.cast(collectives.replica_id(), tf.float32))
      return w.read_value()

    values = testing.run_on_replicas(replica)
    self.assertAllClose(values, [1.0, 2.0, 3.0, 4.0])
    copies = strategies.copies(testing.strategy(), w)
    self.assertAllClose([copy.numpy() for copy in copies], values)

  def test_the_mean_is_the_same_on_all(self):
    def replica(x):
      return collectives.mean([x, 2.0 * x])

    values = testing.run_on_replicas(replica, [1.0, 2.0, 3.0, 6.0])
    self.assertAllClose(values, [[3.0, 6.0]] * 4)

  def test_one_replica_sends_nothing(self):
    x = tf.constant([1.0])
    self.assertIs(collectives.mean([x])[0], x)
    self.assertEqual(collectives.num_replicas(), 1)
    self.assertEqual(int(collectives.replica_id()), 0)

  def test_an_iterator_is_deleted_without_delay(self):
    def dataset_fn(context):
      del context
      built = input_fn.InputFn(source=sources.fashion, resolution=32, seed=0)
      return built(dict(batch_size=2))

    strategy = testing.strategy()
    dataset = strategy.distribute_datasets_from_function(dataset_fn)
    iterator = strategies.iterate(dataset)
    draw = tf.function(lambda given: next(given))
    draw(iterator)
    # Each time that TensorFlow tunes, it sleeps twice as long afterwards.
    time.sleep(1.5)
    started = time.monotonic()
    del iterator, dataset, draw
    gc.collect()
    self.assertLess(time.monotonic() - started, 0.7)

  def test_one_device_has_plain_variables(self):
    choice = strategies.choose(strategies.DeviceOptions(num_cpu_replicas=1))
    self.assertIn("one device", choice.reason)
    self.assertEqual(choice.strategy.num_replicas_in_sync, 1)
    with strategies.scope(choice.strategy):
      w = tf.Variable(1.0, name="w")
    self.assertLen(strategies.copies(choice.strategy, w), 1)

  def test_cpu_replicas_have_priority_over_a_gpu(self):
    def reason(gpus, num_cpu_replicas):
      options = strategies.DeviceOptions(num_cpu_replicas=num_cpu_replicas)
      with mock.patch.object(
        tf.config, "list_physical_devices", {"GPU": gpus}.get
      ):
        return strategies.choose(options).reason

    self.assertEqual(reason(["gpu"], 1), "one device, the CPU, as asked")
    self.assertEqual(reason([], 1), "one device, the CPU, as asked")
    self.assertEqual(reason([], 0), "one device, the CPU: no GPU found")

  def test_a_cluster_of_one_is_one_process(self):
    one = (
      '{"cluster": {"worker": ["127.0.0.1:1"]}, '
      '"task": {"type": "worker", "index": 0}}'
    )
    for text in (one, '{"cluster": {}}'):
      with mock.patch.dict(os.environ, TF_CONFIG=text):
        choice = strategies.choose(strategies.DeviceOptions(num_cpu_replicas=1))
      self.assertIsInstance(choice.strategy, tf.distribute.OneDeviceStrategy)
      self.assertIn("one device", choice.reason)

  def test_an_invalid_cluster_is_refused_before_a_choice(self):
    with (
      mock.patch.dict(os.environ, TF_CONFIG="{"),
      self.assertRaisesRegex(ValueError, "`TF_CONFIG` must be JSON"),
    ):
      strategies.choose()

  def test_a_cpu_that_is_split_is_not_split_again(self):
    self.assertEqual(strategies.split_cpu(2), ["/cpu:0", "/cpu:1"])
    self.assertLen(tf.config.list_logical_devices("CPU"), testing.NUM_REPLICAS)

  def test_a_negative_count_is_refused(self):
    with self.assertRaisesRegex(ValueError, "`num_cpu_replicas`.* got -1"):
      strategies.DeviceOptions(num_cpu_replicas=-1)


if __name__ == "__main__":
  tf.test.main()
