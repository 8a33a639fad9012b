"""The command `paragan`: the programs of `tools/` under one name.

paragan train --gin_file=gin/runs/fashion.gin --model_dir=runs/fashion
"""

import ast
import os
import runpy
import sys

import paragan_tf
from paragan_tf import shipped

COMMANDS = (
  "train",
  "sample",
  "evaluate",
  "export",
  "compare",
  "doctor",
  "launch",
  "make_tfrecords",
  "make_cifar10",
  "make_inception",
  "plan",
  "layout",
  "tpu_report",
  "benchmark",
)


def main() -> None:
  """Runs the program that the first argument names, with the other ones."""
  command, *rest = sys.argv[1:] or ["--help"]
  if command in ("-h", "--help", "help"):
    print(_usage())
  elif command == "--version":
    print(f"paragan_tf {paragan_tf.__version__}")
  elif command not in COMMANDS:
    print(
      f"Error: The command must be one of {', '.join(COMMANDS)}, got "
      f"'{command}': `paragan --help` says what they do.",
      file=sys.stderr,
    )
    sys.exit(2)
  else:
    _run(command, rest)


def _run(command: str, arguments) -> None:
  # `tools` must be ours, also in a folder that has another one. Modules that a
  # config imports may be in the current folder, as with `python -m`.
  sys.path[:] = [str(shipped.ROOT), *sys.path, ""]
  os.environ["PYTHONPATH"] = os.pathsep.join(  # Of programs that it starts.
    filter(None, [str(shipped.ROOT), os.environ.get("PYTHONPATH")])
  )
  sys.argv = [f"paragan {command}", *arguments]
  runpy.run_module(f"tools.{command}", run_name="__main__", alter_sys=True)


def _usage() -> str:
  width = max(map(len, COMMANDS))
  rows = [f"  {name:{width}}  {_first_line(name)}" for name in COMMANDS]
  return "\n".join(
    [
      "usage: paragan COMMAND [flags]",
      "",
      *rows,
      "",
      "`paragan COMMAND --help` lists the flags of a command.",
      "Config files that are not in the current folder are the shipped ones,",
      f"in {shipped.ROOT / 'gin'}.",
    ]
  )


def _first_line(command: str) -> str:
  """Returns what a program does, without importing it."""
  text = (shipped.ROOT / "tools" / f"{command}.py").read_text()
  return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


if __name__ == "__main__":
  main()
