"""Compiles exported programs for a TPU, on a machine without one.

  python compiler.py v3:2x2 one.hlo ...

Runs in the compiler's own environment and imports nothing of this project.
Writes `one.json`, the compiler's figures of the program, and `one.txt`, the
compiled program. It calls private functions of jax, whose version is pinned.
"""

import json
import os
import pathlib
import re
import sys

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# No TPU is used, so several processes may compile at once.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

# TensorFlow emits it for state that is updated in place; the compiler does not
# support it.
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
  """Returns the compiler's figures."""
  cost = executable.cost_analysis()
  cost = cost[0] if isinstance(cost, list) else cost
  memory = executable.get_compiled_memory_stats()
  return {
    "flops": cost.get("flops", 0.0),  # None if nothing is computed.
    "bytes": cost["bytes accessed"],
    "optimal_seconds": cost["optimal_seconds"],
    "argument_bytes": memory.argument_size_in_bytes,
    "output_bytes": memory.output_size_in_bytes,
    "alias_bytes": memory.alias_size_in_bytes,
    "temp_bytes": memory.temp_size_in_bytes,
    "code_bytes": memory.generated_code_size_in_bytes,
  }


def main(topology: str, *files: str) -> None:
  """Compiles each file; writes its figures, or the error."""
  for file in files:
    path = pathlib.Path(file)
    try:
      executable = compile_for(topology, path.read_bytes())
      figures = describe(executable)
      text = executable.hlo_modules()[0].to_string()
    except Exception as e:  # Of any type; it concerns this program only.
      figures, text = {"error": f"{type(e).__name__}: {e}"[:2000]}, ""
    path.with_suffix(".txt").write_text(text)
    path.with_suffix(".json").write_text(json.dumps(figures))


if __name__ == "__main__":
  main(*sys.argv[1:])
