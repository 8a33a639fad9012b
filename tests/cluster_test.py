"""Finds the cluster in the environment, and waits for its processes."""

import contextlib
import json
import os
import socket
import threading
import time
from unittest import mock

from absl.testing import absltest, parameterized

from paragan_tf.engine import cluster
from tools import launch

WORKERS = ["a:1", "b:2", "c:3"]


def tf_config(jobs, kind="worker", index=0):
  """Returns an environment with `TF_CONFIG`: a cluster and a task."""
  task = {"type": kind, "index": index}
  return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": task})}


def slurm(rank, **more):
  """Returns the environment of a SLURM task; two nodes have two each."""
  return {
    "SLURM_PROCID": str(rank),
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    **more,
  }


class FromEnvironmentTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("first_worker", {"worker": WORKERS}, "worker", 0, 0),
    ("last_worker", {"worker": WORKERS}, "worker", 2, 2),
    ("chief", {"worker": ["b:2", "c:3"], "chief": ["a:1"]}, "chief", 0, 0),
    ("beside", {"worker": ["b:2", "c:3"], "chief": ["a:1"]}, "worker", 1, 2),
  )
  def test_cluster_has_all_addresses_and_this_index(
    self, jobs, kind, index, process_index
  ):
    found = cluster.from_environment(tf_config(jobs, kind, index))
    self.assertEqual(list(found.addresses), WORKERS)
    self.assertEqual(found.process_index, process_index)
    self.assertIn("TF_CONFIG", found.found_in)

  def test_nothing_set_is_no_cluster(self):
    self.assertIsNone(cluster.from_environment({}))
    self.assertIsNone(cluster.from_environment({"TF_CONFIG": ""}))
    alone = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    self.assertIsNone(cluster.from_environment(alone))

  @parameterized.parameters("{}", '{"cluster": {}}', '{"cluster": {}, "x": 1}')
  def test_an_empty_cluster_is_one_machine(self, text):
    found = cluster.from_environment({"TF_CONFIG": text})
    self.assertLen(found.addresses, 1)
    self.assertEqual(found.process_index, 0)

  @parameterized.named_parameters(
    ("not_json", {"TF_CONFIG": "{worker"}, "must be JSON such as .*'{worker'"),
    ("a_list", {"TF_CONFIG": "[1]"}, r"must have a `cluster`.*got \[1\]"),
    (
      "no_task",
      {"TF_CONFIG": json.dumps({"cluster": {"worker": WORKERS}})},
      "must have this process's `task`.*got task {}",
    ),
    ("past_the_end", tf_config({"worker": WORKERS}, index=3), '"index": 3'),
    ("negative", tf_config({"worker": WORKERS}, index=-1), '"index": -1'),
    ("a_word", tf_config({"worker": WORKERS}, index="0"), '"index": "0"'),
    ("unknown", tf_config({"worker": WORKERS}, "boss"), '"type": "boss"'),
    ("no_chief", tf_config({"worker": WORKERS}, "chief"), '"type": "chief"'),
    (
      "servers",
      tf_config({"worker": WORKERS, "ps": ["d:4"]}),
      "got `ps`: all processes train; remove this job",
    ),
    (
      "evaluator",
      tf_config({"worker": WORKERS, "evaluator": ["d:4"]}),
      "got `evaluator`: all processes train; remove this job",
    ),
    (
      "no_port",
      tf_config({"worker": ["a:1", "b"]}),
      "'host:port', .*, got 'b'",
    ),
    (
      "no_host",
      tf_config({"worker": ["a:1", ":2"]}),
      "'host:port', .*, got ':2'",
    ),
    ("bad_port", tf_config({"worker": ["a:1", "b:x"]}), "got 'b:x'"),
    (
      "a_number",
      tf_config({"worker": ["a:1", 2]}),
      "'host:port', .*, got '2'",
    ),
  )
  def test_an_invalid_cluster_is_refused(self, environment, words):
    with self.assertRaisesRegex(ValueError, words) as caught:
      cluster.from_environment(environment)
    self.assertIn("`TF_CONFIG`", str(caught.exception))
    self.assertNotIn("\n", str(caught.exception))

  def read_slurm(self, environment):
    """Returns the cluster that a SLURM task finds, with nothing else set."""
    keep = {"PATH": os.environ["PATH"]}
    with mock.patch.dict(os.environ, {**keep, **environment}, clear=True):
      found = cluster.from_environment()
      # It must not hand out GPUs: SLURM does.
      self.assertNotIn("CUDA_VISIBLE_DEVICES", os.environ)
    return found

  def test_slurm_cluster_has_all_addresses_and_this_index(self):
    for rank in range(4):
      found = self.read_slurm(slurm(rank))
      self.assertEqual(
        list(found.addresses),
        ["node1:8888", "node1:8889", "node2:8888", "node2:8889"],
      )
      self.assertEqual(found.process_index, rank)
    self.assertIn("SLURM", found.found_in)

  def test_tf_config_has_priority_over_slurm(self):
    found = self.read_slurm({**slurm(1), **tf_config({"worker": WORKERS})})
    self.assertEqual((list(found.addresses), found.process_index), (WORKERS, 0))

  @parameterized.named_parameters(
    ("not_in_a_step", "SLURM_STEP_NODELIST", None, "not found"),
    ("too_few", "SLURM_STEP_TASKS_PER_NODE", "2,1", "4 tasks but only 3"),
    ("nodes", "SLURM_STEP_NODELIST", "node[1-", "hostlist"),
  )
  def test_an_invalid_slurm_step_is_refused(self, name, value, words):
    environment = slurm(0)
    del environment[name]
    if value:
      environment[name] = value
    with self.assertRaisesRegex(ValueError, f"SLURM.*{words}.*`srun`"):
      self.read_slurm(environment)


class WaitForAllTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.stack = self.enter_context(contextlib.ExitStack())
    ports = launch._find_free_ports(3)
    self.addresses = [f"127.0.0.1:{port}" for port in ports]

  def listen(self, process_index):
    """Listens on an address, as TensorFlow of another process would."""
    port = int(self.addresses[process_index].split(":")[1])
    server = socket.create_server(("127.0.0.1", port))
    self.stack.enter_context(server)

  def wait(self, process_index=1, seconds=10.0):
    """Waits as one of the processes, and returns the duration."""
    began = time.monotonic()
    made = cluster.Cluster(self.addresses, process_index, "`TF_CONFIG`")
    cluster.wait_for_all(made, seconds)
    return time.monotonic() - began

  def test_returns_at_once_when_all_are_reachable(self):
    self.listen(0)
    self.listen(2)
    self.assertLess(self.wait(), 1.0)

  def test_waits_for_a_late_process_and_listens_meanwhile(self):
    self.listen(0)
    answered = []

    def come_late():
      time.sleep(0.5)
      answered.append(cluster._is_reachable(self.addresses[1]))
      self.listen(2)

    self.assertFalse(cluster._is_reachable(self.addresses[1]))
    late = threading.Thread(target=come_late)
    late.start()
    self.assertBetween(self.wait(), 0.5, 5.0)
    late.join()
    self.assertEqual(answered, [True])
    # The port is left to TensorFlow.
    self.assertFalse(cluster._is_reachable(self.addresses[1]))

  def test_error_names_only_the_missing_process(self):
    self.listen(0)
    with self.assertRaisesRegex(ValueError, "did not join within 0.3 s") as e:
      self.wait(seconds=0.3)
    words = str(e.exception)
    self.assertIn(f"Worker(s) at {self.addresses[2]} did", words)
    self.assertNotIn(self.addresses[0], words)
    self.assertNotIn(self.addresses[1], words)
    self.assertIn("`TF_CONFIG`; `--join_timeout`", words)

  def test_error_names_all_missing_processes(self):
    both = f"{self.addresses[0]}, {self.addresses[2]} did not join"
    with self.assertRaisesRegex(ValueError, both):
      self.wait(seconds=0.0)

  def test_a_port_in_use_is_refused(self):
    self.listen(0)
    self.listen(1)
    self.listen(2)
    words = f"own address {self.addresses[1]} .*in use.*a free port"
    with self.assertRaisesRegex(ValueError, words):
      self.wait()


if __name__ == "__main__":
  absltest.main()
