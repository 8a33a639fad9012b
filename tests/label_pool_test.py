"""A pool of real processes: labels end, are killed, resume, and are alone."""

import contextlib
import functools
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, label_pool, label_trainer, trained
from paragan_tf.outputs import checkpoints, labels, records
from paragan_tf.run import InputError
from tests import label_pools

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KILLED, SMALL = 1, 2


def values(folder, label):
  """Returns all values of the last checkpoint of a label, by name."""
  path = checkpoints.Checkpoints(labels.folder(folder, label)).latest()
  reader = tf.train.load_checkpoint(path)
  names = sorted(reader.get_variable_to_shape_map())
  return {name: reader.get_tensor(name) for name in names}


def trained_names(found):
  """Returns the matrices that training changes: Adam has no momentum here."""
  return [x for x in found if found[x].ndim > 1 and not x.endswith("/m")]


def train_alone(folder, path, label, *more):
  """Trains one label in this process, as a run of its own."""
  label_pools.load(path, *more)
  run = label_trainer.LabelTrainer(folder).prepare(label)
  with contextlib.redirect_stdout(io.StringIO()):
    run()
  gin.clear_config()
  return run


def kill_worker(pool, label, times):
  """Kills the worker of a label, while it trains, so many times."""
  killed = []

  def watch():
    while len(killed) < times:
      for worker in list(pool._workers.values()):
        is_begun = label in pool._live or killed
        if worker.label == label and is_begun and worker.pid not in killed:
          os.kill(worker.pid, signal.SIGKILL)
          killed.append(worker.pid)
      time.sleep(0.005)

  threading.Thread(target=watch, daemon=True).start()
  return killed


class Whole:
  """A pool of five labels on two workers, one of which is killed once."""

  def __init__(self):
    self.temporary = tempfile.TemporaryDirectory()
    self.path = label_pools.write_set(f"{self.temporary.name}/set.npz")
    self.folder = f"{self.temporary.name}/pool"
    more = ("LabelPool.num_workers = 2", "LabelPool.threads_per_worker = 1")
    label_pools.load(self.path, *more)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      self.pool = label_pool.LabelPool(self.folder)
      self.killed = kill_worker(self.pool, KILLED, 1)
      self.pool.open()
      self.is_complete = self.pool()
    self.out, self.err = out.getvalue(), err.getvalue()
    gin.clear_config()


@functools.cache
def whole():
  return Whole()


def tearDownModule():
  whole.cache_clear()


class LabelPoolTest(parameterized.TestCase, tf.test.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def assert_same(self, a, b):
    self.assertEqual(a.keys(), b.keys())
    for name in a:
      np.testing.assert_array_equal(a[name], b[name], name)

  def test_all_labels_are_done_with_more_labels_than_workers(self):
    pool = whole()
    self.assertTrue(pool.is_complete, pool.out + pool.err)
    states = labels.read_manifest(pool.folder)
    self.assertEqual([x.state for x in states], ["done"] * 5)
    self.assertEqual([x.steps for x in states], [label_pools.STEPS] * 5)
    self.assertEqual([x.images for x in states], list(label_pools.SIZES))
    self.assertEqual(states[0].budget, {"num_steps": label_pools.STEPS})
    self.assertGreater(min(x.seconds for x in states), 0.0)
    self.assertIn("5 of 5 labels done", pool.err)

  def test_a_killed_label_restarts_alone(self):
    pool = whole()
    self.assertLen(pool.killed, 1)
    restarts = [x.restarts for x in labels.read_manifest(pool.folder)]
    self.assertEqual(restarts, [int(i == KILLED) for i in range(5)])
    self.assertRegex(pool.err, r"Label 1 \(1\) failed and begins again: .*9")

  @parameterized.parameters(0, KILLED, SMALL)
  def test_a_label_alone_is_the_same_bit_for_bit(self, label):
    pool = whole()
    folder = os.path.join(self.get_temp_dir(), f"alone{label}")
    train_alone(folder, pool.path, label)
    self.assert_same(values(folder, label), values(pool.folder, label))

  def test_other_images_of_one_label_change_no_other_label(self):
    pool = whole()
    name = os.path.join(self.get_temp_dir(), "changed.npz")
    path = label_pools.write_set(name, changed=3)
    folder = os.path.join(self.get_temp_dir(), "changed")
    for label in (3, 4):
      train_alone(folder, path, label)
    self.assert_same(values(folder, 4), values(pool.folder, 4))
    before, after = values(pool.folder, 3), values(folder, 3)
    for name in trained_names(before):
      self.assertNotAllClose(before[name], after[name])

  def test_labels_have_weights_and_noise_of_their_own(self):
    pool = whole()
    first, second = values(pool.folder, 0), values(pool.folder, 3)
    self.assertNotEqual(first["noise_seed"], second["noise_seed"])
    for name in trained_names(first):
      self.assertNotAllClose(first[name], second[name])

  def test_a_label_with_fewer_images_than_a_batch_repeats_them(self):
    words = label_pools.read_words(whole().folder, SMALL)
    self.assertIn(
      "Note: '2' has 3 images and a step takes 16: they repeat.", words
    )

  def test_the_folder_of_a_label_is_a_run(self):
    folder = labels.folder(whole().folder, 3)
    self.assertEqual(trained.load(folder).sample(2).images.shape, (2, 8, 8, 1))
    self.assertTrue(os.path.exists(os.path.join(folder, "report.html")))
    steps = [x["step"] for x in records.read(folder)]
    self.assertEqual(steps, [2, 4, 6, 8])
    with open(os.path.join(folder, "config.gin")) as f:
      self.assertRegex(f.read(), r"InputFn\.label = 3")

  def test_a_complete_pool_trains_nothing_again(self):
    pool = whole()
    label_pools.load(pool.path)
    again = label_pool.LabelPool(pool.folder)
    self.assertIn("0 to train", again.summary())
    label_pools.load(pool.path, "Run.num_steps = 12")
    longer = label_pool.LabelPool(pool.folder)
    self.assertIn("5 to train", longer.summary())

  def test_another_config_is_refused(self):
    pool = whole()
    label_pools.load(pool.path, "GradientPenalty.weight = 3.0")
    with self.assertRaisesRegex(ValueError, "weight` was 10.0, now 3.0"):
      label_pool.LabelPool(pool.folder)

  def test_a_half_written_label_goes_on_from_what_is_whole(self):
    pool = whole()
    folder = os.path.join(self.get_temp_dir(), "half")
    shutil.copytree(pool.folder, folder)
    run = labels.folder(folder, 4)
    last = checkpoints.Checkpoints(run).latest()
    os.remove(f"{last}.index")  # Written last.
    for name in ("label.json", "metrics.jsonl"):
      path = os.path.join(run, name)
      with open(path, "r+") as f:
        f.truncate(os.path.getsize(path) // 2)
    label_pools.load(pool.path)
    self.assertIn("1 to train", label_pool.LabelPool(folder).summary())
    train_alone(folder, pool.path, 4)
    self.assert_same(values(folder, 4), values(pool.folder, 4))

  def test_the_page_has_every_label(self):
    with open(os.path.join(whole().folder, "report.html")) as f:
      page = f.read()
    self.assertIn("<h2>Labels</h2>", page)
    self.assertEqual(page.count('alt="Samples of'), 5)
    self.assertGreaterEqual(page.count("Critic loss of"), 5)

  def test_labels_that_are_not_known_are_refused(self):
    path = os.path.join(self.get_temp_dir(), "plain.npz")
    np.savez(path, images=np.zeros([40, 8, 8, 1], np.uint8))
    label_pools.load(path, "InputFn.conditional = False")
    with self.assertRaisesRegex(ValueError, "needs labels, and 'plain.npz'"):
      label_pool.LabelPool(os.path.join(self.get_temp_dir(), "new"))


class FailingTest(parameterized.TestCase, tf.test.TestCase):
  """What fails; each test starts processes."""

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def run_pool(self, folder, path, *more):
    """Runs a pool; returns all it printed."""
    label_pools.load(path, *more)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
      pool = label_pool.LabelPool(folder)
      pool.open()
      pool()
    return out.getvalue()

  def test_g_and_the_critic_of_a_label_have_a_device_each(self):
    path = label_pools.write_set(os.path.join(self.get_temp_dir(), "d.npz"))
    folder = os.path.join(self.get_temp_dir(), "devices")
    files = [*label_pools.FILES, "gin/sync/async.gin"]
    config.load(files, label_pools.bindings(path))
    run = label_trainer.LabelTrainer(folder, num_devices=2).prepare(0)
    with contextlib.redirect_stdout(io.StringIO()):
      run()
    entry = records.read(labels.folder(folder, 0))[-1]
    self.assertEqual(entry["step"], label_pools.STEPS)
    self.assert_pair(labels.folder(folder, 0))

  def assert_pair(self, folder):
    """Asserts that a run's G and critic were on replicas of their own."""
    self.assertEqual(records.read_starts(folder)[-1]["num_replicas"], 2)
    # Only roles that are apart see each other's past.
    self.assertEqual(records.read(folder)[-1]["staleness/d_seen_by_g"], 1.0)

  @pytest.mark.soak
  def test_a_pool_whose_labels_have_two_devices(self):
    path = label_pools.write_set(os.path.join(self.get_temp_dir(), "e.npz"))
    folder = os.path.join(self.get_temp_dir(), "pairs")
    flags = label_pools.flags(path, folder, "LabelPool.devices_per_label = 2")
    flags.append("--gin_file=gin/sync/async.gin")
    out = subprocess.run(
      [sys.executable, "-m", "tools.train", *flags],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=True,
    ).stdout
    self.assertIn("1 at a time, 2 thread(s) and 2 device(s) each", out)
    for label in range(len(label_pools.SIZES)):
      self.assert_pair(labels.folder(folder, label))

  @parameterized.parameters(
    (1, 4, ["0", "1", "2", "3", "0"]),
    (2, 4, ["0,1", "2,3", "0,1"]),
    (2, 3, ["0,1", "0,1"]),  # The third one cannot have a partner.
  )
  def test_the_gpus_of_each_worker(self, num_devices, num_gpus, expected):
    found = [label_pool.name_gpus(i, num_devices, num_gpus) for i in range(9)]
    self.assertEqual(found[: len(expected)], expected)

  def test_more_devices_than_gpus_are_refused(self):
    words = "`devices_per_label` must be at most the number of GPUs, 1, got 2"
    with self.assertRaisesRegex(ValueError, words):
      label_pool.name_gpus(0, 2, 1)

  @pytest.mark.soak
  def test_a_label_that_fails_too_often_is_reported_and_others_are_done(self):
    path = label_pools.write_set(os.path.join(self.get_temp_dir(), "a.npz"))
    folder = os.path.join(self.get_temp_dir(), "failing")
    broken = labels.folder(folder, 3)
    os.makedirs(broken)
    for name in ("index", "data-00000-of-00001"):
      with open(f"{broken}/model.ckpt-4.{name}", "wb") as f:
        f.write(b"damaged")
    words = r"Label 3 \(3\) failed 2 time\(s\): .*model.ckpt-4"
    with self.assertRaisesRegex(label_pool.LabelsFailedError, words):
      self.run_pool(
        folder, path, "LabelPool.num_workers = 2", "LabelPool.max_restarts = 1"
      )
    states = [x.state for x in labels.read_manifest(folder)]
    self.assertEqual(states, ["done", "done", "done", "failed", "done"])

  @pytest.mark.soak
  def test_what_no_label_can_be_trained_with_ends_the_pool_at_once(self):
    path = label_pools.write_set(os.path.join(self.get_temp_dir(), "b.npz"))
    folder = os.path.join(self.get_temp_dir(), "refused")
    with self.assertRaisesRegex(InputError, "`weight`.*-1"):
      self.run_pool(folder, path, "GradientPenalty.weight = -1.0")
    states = labels.read_manifest(folder)
    self.assertEqual(sum(x.restarts for x in states), 0)

  @pytest.mark.soak
  def test_a_killed_pool_resumes_and_ends_the_same(self):
    pool = whole()
    folder = os.path.join(self.get_temp_dir(), "killed")
    flags = label_pools.flags(pool.path, folder, "LabelPool.num_workers = 2")
    command = [sys.executable, "-m", "tools.train", *flags]
    with subprocess.Popen(command, cwd=ROOT) as process:
      deadline = time.monotonic() + 120
      while time.monotonic() < deadline:
        found = labels.read_state(folder, 0)
        if found is not None and found.state == "done":
          break
        time.sleep(0.05)
      process.kill()
    time.sleep(1.0)
    self.assertEmpty(self._find_workers(folder))  # They ended with it.
    process = subprocess.run(command, cwd=ROOT, check=False)
    self.assertEqual(process.returncode, 0)
    for label in range(5):
      a, b = values(folder, label), values(pool.folder, label)
      for name in a:
        np.testing.assert_array_equal(a[name], b[name])

  def _find_workers(self, folder):
    found = subprocess.run(
      ["pgrep", "-f", f"label_worker {folder}"],
      capture_output=True,
      text=True,
      check=False,
    )
    return found.stdout.split()

  @pytest.mark.soak
  def test_shards_train_their_labels_and_the_last_one_reports(self):
    path = label_pools.write_set(os.path.join(self.get_temp_dir(), "c.npz"))
    folder = os.path.join(self.get_temp_dir(), "shards")
    for i, number in enumerate((3, 2)):
      flags = label_pools.flags(path, folder)
      process = subprocess.run(
        [sys.executable, "-m", "tools.train", *flags, f"--label_shard={i}/2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
      )
      self.assertEqual(process.returncode, 0, process.stderr)
      self.assertIn(f"{number} of shard {i}/2", process.stdout)
      self.assertEqual("Report:" in process.stdout, i == 1)
    for label in (0, 4):
      a, b = values(folder, label), values(whole().folder, label)
      for name in a:
        np.testing.assert_array_equal(a[name], b[name])


if __name__ == "__main__":
  tf.test.main()
