"""One run in a folder: real processes, and locks of hosts that are made up."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time

import tensorflow as tf

from paragan_tf.outputs import run_lock
from paragan_tf.outputs.run_lock import FILE, LockedError, LostError, RunLock

_SLEEPER = "import time; print(flush=True); time.sleep(60)"


class RunLockTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.get_temp_dir(), self._testMethodName)
    os.makedirs(self.folder)
    self.path = os.path.join(self.folder, FILE)
    self.lock = RunLock(self.folder, watch_seconds=0.6)
    self.addCleanup(self.lock.release)

  def write(self, **changes):
    """Writes the lock of another holder."""
    holder = run_lock.find_self()._replace(**changes)
    with open(self.path, "w") as f:
      f.write(json.dumps(holder._asdict()))

  def start(self):
    """Starts a process that has the lock, as its contents say."""
    process = subprocess.Popen(
      [sys.executable, "-c", _SLEEPER], stdout=subprocess.PIPE
    )
    self.addCleanup(process.communicate)
    self.addCleanup(process.kill)
    process.stdout.readline()
    self.write(pid=process.pid, began=run_lock._began(process.pid))
    return process

  def test_a_run_holds_it_until_it_is_released(self):
    self.lock.check()
    self.assertFalse(os.path.exists(self.path))  # Looking writes nothing.
    self.lock.take()
    self.assertTrue(self.lock.is_held())
    self.lock.release()
    self.assertEqual(os.listdir(self.folder), [])

  def test_a_second_process_is_refused_by_name(self):
    process = self.start()
    process.send_signal(signal.SIGSTOP)  # It holds it all the same.
    for refuse in (self.lock.check, self.lock.take):
      with self.assertRaisesRegex(
        LockedError, f"has a run already: process {process.pid} on host '"
      ):
        refuse()
    self.assertEqual(os.listdir(self.folder), [FILE])

  def test_one_of_a_process_that_has_ended_is_stale(self):
    process = self.start()
    process.kill()
    process.wait()
    self.lock.take()
    self.assertTrue(self.lock.is_held())

  def test_one_of_an_older_process_with_that_number_is_stale(self):
    process = self.start()
    self.write(pid=process.pid, began="1")
    self.lock.take()
    self.assertTrue(self.lock.is_held())

  def test_one_from_before_a_reboot_is_stale(self):
    process = self.start()
    began = run_lock._began(process.pid)
    self.write(pid=process.pid, began=began, boot="another")
    self.lock.take()

  def test_one_that_is_damaged_is_stale(self):
    with open(self.path, "w") as f:
      f.write("{")
    with contextlib.redirect_stdout(io.StringIO()):
      self.lock.take()

  def test_one_of_another_host_counts_while_it_is_touched(self):
    self.write(host="elsewhere", pid=7)
    process = subprocess.Popen(
      [
        sys.executable,
        "-c",
        f"import os, time\nwhile True:\n  os.utime({self.path!r})\n"
        "  time.sleep(0.1)",
      ]
    )
    self.addCleanup(process.wait)
    self.addCleanup(process.kill)
    with contextlib.redirect_stdout(io.StringIO()) as words:
      with self.assertRaisesRegex(LockedError, "process 7 on host 'elsewhere'"):
        self.lock.check()
      process.kill()
      process.wait()
      self.lock.take()
    self.assertIn("is of another host: waiting", words.getvalue())

  def test_its_holder_touches_it(self):
    self.lock.take()
    os.utime(self.path, (1, 1))
    self.lock._end.set()
    run_lock._BEAT_SECONDS, before = 0.05, run_lock._BEAT_SECONDS
    self.addCleanup(setattr, run_lock, "_BEAT_SECONDS", before)
    self.lock.take()
    os.utime(self.path, (1, 1))
    deadline = time.monotonic() + 10
    while os.stat(self.path).st_mtime == 1 and time.monotonic() < deadline:
      time.sleep(0.02)
    self.assertGreater(os.stat(self.path).st_mtime, 1)

  def test_one_that_was_taken_over_is_noticed(self):
    self.lock.take()
    self.write(host="elsewhere", pid=7)
    with self.assertRaisesRegex(LostError, "process 7 on host 'elsewhere'"):
      self.lock.is_held()
    self.lock.release()
    self.assertTrue(os.path.exists(self.path))  # It is the other's.
    os.remove(self.path)
    self.assertFalse(self.lock.is_held())

  def test_of_many_that_start_at_once_one_gets_it(self):
    code = (
      "import sys, time\n"
      "from paragan_tf.outputs.run_lock import RunLock, LockedError\n"
      "print(flush=True); sys.stdin.readline()\n"
      "try: RunLock(sys.argv[1]).take(); print('got', flush=True)\n"
      "except LockedError: print('refused', flush=True)\n"
      "sys.stdin.readline()\n"
    )
    self.write(pid=2**22 + 1, began="1")  # A stale one is there.
    processes = [
      subprocess.Popen(
        [sys.executable, "-c", code, self.folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
      )
      for _ in range(3)
    ]
    for process in processes:
      self.addCleanup(process.communicate)
      self.addCleanup(process.kill)
      process.stdout.readline()
    for process in processes:
      process.stdin.write("\n")
      process.stdin.flush()
    answers = [process.stdout.readline().strip() for process in processes]
    self.assertCountEqual(answers, ["got", "refused", "refused"])


if __name__ == "__main__":
  tf.test.main()
