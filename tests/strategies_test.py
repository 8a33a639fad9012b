"""Variables are replica-local, and a choice has its reason."""

import contextlib
import gc
import os
import time
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import collectives
from paragan_tf.data import input_fn, sources
from paragan_tf.engine import cluster, strategies
from tests import testing
from tools import launch

IMPLEMENTATIONS = tf.distribute.experimental.CommunicationImplementation


@contextlib.contextmanager
def pretend_gpus(*names):
  """Lets TensorFlow list GPUs of these names, `None` for an unknown one."""
  gpus = [
    tf.config.PhysicalDevice(f"/gpu:{i}", "GPU") for i in range(len(names))
  ]
  listed = {"GPU": gpus, "CPU": tf.config.list_physical_devices("CPU")}
  details = {
    gpu: {} if name is None else {"device_name": name}
    for gpu, name in zip(gpus, names)
  }
  experimental = tf.config.experimental
  with (
    mock.patch.object(tf.config, "list_physical_devices", listed.get),
    mock.patch.object(experimental, "get_device_details", details.get),
  ):
    yield


class GpusTest(tf.test.TestCase, parameterized.TestCase):
  """GPUs that TensorFlow only pretends to have, so no strategy is made."""

  def test_several_gpus_of_a_machine_communicate_by_nccl(self):
    with (
      pretend_gpus("Fast", "Fast", "Slow"),
      mock.patch.object(tf.distribute, "MirroredStrategy") as make,
    ):
      choice = strategies.choose()
    make.assert_called_once()
    asked = make.call_args.kwargs["cross_device_ops"]
    self.assertIsInstance(asked, tf.distribute.NcclAllReduce)
    self.assertIs(choice.strategy, make.return_value)
    self.assertEqual(choice.reason, "3 GPUs found here (Fast, Slow), by NCCL")

  def test_logical_cpu_devices_do_not(self):
    with mock.patch.object(tf.distribute, "MirroredStrategy") as make:
      strategies.choose(strategies.DeviceOptions(num_cpu_replicas=4))
    make.assert_called_once_with([f"/cpu:{i}" for i in range(4)])

  @parameterized.parameters(
    (("Fast",), "one device, the only GPU (Fast)"),
    ((None,), "one device, the only GPU"),
  )
  def test_a_gpu_is_called_what_its_driver_calls_it(self, names, reason):
    with pretend_gpus(*names):
      self.assertEqual(strategies.choose().reason, reason)

  @parameterized.parameters(
    (
      ("Fast", "Fast"),
      0,
      "NCCL",
      2,
      r"^2 GPU\(s\) \(Fast\) by NCCL in each of 2",
    ),
    (("Fast",), 1, "AUTO", 0, r"^1 CPU device\(s\) in each of 2 processes"),
    ((), 0, "AUTO", 0, r"^1 CPU device\(s\) in each of 2 processes"),
  )
  def test_processes_with_gpus_communicate_by_nccl(
    self, names, num_cpu_replicas, expected, num_gpus, reason
  ):
    options = strategies.DeviceOptions(num_cpu_replicas=num_cpu_replicas)
    with (
      pretend_gpus(*names),
      mock.patch.dict(os.environ, launch.make_environments(2)[0]),
      mock.patch.object(cluster, "wait_for_all"),
      mock.patch.object(tf.distribute, "MultiWorkerMirroredStrategy") as make,
    ):
      choice = strategies.choose(options)
    resolver, asked = make.call_args.args
    self.assertEqual(asked.implementation, IMPLEMENTATIONS[expected])
    self.assertEqual(resolver.num_accelerators(), {"GPU": num_gpus})
    self.assertRegex(choice.reason, reason)


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
