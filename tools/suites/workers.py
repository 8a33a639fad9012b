"""Worker processes: each holds one object and runs its methods on request.

    worker = Worker("ours", Ours)    # constructs `Ours()` in a new process
    worker.submit("run", 2)          # requests `run(2)` there, and
    seconds = worker.wait()          # waits for what it returns
    seconds = worker.call("run", 2)  # both

A worker without a request sleeps.
"""

import contextlib
import multiprocessing
import os
import signal
import time
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional

# Variables to set; `None` unsets one.
Environment = Mapping[str, Optional[str]]


class Worker:
  """One object in a process of its own, controlled over a pipe."""

  def __init__(
    self,
    name: str,
    make: Callable[[], Any],
    environment: Optional[Environment] = None,
  ):
    self._name = name
    # A fresh interpreter: TensorFlow does not survive a fork.
    context = multiprocessing.get_context("spawn")
    self._pipe, theirs = context.Pipe()
    with _set_environment(environment or {}):
      self._process = context.Process(
        target=_serve, args=(make, theirs), name=name, daemon=True
      )
      self._process.start()
    theirs.close()

  def submit(self, method: str, *args: Any) -> None:
    """Requests a call, without waiting for it."""
    with contextlib.suppress(BrokenPipeError):  # `wait` reports the end.
      self._pipe.send((method, args))

  def wait(self) -> Any:
    """Returns the result of the oldest request that has none yet."""
    try:
      result = self._pipe.recv()
    except (EOFError, ConnectionResetError) as e:
      self._process.join()
      raise RuntimeError(
        f"The process of `{self._name}` ended with exit code "
        f"{self._process.exitcode}; see its output above."
      ) from e
    if isinstance(result, ValueError):
      raise result
    return result

  def call(self, method: str, *args: Any) -> Any:
    """Requests a call and returns its result."""
    self.submit(method, *args)
    return self.wait()

  def close(self) -> None:
    """Kills the process."""
    # Not SIGTERM: TensorFlow handles it in a process of a cluster, and would
    # then tear its graphs down, for as long as a minute.
    self._process.kill()
    self._process.join()
    self._pipe.close()


def call_all(workers: Iterable[Worker], method: str, *args: Any) -> List[Any]:
  """Calls a method of all workers at the same time; returns all results."""
  workers = list(workers)
  for worker in workers:
    worker.submit(method, *args)
  return [worker.wait() for worker in workers]


def time_all(workers: Iterable[Worker], method: str, *args: Any) -> float:
  """Calls a method of all workers; returns the seconds until the last ends."""
  started = time.perf_counter()
  call_all(workers, method, *args)
  return time.perf_counter() - started


def find_cores(suite: str) -> List[int]:
  """Returns two cores that this program may use; refuses if there is one."""
  cores = sorted(os.sched_getaffinity(0))[:2]
  if len(cores) < 2:
    raise ValueError(
      f"The suite `{suite}` needs two cores, got {len(cores)}: let this "
      "program use another one."
    )
  return cores


@contextlib.contextmanager
def close_all(workers: Iterable[Worker]) -> Iterator[None]:
  """Closes all workers at the end of the block, also after an error."""
  try:
    yield
  finally:
    for worker in workers:
      worker.close()


def _serve(make: Callable[[], Any], pipe) -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent decides.
  try:
    target = make()
  except ValueError as e:  # The parent reports what a user can cause.
    pipe.send(e)
    return
  with contextlib.suppress(EOFError):
    while True:
      method, args = pipe.recv()
      pipe.send(getattr(target, method)(*args))


@contextlib.contextmanager
def _set_environment(environment: Environment) -> Iterator[None]:
  """Sets variables for the block, and restores them after it."""
  before = {name: os.environ.get(name) for name in environment}
  _update_environment(environment)
  try:
    yield
  finally:
    _update_environment(before)


def _update_environment(environment: Environment) -> None:
  for name, value in environment.items():
    if value is None:
      os.environ.pop(name, None)
    else:
      os.environ[name] = value
