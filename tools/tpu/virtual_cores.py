"""Runs or compiles the programs of many TPU cores, their collectives included.

  python virtual_cores.py run FOLDER 8
  python virtual_cores.py compile FOLDER 1024 v3:16x32

`FOLDER` has `program_0.hlo` and so on, as `replicated.py` writes them. `run`
takes virtual CPU devices, one for each core; `compile` takes the TPU compiler,
and writes `figures.json`. Runs in the compiler's own environment and imports
nothing of this project. It calls private functions of jax, whose version is
pinned.

`run` reads `arguments.npz`: `state_I`, the first value of variable I;
`input_C_I`, input I of call C, `[cores, ...]`; `order`, the program of each
call. It writes `results.npz`: `state_I` after the last call, `[cores, ...]`.
"""

import collections
import json
import os
import pathlib
import re
import sys
import time
from typing import List, Tuple

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# TensorFlow counts steps in 64 bits.
os.environ.setdefault("JAX_ENABLE_X64", "1")
# No TPU is used, so several processes may compile at once.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

# TensorFlow emits it for state that is updated in place; the compiler does not
# support it.
_COPY = re.compile(
  r'"?mhlo\.copy"?\s*\(?(%[\w#]+)\)?\s*(?:\{[^}]*\})?\s*:\s*'
  r"(?:\(.*?\) -> )?(tensor<[^>]*>)"
)
_MARKER = re.compile(
  r"(%[\w#]+) = stablehlo\.custom_call @paragan_(\w+)\((%[\w#]+)\)"
  r'.*?backend_config = "((?:[^"\\]|\\.)*)".*? : \(.*?\) -> (tensor<[^>]*>)'
)
_COMPILED = re.compile(
  r" (all-reduce|collective-permute|all-to-all|all-gather|reduce-scatter)"
  r"(?:-start)?\("
)


class Program:
  """A program of all cores.

  Attributes:
    parameters: Indices of the variables that it takes, after its inputs.
    results: Indices of the variables that it assigns, after its logs.
    text: In StableHLO.
    collectives: Kind and bytes of each.
  """

  def __init__(self, folder, index: int, num: int):
    folder = pathlib.Path(folder)
    layout = json.loads((folder / "programs.json").read_text())[index]
    self.parameters, self.results = layout
    self.collectives: List[Tuple[str, int]] = []
    hlo = (folder / f"program_{index}.hlo").read_bytes()
    self.text = self._alias(self._replace_markers(_to_stablehlo(hlo), num))

  def _replace_markers(self, text: str, num: int) -> str:
    def replace(match):
      result, kind, operand, config, tensor = match.groups()
      config = json.loads(re.sub(r"\\22", '"', config).replace('\\"', '"'))
      self.collectives.append((kind, count_bytes(tensor)))
      name, attributes, body = _MAKERS[kind](config, tensor, num)
      return (
        f'{result} = "stablehlo.{name}"({operand}) {body}{{{attributes}}}'
        f" : ({tensor}) -> {tensor}"
      )

    text = _MARKER.sub(replace, text)
    if "@paragan_" in text:
      raise ValueError("A marker was not recognized.")
    return text

  def _alias(self, text: str) -> str:
    """Lets variables be updated in place, as on a TPU."""
    types, num_results = _signature(text)
    num_inputs = len(types) - len(self.parameters)
    if num_results != 1 + len(self.results):
      raise ValueError(
        f"The program has {num_results} results, expected {len(self.results)} "
        "variables and the logs."
      )
    for result, variable in enumerate(self.results, 1):
      place = num_inputs + self.parameters.index(variable)
      old = f"%arg{place}: tensor<{types[place]}>"
      new = f"{old} {{tf.aliasing_output = {result} : i32}}"
      text = text.replace(old, new, 1)
    return text


def _to_stablehlo(hlo: bytes) -> str:
  from jax._src.lib import xla_client
  from jaxlib import _jax

  text = _jax.mlir.xla_computation_to_mlir_module(
    xla_client.XlaComputation(hlo)
  )
  return _COPY.sub(r"stablehlo.reshape \1 : (\2) -> \2", text)


def _signature(text: str):
  """Returns the type of each parameter, and the number of results."""
  found = re.search(
    r"@main\((.*?)\) -> (\(.*?\)|tensor<[^>]*>) *\{", text, re.S
  )
  assert found, "StableHLO has a function `main`."
  arguments, results = found.groups()
  find = re.compile(r"tensor<([^>]*)>").findall
  return find(arguments), len(find(results))


def _all_reduce(config: dict, tensor: str, num: int):
  scalar = f"tensor<{tensor[len('tensor<') : -1].split('x')[-1]}>"
  body = (
    f"({{ ^bb0(%pa: {scalar}, %pb: {scalar}):\n"
    f" %ps = stablehlo.add %pa, %pb : {scalar}\n"
    f' "stablehlo.return"(%ps) : ({scalar}) -> () }}) '
  )
  return "all_reduce", _replica_groups(_groups(config, num)), body


def _all_to_all(config: dict, tensor: str, num: int):
  del tensor
  groups = _groups(config, num)
  attributes = (
    "split_dimension = 0 : i64, concat_dimension = 0 : i64, "
    f"split_count = {len(groups[0])} : i64, {_replica_groups(groups)}"
  )
  return "all_to_all", attributes, ""


def _permute(config: dict, tensor: str, num: int):
  del tensor, num
  pairs = config["pairs"]
  shape = f"tensor<{len(pairs)}x2xi64>"
  attributes = f"source_target_pairs = dense<{pairs}> : {shape}"
  return "collective_permute", attributes, ""


def _groups(config: dict, num: int):
  return config["groups"] or [list(range(num))]


def _replica_groups(groups) -> str:
  shape = f"tensor<{len(groups)}x{len(groups[0])}xi64>"
  return f"replica_groups = dense<{groups}> : {shape}"


# Each returns the name of the operation, its attributes and its body.
_MAKERS = {
  "all_reduce": _all_reduce,
  "all_to_all": _all_to_all,
  "permute": _permute,
}


def count_bytes(tensor: str) -> int:
  """Returns the size of `tensor<2x3xf32>`."""
  *dims, kind = tensor[len("tensor<") : -1].split("x")
  size = max(1, int(re.sub(r"\D", "", kind)) // 8)
  for dim in dims:
    size *= int(dim)
  return size


def _options(num: int):
  from jax._src.lib import xla_client

  options = xla_client.CompileOptions()
  options.num_replicas, options.num_partitions = num, 1
  return options


class Cores:
  """Virtual CPU devices, one for each core."""

  def __init__(self, num: int):
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={num}"
    import jax
    import numpy as np

    self._jax = jax
    self.devices = jax.devices()
    # Each device has its own value; jax does not look whether they are equal.
    self._sharding = jax.sharding.NamedSharding(
      jax.sharding.Mesh(np.array(self.devices), ("replica",)),
      jax.sharding.PartitionSpec(),
    )

  def put(self, values):
    """Returns an array with a value on each device."""
    parts = [self._jax.device_put(x, d) for x, d in zip(values, self.devices)]
    return self._jax.make_array_from_single_device_arrays(
      parts[0].shape, self._sharding, parts
    )

  def load(self, program):
    """Compiles a program."""
    from jax._src.interpreters import mlir
    from jaxlib import _jax
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
      return self.devices[0].client.compile_and_load(
        ir.Module.parse(program.text),
        _jax.DeviceList(tuple(self.devices)),
        _options(len(self.devices)),
      )


def run(folder: str, num: int) -> None:
  """Runs the programs on virtual CPU devices."""
  cores = Cores(num)
  import numpy as np

  path = pathlib.Path(folder)
  given = np.load(path / "arguments.npz")
  order = given["order"].tolist()
  programs = [Program(path, i, num) for i in range(max(order) + 1)]
  loaded = [cores.load(program) for program in programs]
  num_inputs = sum(name.startswith("input_0_") for name in given.files)
  num_state = sum(name.startswith("state_") for name in given.files)
  state = [[given[f"state_{i}"]] * num for i in range(num_state)]
  for call, index in enumerate(order):
    program = programs[index]
    values = [given[f"input_{call}_{i}"] for i in range(num_inputs)]
    values += [state[i] for i in program.parameters]
    done = loaded[index].execute_sharded([cores.put(x) for x in values])
    _, *assigned = done.disassemble_into_single_device_arrays()
    for i, copies in zip(program.results, assigned):
      state[i] = [np.asarray(x) for x in copies]
  saved = {f"state_{i}": np.stack(x) for i, x in enumerate(state)}
  np.savez(path / "results.npz", **saved)


def compile_all(folder: str, num: int, topology: str) -> None:
  """Compiles the programs for `num` cores of a TPU; writes their figures."""
  path = pathlib.Path(folder)
  count = len(list(path.glob("program_*.hlo")))
  figures = [_compile(path, i, num, topology) for i in range(count)]
  (path / "figures.json").write_text(json.dumps(figures))


def _compile(path, index: int, num: int, topology: str) -> dict:
  """Returns the figures of one program, or the compiler's error."""
  from jax._src.interpreters import mlir
  from jax.experimental import topologies
  from jaxlib import _jax
  from jaxlib.mlir import ir

  started = time.monotonic()
  try:
    program = Program(path, index, num)
    devices = topologies.get_topology_desc(
      platform="tpu", topology_name=topology
    ).devices[:num]
    with mlir.make_ir_context():
      compiled = devices[0].client.compile(
        ir.Module.parse(program.text),
        _jax.DeviceList(tuple(devices)),
        _options(num),
      )
    figures = _describe(compiled, program.collectives)
  except Exception as e:  # Of any type; the caller reports it.
    figures = {"error": f"{type(e).__name__}: {e}"[:2000]}
  return {**figures, "seconds": time.monotonic() - started}


def _describe(compiled, found) -> dict:
  """Returns memory, operations and collectives of a compiled program."""
  memory = compiled.get_compiled_memory_stats()
  cost = compiled.cost_analysis()
  cost = cost[0] if isinstance(cost, list) else cost
  text = compiled.hlo_modules()[0].to_string()
  kinds = collections.Counter(kind for kind, _ in found)
  return {
    "flops": cost["flops"],
    "state_bytes": memory.argument_size_in_bytes,
    "memory_bytes": memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.temp_size_in_bytes,
    "collectives": kinds,
    "collective_bytes": sum(size for _, size in found),
    "compiled_collectives": collections.Counter(_COMPILED.findall(text)),
  }


if __name__ == "__main__":
  if sys.argv[1] == "run":
    run(sys.argv[2], int(sys.argv[3]))
  else:
    compile_all(sys.argv[2], int(sys.argv[3]), sys.argv[4])
