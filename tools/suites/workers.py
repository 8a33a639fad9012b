"""Processes that wait for orders: for what must not share a process.

    worker = Worker("ours", Ours)    # makes an `Ours` over there
    worker.tell("run", 2)            # calls its method `run(2)` over there,
    seconds = worker.answer()        # and waits for what it returns
    seconds = worker.ask("run", 2)   # both

A worker that is not asked sleeps.
"""

import contextlib
import multiprocessing
import os
import signal
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional

# Names to values; `None` takes the name away.
Environment = Mapping[str, Optional[str]]


class Worker:
  """One object in a process of its own, driven over a pipe."""

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
    with _changed(environment or {}):
      self._process = context.Process(
        target=_serve, args=(make, theirs), name=name, daemon=True
      )
      self._process.start()
    theirs.close()

  def tell(self, method: str, *args: Any) -> None:
    """Orders a call, and does not wait."""
    with contextlib.suppress(BrokenPipeError):  # `answer` tells of the end.
      self._pipe.send((method, args))

  def answer(self) -> Any:
    """Waits for the result of the oldest order that is not answered yet."""
    try:
      result = self._pipe.recv()
    except (EOFError, ConnectionResetError) as e:
      self._process.join()
      raise RuntimeError(
        f"The process of `{self._name}` ended with exit code "
        f"{self._process.exitcode}; what it said stands above."
      ) from e
    if isinstance(result, ValueError):
      raise result
    return result

  def ask(self, method: str, *args: Any) -> Any:
    """Orders a call and waits for its result."""
    self.tell(method, *args)
    return self.answer()

  def close(self) -> None:
    """Ends the process, whatever it does."""
    # Not SIGTERM, which TensorFlow keeps for itself in a process of a cluster;
    # it would then tear its graphs down, for as long as a minute.
    self._process.kill()
    self._process.join()
    self._pipe.close()


def ask_all(workers: Iterable[Worker], method: str, *args: Any) -> List[Any]:
  """Asks all at once, for what they must or may do at the same time."""
  workers = list(workers)
  for worker in workers:
    worker.tell(method, *args)
  return [worker.answer() for worker in workers]


@contextlib.contextmanager
def closing(workers: Iterable[Worker]) -> Iterator[None]:
  """Ends all processes at the end, however it comes."""
  try:
    yield
  finally:
    for worker in workers:
      worker.close()


def _serve(make: Callable[[], Any], pipe) -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent decides.
  try:
    target = make()
  except ValueError as e:  # What a user can cause is said by the parent.
    pipe.send(e)
    return
  with contextlib.suppress(EOFError):
    while True:
      method, args = pipe.recv()
      pipe.send(getattr(target, method)(*args))


@contextlib.contextmanager
def _changed(environment: Environment) -> Iterator[None]:
  before = {name: os.environ.get(name) for name in environment}
  _set(environment)
  try:
    yield
  finally:
    _set(before)


def _set(environment: Environment) -> None:
  for name, value in environment.items():
    if value is None:
      os.environ.pop(name, None)
    else:
      os.environ[name] = value
