"""The training programs of many TPU cores, exported with their collectives.

  with trace_for_cores(8):
    exported = export_step(experiment, 8)

All cores of a TPU run one program, and read their replica's id at run time.
TensorFlow cannot compile its TPU collectives for a CPU, so markers are exported
in their place (`xla_custom_call_v2`); `virtual_cores.py` replaces them by XLA's
own collectives. Everything else is the program that a TPU gets.
"""

import contextlib
import json
import pathlib
from typing import Iterator, Mapping, NamedTuple, Sequence
from unittest import mock

import numpy as np

ALL_REDUCE = "paragan_all_reduce"
ALL_TO_ALL = "paragan_all_to_all"
PERMUTE = "paragan_permute"


class Program(NamedTuple):
  """The step of one replica, in one phase.

  Its arguments are images, labels and variables; its results are the logs, one
  vector, and the variables that it assigns.

  Attributes:
    hlo: XLA's serialized program.
    parameters: Indices of the variables that it takes.
    results: Indices of those that it assigns.
  """

  hlo: bytes
  parameters: Sequence[int]
  results: Sequence[int]


class ExportedStep(NamedTuple):
  """A step of training.

  Attributes:
    programs: Phases that do the same share one.
    order: The index of the program of each phase.
    image_shape: Of one replica and one step.
    num_classes: Of the labels; 0 without labels.
    state: The first value of each variable, by its name.
  """

  programs: Sequence[Program]
  order: Sequence[int]
  image_shape: Sequence[int]
  num_classes: int
  state: Mapping[str, np.ndarray]

  def write(self, folder: pathlib.Path) -> None:
    """Writes the programs for `virtual_cores.py`."""
    layout = []
    for i, program in enumerate(self.programs):
      (folder / f"program_{i}.hlo").write_bytes(program.hlo)
      layout.append([list(program.parameters), list(program.results)])
    (folder / "programs.json").write_text(json.dumps(layout))


@contextlib.contextmanager
def trace_for_cores(num: int) -> Iterator[None]:
  """Traces as TPUEstimator does for `num` replicas, with markers."""
  import tensorflow as tf

  from paragan_tf import tf_private

  def all_reduce(x, group_assignment=None):
    return _mark(ALL_REDUCE, {"groups": group_assignment}, x)

  def all_to_all(input, group_assignment, **kwargs):
    del kwargs
    return _mark(ALL_TO_ALL, {"groups": group_assignment}, input)

  def permute(input, source_target_pairs):
    pairs = [list(map(int, pair)) for pair in source_target_pairs]
    return _mark(PERMUTE, {"pairs": pairs}, input)

  with (
    tf_private.trace_for_tpu_shards(num),
    mock.patch.object(tf.compat.v1.tpu, "cross_replica_sum", all_reduce),
    mock.patch.object(tf.raw_ops, "AllToAll", all_to_all),
    mock.patch.object(tf.raw_ops, "CollectivePermute", permute),
  ):
    yield


def _mark(name: str, arguments: dict, value):
  """Returns a marker of the shape of `value`."""
  import tensorflow as tf
  from tensorflow.compiler.tf2xla.ops import gen_xla_ops

  @tf.custom_gradient
  def mark(value):
    (result,) = gen_xla_ops.xla_custom_call_v2(
      operands=[value],
      call_target_name=name,
      backend_config=json.dumps(arguments),
      has_side_effect=False,
      result_dtypes=[value.dtype],
      result_shapes=[value.shape],
    )

    def gradient(upstream):
      if name != ALL_REDUCE:
        raise NotImplementedError(f"`{name}` has no gradient.")
      return _mark(name, arguments, upstream)

    return result, gradient

  return mark(value)


def export_step(experiment, num_cores: int) -> ExportedStep:
  """Exports an experiment that was built in `trace_for_cores`."""
  step, spec = experiment.step, experiment.spec
  num_shards = step.schedule.num_shards(num_cores)
  shape = [
    experiment.images_per_step // num_shards,
    *[spec.resolution] * 2,
    spec.channels,
  ]
  firsts = [step.first_like(phase) for phase in range(step.cycle)]
  phases = sorted(set(firsts))
  return ExportedStep(
    [_export_phase(step, spec, phase, shape) for phase in phases],
    [phases.index(first) for first in firsts],
    shape,
    spec.num_classes,
    {variable.name: variable.numpy() for variable in step.variables},
  )


def _export_phase(step, spec, phase: int, shape: Sequence[int]) -> Program:
  import tensorflow as tf

  def program(images, labels):
    logs = step(images, labels if spec.num_classes else None, phase)
    return tf.stack([tf.cast(logs[n], tf.float32) for n in step.log_names])

  traced = tf.function(program, autograph=False, jit_compile=True)
  # From shapes: XLA would fold values, and hide what it cannot compile.
  inputs = tf.TensorSpec(shape), tf.TensorSpec(shape[:1], tf.int32)
  hlo = traced.experimental_get_compiler_ir(*inputs)(stage="hlo_serialized")
  concrete = traced.get_concrete_function(*inputs)
  return Program(hlo, *_find_variables(concrete, step.variables, len(inputs)))


def _find_variables(concrete, variables, num_inputs: int):
  """Returns the indices of captured variables, and of those assigned."""
  from tensorflow.python.framework import auto_control_deps_utils as utils

  indices = {id(variable.handle): i for i, variable in enumerate(variables)}
  captured = [indices.get(id(x)) for x in concrete.captured_inputs]
  if None in captured:
    raise ValueError("The step reads a tensor that is no variable of its own.")
  read_only = utils.get_read_only_resource_input_indices_graph(concrete.graph)
  assigned = [
    index
    for place, index in enumerate(captured, num_inputs)
    if place not in read_only
  ]
  return captured, assigned
