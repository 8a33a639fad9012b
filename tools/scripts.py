"""Renders scripts that start a run on other machines, with the user's flags.

The templates are in `tools/templates/`, where `@name@` stands for a value.
"""

import argparse
import json
import pathlib
import posixpath
import re
import shlex
import sys
from typing import Dict, Sequence

from paragan_tf import shipped

_FOLDER = pathlib.Path(__file__).parent / "templates"
_PORT = 2222
_ROOT = "/paragan"  # Of this repository, in the container.

KINDS = {
  "slurm": "slurm.sh",
  "kubernetes": "kubernetes.yaml",
  "gcloud": "gcloud.sh",
}


def render(kind: str, num_workers: int, train_flags: Sequence[str]) -> str:
  """Returns the script of one kind."""
  if kind not in KINDS:
    raise ValueError(
      f"`--print` must be one of {', '.join(KINDS)}, got '{kind}'."
    )
  values = {
    "num_workers": str(num_workers),
    "python": shlex.quote(_python()),
    "flags": "\n".join(f"  {shlex.quote(flag)}" for flag in train_flags),
    **_make_kubernetes_values(num_workers, train_flags),
  }
  text = (_FOLDER / KINDS[kind]).read_text()
  return re.sub(r"@(\w+)@", lambda match: values[match[1]], text)


def _python() -> str:
  """Returns the Python for other hosts that have the same files."""
  return ".venv/bin/python" if shipped.IS_CHECKOUT else sys.executable


def _make_kubernetes_values(
  num_workers: int, train_flags: Sequence[str]
) -> Dict[str, str]:
  hosts = [f"paragan-{i}.paragan:{_PORT}" for i in range(num_workers)]
  cluster = json.dumps({"worker": hosts})
  volume = _find_volume_path(train_flags)
  return {
    "args": "\n".join(
      f"            - {_quote_yaml(_escape_variables(flag))}"
      for flag in train_flags
    ),
    # Not JSON yet: Kubernetes inserts the index.
    "tf_config": f'\'{{"cluster": {cluster}, '
    '"task": {"type": "worker", "index": $(TASK_INDEX)}}\'',
    "port": str(_PORT),
    "root": _ROOT,
    "mount_path": _quote_yaml(volume),
    "sub_path": _quote_yaml(posixpath.basename(volume)),
    "backoff_limit": str(3 * num_workers),
  }


def _quote_yaml(text: str) -> str:
  return json.dumps(text, ensure_ascii=False)  # JSON strings are YAML.


def _escape_variables(argument: str) -> str:
  # Kubernetes replaces `$(NAME)` in a container's arguments.
  return argument.replace("$", "$$")


def _find_volume_path(train_flags: Sequence[str]) -> str:
  """Returns the container's folder for `--model_dir`."""
  parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  parser.add_argument("--model_dir", "-model_dir", nargs="?")
  model_dir = parser.parse_known_args(list(train_flags))[0].model_dir or ""
  if not model_dir or "://" in model_dir:  # Nothing for a volume to keep.
    model_dir = "runs"
  return posixpath.normpath(posixpath.join(_ROOT, model_dir))
