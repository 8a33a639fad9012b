"""Protocols of metrics in words: what one says, and where several differ."""

import json
from typing import Any, Dict, Mapping, Sequence

_NUM_HASH_DIGITS = 8
# What a reader looks for first; the rest is in the list below.
_MAIN = (
  "extractor",
  "resizer",
  "num_samples",
  "num_reference",
  "reference_split",
)


def key(protocol: Any) -> str:
  """Returns a text that two protocols share if they are the same."""
  return json.dumps(protocol, sort_keys=True, default=str)


def list_terms(protocol: Any) -> Dict[str, str]:
  """Returns the fields of a protocol, in words."""
  return {
    _name(field): _word(value) for field, value in _fields(protocol).items()
  }


def describe(protocol: Any) -> str:
  """Returns the main fields of a protocol on one line."""
  fields = _fields(protocol)
  if not fields:
    return "Protocol not known"
  main = {x: fields[x] for x in _MAIN if x in fields} or fields
  return ", ".join(_say(x, value) for x, value in main.items())


def name_differences(protocols: Sequence[Any]) -> Sequence[str]:
  """Returns for each protocol the fields that are not the same in all."""
  fields = [_fields(protocol) for protocol in protocols]
  names = dict.fromkeys(name for x in fields for name in x)
  differ = [
    name for name in names if len({key(x.get(name, ...)) for x in fields}) > 1
  ]
  return [
    ", ".join(_say(x, found.get(x, "not known")) for x in differ)
    for found in fields
  ]


def _fields(protocol: Any) -> Mapping[str, Any]:
  if not protocol:
    return {}
  return protocol if isinstance(protocol, dict) else {"protocol": protocol}


def _say(field: str, value: Any) -> str:
  if field.startswith("num_") and isinstance(value, int):
    return f"{_word(value)} {_name(field[4:])}"
  return f"{_name(field)} {_word(value)}"


def _name(field: str) -> str:
  words = str(field).replace("num_", "number of ").replace("_", " ")
  return words.replace("sha256", "SHA-256")


def _word(value: Any) -> str:
  """Returns a value as a reader would write it."""
  if value is None or isinstance(value, bool):
    return {None: "none", True: "yes", False: "no"}[value]
  if isinstance(value, int):
    return f"{value:,}" if abs(value) >= 10_000 else str(value)
  text = value if isinstance(value, str) else json.dumps(value)
  is_hash = len(text) >= 32 and all(x in "0123456789abcdef" for x in text)
  return text[:_NUM_HASH_DIGITS] if is_hash else text
