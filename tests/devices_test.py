"""Devices are counted as hardware: TPU cores, GPUs, the CPU of a process."""

from unittest import mock

import tensorflow as tf

from paragan_tf.engine import devices
from tests import testing


class DevicesTest(tf.test.TestCase):
  def test_logical_devices_are_one_cpu(self):
    found = devices.describe(testing.strategy())
    self.assertEqual(found["num_devices"], 1)
    self.assertEqual(found["num_replicas"], 4)
    self.assertEqual(found["num_processes"], 1)
    self.assertStartsWith(found["device_kind"], "CPU with ")

  def test_the_tpu_of_an_estimator_is_counted_by_its_cores(self):
    tpu = mock.Mock()
    tpu.get_tpu_system_metadata.return_value.num_cores = 8
    host = tf.distribute.OneDeviceStrategy("/cpu:0")
    found = devices.describe(host, tpu)
    self.assertEqual(
      (found["num_devices"], found["device_kind"]), (8, "TPU core")
    )
    self.assertEqual(found["num_replicas"], 1)

  def test_each_gpu_is_a_device(self):
    strategy = mock.Mock(num_replicas_in_sync=2)
    strategy.extended.worker_devices = ("/device:GPU:0", "/device:GPU:1")
    found = devices.describe(strategy)
    self.assertEqual((found["num_devices"], found["device_kind"]), (2, "GPU"))


if __name__ == "__main__":
  tf.test.main()
