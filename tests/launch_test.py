"""The launcher as a user meets it: real processes, signals and sockets.

Small programs stand in for the trainer, so that no test waits for TensorFlow.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

from absl.testing import absltest, parameterized

from tools import launch, relay

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Programs of the workers; `i` is the index of the one that runs.
INDEX = (
  "import json, os, signal, socket, sys, time\n"
  "config = json.loads(os.environ['TF_CONFIG'])\n"
  "i = config['task']['index']\n"
)
# Says `ready` with its number and sleeps.
READY = "print('ready', os.getpid(), flush=True)\ntime.sleep(60)\n"
IGNORE = "signal.signal(signal.{}, signal.SIG_IGN)\n"


def start(program, num_workers=2, grace_seconds=10.0, stderr=subprocess.PIPE):
  """Starts a launcher whose workers run `program`."""
  code = (
    "import sys; from tools import launch\n"
    f"command = [sys.executable, '-IS', '-c', {INDEX + program!r}]\n"
    f"sys.exit(launch.run(command, {num_workers}, 0, {grace_seconds}).code)"
  )
  return subprocess.Popen(
    [sys.executable, "-c", code],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=stderr,
    text=True,
  )


def launch_tool(*arguments):
  """Runs the program with the real trainer and returns the ended process."""
  return subprocess.run(
    [sys.executable, "-m", "tools.launch", *arguments],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


def is_alive(pid):
  """Returns whether a process runs; one that waits for its parent does not."""
  with contextlib.suppress(FileNotFoundError):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
  return False


class LaunchTest(parameterized.TestCase):
  def end(self, launcher, timeout=20.0):
    """Returns exit code, output and errors of a launcher that ends in time."""
    self.addCleanup(launcher.kill)
    out, err = launcher.communicate(timeout=timeout)
    return launcher.returncode, out, err

  def wait_until_ready(self, launcher):
    """Returns the process numbers of the workers, in their order."""
    self.addCleanup(launcher.kill)
    lines = sorted(launcher.stdout.readline() for _ in range(2))
    return [int(re.fullmatch(r".* ready (\d+)\n", x)[1]) for x in lines]

  def assert_gone(self, pids):
    deadline = time.monotonic() + 5.0
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
      time.sleep(0.05)
    self.assertEmpty([pid for pid in pids if is_alive(pid)])

  def test_each_worker_has_its_index_and_a_free_port_of_one_cluster(self):
    program = (
      "host, port = config['cluster']['worker'][i].split(':')\n"
      "socket.create_server((host, int(port)))\n"
      "print(json.dumps(config))\n"
    )
    code, out, err = self.end(start(program, num_workers=3))
    self.assertEqual((code, err), (0, ""))
    lines = sorted(out.splitlines())
    configs = [json.loads(line.partition("] ")[2]) for line in lines]
    self.assertLen(configs, 3)
    for i, (config, line) in enumerate(zip(configs, lines)):
      self.assertStartsWith(line, f"[worker {i}] ")
      self.assertEqual(config["task"], {"type": "worker", "index": i})
      self.assertEqual(config["cluster"], configs[0]["cluster"])
    self.assertLen(set(configs[0]["cluster"]["worker"]), 3)

  def test_threads_are_limited_only_if_asked(self):
    names = ["OMP_NUM", "TF_NUM_INTRAOP", "TF_NUM_INTEROP"]
    for environment in launch.make_environments(2, threads_per_worker=3):
      self.assertEqual([environment[f"{x}_THREADS"] for x in names], ["3"] * 3)
    for environment in launch.make_environments(2):
      self.assertCountEqual(environment, ["PYTHONUNBUFFERED", "TF_CONFIG"])

  def test_lines_stay_whole_and_keep_their_stream(self):
    program = (
      "for n in range(200):\n"
      "  for part in (str(i) * 50, str(i) * 50 + '\\n'):\n"
      "    os.write(1 + n % 2, part.encode())\n"
      "os.write(1, b'no end')"
    )
    code, out, err = self.end(start(program))
    self.assertEqual(code, 0, err)
    for text, extra in ((out, 1), (err, 0)):
      lines = text.splitlines()
      for i in range(2):
        self.assertEqual(lines.count(f"[worker {i}] {str(i) * 100}"), 100)
        self.assertEqual(lines.count(f"[worker {i}] no end"), extra)
      self.assertLen(lines, 2 * (100 + extra))

  def test_long_lines_of_both_streams_stay_whole_in_one_file(self):
    program = (
      "for n in range(40):\n"
      "  os.write(1 + n % 2, (str(i) * 50000 + '\\n').encode())\n"
    )
    code, out, _ = self.end(start(program, stderr=subprocess.STDOUT))
    self.assertEqual(code, 0)
    whole = [f"[worker {i}] {str(i) * 50000}" for i in range(2)]
    self.assertEqual([out.splitlines().count(x) for x in whole], [40, 40])

  @parameterized.named_parameters(
    ("plain", [b"a\nb", b"c\n\nd"], [b"a", b"bc", b"", b"d"]),
    ("windows", [b"a\r\nb\r", b"\nc"], [b"a", b"b", b"c"]),
    ("bar", [b"\r1%", b"\r2%", b"\r3%", b"\r4%\n"], [b"1%", b"3%", b"4%"]),
    ("cut_bar", [b"1%\r", b"2%\r"], [b"1%", b"2%"]),
  )
  def test_a_bar_is_shown_now_and_then_and_at_its_end(self, chunks, expected):
    times = iter(range(0, 1000, 6))  # One reading for each state of a bar.
    lines = relay.Lines(clock=lambda: next(times))
    found = [line for chunk in chunks for line in lines.feed(chunk)]
    self.assertEqual([*found, *lines.flush()], expected)

  def test_one_that_fails_ends_the_others_and_gives_its_code(self):
    program = "if i == 1:\n  sys.exit(7)\n" + READY
    began = time.monotonic()
    code, out, err = self.end(start(program, num_workers=3))
    self.assertLess(time.monotonic() - began, 5.0)
    self.assertEqual(code, 7)
    self.assertRegex(err, r"^Worker 1 failed with exit code 7\b.*\n$")
    self.assert_gone([int(x.split()[-1]) for x in out.splitlines()])

  def test_one_that_ignores_the_request_is_killed_after_a_while(self):
    launcher = start(IGNORE.format("SIGTERM") + READY, grace_seconds=1.0)
    pids = self.wait_until_ready(launcher)
    began = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    self.assertEqual(self.end(launcher)[0], 137)
    self.assertBetween(time.monotonic() - began, 1.0, 5.0)
    self.assert_gone(pids)

  def test_one_killed_by_a_signal_gives_its_number_and_128(self):
    launcher = start("os.kill(os.getpid(), 9 * i)\n" + READY)
    code, _, err = self.end(launcher)
    self.assertEqual(code, 137)
    self.assertIn("Worker 1 failed by signal 9 (exit code 137)", err)

  @parameterized.parameters(signal.SIGINT, signal.SIGTERM)
  def test_a_stop_is_passed_on_once_and_waited_for(self, number):
    program = (
      "def save(number, _):\n"
      "  time.sleep(0.3)\n"
      "  print('saved after', number)\n"
      "  sys.exit(0)\n"
      f"signal.signal({number:d}, save)\n" + READY
    )
    launcher = start(program, grace_seconds=0.0)
    pids = self.wait_until_ready(launcher)
    launcher.send_signal(number)
    code, out, err = self.end(launcher)
    self.assertEqual((code, err), (0, ""))
    words = [f"[worker {i}] saved after {number:d}" for i in range(2)]
    self.assertCountEqual(out.splitlines(), words)
    self.assert_gone(pids)

  def test_the_second_stop_kills(self):
    launcher = start(IGNORE.format("SIGINT") + READY)
    pids = self.wait_until_ready(launcher)
    launcher.send_signal(signal.SIGINT)
    time.sleep(0.3)
    self.assertIsNone(launcher.poll())
    launcher.send_signal(signal.SIGINT)
    code, _, err = self.end(launcher, timeout=5.0)
    self.assertEqual(code, 130)
    self.assertRegex(err, r"^Stopped at once.*\n$")
    self.assert_gone(pids)

  def test_a_hangup_is_passed_on_and_again_is_no_failure(self):
    program = (
      "def save(number, _):\n"
      "  sys.exit(75)\n"
      "signal.signal(signal.SIGHUP, save)\n" + READY
    )
    launcher = start(program)
    pids = self.wait_until_ready(launcher)
    launcher.send_signal(signal.SIGHUP)
    code, out, err = self.end(launcher)
    self.assertEqual((code, out, err), (75, "", ""))
    self.assert_gone(pids)

  def test_after_a_failure_all_are_started_again_with_backoff(self):
    Ended = launch.Ended
    for codes, restarts, expected, waited in (
      ([137, 1, 0], 5, 0, [1.0, 2.0]),
      ([75, 75, 75], 2, 75, [1.0, 2.0]),
      ([137], 0, 137, []),
      ([2], 5, 2, []),  # The same flags would be as wrong.
      ([130], 5, 130, []),
    ):
      left, waits = list(codes), []
      code = launch.run_again(
        lambda left=left: Ended(left.pop(0), False), restarts, waits.append
      )
      self.assertEqual((code, waits, left), (expected, waited, []))
    # Who tells it to stop does not want another start.
    self.assertEqual(
      launch.run_again(lambda: Ended(75, True), 5, self.fail), 75
    )

  def test_nobody_outside_reaches_workers_that_are_fenced(self):
    program = (
      "host, port = config['cluster']['worker'][i].split(':')\n"
      # As TensorFlow's servers do.
      "server = socket.create_server(('0.0.0.0', int(port)))\n"
      "time.sleep(1.0)\n"
      "for address in config['cluster']['worker']:\n"
      "  host, port = address.split(':')\n"
      "  socket.create_connection((host, int(port)), 5.0)\n"
      "print('ready', port, os.environ.get('PARAGAN_WORKERS_FENCED'), "
      "flush=True)\n"
      "time.sleep(60)\n"
    )
    code = (
      "import sys; from tools import fence, launch\n"
      "reason = fence.enter()\n"
      "if reason: sys.exit(reason)\n"
      f"command = [sys.executable, '-IS', '-c', {INDEX + program!r}]\n"
      "launch.run(command, 2, is_fenced=True)"
    )
    launcher = subprocess.Popen(
      [sys.executable, "-c", code],
      cwd=ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    self.addCleanup(launcher.communicate)
    self.addCleanup(launcher.kill)
    line = launcher.stdout.readline()
    if not line:
      self.skipTest(f"Network namespaces: {launcher.stderr.read()}")
    port = int(re.search(r"ready (\d+) 1", line)[1])
    with self.assertRaises(ConnectionRefusedError):
      socket.create_connection(("127.0.0.1", port), 5.0)

  def test_a_worker_takes_what_it_started_with_it(self):
    child = "os.execlp('sleep', 'sleep', '60')"
    program = f"pid = os.fork()\nif not pid:\n  {child}\nprint('child', pid)\n"
    code, out, err = self.end(start(program), timeout=5.0)
    self.assertEqual((code, err), (0, ""))
    self.assert_gone([int(x.split()[-1]) for x in out.splitlines()])

  def test_nobody_outlives_a_launcher_that_is_killed(self):
    launcher = start(IGNORE.format("SIGTERM") + READY)
    pids = self.wait_until_ready(launcher)
    launcher.kill()
    self.end(launcher)
    self.assert_gone(pids)

  def test_workers_stop_when_nobody_reads_them(self):
    program = "while True:\n  print('x' * 1000)\n"
    launcher = start(program)
    self.addCleanup(launcher.kill)
    launcher.stdout.readline()
    launcher.stdout.close()
    self.assertEqual(launcher.wait(timeout=5.0), 128 + signal.SIGTERM)
    launcher.stderr.close()

  @parameterized.named_parameters(
    ("no_worker", ["--num_workers=0", "--", "--x"], "least 1, got 0"),
    ("restarts", ["--restarts=-1", "--", "--x"], "least 0, got -1"),
    ("threads", ["--threads_per_worker=-1", "--", "--x"], "least 0, got -1"),
    ("no_flags", ["--num_workers=2"], "must follow `--`, got none"),
    ("nothing_after", ["--"], "must follow `--`, got none"),
    ("a_word", ["4", "--", "--x"], "takes flags only, got '4'"),
    ("no_dashes", ["--gin_file=x"], "gin_file"),
    ("a_kind", ["--print=pbs", "--", "--x"], "slurm.*gcloud, got 'pbs'"),
  )
  def test_a_mistake_is_one_sentence(self, arguments, words):
    process = launch_tool(*arguments)
    self.assertEqual(process.returncode, 2, process.stderr)
    self.assertRegex(process.stderr, f"^Error: .*{words}.*\n$")
    self.assertEmpty(process.stdout)

  def test_a_mistake_that_the_trainer_finds_comes_through(self):
    process = launch_tool("--num_workers=1", "--", "--gin_file=a b.gin")
    self.assertEqual(process.returncode, 2)
    *_, first, last = process.stderr.splitlines()
    self.assertRegex(first, r"^\[worker 0\] Error: .*model_dir")
    self.assertStartsWith(last, "Worker 0 failed with exit code 2")

  def test_a_script_is_printed_and_nothing_started(self):
    process = launch_tool("--print=slurm", "--num_workers=5", "--", "--x=y z")
    self.assertEqual((process.returncode, process.stderr), (0, ""))
    self.assertIn("#SBATCH --nodes=5\n", process.stdout)
    self.assertIn("'--x=y z'", process.stdout)

  def test_it_starts_at_once_without_tensorflow(self):
    code = "import sys, tools.launch; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


if __name__ == "__main__":
  absltest.main()
