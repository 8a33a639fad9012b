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
from typing import Dict, List, Sequence, Tuple

from paragan_tf import shipped

_FOLDER = pathlib.Path(__file__).parent / "templates"
_PORT = 2222
_ROOT = "/paragan"  # Of this repository, in the container.

KINDS = {
  "slurm": "slurm.sh",
  "kubernetes": "kubernetes.yaml",
  "gcloud": "gcloud.sh",
}


# Of a GAN for each label: workers that know of no other.
_LABEL_KINDS = {
  "slurm": "slurm_labels.sh",
  "kubernetes": "kubernetes_labels.yaml",
}


def render(
  kind: str,
  num_workers: int,
  train_flags: Sequence[str],
  per_label: bool = False,
) -> str:
  """Returns the script of one kind.

  Args:
    kind: One of `KINDS`.
    num_workers: Nodes, pods or tasks.
    train_flags: Flags of `tools.train`.
    per_label: Whether they train a GAN for each label.
  """
  kinds = _LABEL_KINDS if per_label else KINDS
  if kind not in kinds:
    raise ValueError(
      f"`--print` must be one of {', '.join(kinds)}"
      f"{' for a GAN for each label' if per_label else ''}, got '{kind}'."
    )
  if per_label and any("label_shard" in flag for flag in train_flags):
    raise ValueError(
      "`--label_shard` must be left out: the script sets it for each worker."
    )
  values = {
    "num_workers": str(num_workers),
    "last_worker": str(num_workers - 1),
    "python": shlex.quote(_python()),
    "flags": "\n".join(f"  {shlex.quote(flag)}" for flag in train_flags),
    **_make_kubernetes_values(num_workers, train_flags),
  }
  text = (_FOLDER / kinds[kind]).read_text()
  return re.sub(r"@(\w+)@", lambda match: values[match[1]], text)


def read_config_flags(
  train_flags: Sequence[str],
) -> Tuple[List[str], List[str]]:
  """Returns the gin files and the bindings among flags of `tools.train`."""
  parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  for name in ("gin_file", "gin_bindings"):
    parser.add_argument(f"--{name}", f"-{name}", action="append", default=[])
  found = parser.parse_known_args(list(train_flags))[0]
  return found.gin_file, found.gin_bindings


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
