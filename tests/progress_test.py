"""Progress is a bar on a terminal, and few lines elsewhere."""

import contextlib
import fcntl
import io
import os
import pty
import struct
import termios
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.outputs import progress


class Terminal(io.StringIO):
  def isatty(self):
    return True


def read_all(terminal):
  """Reads until the other end is closed, then closes this one."""
  data = b""
  with (
    os.fdopen(terminal, "rb", buffering=0) as f,
    contextlib.suppress(OSError),
  ):
    while chunk := f.read(4096):
      data += chunk
  return data.decode()


class ProgressTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.now = 1000.0
    self.enter_context(
      mock.patch.object(progress.time, "monotonic", lambda: self.now)
    )

  def update(self, bar, step, at):
    """Updates `at` seconds after the start."""
    self.now = 1000.0 + at
    bar.update(step, 1234.4, d_loss=0.69314, g_loss=1.5, input_wait=0.034)

  def lines_of(self, updates, num_steps=1000, start_step=0):
    stream = io.StringIO()
    bar = progress.Progress(num_steps, start_step, stream)
    for step, at in updates:
      self.update(bar, step, at)
    bar.close()
    return stream.getvalue().splitlines()

  def test_line_has_all_values(self):
    self.assertEqual(
      self.lines_of([(1000, 5)]),
      [
        "step 1000/1000, 00:00 left, 1234 images/s, d 0.693 g 1.500, "
        "input wait 3%"
      ],
    )

  def test_first_last_and_one_line_every_ten_seconds(self):
    lines = self.lines_of([(i, i) for i in range(1, 26)], num_steps=25)
    steps = [line.split(",")[0] for line in lines]
    self.assertEqual(
      steps, ["step 1/25", "step 11/25", "step 21/25", "step 25/25"]
    )

  def test_run_that_stops_early_prints_its_last_step_once(self):
    lines = self.lines_of([(10, 1), (20, 2), (30, 3)])
    steps = [line.split(",")[0] for line in lines]
    self.assertEqual(steps, ["step 10/1000", "step 30/1000"])

  def test_readers_of_the_input_are_shown(self):
    stream = io.StringIO()
    bar = progress.Progress(10, 0, stream)
    bar.update(10, 1.0, 1.0, 1.0, 0.5, (4.0, 16.0))
    self.assertIn("input wait 50%, 4 readers 16 ahead", stream.getvalue())

  def test_last_step_is_printed_at_once(self):
    stream = io.StringIO()
    bar = progress.Progress(2, 0, stream)
    self.update(bar, 1, at=1)
    self.update(bar, 2, at=2)
    self.assertEqual(stream.getvalue().count("\n"), 2)

  def test_no_update_prints_no_line(self):
    self.assertEqual(self.lines_of([]), [])

  @parameterized.named_parameters(
    # 60 s to trace, then 100 steps in 10 s: 800 steps take 80 s.
    ("tracing_does_not_count", [(100, 60), (200, 70)], 0, "01:20"),
    # All that is known after one update is the time since the start.
    ("first_update", [(100, 60)], 0, "09:00"),
    ("steps_before_a_resume_do_not_count", [(600, 10)], 500, "00:40"),
    ("nothing_done_yet", [(500, 10)], 500, "?"),
    ("hours", [(100, 1000), (200, 2000)], 0, "2:13:20"),
  )
  def test_time_left(self, updates, start_step, expected):
    line = self.lines_of(updates, start_step=start_step)[-1]
    self.assertEqual(line.split(", ")[1], f"{expected} left")

  def test_losses_that_are_not_finite_are_shown(self):
    stream = io.StringIO()
    bar = progress.Progress(10, 0, stream)
    bar.update(10, float("nan"), float("nan"), float("inf"), 0.0)
    self.assertIn("nan images/s, d nan g inf", stream.getvalue())

  @parameterized.named_parameters(
    ("bar", Terminal, "\r"), ("lines", io.StringIO, "")
  )
  def test_note_is_a_line_of_its_own(self, make_stream, before):
    stream = make_stream()
    bar = progress.Progress(100, 0, stream)
    self.update(bar, 10, at=1)
    bar.note("Saved.")
    self.update(bar, 100, at=2)
    bar.close()
    bar.note("Done.")
    text = stream.getvalue()
    self.assertIn(before + "Saved.\n", text)
    self.assertEndsWith(text, "\nDone.\n")
    self.assertEqual(text.count("Saved."), 1)

  def test_bar_has_all_values_on_one_line(self):
    stream = Terminal()
    bar = progress.Progress(1000, 500, stream)
    self.update(bar, 600, at=10)
    self.update(bar, 750, at=15)
    bar.close()
    bar.close()
    text = stream.getvalue()
    self.assertEqual(text.count("\n"), 1)
    self.assertStartsWith(text.strip("\r"), " 50%|")
    last = text.strip().split("\r")[-1]
    self.assertStartsWith(last, " 75%|")
    self.assertEndsWith(
      last, "| 750/1000 00:08 left 1234 images/s d 0.693 g 1.500 input wait 3%"
    )

  @parameterized.parameters(40, 80, 200)
  def test_bar_fits_its_terminal(self, columns):
    reader, writer = pty.openpty()
    size = struct.pack("HHHH", 24, columns, 0, 0)
    fcntl.ioctl(writer, termios.TIOCSWINSZ, size)
    with os.fdopen(writer, "w") as stream:
      bar = progress.Progress(100000, 0, stream)
      self.update(bar, 20000, at=10)
      bar.close()
    text = read_all(reader)
    shown = [part for part in text.split("\r") if "20000/100000" in part]
    self.assertNotEmpty(shown)
    self.assertLessEqual(max(map(len, shown)), columns)
    self.assertGreaterEqual(max(map(len, shown)), columns - 2)

  def test_standard_error_is_the_default(self):
    with mock.patch.object(progress.sys, "stderr", io.StringIO()) as stream:
      bar = progress.Progress(10, 0)
      self.update(bar, 10, at=1)
    self.assertStartsWith(stream.getvalue(), "step 10/10")


class CounterTest(tf.test.TestCase):
  def setUp(self):
    super().setUp()
    self.now = 1000.0
    self.enter_context(
      mock.patch.object(progress.time, "monotonic", lambda: self.now)
    )

  def test_long_work_has_a_line_every_ten_seconds(self):
    stream = io.StringIO()
    counter = progress.Counter("images", stream)
    for done in range(100, 1001, 100):
      self.now += 3.0
      counter(done, 1000)
    self.assertEqual(
      stream.getvalue().splitlines(),
      ["images 400/1,000, 00:18 left", "images 800/1,000, 00:06 left"],
    )

  def test_short_work_has_none(self):
    stream = io.StringIO()
    counter = progress.Counter("images", stream)
    counter(5, 10)
    counter(10, 10)
    self.assertEqual(stream.getvalue(), "")

  def test_a_terminal_shows_a_bar(self):
    stream = Terminal()
    counter = progress.Counter("images", stream)
    for done in (5, 10):
      self.now += 1.0
      counter(done, 10)
    self.assertIn("images:", stream.getvalue())


if __name__ == "__main__":
  tf.test.main()
