"""Signals to real programs, at the start, in long calls and while they save.

Small programs stand in for the trainer, so that no test waits for TensorFlow.
"""

import http.server
import io
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import ClassVar
from unittest import mock

from absl.testing import absltest, parameterized

from paragan_tf import stopping, termination

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A call in C, without Python's lock, that no signal ends: a mutex, taken twice.
IN_C = (
  "mutex, lock = bytearray(64), ctypes.CDLL(None).pthread_mutex_lock\n"
  "mutex = (ctypes.c_char * 64).from_buffer(mutex)\n"
  "lock(mutex), lock(mutex)"
)

START = (
  "import ctypes, os, sys, time\n"
  "from paragan_tf import stopping\n"
  "stop = stopping.Stop({})\n"
  "stop.at_exit(lambda: print('lock released', flush=True))\n"
)
READY = "print('ready', flush=True)\n"


def start(code, hangup="SIG_DFL"):
  """Starts Python code; what a hangup does is not inherited from `nohup`."""
  first = f"import signal; signal.signal(signal.SIGHUP, signal.{hangup})\n"
  return subprocess.Popen(
    [sys.executable, "-c", first + code],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def program(*lines, grace=None):
  """Starts a program that installs the handlers, then runs lines."""
  return start(START.format(grace) + "\n".join(lines))


# Trains a little again and again, then saves for as long as it is told.
LOOP = (
  "stop.begin()",
  "stop.has_unsaved = True",
  READY,
  "while not stop.is_requested():",
  "  time.sleep(0.05)",
  "time.sleep({save})",
  "print('saved', flush=True)",
  "stop.has_unsaved = False",
  "sys.exit(stopping.EXIT_AGAIN)",
)


def loop(save=0.0, **options):
  """Starts a program whose save takes some seconds."""
  return program(*(x.replace("{save}", str(save)) for x in LOOP), **options)


class StoppingTest(parameterized.TestCase):
  def send(self, process, *numbers, between=0.3, after=0.0):
    """Sends signals to a program that is ready; returns how it ends."""
    self.addCleanup(process.kill)
    self.assertEqual(process.stdout.readline(), "ready\n")
    time.sleep(after)
    began = time.monotonic()
    for number in numbers:
      process.send_signal(number)
      time.sleep(between)
    out, err = process.communicate(timeout=30)
    self.seconds = time.monotonic() - began
    return process.returncode, out, err

  @parameterized.product(
    number=stopping.SIGNALS, where=("time.sleep(60)", IN_C)
  )
  def test_at_the_start_it_ends_with_its_own_code(self, number, where):
    code, out, err = self.send(program(READY, where), number)
    self.assertEqual((code, out), (130, "lock released\n"))
    self.assertRegex(err, "^Stopped by SIG.* at the start; nothing was trained")
    self.assertLess(self.seconds, 5.0)

  @parameterized.parameters(*stopping.SIGNALS)
  def test_in_training_it_saves_and_can_be_started_again(self, number):
    code, out, err = self.send(loop(save=0.5), number)
    self.assertEqual((code, out), (75, "saved\n"))
    self.assertRegex(err, "^Stopping, and saving .*; again to stop at once")
    self.assertLen(err.splitlines(), 1)

  def test_what_takes_a_signal_for_itself_does_not_keep_it(self):
    # As TensorFlow's service does, when processes connect.
    taken = "ctypes.CDLL(None).signal(15, ctypes.c_void_p(1))"
    lines = (x.replace("{save}", "0") for x in LOOP)
    process = program(taken, "time.sleep(1.0)", *lines)
    code, out, _ = self.send(process, signal.SIGTERM)
    self.assertEqual((code, out), (75, "saved\n"))

  def test_a_save_may_take_longer_than_anything_else(self):
    lines = ("stopping._IDLE_SECONDS = 0.3", *LOOP)
    process = program(*(x.replace("{save}", "1.0") for x in lines))
    code, out, _ = self.send(process, signal.SIGTERM)
    self.assertEqual((code, out), (75, "saved\n"))

  @parameterized.parameters("while True: pass", IN_C)
  def test_the_second_ends_it_at_once_wherever_it_is(self, where):
    lines = ("stop.begin()", "stop.has_unsaved = True", READY, where)
    for first, second in (
      (signal.SIGINT, signal.SIGINT),
      (signal.SIGTERM, signal.SIGINT),
    ):
      code, _, _ = self.send(program(*lines), first, second, between=0.2)
      self.assertEqual(code, -second)
      self.assertLess(self.seconds, 2.0)

  def test_a_call_that_has_nothing_to_save_is_cut_off(self):
    # As the first step's trace, or its compilation.
    code, out, err = self.send(
      program("stop.begin()", READY, IN_C), signal.SIGTERM
    )
    self.assertEqual((code, out), (75, "lock released\n"))
    self.assertIn("nothing was left to save", err)
    self.assertLess(self.seconds, 5.0)

  def test_a_grace_period_ends_what_takes_too_long(self):
    code, out, err = self.send(loop(save=60.0, grace=1.0), signal.SIGTERM)
    self.assertEqual((code, out), (75, "lock released\n"))
    self.assertIn("Stopped after 1 s of grace", err)
    self.assertLess(self.seconds, 3.0)

  def test_what_is_interruptible_is_cut_off_and_then_saved(self):
    code, out, _ = self.send(
      program(
        "stop.begin()",
        "stop.has_unsaved = True",
        READY,
        "try:",
        "  with stop.interruptible():",
        "    while True: time.sleep(0.01)",
        "except stopping.Stopped:",
        "  print('cut off', stop.is_requested())",
        "sys.exit(stopping.EXIT_AGAIN)",
      ),
      signal.SIGINT,
    )
    self.assertEqual((code, out), (75, "cut off True\n"))
    self.assertLess(self.seconds, 2.0)

  def test_a_long_step_is_ended_by_saving_what_was_before_it(self):
    in_c = IN_C.replace("\n", "\n  ")
    code, out, err = self.send(
      program(
        "stop.begin()",
        "stop.has_unsaved = True",
        "with stop.late(lambda: 'ckpt-7'), stop.interruptible():",
        f"  {READY}  {in_c}",
        grace=3.0,
      ),
      signal.SIGTERM,
      after=0.2,  # Not before it is in C.
    )
    self.assertEqual((code, out), (75, "lock released\n"))
    self.assertIn("what was before it is saved: ckpt-7.", err)
    self.assertLess(self.seconds, 3.0)

  def test_where_nothing_can_be_saved_a_long_step_ends_first(self):
    code, out, _ = self.send(
      program(
        "stop.begin()",
        "stop.has_unsaved = True",
        "with stop.late(lambda: None):",
        "  print('ready', flush=True)",
        "  time.sleep(1.0)",
        "print('saved', flush=True)",
        "sys.exit(stopping.EXIT_AGAIN)",
        grace=1.6,
      ),
      signal.SIGTERM,
    )
    self.assertEqual((code, out), (75, "saved\n"))

  def test_what_is_being_finished_is_finished_first(self):
    code, out, _ = self.send(
      program(
        "stopping._IDLE_SECONDS = 0.3",
        "stop.begin()",
        "try:",
        "  with stop.interruptible():",
        "    with stop.finishing():",
        "      print('ready', flush=True)",
        "      time.sleep(0.8)",
        "      print('written', flush=True)",
        "    time.sleep(60.0)",
        "except stopping.Stopped:",
        "  sys.exit(stopping.EXIT_AGAIN)",
      ),
      signal.SIGTERM,
    )
    self.assertEqual((code, out), (75, "written\n"))
    self.assertLess(self.seconds, 5.0)

  @parameterized.parameters(
    *((number, "time.sleep(60)") for number in stopping.SIGNALS),
    (signal.SIGINT, f"stopping._IDLE_SECONDS = 0.3\n{IN_C}"),
  )
  def test_any_program_ends_with_one_sentence(self, number, where):
    lines = ["import ctypes, time", "from paragan_tf import stopping"]
    lines += ["from tools import cli", "def main():"]
    lines += [f"  {line}" for line in (READY.strip(), *where.splitlines())]
    process = start("\n".join([*lines, "cli.run(main)"]))
    code, out, err = self.send(process, number)
    self.assertEqual((code, out), (130, ""))
    name = signal.Signals(number).name
    self.assertEqual(
      err, f"Stopped by {name}; what was not finished is not there.\n"
    )
    self.assertLess(self.seconds, 5.0)

  def test_under_nohup_a_hangup_is_ignored(self):
    lines = [x.replace("{save}", "0.5") for x in LOOP]
    code = START.format(None) + "\n".join(lines)
    process = start(code, hangup="SIG_IGN")
    code, _, err = self.send(process, signal.SIGHUP, signal.SIGTERM)
    self.assertEqual(code, 75)
    self.assertIn("SIGTERM", err)

  def test_a_notice_saves_and_a_signal_after_it_does_not_kill(self):
    process = program(
      "import threading",
      "stop.begin()",
      "stop.has_unsaved = True",
      "threading.Timer(0.2, stop.request, ['a notice']).start()",
      READY,
      "try:",
      "  with stop.interruptible():",
      "    while True: time.sleep(0.01)",
      "except stopping.Stopped:",
      "  time.sleep(1.0)",
      "  print('saved', flush=True)",
      "sys.exit(stopping.EXIT_AGAIN)",
    )
    time.sleep(0.6)
    code, out, err = self.send(process, signal.SIGTERM)
    self.assertEqual((code, out), (75, "saved\n"))
    self.assertIn("(a notice)", err)

  def test_a_grace_period_must_be_some_time(self):
    with self.assertRaisesRegex(ValueError, "`--grace_seconds` .* above 0"):
      stopping.Stop(grace_seconds=0.0)
    with self.assertRaisesRegex(ValueError, "`--grace_seconds` .* got nan"):
      stopping.Stop(grace_seconds=float("nan"))


class Metadata(http.server.BaseHTTPRequestHandler):
  """The metadata server of Compute Engine, as far as it is asked."""

  answers: ClassVar[dict] = {}

  def do_GET(self):
    name = self.path.rpartition("/")[2]
    known = self.headers["Metadata-Flavor"] == "Google"
    self.send_response(200 if known and name in self.answers else 404)
    self.end_headers()
    self.wfile.write(self.answers.get(name, "").encode())

  def log_message(self, *args):
    pass


class TerminationTest(absltest.TestCase):
  def test_compute_engine_announces_maintenance_and_preemption(self):
    server = http.server.HTTPServer(("127.0.0.1", 0), Metadata)
    self.addCleanup(server.server_close)
    self.addCleanup(server.shutdown)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f"127.0.0.1:{server.server_port}"
    quiet = {"preempted": "FALSE", "maintenance-event": "NONE"}
    with mock.patch.dict(os.environ, GCE_METADATA_HOST=host):
      for answers, expected in (
        (quiet, None),
        ({}, None),
        ({**quiet, "preempted": "TRUE"}, "`preempted` TRUE"),
        (
          {**quiet, "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"},
          "`maintenance-event` TERMINATE",
        ),
      ):
        Metadata.answers = answers
        found = termination.gce()
        if expected is None:
          self.assertIsNone(found)
        else:
          self.assertIn(expected, found)
    # Elsewhere there is no such server.
    with mock.patch.dict(os.environ, GCE_METADATA_HOST="127.0.0.1:1"):
      self.assertIsNone(termination.gce())

  def test_a_watcher_is_asked_until_it_has_a_reason(self):
    answers, heard = iter([None, None, "the end"]), []
    watch = termination.Watch(lambda: next(answers), heard.append, every=0.01)
    deadline = time.monotonic() + 10
    while not heard and time.monotonic() < deadline:
      time.sleep(0.01)
    watch.close()
    self.assertEqual(heard, ["the end"])

  def test_a_watcher_that_fails_is_asked_again_and_that_is_said_once(self):
    answers = mock.Mock(side_effect=[OSError("away"), OSError("away"), "end"])
    heard = []
    with mock.patch.object(sys, "stderr", io.StringIO()) as words:
      watch = termination.Watch(answers, heard.append, every=0.01)
      deadline = time.monotonic() + 10
      while not heard and time.monotonic() < deadline:
        time.sleep(0.01)
      watch.close()
    self.assertEqual(heard, ["end"])
    self.assertEqual(words.getvalue().count("failed and is asked again"), 1)

  def test_what_cannot_be_asked_is_refused(self):
    for watcher, words in (
      (lambda real, fake: None, "asked once, it failed: .*positional"),
      (lambda: 3, "as a text, or None, got int"),
    ):
      with self.assertRaisesRegex(ValueError, words):
        termination.check(watcher)
    for watcher in (None, lambda: None, lambda: "now"):
      termination.check(watcher)

  def test_a_file_is_a_notice(self):
    with tempfile.NamedTemporaryFile() as file:
      self.assertRegex(termination.file(file.name), "file '.*'")
    self.assertIsNone(termination.file(file.name))


if __name__ == "__main__":
  absltest.main()
