"""Trains with several processes of this machine, or prints a cluster script.

python -m tools.launch --num_workers=2 -- --gin_file=... --model_dir=...
python -m tools.launch --num_workers=8 --print=slurm -- --gin_file=... > job.sh

What follows `--` goes to `tools.train`. The workers end together:

    one fails             SIGTERM to the others, SIGKILL after a grace time
    Ctrl-C, SIGTERM, ...  passed on, so that they save; the second one kills

With `--restarts=K` all are started again, up to K times, if one of them fails
but for a user's mistake; they resume at the last checkpoint. The workers are in
a network of their own, where that is possible.
"""

import contextlib
import json
import math
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from typing import (
  Callable,
  Dict,
  List,
  Mapping,
  NamedTuple,
  Optional,
  Sequence,
  Tuple,
)

from absl import flags

from paragan_tf import child_process, shipped, stopping
from tools import cli, fence, relay, scripts

_NUM_WORKERS = flags.DEFINE_integer("num_workers", 2, "Number of processes.")
_THREADS_PER_WORKER = flags.DEFINE_integer(
  "threads_per_worker", 0, "Threads of each; 0 leaves it to TensorFlow."
)
_PRINT = flags.DEFINE_string(
  "print",
  None,
  f"Starts nothing, prints a script for {', '.join(scripts.KINDS)}.",
)
_RESTARTS = flags.DEFINE_integer(
  "restarts", 0, "Starts all again this often after one has failed."
)
_FENCE = flags.DEFINE_enum(
  "fence",
  "auto",
  ["auto", "on", "off"],
  "Keeps the workers in a network of their own: if possible, always, never.",
)

_POLL_SECONDS = 0.05
_RELAY_SECONDS = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Mistakes that another start would repeat, and starts that were interrupted.
_FINAL_CODES = (0, 2, stopping.EXIT_INTERRUPTED)
_MAX_BACKOFF = 60.0


def main():
  """Reads the flags, then starts the workers or prints a script."""
  train_flags = _get_train_flags(sys.argv)
  cli.exit_on_error(lambda: _check(flags.FLAGS(sys.argv)[1:], train_flags))
  if _PRINT.value is not None:
    print(
      cli.exit_on_error(lambda: _render(str(_PRINT.value), train_flags)), end=""
    )
    return
  if _is_per_label(train_flags):
    cli.fail(
      "A GAN for each label needs no launch on one machine: `tools.train` "
      "starts `LabelPool.num_workers` processes; or print a script with "
      "`--print`."
    )
  command = [sys.executable, "-m", "paragan_tf", "train", *train_flags]
  is_fenced = cli.exit_on_error(lambda: enter_fence(train_flags))
  sys.exit(
    run_again(
      lambda: run(
        command,
        _NUM_WORKERS.value,
        _THREADS_PER_WORKER.value,
        is_fenced=is_fenced,
      ),
      _RESTARTS.value,
    )
  )


def enter_fence(train_flags: Sequence[str]) -> bool:
  """Fences the workers off as `--fence` says; returns whether they are."""
  if _FENCE.value == "off" or _NUM_WORKERS.value < 2:
    return False
  remote = [flag for flag in train_flags if "://" in flag]
  if _FENCE.value == "auto" and remote:
    return False  # They need the network; the trainer warns.
  reason = fence.enter()
  if reason is None:
    print(
      "The workers are in a network of their own: nobody else reaches their "
      "ports, and they reach nobody (`--fence=off` if data must be fetched).",
      file=sys.stderr,
      flush=True,
    )
  elif _FENCE.value == "on":
    raise ValueError(
      f"`--fence=on` needs a network namespace, which this machine refuses "
      f"({reason}): allow user namespaces, or see docs/security.md."
    )
  return reason is None


def run_again(
  run_once: Callable[[], "Ended"], restarts: int, wait=time.sleep
) -> int:
  """Runs, again after failures, and waits longer before each; returns a code.

  A run that was told to stop, or whose flags are wrong, is not run again.
  """
  for restart in range(restarts + 1):
    ended = run_once()
    is_over = ended.code in _FINAL_CODES or ended.is_stopped
    if is_over or restart == restarts:
      return ended.code
    seconds = min(_MAX_BACKOFF, 2.0**restart)
    print(
      f"Starting all workers again in {seconds:g} s ({restart + 1} of "
      f"{restarts}): they resume at the last checkpoint.",
      file=sys.stderr,
      flush=True,
    )
    wait(seconds)
  raise AssertionError("Not reached.")


class Ended(NamedTuple):
  """How the workers ended.

  Attributes:
    code: 0, or that of the first failure.
    is_stopped: Whether a signal to the launcher was the reason.
  """

  code: int
  is_stopped: bool


def _render(kind: str, train_flags: Sequence[str]) -> str:
  num = _NUM_WORKERS.value
  scripts.render(kind, num, train_flags)  # Refused before TensorFlow starts.
  return scripts.render(kind, num, train_flags, _is_per_label(train_flags))


def _is_per_label(train_flags: Sequence[str]) -> bool:
  """Returns whether the flags train a GAN for each label.

  Only a config that names what does it is read: TensorFlow is slow to import.
  """
  files, bindings = scripts.read_config_flags(train_flags)
  if not any(map(_may_be_per_label, [*files, *bindings])):
    return False
  training = cli.import_quietly("paragan_tf.training")
  return training.is_per_label(files, bindings)


def _may_be_per_label(text: str) -> bool:
  """Returns whether a binding, or a file or one that it includes, names it."""
  if "label_pool" in text or "per_label" in text:
    return True
  paths = (pathlib.Path(text), shipped.ROOT / text)
  path = next((x for x in paths if "=" not in text and x.is_file()), None)
  if path is None:
    return False
  content = path.read_text(errors="replace")
  found = re.findall(r"^include '(.+)'", content, re.M)
  return "LabelPool" in content or any(map(_may_be_per_label, found))


def run(
  command: Sequence[str],
  num_workers: int,
  threads_per_worker: int = 0,
  grace_seconds: float = 10.0,
  is_fenced: bool = False,
) -> Ended:
  """Runs `command` in each worker until all have ended."""
  workers = Workers(grace_seconds)
  environments = make_environments(num_workers, threads_per_worker)
  if is_fenced:
    environments = [{**x, fence.ENVIRONMENT: "1"} for x in environments]
  try:
    workers.start(command, environments)
    return Ended(workers.wait(), workers.is_stopped)
  finally:
    workers.send(signal.SIGKILL)


def make_environments(
  num_workers: int, threads_per_worker: int = 0
) -> List[Dict[str, str]]:
  """Returns the variables of each worker, on top of our environment."""
  shared = {"PYTHONUNBUFFERED": "1"}  # Else lines come in blocks, and late.
  if threads_per_worker:
    shared.update(child_process.limit_threads(threads_per_worker))
  cluster = {
    "worker": [f"127.0.0.1:{p}" for p in _find_free_ports(num_workers)]
  }
  tasks = [{"type": "worker", "index": i} for i in range(num_workers)]
  return [
    {**shared, "TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
    for task in tasks
  ]


class Workers:
  """Processes that end together.

  A signal handler only records the signal; `wait` handles it. By then every
  worker has been started and can receive it.
  """

  def __init__(self, grace_seconds: float):
    self._grace_seconds = grace_seconds
    self._relay = relay.Relay()
    self._running: Dict[int, subprocess.Popen] = {}
    self._signals: List[int] = []
    self._is_stopping = False
    self._deadline = math.inf
    self._outcome: Optional[Tuple[int, str]] = None
    self.is_stopped = False
    for number in _SIGNALS:
      signal.signal(number, lambda number, _: self._signals.append(number))

  def start(
    self, command: Sequence[str], environments: Sequence[Mapping[str, str]]
  ) -> None:
    """Starts one worker for each environment."""
    for index, environment in enumerate(environments):
      self._running[index] = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C comes through us, and only once.
        preexec_fn=child_process.make_preexec_fn(),
      )
    # Threads come after the last fork: they might hold a lock during one.
    for index, process in self._running.items():
      assert process.stdout and process.stderr  # They are pipes.
      self._relay.add(f"[worker {index}] ", process.stdout, sys.stdout)
      self._relay.add(f"[worker {index}] ", process.stderr, sys.stderr)

  def wait(self) -> int:
    """Returns the exit code when all workers have ended."""
    while self._running:
      time.sleep(_POLL_SECONDS)
      self._poll()
      while self._signals:
        self.is_stopped = True
        self._stop(self._signals.pop(0))
      if self._relay.is_cut and not self._is_stopping:
        self._stop(signal.SIGTERM)
      if time.monotonic() > self._deadline:
        self.send(signal.SIGKILL)
    self._relay.close(_RELAY_SECONDS)
    code, message = self._outcome or (0, "")
    if message:
      self._relay.write(sys.stderr, message)
    return code

  def send(self, number: int) -> None:
    """Sends a signal to every running worker and its child processes."""
    for process in self._running.values():
      child_process.send(process, number)

  def _poll(self) -> None:
    for index, process in list(self._running.items()):
      code = process.poll()
      if code is None:
        continue
      del self._running[index]
      child_process.send(
        process, signal.SIGKILL
      )  # To child processes that are left.
      if code and not self._outcome:
        self._fail(index, code)

  def _fail(self, index: int, code: int) -> None:
    if code == stopping.EXIT_AGAIN or (self._is_stopping and code == 130):
      self._outcome = code, ""  # It has said why.
      if self._is_stopping:
        return  # The others are saving.
      return self._end_all()
    how = f"with exit code {code}"
    if code < 0:
      how, code = f"by signal {-code} (exit code {128 - code})", 128 - code
    self._outcome = code, f"Worker {index} failed {how}, and so the run ends."
    return self._end_all()

  def _end_all(self) -> None:
    """Ends the workers that are left, after a grace time by force."""
    self._deadline = time.monotonic() + self._grace_seconds
    if not self._is_stopping:
      self._stop(signal.SIGTERM)

  def _stop(self, number: int) -> None:
    if self._is_stopping:
      message = "Stopped at once, as asked; the last checkpoint remains."
      self._outcome = self._outcome or (128 + number, message)
      number = signal.SIGKILL
    self._is_stopping = True
    self.send(number)


def _get_train_flags(argv: Sequence[str]) -> List[str]:
  return list(argv[argv.index("--") + 1 :]) if "--" in argv else []


def _check(unread: Sequence[str], train_flags: Sequence[str]) -> None:
  if unread != train_flags:
    raise ValueError(
      f"`tools.launch` takes flags only, got '{unread[0]}': what is meant for "
      "`tools.train` follows `--`."
    )
  if not train_flags:
    raise ValueError(
      "Flags of `tools.train` must follow `--`, got none: for example "
      "`-- --gin_file=gin/runs/fashion.gin --model_dir=runs/fashion`."
    )
  least_of = ((_NUM_WORKERS, 1), (_THREADS_PER_WORKER, 0), (_RESTARTS, 0))
  for flag, least in least_of:
    if flag.value < least:
      raise ValueError(
        f"`--{flag.name}` must be at least {least}, got {flag.value}."
      )


def _find_free_ports(count: int) -> List[int]:
  """Returns free ports; all are held until the last is found."""
  with contextlib.ExitStack() as stack:
    held = [stack.enter_context(socket.socket()) for _ in range(count)]
    for holder in held:
      holder.bind(("127.0.0.1", 0))
    return [holder.getsockname()[1] for holder in held]


if __name__ == "__main__":
  cli.run_with_words(lambda words: main(), own_signals=True)
