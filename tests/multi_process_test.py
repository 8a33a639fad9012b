"""Several processes train as one: real ones, started by the launcher."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from unittest import mock

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import start as start_run
from paragan_tf.engine import strategies
from paragan_tf.outputs import checkpoints, records
from tests import process_worker, run_test, testing, train_test
from tools import launch

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIVE = "input_fn.InputFn.prefetch = 'step_timing'"
ALL_REDUCE = ["from paragan_tf.nets import linear", *run_test.LINEAR]
SCHEMES = {
  "all_reduce": ALL_REDUCE,
  "every_other_step": [ALL_REDUCE[0], *run_test.EVERY_OTHER_STEP],
}
ASYNC = [ALL_REDUCE[0], *run_test.ASYNC]
# Neither the batch nor the steps above divide the epoch.
NUM_IMAGES, BATCH_SIZE = 20, 8
# Four processes, and the bytes of what they exchange.
NUM, MODEL = 4, 4 * process_worker.NUM_WEIGHTS


def bindings(num_steps, *more):
  """Returns the config of a tiny run."""
  return [*run_test.TINY, f"run.Run.num_steps = {num_steps}", *more]


def values(folder):
  """Returns all that is in the newest checkpoint of a run."""
  path = checkpoints.Checkpoints(str(folder)).latest()
  read = tf.train.load_checkpoint(path)
  return {key: read.get_tensor(key) for key in read.get_variable_to_shape_map()}


def start(*command):
  """Starts Python with its output caught."""
  return subprocess.Popen(
    [sys.executable, *command],
    cwd=ROOT,
    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def start_training(num_workers, num_cpu_replicas, folder, config):
  """Starts the launcher as a user does."""
  return start(
    *("-m", "tools.launch", f"--num_workers={num_workers}", "--"),
    "--gin_file=gin/runs/fashion.gin",
    f"--num_cpu_replicas={num_cpu_replicas}",
    f"--model_dir={folder}",
    *(f"--gin_bindings={binding}" for binding in config),
  )


def end(process, seconds=300.0, code=0):
  """Returns what a process says until it ends, with the exit code expected."""
  try:
    out, _ = process.communicate(timeout=seconds)
  finally:
    process.kill()
  if process.returncode != code:
    raise AssertionError(f"Exit code {process.returncode}:\n{out}")
  return out


def launch_jobs(folder, num_replicas, num_processes, jobs):
  """Gives jobs to processes of so many replicas each."""
  path = folder / "jobs.json"
  path.write_text(json.dumps([num_replicas, jobs]))
  code = (
    "import sys; from tools import launch\n"
    "command = [sys.executable, '-m', 'tests.process_worker', sys.argv[1]]\n"
    f"sys.exit(launch.run(command, {num_processes}).code)"
  )
  end(start("-c", code, str(path)))


def assert_equal(test, got, expected, atol):
  """Two checkpoints have the same variables, with the same values."""
  test.assertEqual(got.keys(), expected.keys())
  for name, value in expected.items():
    test.assertAllClose(got[name], value, rtol=0, atol=atol, msg=name)


def assert_received(test, found, name):
  """Each replica has got its source's values, and as many bytes as needed."""
  sources = process_worker.SOURCES[name]
  num_local = NUM // len(found)
  got = [np.concatenate(x) for x in zip(*(f[name]["values"] for f in found))]
  for replica, source in enumerate(sources):
    expected = process_worker.message(source)
    expected[0] += 2.0  # It was received in the third step.
    for values, value in zip(got, expected, strict=True):
      value = tf.cast(value, tf.float64)
      test.assertAllEqual(values[replica], value, f"{replica}")
  crossing = [
    (s // num_local, t // num_local)
    for t, s in enumerate(sources)
    if s // num_local != t // num_local
  ]
  for process, one in enumerate(found):
    given, taken = one[name]["bytes"]
    for count, column in ((given, 0), (taken, 1)):
      expected = sum(pair[column] == process for pair in crossing)
      # What is not sent leaves a few hundred bytes of other traffic.
      test.assertAllClose(
        count, expected * MODEL, rtol=0.05, atol=0.02 * MODEL, msg=name
      )


class MultiProcessTest(tf.test.TestCase, parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(cls.get_temp_dir(cls()), "processes")
    cls.folder.mkdir()
    cls.stop_early()
    cls.launch_jobs(
      *(cls.job(f"whole_{name}", 20, more) for name, more in SCHEMES.items()),
      *(
        cls.job(f"parts_{name}", 20, more, "stop")
        for name, more in SCHEMES.items()
      ),
      # What was stopped resumes from its folder.
      *(cls.job(f"parts_{name}", 20, more) for name, more in SCHEMES.items()),
      cls.job("read", 20, cls.numbered_images(), "read"),
      cls.job("read_live", 20, [*cls.numbered_images(), LIVE], "read"),
      ["meet", str(cls.folder / "meet"), []],
      ["receive", str(cls.folder / "receive"), list(process_worker.SOURCES)],
    )

  @classmethod
  def job(cls, name, num_steps, more, kind="train"):
    return [kind, str(cls.folder / name), bindings(num_steps, *more)]

  @classmethod
  def launch_jobs(cls, *jobs):
    """Gives jobs to two processes of two replicas each."""
    launch_jobs(cls.folder, 2, 2, jobs)

  @classmethod
  def stop_early(cls):
    """Starts two processes, and sends SIGTERM as soon as they train."""
    config = bindings(10**6, *ALL_REDUCE, "run.Run.save_every = 1000000")
    launcher = start_training(2, 2, cls.folder / "stopped", config)
    lines = []
    while "] step " not in "".join(lines[-1:]):
      lines.append(launcher.stdout.readline())
      if not lines[-1]:
        break
    launcher.send_signal(signal.SIGTERM)
    cls.words = "".join(lines) + end(launcher, code=75)
    latest = checkpoints.Checkpoints(str(cls.folder / "stopped")).latest()
    cls.stopped_at = int(latest.split("-")[-1])

  @classmethod
  def numbered_images(cls):
    """Makes a file of images whose pixels are their number."""
    path = cls.folder / "numbered.npz"
    numbers = np.arange(NUM_IMAGES + 2, dtype=np.uint8)
    pixels = np.tile(numbers[:, None, None], [1, 8, 8])
    np.savez(path, images=pixels, labels=numbers % 3)
    return (
      *ALL_REDUCE,
      "input_fn.InputFn.source = @sources.npz",
      "input_fn.InputFn.resolution = 8",
      f"sources.npz.path = '{path}'",
      "sources.npz.num_heldout = 2",
      f"experiment.Experiment.batch_size = {BATCH_SIZE}",
    )

  def setUp(self):
    super().setUp()
    self.own = os.path.join(self.get_temp_dir(), self.id())

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def read_both(self, name):
    """Returns what each of the two processes wrote in a folder."""
    paths = (self.folder / name / f"{i}.json" for i in range(2))
    return [json.loads(path.read_text()) for path in paths]

  def train_here(self, scheme):
    """Returns what four replicas of this process learn."""
    run_test.run(testing.strategy(), self.own, 20, *scheme[1:])
    return values(self.own)

  def test_processes_come_to_the_values_of_one(self):
    expected = self.train_here(ALL_REDUCE)
    assert_equal(self, values(self.folder / "whole_all_reduce"), expected, 1e-6)

  @pytest.mark.soak
  def test_every_other_step_they_come_to_the_values_of_one(self):
    expected = self.train_here(SCHEMES["every_other_step"])
    got = values(self.folder / "whole_every_other_step")
    assert_equal(self, got, expected, 1e-6)

  @pytest.mark.soak
  def test_a_role_split_computes_the_values_of_one_process(self):
    expected = self.train_here(ASYNC)
    self.launch_jobs(
      self.job("whole_async", 20, ASYNC),
      self.job("parts_async", 20, ASYNC, "stop"),
    )
    self.launch_jobs(self.job("parts_async", 20, ASYNC))
    end(start_training(4, 1, self.folder / "four_async", bindings(20, *ASYNC)))
    for name in ("whole", "parts", "four"):
      got = values(self.folder / f"{name}_async")
      assert_equal(self, got, expected, 1e-6)

  @parameterized.parameters("gossip", "quantized")
  @pytest.mark.soak
  def test_neighbors_and_few_bits_come_to_the_values_of_one(self, name):
    schemes = {"gossip": run_test.GOSSIP, "quantized": run_test.QUANTIZED}
    scheme = [ALL_REDUCE[0], *schemes[name]]
    expected = self.train_here(scheme)
    self.launch_jobs(
      self.job(f"whole_{name}", 20, scheme),
      self.job(f"parts_{name}", 20, scheme, "stop"),
    )
    self.launch_jobs(self.job(f"parts_{name}", 20, scheme))
    four = self.folder / f"four_{name}"
    end(start_training(4, 1, four, bindings(20, *scheme)))
    whole = values(self.folder / f"whole_{name}")
    parts = values(self.folder / f"parts_{name}")
    for key, value in whole.items():
      self.assertAllEqual(parts[key], value, key)
    for got in (whole, values(four)):
      assert_equal(self, got, expected, 1e-4)

  @parameterized.parameters(*SCHEMES)
  def test_stop_and_resume_equals_one_run_bit_for_bit(self, scheme):
    expected = values(self.folder / f"whole_{scheme}")
    got = values(self.folder / f"parts_{scheme}")
    self.assertEqual(expected.keys(), got.keys())
    for name, value in expected.items():
      self.assertAllEqual(got[name], value, name)
    steps = [x["step"] for x in records.read(self.folder / f"parts_{scheme}")]
    self.assertEqual(steps, [4, 8, 12, 16, 20])
    # Only the second one wanted to stop there.
    self.assertEqual(self.read_both(f"parts_{scheme}/stopped"), [8, 8])

  def test_the_checkpoint_has_one_value_for_all_processes(self):
    for scheme in ("every_other_step", "all_reduce"):
      read = values(self.folder / f"whole_{scheme}")
      self.assertEqual(read["global_step"], 20)
      self.assertEmpty([name for name in read if "replica" in name])
      for name in ("g_ema/linear/weight/w", "d_optimizer/d/linear/weight/w/v"):
        self.assertGreater(np.abs(read[name]).max(), 0.0, name)

  def test_a_stopped_run_resumes_in_one_process(self):
    shutil.copytree(self.folder / "stopped", self.own)
    step = self.stopped_at
    for strategy in (run_test.ONE("/cpu:0"), testing.strategy()):
      step += 4
      made = run_test.run(strategy, self.own, step, *run_test.LINEAR)
      self.assertEqual(made.done, step)
    steps = [line["step"] for line in records.read(self.own)]
    self.assertEqual(steps, list(range(4, step + 1, 4)))

  def test_replicas_that_average_weights_resume_in_one_process(self):
    shutil.copytree(self.folder / "parts_every_other_step", self.own)
    made = run_test.run(
      run_test.ONE("/cpu:0"), self.own, 24, *run_test.EVERY_OTHER_STEP
    )
    self.assertEqual(made.done, 24)

  def test_no_image_comes_twice_in_an_epoch(self):
    ids = [np.array(read) for read in self.read_both("read")]
    share = BATCH_SIZE // 4
    self.assertEqual([x.shape for x in ids], [(10, 2, share)] * 2)
    # The order of all images: by step, then by replica.
    order = np.concatenate(ids, 1).ravel()
    owner = np.concatenate([0 * ids[0], 1 + 0 * ids[1]], 1).ravel()
    epochs = [
      order[start : start + NUM_IMAGES]
      for start in range(0, len(order), NUM_IMAGES)
    ]
    self.assertLen(epochs, 4)
    for i, epoch in enumerate(epochs):
      self.assertCountEqual(epoch, range(NUM_IMAGES))
      owners = owner[i * NUM_IMAGES :][:NUM_IMAGES]
      first, second = (set(epoch[owners == place]) for place in range(2))
      self.assertEmpty(first & second)
      self.assertGreater(min(len(first), len(second)), NUM_IMAGES // 3)
    self.assertNotAllEqual(epochs[0], epochs[1])

  def test_images_are_the_same_at_any_depth_of_each_process(self):
    self.assertEqual(self.read_both("read_live"), self.read_both("read"))

  def test_processes_decide_together(self):
    for i, decided in enumerate(self.read_both("meet")):
      self.assertEqual(decided.pop("place"), [i, 2, 2])
      expected = dict(nobody=False, one=True, same=True, not_same=False)
      self.assertEqual(decided, expected)

  @parameterized.parameters(*process_worker.SOURCES)
  def test_each_replica_receives_what_its_source_has(self, name):
    assert_received(self, self.read_both("receive"), name)

  def test_a_stop_is_taken_by_all_at_one_step_and_saved(self):
    for i in range(2):
      self.assertIn(f"[worker {i}] Stopping, and saving", self.words)
    self.assertIn(f"Stopped at step {self.stopped_at};", self.words)
    self.assertNotIn("Traceback", self.words)
    self.assertBetween(self.stopped_at, 4, 10**6 - 4)
    learned = values(self.folder / "stopped")
    self.assertEqual(learned["global_step"], self.stopped_at)


class FourProcessesTest(tf.test.TestCase, parameterized.TestCase):
  """Four processes with a replica each, and what their sockets count."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(cls.get_temp_dir(cls()), "four")
    cls.folder.mkdir()
    names = list(process_worker.EXCHANGES)
    train = ["train", str(cls.folder / "four"), bindings(20, *ALL_REDUCE)]
    sockets = ["sockets", str(cls.folder / "bytes"), names]
    evaluate = ["evaluate", str(cls.folder / "evaluate"), []]
    sources = list(process_worker.SOURCES)
    receive = ["receive", str(cls.folder / "receive"), sources]
    launch_jobs(cls.folder, 1, NUM, [train, sockets, evaluate, receive])
    cls.found, cls.evaluated, cls.received = (
      [
        json.loads((cls.folder / name / f"{i}.json").read_text())
        for i in range(NUM)
      ]
      for name in ("bytes", "evaluate", "receive")
    )

  def test_they_come_to_the_values_of_one(self):
    own = os.path.join(self.get_temp_dir(), self.id())
    run_test.run(testing.strategy(), own, 20, *run_test.LINEAR)
    assert_equal(self, values(self.folder / "four"), values(own), 1e-6)
    gin.clear_config()

  def test_all_get_the_values_that_the_chief_measures(self):
    chief, *others = self.evaluated
    self.assertEqual(chief["values"]["global_step"], 2)
    self.assertGreater(chief["values"]["frechet_fashion"], 0.0)
    for other in others:
      self.assertEqual(other["values"], chief["values"])
    self.assertEqual([x["num_reports"] for x in self.evaluated], [1, 0, 0, 0])
    lines = records.read(self.folder / "evaluate" / "run")
    (measured,) = [line["metrics"] for line in lines if "metrics" in line]
    self.assertEqual(measured[0]["value"], chief["values"]["frechet_fashion"])

  def test_what_the_chief_cannot_measure_is_an_error_on_all(self):
    chief, *others = (x["error"] for x in self.evaluated)
    self.assertRegex(chief, "^InputError: Nothing is measured: `num_samples`")
    words = chief.split(": ", 1)[1]
    for other in others:
      self.assertEqual(other, f"RuntimeError: The chief failed: {words}")

  @parameterized.parameters(*process_worker.SOURCES)
  def test_each_replica_receives_what_its_source_has(self, name):
    assert_received(self, self.received, name)

  def assert_near(self, got, expected, name):
    self.assertAllClose(got, expected, rtol=0.05, atol=0, msg=name)

  def test_a_ring_gives_two_models_a_round(self):
    for worker in self.found:
      given, got, told, *_ = worker["ring"]
      self.assert_near(given, 2 * MODEL, "given")
      self.assert_near(got, 2 * MODEL, "got")
      self.assert_near(told, 2 * MODEL, "told")

  def test_eight_bits_are_a_quarter(self):
    for worker in self.found:
      for side in (0, 1):
        ratio = worker["int8"][side] / worker["float32"][side]
        self.assertAllClose(ratio, 0.25, rtol=0, atol=0.01)

  def test_a_gather_brings_the_messages_of_all_others(self):
    for worker in self.found:
      given, got, told, told_got, *_ = worker["int8"]
      self.assert_near(told, MODEL / 4, "told")
      self.assert_near(got, told_got, "got")
      # A ring hands on what it gets.
      self.assert_near(given, (NUM - 1) * told, "given")

  def test_two_phases_bring_what_they_say(self):
    for worker in self.found:
      _, got, _, told_got, *_ = worker["two_phase"]
      self.assert_near(got, told_got, "got")
      self.assertLess(got, 0.55 * worker["int8"][1])

  @parameterized.parameters(
    # One message each: shapes are known, and not asked for.
    ("int8", ["CollectiveGatherV2"]),
    ("ring", ["CollectiveGatherV2"] * 2),
    ("all_reduce", ["CollectiveReduceV2"]),
  )
  def test_nothing_else_is_sent(self, name, expected):
    for worker in self.found:
      self.assertEqual(worker[name][-2], expected)

  @parameterized.parameters("int8", "two_phase", "all_reduce")
  def test_weights_are_the_same_on_all_bit_for_bit(self, name):
    self.assertLen({worker[name][-1] for worker in self.found}, 1)


def alone():
  """Returns an environment with nothing."""
  return {}


def not_json():
  """Returns an environment that cannot be read."""
  return {"TF_CONFIG": "{"}


def no_task():
  """Returns an environment that does not say who we are."""
  return {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:2"]}}'}


def one_of_two():
  """Returns the environment of a process whose fellow never comes."""
  return launch.make_environments(2)[0]


class RefusedTest(tf.test.TestCase, parameterized.TestCase):
  """What cannot be trained on is one sentence, and leaves no folder."""

  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self.id())

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  @parameterized.named_parameters(
    ("not_json", not_json, [], "`TF_CONFIG` must be JSON"),
    (
      "never_joins",
      one_of_two,
      ["--join_timeout=1"],
      r"Worker\(s\) at 127.0.0.1:\d+ did not join within 1 s",
    ),
  )
  def test_the_program_says_it_in_a_sentence(self, environment, flags, words):
    with mock.patch.dict(os.environ, environment()):
      process = train_test.train(f"--model_dir={self.folder}", *flags)
    train_test.TrainTest.assert_refused(self, process, words)
    self.assertFalse(os.path.exists(self.folder))

  @parameterized.named_parameters(
    ("no_task", no_task, dict(), "must have this process.s `task`"),
    (
      "never_joins",
      one_of_two,
      dict(join_timeout=0.1),
      "did not join within 0.1 s",
    ),
    ("no_tpu", alone, dict(tpu="local"), "this machine has no TPU"),
    ("no_answer", alone, dict(tpu="grpc://127.0.0.1:9"), "refused"),
  )
  def test_errors_come_before_files_are_written(
    self, environment, device_options, words
  ):
    for engine in testing.ENGINES:
      if engine == "tpu_estimator" and "join_timeout" in device_options:
        words = "on one CPU device, got several .*processes"
      with (
        mock.patch.dict(os.environ, environment()),
        self.assertRaisesRegex(ValueError, words),
      ):
        start_run.prepare(
          ["gin/runs/smoke.gin"],
          [],
          self.folder,
          strategies.DeviceOptions(**device_options),
          engine,
        )
    self.assertFalse(os.path.exists(self.folder))


if __name__ == "__main__":
  testing.main()
