"""Checkpoints are written beside training, and wait for a folder that fails."""

import contextlib
import io
import os
import re
import shutil
import subprocess
import threading
import time
from unittest import mock

import tensorflow as tf

from paragan_tf.outputs import checkpoints, patience, records, saving, stored
from paragan_tf.outputs.checkpoints import Checkpoints
from paragan_tf.outputs.g_info import GInfo
from paragan_tf.outputs.patience import FolderError
from paragan_tf.outputs.run_folder import RunFolder
from paragan_tf.outputs.step_copy import StepCopy
from paragan_tf.types import Entry

INFO = GInfo(8, 1, 3, z_dim=4)
SIZE = 1 << 18


class SavingTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)
    self.variable = tf.Variable(tf.zeros([SIZE]))
    self.entries = [Entry("w", (self.variable,), True)]
    self.saved = []
    self.words = self.enter_context(contextlib.redirect_stderr(io.StringIO()))

  def make(self, timeout=60.0):
    """Opens a run's folder, and makes what saves there."""
    self.run = RunFolder(self.folder, checkpoints.Writers(), timeout)
    self.run.open("", 0, INFO)
    self.addCleanup(self.run.close)
    self.saver = saving.Saver(
      self.run.checkpoints,
      lambda step: self.entries,
      self.run.make_patience("Checkpoints", timeout),
      lambda step, path: self.saved.append(step),
    )

  def read(self, path):
    (fresh,) = (Entry("w", (tf.Variable(tf.zeros([SIZE])),), True),)
    stored.restore(path, [fresh])
    return fresh.copies[0].numpy()

  def start(self, step):
    self.variable.assign(tf.fill([SIZE], float(step)))
    self.saver.start(step)

  def wait_for(self, is_so):
    deadline = time.monotonic() + 60.0
    while not is_so():
      self.assertLess(time.monotonic(), deadline, self.words.getvalue())
      time.sleep(0.01)

  def test_training_goes_on_while_values_of_the_step_are_written(self):
    self.make()
    go_on, write = threading.Event(), checkpoints._write

    def slow(prefix, values):
      go_on.wait(60.0)
      write(prefix, values)

    with mock.patch.object(checkpoints, "_write", slow):
      self.start(1)
      self.variable.assign_add(tf.ones([SIZE]))  # The next step.
      self.saver.poll()
      self.assertEqual(self.saved, [])
      self.assertIsNone(self.saver.last)
      go_on.set()
      self.saver.wait()
    self.assertEqual(self.saved, [1])
    self.assertAllEqual(self.read(self.saver.last), [1.0] * SIZE)

  def test_what_was_before_a_long_step_is_saved_within_it(self):
    self.make()
    self.start(1)
    copy = StepCopy(self.saver)
    self.assertIsNone(copy.save())
    paths = []

    def save():
      self.variable.assign(tf.fill([SIZE], 9.0))  # As the step does.
      paths.append(copy.save())

    thread = threading.Thread(target=save)
    with copy.during(2, self.entries):
      thread.start()
      thread.join()
      # The program would end now, and the block must not.
      would_end = copy._lock.acquire(timeout=0.2)
      copy._lock.release()
    self.assertFalse(would_end)
    self.assertEqual(paths, [self.run.checkpoints.path(2)])
    self.assertAllEqual(self.read(paths[0]), [1.0] * SIZE)

  def test_a_long_step_without_memory_or_folder_is_waited_for(self):
    self.make(timeout=0.1)
    copy = StepCopy(self.saver)
    little = mock.patch.object(saving, "available_memory", lambda: SIZE * 4.0)
    full = mock.patch.object(checkpoints, "_write", side_effect=OSError("full"))
    for patch in (little, full):
      with patch, copy.during(1, self.entries):
        path = copy.save()
        if path is not None:
          copy._lock.release()
      self.assertIsNone(path)
    self.assertIsNone(copy.save())

  def test_without_memory_for_a_copy_it_is_written_at_once(self):
    self.make()
    with (
      mock.patch.object(saving, "available_memory", lambda: SIZE * 4.0),
      mock.patch.object(saving, "_copy") as copy,
    ):
      self.start(1)
    copy.assert_not_called()
    self.assertEqual(self.saved, [1])
    self.assertGreater(saving.available_memory(), 1 << 20)

  def test_an_error_of_the_thread_reaches_the_run(self):
    self.make()
    wrong = mock.Mock(side_effect=ZeroDivisionError("no I/O"))
    with (
      mock.patch.object(checkpoints, "_write", wrong),
      self.assertRaisesRegex(ZeroDivisionError, "no I/O"),
    ):
      self.start(1)  # Raises it already if the thread is as fast.
      self.saver.wait()

  def test_the_next_save_waits_for_the_one_before(self):
    self.make()
    for step in (1, 2, 3):
      self.start(step)
    self.saver.wait()
    self.assertEqual(self.saved, [1, 2, 3])
    self.assertAllEqual(self.read(self.run.checkpoints.latest()), [3.0] * SIZE)

  def test_a_folder_that_vanishes_is_waited_for(self):
    self.make()
    self.start(1)
    self.saver.wait()
    os.rename(self.folder, f"{self.folder}.away")
    os.makedirs(self.folder)  # An empty mount point is no run's folder.
    self.start(2)
    self.run.log(2, {"d/loss": 0.5})
    self.wait_for(lambda: "Checkpoints" in self.words.getvalue())
    self.assertRegex(
      self.words.getvalue(), "Records in .* cannot be written .*gone"
    )
    self.assertEqual(os.listdir(self.folder), [])
    os.rmdir(self.folder)
    os.rename(f"{self.folder}.away", self.folder)
    self.saver.wait()
    self.run.write_report()
    self.assertAllEqual(self.read(self.run.checkpoints.latest()), [2.0] * SIZE)
    self.assertEqual([x["step"] for x in records.read(self.folder)], [2])
    self.assertRegex(self.words.getvalue(), "can be written again, after")

  def test_after_a_stated_time_it_ends_with_the_last_checkpoint(self):
    self.make(timeout=0.5)
    self.start(1)
    self.saver.wait()
    shutil.move(self.folder, f"{self.folder}.away")
    self.start(2)
    with self.assertRaisesRegex(FolderError, "cannot be written for 0.5 s"):
      self.saver.wait()
    with self.assertRaisesRegex(FolderError, "Records in"):
      while True:
        self.run.log(2, {"d/loss": 0.5})
        time.sleep(0.05)
    self.run._records = None

  def test_a_full_disk_is_waited_for(self):
    os.makedirs(self.folder)
    mounted = subprocess.run(
      ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", self.folder],
      capture_output=True,
      check=False,
    )
    if mounted.returncode:
      self.skipTest("Mounting takes root.")
    self.addCleanup(
      lambda: subprocess.run(["umount", "-l", self.folder], check=True)
    )
    self.make()
    self.start(1)
    self.saver.wait()
    filler = os.path.join(self.folder, "filler")
    with contextlib.suppress(OSError), open(filler, "wb", 0) as f:
      while True:
        f.write(bytes(1 << 12))
    self.run.log(1, {"d/loss": 0.5})
    self.start(2)
    self.run.log(2, {"d/loss": 0.25})
    self.wait_for(lambda: "Checkpoints" in self.words.getvalue())
    self.assertRegex(self.words.getvalue(), "(?i)no space left")
    self.assertAllEqual(self.read(self.run.checkpoints.latest()), [1.0] * SIZE)
    os.remove(filler)
    self.saver.wait()
    self.run.write_report()
    self.assertAllEqual(self.read(self.run.checkpoints.latest()), [2.0] * SIZE)
    self.assertEqual([x["step"] for x in records.read(self.folder)], [1, 2])

  def test_a_newer_save_takes_the_place_of_one_that_fails(self):
    self.make()
    with mock.patch.object(
      checkpoints, "_write", side_effect=OSError("no space left")
    ):
      self.start(1)
      self.wait_for(lambda: "no space left" in self.words.getvalue())
    self.start(2)
    self.saver.wait()
    self.assertEqual(self.saved, [2])
    steps = [
      re.findall(r"\d+$", x)[0] for x in Checkpoints(self.folder).paths()
    ]
    self.assertEqual(steps, ["2"])

  def test_a_timeout_below_zero_is_refused(self):
    with self.assertRaisesRegex(ValueError, "`Run.folder_timeout` .* got -1"):
      patience.Patience("Records", -1, lambda: None)


if __name__ == "__main__":
  tf.test.main()
