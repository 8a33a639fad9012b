"""Prints the bytes that BigGAN's whole step at 128 px needs beside its inputs.

python -m tests.remat_memory True

A program of its own, for XLA reads where to write its plan of the memory when
it starts. With `True` or `False` for whether blocks are computed anew.
"""

import os
import pathlib
import re
import sys
import tempfile

from tools.suites.flops import count_function

_BATCH_SIZE, _WIDTH, _SIDE = 4, 16, 128


def temporary_bytes(plan: str) -> int:
  """Returns what is neither given nor returned, out of XLA's plan."""
  found = re.findall(
    r"^allocation .* size (\d+), preallocated-temp", plan, re.M
  )
  return sum(int(size) for size in found)


def build(remat: bool):
  """Returns BigGAN's run, thin and on a few images."""
  import tensorflow as tf

  from paragan_tf import config, experiment

  nets = [f"biggan.{net}" for net in ("Generator", "Discriminator")]
  bindings = (
    f"InputFn.resolution = {_SIDE}",
    "sources.fashion.num_heldout = 9998",
    f"Experiment.batch_size = {_BATCH_SIZE}",
    *(f"{net}.width = {_WIDTH}" for net in nets),
    *(f"{net}.remat = {remat}" for net in nets),
  )
  config.load(["gin/runs/benchmark_step.gin", "gin/nets/biggan.gin"], bindings)
  return experiment.Experiment(tf.distribute.get_strategy())


def whole_step(remat: bool, **options):
  """Returns the step as a function that is not yet traced, and its inputs."""
  import tensorflow as tf

  built = build(remat)

  def step(images, labels):
    return built.step(images, labels, 0)

  spec = built.input_fn({"batch_size": _BATCH_SIZE}).element_spec
  return tf.function(step, autograph=False, **options), spec


def multiply_adds(remat: bool) -> float:
  """Returns the work of one step."""
  step, spec = whole_step(remat)
  return count_function(step.get_concrete_function(*spec)).executed


def compile_step(remat: bool) -> None:
  """Compiles the step, without running it."""
  step, spec = whole_step(remat, jit_compile=True)
  step.experimental_get_compiler_ir(*spec)(stage="optimized_hlo_serialized")


if __name__ == "__main__":
  with tempfile.TemporaryDirectory() as folder:
    # Only the plan counts, so the machine code may be slow.
    os.environ["XLA_FLAGS"] = (
      f"--xla_dump_to={folder} --xla_dump_hlo_as_text "
      "--xla_backend_optimization_level=0"
    )
    compile_step(sys.argv[1] == "True")
    plans = pathlib.Path(folder).glob("*buffer-assignment.txt")
    print(max(temporary_bytes(plan.read_text()) for plan in plans))
