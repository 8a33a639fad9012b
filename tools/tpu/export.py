"""Writes the training step of a run as a program for XLA.

  python -m tools.tpu.export '{"gin_files": ["gin/runs/..."]}' step.hlo

It prints the number of images that a core has. No image is read and no weight
initialized: a compiler needs only shapes.
"""

import contextlib
import json
import pathlib
import sys
import types
from typing import Iterator, NamedTuple, Optional, Sequence
from unittest import mock

from tools import cli


class Program(NamedTuple):
  """What to export.

  Attributes:
    gin_files: Of the run.
    bindings: Read after them.
    num_cores: Among how many cores the run's batch is shared.
    role: `g` or `d`, of a run with a role split; `None` for the step in which a
      core trains both, one after the other.
  """

  gin_files: Sequence[str]
  bindings: Sequence[str] = ()
  num_cores: int = 1
  role: Optional[str] = None


class Exported(NamedTuple):
  """XLA's serialized program of one core, and the images of that core."""

  hlo: bytes
  num_images: int


_DATA_PARALLEL = (
  "from paragan_tf.game import schedule",
  "from paragan_tf.sync import exchange",
  "Experiment.schedule = @schedule.Sequential",
  "player.exchange = @exchange.AllReduce",
)


def export(program: Program) -> Exported:
  """Returns the step of one core."""
  experiment = cli.import_experiment()
  import tensorflow as tf

  data_parallel = () if program.role else _DATA_PARALLEL
  experiment.gin.clear_config()
  cli.import_quietly("paragan_tf.config").load(
    program.gin_files, [*data_parallel, *program.bindings]
  )
  size = experiment.gin.query_parameter("Experiment.batch_size")
  check_cores(size, program.num_cores)
  num = program.num_cores if program.role else 1
  spec = find_image_spec(experiment)
  with (
    use_zero_weights(),
    _use_one_replica(num, "gd".index(program.role or "g")),
  ):
    built = experiment.Experiment(
      tf.distribute.get_strategy(),
      batch_size=size if program.role else size // program.num_cores,
      input_fn=lambda: types.SimpleNamespace(spec=spec),
    )
    if program.role and built.step.schedule.roles is None:
      raise ValueError(
        "`--roles` needs a run with a role split, G and D on cores of their "
        f"own, and `{type(built.step.schedule).__name__}` has none: leave it "
        "out, or add "
        "`--gin_file=gin/sync/paragan.gin`."
      )
    return _serialize(built, spec, num)


def _serialize(built, spec, num: int) -> Exported:
  import tensorflow as tf

  size = built.images_per_step // built.step.schedule.num_shards(num)
  side = spec.resolution
  inputs = [tf.TensorSpec([size, side, side, spec.channels])]
  if spec.num_classes:
    inputs.append(tf.TensorSpec([size], tf.int32))

  def step(images, labels=None):
    # Norms for the log are computed at the last step of a call only.
    return built.step(images, labels, 0, is_logged=False)

  traced = tf.function(step, autograph=False, jit_compile=True)
  hlo = traced.experimental_get_compiler_ir(*inputs)(stage="hlo_serialized")
  return Exported(hlo, size)


def check_cores(size: int, num_cores: int) -> None:
  """Raises a `ValueError` unless cores have equal parts of a batch."""
  if num_cores < 1 or size % num_cores:
    raise ValueError(
      f"`--cores` must divide the run's batch of {size}, got {num_cores}."
    )


def find_image_spec(experiment):
  """Returns the image spec of a run; a tfds set need not be downloaded."""
  gin = experiment.gin
  found = gin.get_bindings(experiment.InputFn, resolve_references=False)
  source = found.get("source")
  if not (isinstance(source, str) and source.startswith("tfds:")):
    return gin.get_configurable(experiment.InputFn)().spec
  import tensorflow_datasets as tfds

  name = source.split(":", 1)[1].split(",")[0]
  features = tfds.builder(name).info.features
  num_classes = 0
  if found.get("conditional", True):
    only = found.get("only_labels")
    num_classes = len(only or features["label"].names)
  return experiment.ImageSpec(
    found["resolution"], features["image"].shape[-1], num_classes
  )


@contextlib.contextmanager
def use_zero_weights() -> Iterator[None]:
  """Initializes weights with zeros, which takes no time."""
  import tensorflow as tf

  from paragan_tf.nets import layers

  def zeros(*args, **kwargs):
    return lambda name, shape: tf.zeros(shape)

  with mock.patch.multiple(
    layers, normal_init=zeros, glorot_init=zeros, orthogonal_init=zeros
  ):
    yield


@contextlib.contextmanager
def _use_one_replica(num: int, replica: int) -> Iterator[None]:
  """Traces one replica of several, without messages from the others.

  Collectives return what this replica gives them: that has the same shape, and
  figures of one core do not include the network.
  """
  if num == 1:
    yield
    return
  import tensorflow as tf

  from paragan_tf import collectives, pairs

  def receive(values, sources):
    return list(values)

  with (
    mock.patch.multiple(
      collectives,
      num_replicas=lambda: num,
      replica_id=lambda: tf.constant(replica),
      static_replica_id=lambda: replica,
      mean=lambda values, weights=None: list(values),
      group_mean=lambda values, size: list(values),
    ),
    mock.patch.object(pairs, "receive", receive),
  ):
    yield


def main() -> None:
  """Exports the program of the first argument to the file of the second."""
  program = Program(**json.loads(sys.argv[1]))
  exported = cli.exit_on_error(lambda: export(program))
  pathlib.Path(sys.argv[2]).write_bytes(exported.hlo)
  print(exported.num_images)


if __name__ == "__main__":
  main()
