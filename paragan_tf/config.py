"""Gin configs: loads, saves and compares them."""

import hashlib
import pathlib
import re
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import gin

from paragan_tf import gin_imports, gin_values, shipped

# What a wrong value in a config raises where parts are made from it: anything,
# as it may reach any library. `sentence` says it in words.
WRONG = (Exception,)
# Names that configs had once, and what they are now.
_RENAMED = {
  "attention_anew": "recompute_attention",
  "d_share": "d_per_group",
  "g_share": "g_per_group",
  "image_ends": "rgb_convs",
  "multiple": "pad_channels",
  "smaller_gram": "gram_on_short_side",
  "wide_products": "float32_products",
  "gin/policy/": "gin/optimizers/",
}
# Parameters that older runs did not have, and the values they trained with.
_ADDED = {
  "Asynchronous.cache_dtype": "'float32'",
  "InputFn.label": "None",
  "player.constraint": "None",
  "player.jit_compile": "False",
  "player.rate_factor": "1.0",
  "player.warm_up_steps": "0",
}
# What may change when a run is resumed: how long to train, how often to log and
# save, what to measure, how far to read ahead, what to do about a broken file,
# and how something is computed.
_MAY_CHANGE = (
  "run.Run.",
  "label_pool.LabelPool.",
  "training.choose.",
  "choose.",
  "holding.Hold.",
  "experiment.Experiment.extractor",
  "experiment.Experiment.metrics",
  "experiment.Experiment.reference_dir",
  "extractors.Network.",
  "features.FashionClassifier.",
  "inception.Inception.",
  "mobile_net.MobileNet.",
  "estimator.",
  "encoded.Streaming.adaptive",
  "encoded.Streaming.cache_bytes",
  "encoded.Streaming.max_",
  "encoded.Streaming.min_",
  "encoded.Streaming.num_decoders",
  "encoded.Streaming.reader",
  "encoded.Streaming.verify",
  "input_fn.InputFn.prefetch",
  "input_fn.InputFn.timing",
  "adapted_input.AdaptedInput.prefetch",
  "step_timing.StepTiming.",
  "watchdog.Watchdog.",
  "sources.folder.broken",
  "sources.folder.decode",
  "hardware.Layout.",
  "Layout.",
)
# A binding starts at the left margin; indented lines continue it.
_BINDING = re.compile(r"^([\w/.]+) = (.*?)(?=^\S|\Z)", re.M | re.S)


def load(files: Sequence[str], bindings: Sequence[str]) -> None:
  """Reads config files, then single bindings over them.

  A file, or one it includes, is looked for where the program runs, then among
  the shipped ones. All are only data: see `gin_imports`.
  """
  gin.clear_config()
  gin.add_config_file_search_path(str(shipped.ROOT))
  for file in files:
    if pathlib.Path(file).is_dir():
      raise ValueError(
        f"Config file '{file}' is a folder: name a gin file in it."
      )
    if not pathlib.Path(file).is_file() and not (shipped.ROOT / file).is_file():
      raise ValueError(
        f"Config file '{file}' does not exist: check the path.{_new_name(file)}"
      )
  try:
    gin_imports.check_size("\n".join(bindings), "--gin_bindings")
    with gin_imports.only_allowed():
      gin.parse_config_files_and_bindings(files, bindings)
  except (ValueError, TypeError, RuntimeError) as e:
    raise ValueError(_describe_wrong(e)) from e
  except Exception as e:  # Gin's parser lets all kinds of errors through.
    raise ValueError(f"The config cannot be read: {_one_line(e)}") from e
  gin_values.check()


def load_saved(text: str, path: str) -> None:
  """Reads a config that `operative` returned, also that of an older run.

  Args:
    text: The config.
    path: For the message.
  """
  try:
    load([], [_rename(text)])
  except ValueError as e:
    raise ValueError(
      f"'{path}' cannot be used: {e} Modules that the run imported must be "
      "found from here, as where it was trained."
    ) from e


def operative(notes: Optional[Mapping[str, str]] = None) -> str:
  """Returns the operative config: all values used so far.

  Args:
    notes: What else is recorded, as macros that nothing uses.
  """
  rows = [
    f"{name} = {text!r}\n" for name, text in sorted((notes or {}).items())
  ]
  head = "\n# Arguments of the program:\n" if rows else ""
  return gin.operative_config_str() + head + "".join(rows)


def differences(
  old: str, new: str, ignored: Sequence[str] = ()
) -> List[Tuple[str, str, str]]:
  """Returns `(name, old value, new value)` wherever two configs differ.

  Args:
    old: A config as `operative` returned it.
    new: Another one.
    ignored: Prefixes of names, in any scope, that may differ.
  """
  before, after = _bindings(_rename(old)), _bindings(new)
  rows = []
  for name in sorted(before.keys() | after.keys()):
    values = (
      before.get(name, _value_before(name)),
      after.get(name, "(not set)"),
    )
    plain_name = name.split("/")[-1]
    if values[0] != values[1] and not plain_name.startswith(tuple(ignored)):
      rows.append((name, *values))
  return rows


def compare(texts: Sequence[str]) -> List[Tuple[str, List[str]]]:
  """Returns the names of values that differ, with the value of each config."""
  tables = [_bindings(_rename(text)) for text in texts]
  names = sorted({name for table in tables for name in table})
  rows = [
    (name, [table.get(name, _value_before(name)) for table in tables])
    for name in names
  ]
  return [(name, values) for name, values in rows if len(set(values)) > 1]


def _rename(text: str) -> str:
  """Returns a config with the names that its values have now."""
  for was, now in _RENAMED.items():
    text = re.sub(rf"\b{was}\b", now, text)
  return text


def _value_before(name: str) -> str:
  """Returns the value that runs had before a parameter was added."""
  found = (value for end, value in _ADDED.items() if name.endswith(f".{end}"))
  return next(found, "(not set)")


def check_resumable(
  old: Optional[str], new: str, model_dir: str, ignored: Sequence[str] = ()
) -> None:
  """Refuses to resume a run with another config than it was started with.

  Args:
    old: The config that is saved in `model_dir`, if any.
    new: That of this run.
    model_dir: For the message.
    ignored: More prefixes of names that may differ.
  """
  rows = differences(old, new, (*_MAY_CHANGE, *ignored)) if old else []
  if rows:
    listed = "; ".join(f"`{n}` was {old}, now {new}" for n, old, new in rows)
    raise ValueError(
      f"The run in '{model_dir}' has another config: {listed}. Give the old "
      "values or another `--model_dir`."
    )


def fingerprint(ignored: Sequence[str] = ()) -> str:
  """Returns a hash of the config that was read, without what may change.

  Args:
    ignored: More prefixes of names, in any scope, that do not count.
  """
  rows = sorted(
    f"{name} = {value}"
    for name, value in _bindings(gin.config_str()).items()
    if not name.split("/")[-1].startswith((*_MAY_CHANGE, *ignored))
  )
  return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def plain(error: Exception) -> str:
  """Returns an error's message without gin's call stack."""
  return " ".join(str(error).split("\n  In call to configurable")[0].split())


def sentence(error: Exception) -> str:
  """Returns an error as one sentence for the user."""
  if isinstance(error, ValueError):
    return plain(error) or "A value of the config is wrong."
  kind = "" if isinstance(error, TypeError) else f"{type(error).__name__}: "
  return f"A value of `{culprit(error)}` is wrong: {kind}{plain(error)[:500]}"


def culprit(error: Exception) -> str:
  """Returns the configurable in whose call an error was raised."""
  found = re.search(r"In call to configurable '([\w.]+)'", str(error))
  return found[1] if found else "the config"


def _bindings(text: str) -> Dict[str, str]:
  return {
    match[1]: " ".join(match[2].replace("\\\n", " ").split())
    for match in _BINDING.finditer(_without_comments(text))
  }


def _without_comments(text: str) -> str:
  return "\n".join(x for x in text.splitlines() if not x.startswith("#")) + "\n"


def _one_line(error: Exception) -> str:
  words = " ".join(str(error).split())
  # Gin repeats the whole config, and every file on the way.
  words = words.partition(" in config string:")[0]
  words = " In file ".join(words.split(" In file ")[:2])
  return words + _new_name(words)


def _describe_wrong(error: Exception) -> str:
  left_open = re.match(r"(\S+) set to `%gin.REQUIRED`", str(error))
  if left_open is None:
    return f"The config is wrong: {_one_line(error)}"
  name = left_open[1]
  return (
    f"`{name}` must be set, and the config leaves it open: add "
    f'`--gin_bindings="{name} = VALUE"`; the top of the config shows how.'
  )


def _new_name(words: str) -> str:
  """Returns a sentence for each old name in the text, with its new name."""
  found = ((old, new) for old, new in _RENAMED.items() if old in words)
  return "".join(f" `{old}` is called `{new}` now." for old, new in found)
