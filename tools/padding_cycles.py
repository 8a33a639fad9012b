"""Measures where padded channels pay, by the TPU compiler's cycles.

python -m tools.padding_cycles --topology=v3:2x2 --json=cycles.json

Compiles pieces of nets of each width, as they are and padded to 128 channels,
and adds their cycles to the table that `pad_channels = 'auto'` goes by:
`paragan_tf/files/padding_cycles.json`, unless `--json` names another file.
"""

import json
import pathlib
import subprocess
import tempfile
from typing import Any, Dict, List, Tuple

from absl import flags

from tools import cli
from tools.tpu import environment, figures, padding

# BigGAN's at 128 px, with its latents and what its norms depend on.
_WIDTHS = (20, 48, 96, 148, 192)
_RESOLUTIONS = (32, 128)

_TOPOLOGY = flags.DEFINE_string(
  "topology", "v3:2x2", "TPU to compile for: v2 to v6e, and its shape."
)
_WIDTH = flags.DEFINE_multi_integer(
  "width", list(_WIDTHS), "Channels of a piece; may be repeated."
)
_JSON = flags.DEFINE_string("json", None, "File for the table.")


def main():
  """Exports, compiles, and writes the table."""
  chip = cli.exit_on_error(lambda: figures.find_chip(_TOPOLOGY.value))
  pieces = cli.exit_on_error(
    lambda: padding.list_pieces(_WIDTH.value, _RESOLUTIONS)
  )
  cli.exit_on_error(lambda: cli.check_file("json", _JSON.value))
  if not environment.is_installed():
    cli.exit_on_error(environment.install)
  found = cli.exit_on_error(lambda: _compile(pieces, chip))
  rows = padding.make_table(found)
  for row in rows:
    print("  ".join(f"{key} {value}" for key, value in row.items()))
  hardware = cli.import_quietly("paragan_tf.hardware")
  path = pathlib.Path(_JSON.value or hardware.PADDING_CYCLES)
  table: Dict[str, Any] = {}
  if path.exists():
    table = json.loads(path.read_text())
  table[chip] = {"compiler": _describe_compiler(), "rows": rows}
  cli.exit_on_error(lambda: cli.write_json("json", str(path), table))


def _compile(
  pieces: List[padding.Piece], chip: str
) -> List[Tuple[padding.Piece, int]]:
  """Returns the cycles of each piece."""
  with tempfile.TemporaryDirectory() as folder:
    paths = [pathlib.Path(folder, f"{piece.name}.hlo") for piece in pieces]
    for piece, path in zip(pieces, paths):
      path.write_bytes(padding.export(piece, chip))
    compiler = pathlib.Path(environment.__file__).with_name("compiler.py")
    command = [environment.get_python(), str(compiler), _TOPOLOGY.value]
    subprocess.run([*command, *map(str, paths)], check=True)
    return [(p, padding.read_cycles(path)) for p, path in zip(pieces, paths)]


def _describe_compiler() -> str:
  pins = pathlib.Path(environment.__file__).with_name("requirements.txt")
  versions = [x for x in pins.read_text().split() if x.startswith("libtpu")]
  return f"{_TOPOLOGY.value}, {versions[0]}, {padding.DESCRIPTION}"


if __name__ == "__main__":
  cli.run(main)
