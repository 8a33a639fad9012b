"""What all programs share: flags, imports, errors and signals."""

import contextlib
import importlib
import json
import os
import sys
import traceback
import warnings
from typing import (
  Any,
  Callable,
  Iterator,
  List,
  Mapping,
  NoReturn,
  Optional,
  TypeVar,
  Union,
)

from absl import app, flags, logging

from paragan_tf import quiet, stopping

_Result = TypeVar("_Result")
_INTERRUPTED = stopping.End(
  stopping.EXIT_INTERRUPTED, "what was not finished is not there.", asked=""
)


def run(main: Callable[[], None], own_signals: bool = False) -> NoReturn:
  """Parses the flags and calls `main`; a wrong flag is a one-line error.

  Args:
    main: The program.
    own_signals: Whether it handles signals; by default they end it.
  """

  def refuse_words(words: List[str]) -> None:
    if words:
      fail(
        f"This program takes flags only, got '{words[0]}': write --flag=value; "
        "`--help` lists the flags."
      )
    main()

  run_with_words(refuse_words, own_signals)


def run_with_words(
  main: Callable[[List[str]], None], own_signals: bool = False
) -> NoReturn:
  """Does the same, and calls `main` with the words that are no flags."""

  def parse(argv):
    try:
      return flags.FLAGS(argv)
    except flags.Error as e:
      fail(f"{e}; `--help` lists the flags.")

  def run_main(argv: List[str]) -> None:
    with contextlib.nullcontext() if own_signals else stoppable():
      main(argv[1:])

  try:
    app.run(run_main, flags_parser=parse)
  except SystemExit as e:
    if e.code:  # Skips TensorFlow's exit, which waits for other processes.
      sys.stdout.flush()
      sys.stderr.flush()
      os._exit(e.code if isinstance(e.code, int) else 1)
    raise
  except KeyboardInterrupt:  # Before signals are handled.
    os._exit(stopping.EXIT_INTERRUPTED)
  except BaseException:
    traceback.print_exc()
    sys.stdout.flush()
    os._exit(1)
  sys.exit(0)


@contextlib.contextmanager
def stoppable(end: Optional[stopping.End] = None) -> Iterator[stopping.Stop]:
  """Lets a signal end the program in the block, with one sentence.

  Args:
    end: How; by default with the code of a start that was interrupted.
  """
  stop = stopping.Stop(end=end or _INTERRUPTED)
  stop.begin()
  try:
    with stop.interruptible():
      yield stop
  except stopping.Stopped:
    stop.say_end()
    sys.exit(stop.end.code)


def import_quietly(name: str):
  """Returns a module of ours, with TensorFlow's log messages turned off.

  TensorFlow is slow to import, so call this after the flags are parsed.
  """
  quiet.install()
  warnings.filterwarnings("ignore", module="tensorflow_hub")
  module = importlib.import_module(name)
  logging.set_verbosity(logging.ERROR)
  logging.set_stderrthreshold("error")
  return module


def import_experiment():
  """Returns `paragan_tf.experiment`."""
  return import_quietly("paragan_tf.experiment")


def exit_on_error(make: Callable[[], _Result]) -> _Result:
  """Returns `make()`; an error that a user can cause exits with code 2.

  With `PARAGAN_TRACEBACK=1` it is printed with its traceback.
  """
  try:
    return make()
  except Exception as e:
    if not is_mistake(e):
      raise
    if os.environ.get("PARAGAN_TRACEBACK"):
      traceback.print_exc()
    fail(_one_sentence(e))


def is_mistake(error: Exception) -> bool:
  """Returns whether a user can cause an error, by a value or a file."""
  by_user = (FloatingPointError, MemoryError, OSError, ValueError)
  # Not imported: programs that fail early should not wait for TensorFlow.
  errors = sys.modules.get("tensorflow.python.framework.errors_impl")
  return isinstance(error, (*by_user, *([errors.OpError] if errors else [])))


def _one_sentence(error: Exception) -> str:
  text = str(error)
  if isinstance(error, (FloatingPointError, ValueError)):
    return text
  # Of a library: the first line says it, others name its own parts.
  lines = text.strip().splitlines()
  return lines[0][:500] if lines else type(error).__name__


def fail(message: str, code: int = 2) -> NoReturn:
  """Prints an error on one line, and exits with a code."""
  print(f"Error: {' '.join(message.split())}", file=sys.stderr, flush=True)
  sys.exit(code)


def read_step(text: Optional[str]) -> Union[int, str, None]:
  """Returns what `--step` chooses: a step, `best`, or `None`."""
  if text is None or text == "best":
    return text
  if not text.isdecimal():
    raise ValueError(f"`--step` must be a number or 'best', got '{text}'.")
  return int(text)


def check_file(flag: str, path: Optional[str]) -> None:
  """Raises a `ValueError` if the file of a flag could not be written."""
  if path is None:
    return
  folder = os.path.dirname(os.path.abspath(path))
  if not os.path.isdir(folder):
    raise ValueError(
      f"`--{flag}` must be a file in a folder that exists, got '{path}': "
      f"make '{folder}' first."
    )
  there = os.path.exists(path)
  if os.path.isdir(path) or not os.access(path if there else folder, os.W_OK):
    raise _cannot_write(flag, path)


def write_json(flag: str, path: str, figures: Mapping[str, Any]) -> None:
  """Writes figures as JSON to the file that a flag names."""
  # NumPy's numbers have `item`.
  text = json.dumps(figures, indent=2, default=lambda x: x.item())
  write_text(flag, path, text + "\n")


def write_text(flag: str, path: str, text: str) -> None:
  """Writes text to the file that a flag names."""
  try:
    with open(path, "w", encoding="utf-8", errors="replace") as f:
      f.write(text)
  except OSError as e:
    raise _cannot_write(flag, path) from e


def _cannot_write(flag: str, path: str) -> ValueError:
  return ValueError(
    f"`--{flag}` must be a file that can be written, got '{path}': give "
    "another one."
  )
