"""The program of many TPU cores: compiled from shapes, and run if possible.

Running needs the environment of the TPU compiler: `make test-tpu`.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine.sampling import Sampler
from paragan_tf.nets import linear
from paragan_tf.types import ImageSpec
from tests import testing
from tools.suites.rehearsal.suite import make_bindings
from tools.tpu import rehearsal, replicated

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUN = "gin/runs/smoke.gin"
SGD, MOMENTUM = "optimizers.SGD", "optimizers.Momentum"
OPTIMISTIC = "optimistic.OptimisticSGD"
# Name, file of the exchange, optimizer, kinds of collectives.
SCHEMES = (
  ("sync", "all_reduce", SGD, {"all_reduce"}),
  ("every_other_step", "every_other_step", SGD, {"all_reduce"}),
  (
    "gradients_every_other_step",
    "gradients_every_other_step",
    SGD,
    {"all_reduce"},
  ),
  ("paragan", "paragan", SGD, {"all_reduce", "permute"}),
  ("moments", "paragan", MOMENTUM, {"all_reduce", "permute"}),
  (
    "async_gradients",
    "async gradients_every_other_step",
    SGD,
    {"all_reduce", "permute"},
  ),
  ("gossip", "gossip", OPTIMISTIC, {"permute"}),
  ("quantized", "quantized", OPTIMISTIC, {"all_to_all"}),
)


def make(scheme, optimizer, net="linear", num_cores=8, more=()):
  """Returns a rehearsal of a scheme; more than one file if it has spaces."""
  return rehearsal.Rehearsal(
    [RUN, *(f"gin/sync/{name}.gin" for name in scheme.split())],
    [*make_bindings(net, optimizer), *more],
    num_cores,
  )


def find_kinds(exported):
  """Returns the kinds of collectives in all programs."""
  return {
    kind
    for kind in ("all_reduce", "all_to_all", "permute")
    for program in exported.programs
    if f"paragan_{kind}".encode() in program.hlo
  }


class ExportTest(tf.test.TestCase, parameterized.TestCase):
  """XLA compiles one program for all cores, which read their id at run time."""

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  @parameterized.named_parameters(*SCHEMES)
  def test_a_step_compiles_from_shapes(self, scheme, optimizer, kinds):
    exported, _ = rehearsal.export(make(scheme, optimizer))
    self.assertEqual(find_kinds(exported), kinds)

  def test_a_program_does_not_grow_with_the_replicas(self):
    sizes = {}
    for num in (16, 64):
      wanted = make("quantized", OPTIMISTIC, num_cores=num)
      exported, batch_size = rehearsal.export(wanted)
      self.assertEqual(batch_size, num)
      self.assertEqual(find_kinds(exported), {"all_reduce", "all_to_all"})
      sizes[num] = len(exported.programs[0].hlo)
    self.assertLess(sizes[64], 1.2 * sizes[16])

  @parameterized.parameters((1, 3), (3, 1))
  def test_uneven_roles_compile(self, g_per_group, d_per_group):
    more = [
      f"schedule.Asynchronous.g_per_group = {g_per_group}",
      f"schedule.Asynchronous.d_per_group = {d_per_group}",
      "schedule.Asynchronous.g_batch_size = 48",
      "experiment.Experiment.batch_size = 24",
    ]
    exported, _ = rehearsal.export(make("paragan", SGD, more=more))
    self.assertEqual(find_kinds(exported), {"all_reduce", "permute"})

  def test_the_sampler_compiles(self):
    spec = ImageSpec(8, 1, 3)
    g = linear.Generator(spec=spec, seed=0, name="g")
    with replicated.trace_for_cores(4):
      sampler = Sampler(tf.distribute.get_strategy(), g, True, batch_size=8)
      draw = tf.function(
        lambda z, labels: sampler.draw_shard(z, labels, 4),
        autograph=False,
        jit_compile=True,
      )
      hlo = draw.experimental_get_compiler_ir(
        tf.TensorSpec([8, g.z_dim]), tf.TensorSpec([8], tf.int32)
      )(stage="hlo")
    self.assertIn("replica-id", hlo)
    self.assertIn("f32[2,8,8,1]", hlo)


@pytest.mark.tpu
class RunTest(tf.test.TestCase, parameterized.TestCase):
  """The same program on virtual devices against `MirroredStrategy`."""

  def assert_weights_are_equal(self, wanted):
    text = json.dumps(wanted._asdict())
    with tempfile.TemporaryDirectory() as folder:
      done = subprocess.run(
        [sys.executable, "-m", "tools.tpu.rehearsal", text, folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
      )
    self.assertEqual(done.returncode, 0, done.stderr[-2000:])
    figures = json.loads(done.stdout.splitlines()[-1])
    self.assertEqual(figures["num_steps"], 10)
    self.assertLessEqual(figures["max_weight_gap"], 1e-5)
    self.assertGreater(figures["max_weight_change"], 1e-3)
    self.assertTrue(np.isfinite(figures["max_state_gap"]))

  @parameterized.named_parameters(*SCHEMES)
  def test_weights_are_those_of_a_strategy(self, scheme, optimizer, _):
    for net in ("linear", "sngan"):
      with self.subTest(net):
        self.assert_weights_are_equal(make(scheme, optimizer, net))

  def test_two_phases_are_those_of_a_strategy(self):
    # Uncompressed: with random rounding, an entry of which the last bit differs
    # may be rounded to the next level, about once in a hundred thousand.
    more = [
      "from paragan_tf.sync import compress",
      "from paragan_tf.sync import quantize",
      "quantize.Quantized.form = 'two_phase'",
      "quantize.Quantized.compressor = @compress.Identity()",
    ]
    wanted = make("quantized", OPTIMISTIC, more=more)
    self.assert_weights_are_equal(wanted)


if __name__ == "__main__":
  testing.main()
