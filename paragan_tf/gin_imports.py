"""What a gin config may import and call, so that a config is only data.

Gin runs Python's `import` while it reads a config, and calls whatever a dotted
name leads to. Here a config may

    import          `paragan_tf`, and modules that the user has allowed
    name            what these have registered with gin, and the functions and
                    classes that are defined in modules the user has allowed
    include         regular files, never packages, which would be imported

It is the only file that looks inside gin.
"""

import contextlib
import io
import os
import re
from typing import Any, Iterator, List, Sequence

from gin import config as gin_config

_OURS = "paragan_tf"
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_MAX_CHARACTERS = 1 << 20  # The largest config that ships has 3,000.
_MAX_FILES = 256
_MAX_DEPTH = 16

# Programs that this one starts are allowed the same.
_VARIABLE = "PARAGAN_ALLOW_GIN_IMPORTS"


def allow_gin_imports(*modules: str) -> None:
  """Lets configs import these modules, and call what is defined in them.

  A program that loads runs whose configs name nets of its own says so first:
  `pg.allow_gin_imports("my_nets")`. It holds for the rest of the program.
  """
  for module in modules:
    if not isinstance(module, str) or not _MODULE.fullmatch(module):
      raise ValueError(
        "`allow_gin_imports` must be the name of a module, as 'my_nets', got "
        f"{module!r}."
      )
  os.environ[_VARIABLE] = ",".join(dict.fromkeys([*_allowed(), *modules]))


def _allowed() -> List[str]:
  return [x for x in os.environ.get(_VARIABLE, "").split(",") if x]


@contextlib.contextmanager
def only_allowed() -> Iterator[None]:
  """Makes gin refuse all other imports, names and files in its context."""
  before = gin_config.ParseContext, gin_config._FILE_READERS
  gin_config.ParseContext = _Context
  gin_config._FILE_READERS = [(_Reader(), os.path.isfile)]
  try:
    yield
  finally:
    gin_config.ParseContext, gin_config._FILE_READERS = before


class _Context(gin_config.ParseContext):
  """Gin's context of one file, with fewer imports and names."""

  def process_import(self, statement: Any) -> None:
    module = statement.module
    if not (statement.is_from and module.startswith("__gin__.")):
      _check(module, statement.format(), (_OURS, *_allowed()))
    super().process_import(statement)

  def _register(self, attr_names: Sequence[str], attr_values: Sequence[Any]):
    """Registers what is not registered yet; of ours, all is that may be."""
    module = getattr(attr_values[-1], "__module__", None)
    _check(str(module), ".".join(attr_names), _allowed())
    return super()._register(attr_names, attr_values)


class _Reader:
  """Opens regular files of a sane size; a config has a limited number."""

  def __init__(self):
    self._num_files = 0

  def __call__(self, path: str) -> io.StringIO:
    self._num_files += 1
    if self._num_files > _MAX_FILES:
      raise ValueError(
        f"A config may have at most {_MAX_FILES} files, got '{path}' after "
        "them: does a file include itself?"
      )
    if len(gin_config._PARSE_CONTEXTS) > _MAX_DEPTH:
      raise ValueError(
        f"Files may include each other {_MAX_DEPTH} deep, got '{path}' after "
        "them: does a file include itself?"
      )
    with open(path, encoding="utf-8") as f:
      text = f.read(_MAX_CHARACTERS + 1)
    check_size(text, path)
    file = io.StringIO(text)
    file.name = path  # type: ignore[misc]  # For gin's messages.
    return file


def check_size(text: str, path: str) -> None:
  """Raises a `ValueError` if a text is too long to be a config."""
  if len(text) > _MAX_CHARACTERS or "\0" in text:
    raise ValueError(
      f"A config must be text of at most {_MAX_CHARACTERS:,} characters, and "
      f"'{path}' is not: give a gin file."
    )


def _check(module: str, what: str, allowed: Sequence[str]) -> None:
  if any(module == x or module.startswith(f"{x}.") for x in allowed):
    return
  if module == _OURS or module.startswith(f"{_OURS}."):
    raise ValueError(
      f"`{what}` is nothing that a config may set or call: see docs/config.md "
      "for what can be chosen."
    )
  root = module.split(".")[0]
  raise ValueError(
    f"A config may import `{_OURS}` only, got `{what}`, which would run code "
    f"of `{module}`: if you trust it, add `--allow_gin_imports={root}`, or in "
    f"Python `paragan_tf.allow_gin_imports('{root}')`."
  )
