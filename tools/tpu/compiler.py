"""Compiles exported programs for a TPU that is not there.

  python compiler.py v3:2x2 one.hlo ...

Runs in the compiler's own environment and knows nothing of this project. Writes
`one.json`, what the compiler says of the program, and `one.txt`, the program.
These are private functions of jax; their versions are pinned for that.
"""

import json
import os
import pathlib
import re
import sys

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Nobody holds a TPU here: several may compile at once.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

# TensorFlow writes it for state that is updated in place, and the compiler
# does not know it.
_COPY = re.compile(
  r'"?mhlo\.copy"?\s*\(?(%[\w#]+)\)?\s*(?:\{[^}]*\})?\s*:\s*'
  r"(?:\(.*?\) -> )?(tensor<[^>]*>)"
)


def compile_for(topology: str, hlo: bytes):
  """Returns the compiled program of one core."""
  from jax._src.interpreters import mlir as interpreters
  from jax._src.lib import xla_client
  from jax.experimental import topologies
  from jaxlib import _jax
  from jaxlib.mlir import ir

  text = _jax.mlir.xla_computation_to_mlir_module(
    xla_client.XlaComputation(hlo)
  )
  text = _COPY.sub(r"stablehlo.reshape \1 : (\2) -> \2", text)
  devices = topologies.get_topology_desc(
    platform="tpu", topology_name=topology
  ).devices
  options = xla_client.CompileOptions()
  options.num_replicas = options.num_partitions = 1
  with interpreters.make_ir_context():
    return devices[0].client.compile(
      ir.Module.parse(text), _jax.DeviceList(tuple(devices[:1])), options
    )


def describe(executable) -> dict:
  """Returns what the compiler says."""
  cost = executable.cost_analysis()
  cost = cost[0] if isinstance(cost, list) else cost
  memory = executable.get_compiled_memory_stats()
  return {
    "flops": cost["flops"],
    "bytes": cost["bytes accessed"],
    "optimal_seconds": cost["optimal_seconds"],
    "argument_bytes": memory.argument_size_in_bytes,
    "output_bytes": memory.output_size_in_bytes,
    "alias_bytes": memory.alias_size_in_bytes,
    "temp_bytes": memory.temp_size_in_bytes,
    "code_bytes": memory.generated_code_size_in_bytes,
  }


def main(topology: str, *files: str) -> None:
  """Compiles each file, or says why it cannot."""
  for file in files:
    path = pathlib.Path(file)
    try:
      executable = compile_for(topology, path.read_bytes())
      said = describe(executable)
      text = executable.hlo_modules()[0].to_string()
    except Exception as e:  # Whatever it is, it is about this program.
      said, text = {"error": f"{type(e).__name__}: {e}"[:2000]}, ""
    path.with_suffix(".txt").write_text(text)
    path.with_suffix(".json").write_text(json.dumps(said))


if __name__ == "__main__":
  main(*sys.argv[1:])
