"""A value of a wrong kind is refused when the config is read, by name."""

import json
import os
import socket
import tempfile

import gin
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, experiment, gin_values
from paragan_tf import run as run_module
from tests import train_test

IMPORTS = (
  "from __gin__ import dynamic_registration",
  "from paragan_tf import experiment",
  "from paragan_tf import run",
  "from paragan_tf.data import input_fn",
  "from paragan_tf.game import losses",
  "from paragan_tf.game import optimizers",
  "from paragan_tf.game import penalties",
  "from paragan_tf.game import regularizers",
  "from paragan_tf.nets import dcgan",
  "from paragan_tf.sync import exchange",
)
TOO_LARGE = (
  "dcgan.Generator.z_dim = 4294967296",
  "exchange.Periodic.period = 1000000000",
  "input_fn.InputFn.prefetch = 1000000000000",
)
WRONG = (
  "experiment.Experiment.loss = 3",
  "experiment.Experiment.loss = 'hinge'",
  "experiment.Experiment.loss = @optimizers.Adam",
  "experiment.Experiment.loss = @losses.hinge()",
  "experiment.Experiment.seed = 'x'",
  "experiment.Experiment.seed = 0.5",
  "experiment.Experiment.batch_size = [64]",
  "experiment.Experiment.extractor = 5",
  "experiment.Experiment.metrics = 'fid'",
  "experiment.Experiment.schedule = 'x'",
  "experiment.Experiment.ema = 0.9",
  "experiment.Experiment.augment = []",
  "g/experiment.player.penalties = 3",
  "g/experiment.player.penalties = [3]",
  "g/experiment.player.penalties = [@penalties.R1]",
  "g/experiment.player.penalties = @penalties.R1()",
  "g/experiment.player.regularizer = 'l2'",
  "g/experiment.player.optimizer = @exchange.AllReduce",
  "g/experiment.player.exchange = @optimizers.Adam",
  "g/experiment.player.clip_norm = True",
  "g/experiment.player.net = {}",
  "dcgan.Generator.width = 'x'",
  "dcgan.Generator.norm = 3",
  "input_fn.InputFn.prefetch = 2.5",
  "input_fn.InputFn.prefetch = None",
  "input_fn.InputFn.transform = @input_fn.InputFn",
  "optimizers.Adam.learning_rate = '1'",
  "run.Run.num_steps = 1e3",
  "run.Run.num_steps = True",
)
RIGHT = (
  "experiment.Experiment.loss = @losses.hinge",
  "experiment.Experiment.extractor = None",
  "experiment.Experiment.extractor = 'fashion'",
  "experiment.Experiment.metrics = ['fid']",
  "g/experiment.player.penalties = [@penalties.R1()]",
  "g/experiment.player.penalties = (@a/penalties.R1(), @penalties.R1())",
  "g/experiment.player.regularizer = @regularizers.l2",
  "g/experiment.player.net = @dcgan.Generator",
  "input_fn.InputFn.prefetch = 'step_timing'",
  "optimizers.Adam.learning_rate = 1",
  "optimizers.Adam.learning_rate = %rate\nrate = 1e-3",
)
SWAPPED = (
  "g/experiment.player.net = @dcgan.Discriminator",
  "d/experiment.player.net = @dcgan.Generator",
)


class GinValuesTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  @parameterized.parameters(*WRONG)
  def test_a_wrong_kind_is_refused_by_name(self, binding):
    name = binding.split(" = ")[0]
    with self.assertRaisesRegex(ValueError, f"^`{name}` must be ") as caught:
      config.load([], [*IMPORTS, binding])
    self.assertNotIn("\n", str(caught.exception))

  def test_a_kind_that_is_not_known_hides_no_other(self):
    def make(a: "no.such", b: int, c: "str" = ""):  # noqa: F821
      del a, b, c

    self.assertEqual(gin_values._hints(make), {"b": int, "c": str})

  @parameterized.parameters(*TOO_LARGE)
  def test_what_would_take_all_memory_is_refused_by_name(self, binding):
    name, value = binding.split(" = ")
    words = f"^`{name}` must be at most [0-9,]+, got {value}"
    with self.assertRaisesRegex(ValueError, words):
      config.load([], [*IMPORTS, binding])

  @parameterized.parameters(*RIGHT)
  def test_a_right_kind_is_taken(self, binding):
    config.load([], [*IMPORTS, binding])

  def test_swapped_nets_and_nets_of_no_width_are_refused(self):
    for binding, words in (
      *((x, "`./player.net` must make a") for x in SWAPPED),
      ("dcgan.Generator.width = 0", "`width` of a net must be at least 1"),
    ):
      config.load(
        ["gin/runs/smoke.gin"], ["from paragan_tf.nets import dcgan", binding]
      )
      with self.assertRaisesRegex(ValueError, words):
        experiment.Experiment(tf.distribute.get_strategy())


SMOKE = "gin/runs/smoke.gin"
MISSING = "Experiment.extractor = 'saved_model:/no/such/network'"
# Flags, and words of the sentence.
MISTAKES = (
  (["--gin_bindings=Run.num_steps = (1, [2"], "cannot be read"),
  (["--gin_bindings=x = @no.such"], "config"),
  (["--gin_bindings=InputFn.source = 'foo://x'"], "`source` must be one of"),
  (["--gin_bindings=Experiment.loss = 3"], "`experiment.Experiment.loss`"),
  (["--gin_bindings=" + MISSING], "could not be measured.*no such file"),
  (["--model_dir=foo://x"], "foo"),
  (["--model_dir="], "`--model_dir` must be a folder"),
  (["word"], "takes flags only, got 'word'"),
  (["--num_cpu_replicas=100000"], "`num_cpu_replicas` must be from 0 to"),
  (["--gin_file=gin"], "'gin'.*is a folder"),
  (["--gin_bindings=Run.best_by = 'fid'"], "`Run.best_by` .* frechet_fashion"),
)
CLUSTERS = (
  "[1]",
  "null",
  '{"cluster": 3}',
  '{"cluster": {"worker": null}, "task": {"type": "worker", "index": 0}}',
  '{"cluster": {"worker": 7}, "task": {"type": "worker", "index": 0}}',
  '{"cluster": {"worker": ["a:1", null]}, "task": {}}',
  '{"cluster": {"worker": ["a:99999", "b:1"]}, "task": {}}',
  '{"cluster": {"worker": ["a:0", "b:1"]}, "task": {}}',
  '{"cluster": {"worker": ["a:1", "a:1"]}, "task": {}}',
  '{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}',
  '{"cluster": {"worker": ["a:1"]}, "task": {"type": [], "index": {}}}',
  "[" * 5000,
)


class MistakesTest(train_test.ServerTestCase):
  """Real processes: one sentence, exit code 2, nothing written."""

  assert_refused = train_test.TrainTest.assert_refused
  train = train_test.TrainTest.train

  def test_each_ends_with_one_sentence_before_anything_is_written(self):
    with tempfile.TemporaryDirectory() as folder:
      target = os.path.join(folder, "run")
      for flags, words in MISTAKES:
        process = self.train(f"--model_dir={target}", *flags)
        self.assert_refused(process, words)
        self.assertEmpty(os.listdir(folder), flags)

  def test_a_dry_run_refuses_a_folder_that_cannot_be(self):
    with tempfile.NamedTemporaryFile() as file:
      process = self.train(f"--model_dir={file.name}/run", "--dry_run")
      self.assert_refused(process, "`model_dir` must be a folder")

  def test_a_dry_run_and_the_doctor_build_everything(self):
    for tool in ("train", "doctor"):
      process = self.server.run(
        f"tools.{tool}",
        f"--gin_file={SMOKE}",
        f"--gin_bindings={MISSING}",
        "--model_dir=/tmp/never",
        *(["--dry_run"] if tool == "train" else []),
      )
      output = process.stdout + process.stderr
      self.assertEqual(process.returncode, 2, output)
      self.assertRegex(output, "no such file")
      self.assertNotIn("Traceback", output)

  def test_wrong_clusters_end_with_one_sentence(self):
    for text in CLUSTERS:
      process = self.server.run(
        "tools.train",
        f"--gin_file={SMOKE}",
        "--model_dir=/tmp/never",
        "--dry_run",
        "--join_timeout=0",
        TF_CONFIG=text,
      )
      self.assert_refused(process, "TF_CONFIG")

  def test_workers_that_do_not_join_are_not_waited_for_without_end(self):
    with socket.socket() as holder:
      holder.bind(("127.0.0.1", 0))
      port = holder.getsockname()[1]
    # This process answers for both, so that only TensorFlow sees it.
    cluster = {"worker": [f"no.such.host:{port}", f"127.0.0.1:{port}"]}
    process = self.server.run(
      "tools.train",
      f"--gin_file={SMOKE}",
      "--model_dir=/tmp/never",
      "--dry_run",
      "--join_timeout=1",
      TF_CONFIG=json.dumps(
        {"cluster": cluster, "task": {"type": "worker", "index": 0}}
      ),
    )
    self.assert_refused(process, "Not all workers joined within 1 s")


class MeasuringTest(tf.test.TestCase):
  """If measuring fails at the end, the report says so."""

  def test_the_report_is_written_all_the_same(self):
    config.load(
      [SMOKE],
      ["run.Run.num_steps = 1", "Experiment.extractor = 'fashion'"],
    )
    self.addCleanup(gin.clear_config)
    made = experiment.Experiment(tf.distribute.OneDeviceStrategy("/cpu:0"))
    folder = os.path.join(self.get_temp_dir(), "measured")
    run = run_module.Run(made, folder)
    run.restore()
    run.open()

    def fail(*args):
      raise tf.errors.ResourceExhaustedError(None, None, "no memory <left>")

    made.evaluation.measure = fail
    words = "Nothing is measured: .*no memory"
    with self.assertRaisesRegex(run_module.InputError, words):
      run()
    with open(f"{folder}/report.html", encoding="utf-8") as f:
      self.assertIn("no memory &lt;left&gt;", f.read())


if __name__ == "__main__":
  tf.test.main()
