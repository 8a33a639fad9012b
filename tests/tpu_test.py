"""An unreachable TPU is refused at once; others are initialized."""

import os
import socket
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import strategies, tpu

NOWHERE = "grpc://127.0.0.1:9"


class TpuTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    # Else a name is looked up, which may take long where there is a network.
    self.enter_context(
      mock.patch(
        "urllib.request.urlopen", side_effect=OSError("no such TPU here")
      )
    )

  def listening(self):
    """Returns an address that accepts connections."""
    server = self.enter_context(socket.create_server(("127.0.0.1", 0)))
    return f"grpc://127.0.0.1:{server.getsockname()[1]}"

  @parameterized.named_parameters(
    ("here", "local", "this machine has no TPU"),
    ("address", NOWHERE, "refused"),
    ("name", "my-tpu", "no such TPU here"),
    ("not_a_port", "grpc://127.0.0.1:port", "invalid literal"),
  )
  def test_an_unreachable_tpu_is_refused(self, name, reason):
    for look in (tpu.find, tpu.connect):
      with self.assertRaisesRegex(
        ValueError, f"`tpu` '{name}' cannot be reached .*{reason}"
      ) as caught:
        look(name)
      self.assertNotIn("\n", str(caught.exception))
      self.assertIn("`--tpu_zone`", str(caught.exception))

  @parameterized.named_parameters(
    ("strategy", strategies.choose), ("tpu_estimator", strategies.for_estimator)
  )
  def test_both_engines_refuse_an_unreachable_tpu(self, choose):
    for name in ("local", NOWHERE):
      with self.assertRaisesRegex(ValueError, f"`tpu` '{name}' cannot be"):
        choose(strategies.DeviceOptions(tpu=name))

  def test_a_tpu_is_found_by_its_address(self):
    address = self.listening()
    self.assertEqual(tpu.find(address).master(), address)
    choice = strategies.for_estimator(strategies.DeviceOptions(tpu=address))
    self.assertEqual(choice.tpu.master(), address)
    self.assertIn(f"TPU '{address}' by TPUEstimator", choice.reason)

  def test_it_is_connected_then_initialized(self):
    address, calls = self.listening(), mock.Mock()
    with (
      mock.patch.multiple(
        tf.config, experimental_connect_to_cluster=calls.connect
      ),
      mock.patch.object(
        tf.tpu.experimental, "initialize_tpu_system", calls.initialize
      ),
    ):
      found = tpu.connect(address)
    expected = [mock.call.connect(found), mock.call.initialize(found)]
    self.assertEqual(calls.mock_calls, expected)

  def test_a_local_tpu_needs_no_connection(self):
    calls = mock.Mock()
    with (
      mock.patch.multiple(
        tf.config,
        experimental_connect_to_cluster=calls.connect,
        list_physical_devices=lambda kind: [f"one {kind}"],
      ),
      mock.patch.object(
        tf.tpu.experimental, "initialize_tpu_system", calls.initialize
      ),
    ):
      found = tpu.connect("local")
    self.assertEqual(calls.mock_calls, [mock.call.initialize(found)])

  def test_a_tpu_that_does_not_start_is_refused(self):
    failed = tf.errors.UnavailableError(None, None, "failed\nto  start" * 99)
    with (
      mock.patch.object(tf.config, "experimental_connect_to_cluster"),
      mock.patch.object(
        tf.tpu.experimental, "initialize_tpu_system", side_effect=failed
      ),
      self.assertRaisesRegex(ValueError, "failed to start") as caught,
    ):
      tpu.connect(self.listening())
    self.assertLess(len(str(caught.exception)), 500)


class DeviceOptionsTest(tf.test.TestCase):
  def test_use_tpu_needs_a_name(self):
    with self.assertRaisesRegex(ValueError, "`use_tpu` needs.*`--tpu=NAME`"):
      strategies.DeviceOptions(use_tpu=True)
    self.assertTrue(strategies.DeviceOptions(use_tpu=True, tpu="mine").use_tpu)

  def test_a_tpu_and_cpu_replicas_exclude_each_other(self):
    with self.assertRaisesRegex(ValueError, "'mine' and `num_cpu_replicas` 2"):
      strategies.DeviceOptions(tpu="mine", num_cpu_replicas=2)

  def test_the_estimator_takes_no_replicas_or_processes(self):
    with self.assertRaisesRegex(ValueError, "several replicas"):
      strategies.for_estimator(strategies.DeviceOptions(num_cpu_replicas=2))
    two = (
      '{"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, '
      '"task": {"type": "worker", "index": 0}}'
    )
    with (
      mock.patch.dict(os.environ, TF_CONFIG=two),
      self.assertRaisesRegex(ValueError, "processes: set `--engine=strategy`"),
    ):
      strategies.for_estimator(strategies.DeviceOptions())
    alone = strategies.for_estimator(
      strategies.DeviceOptions(num_cpu_replicas=1)
    )
    self.assertIsNone(alone.tpu)
    self.assertIn("no TPU is requested", alone.reason)


if __name__ == "__main__":
  tf.test.main()
