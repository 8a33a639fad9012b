"""TPUEstimator: its three modes, its checkpoints, and its graph for a TPU."""

import functools
import gc
import os
import time

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import config, experiment, tf_private
from paragan_tf.engine import estimator
from paragan_tf.outputs import checkpoints, records
from paragan_tf.run import Run
from paragan_tf.types import Mode
from tests import run_test, testing

TRAIN, EVAL = tf.estimator.ModeKeys.TRAIN, tf.estimator.ModeKeys.EVAL
ONE = run_test.ONE


def build(*more):
  """Returns an experiment with linear nets."""
  bindings = [*run_test.TINY, *run_test.LINEAR, *more]
  config.load(["gin/runs/fashion.gin"], bindings)
  return experiment.Experiment(ONE("/cpu:0"))


def run(folder, num_steps):
  """Trains to a step with TPUEstimator, as a new process would."""
  built = build(f"run.Run.num_steps = {num_steps}")
  made = Run(built, folder, built.estimator(folder, saves=False))
  made.restore()
  made.open()
  made()
  return made


class TrainedTest(tf.test.TestCase):
  """The modes of TPUEstimator after four steps."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = os.path.join(cls.get_temp_dir(cls()), "trained")
    made = run(cls.folder, 4)
    cls.built, cls.estimator = made.experiment, made._estimator
    cls.labels = np.array([0, 1, 2, 1, 0, 2, 9, 3], np.int32)
    cls.z = testing.z(8)

  @classmethod
  def tearDownClass(cls):
    del cls.built, cls.estimator
    gin.clear_config()
    gc.collect()
    super().tearDownClass()

  def predict(self, **features):
    """Returns the images that the estimator predicts for features."""

    def input_fn(params):
      return tf.data.Dataset.from_tensor_slices(features).batch(
        params["batch_size"], drop_remainder=True
      )

    rows = self.estimator.predict(input_fn)
    return np.stack([row["images"] for row in rows])

  def test_predict_returns_images_of_the_average(self):
    images = self.predict(labels=self.labels, z=self.z)
    self.assertEqual(images.shape, (8, 32, 32, 1))
    self.assertAllInRange(images, -1.0, 1.0)
    twin, g = self.built.step.ema.twin, self.built.step.players["g"].net
    expected = twin(self.z, self.labels, Mode.EVAL)
    self.assertAllClose(images, expected, rtol=0, atol=1e-6)
    now = g(self.z, self.labels, Mode.EVAL)
    self.assertNotAllClose(images, now, atol=1e-5)

  def test_predict_depends_on_the_codes(self):
    first, again = (self.predict(labels=self.labels, z=self.z) for _ in "ab")
    self.assertAllEqual(first, again)
    other = self.predict(labels=self.labels, z=self.z[::-1].copy())
    self.assertNotAllClose(first, other)

  def test_predict_draws_codes_by_default(self):
    images = self.predict(labels=np.zeros([8], np.int32))
    self.assertEqual(images.shape, (8, 32, 32, 1))
    self.assertNotAllClose(images[0], images[1])

  def test_evaluate_measures_the_average_against_d(self):
    input_fn = estimator.make_input_fn(self.built.input_fn, 0)
    values = self.estimator.evaluate(input_fn, steps=3)
    self.assertEqual(values["global_step"], 4)
    for name in ("loss", "d/loss", "g/loss", "d/score_real", "d/score_fake"):
      self.assertTrue(np.isfinite(values[name]), name)
    d = self.built.step.players["d"].net
    batches = self.built.input_fn(dict(batch_size=8)).take(3)
    scores = [np.mean(d(x, y, Mode.EVAL)) for x, y in batches]
    self.assertAllClose(values["d/score_real"], np.mean(scores), atol=1e-5)

  def test_evaluate_uses_the_loss_of_its_step(self):
    built = build(
      "experiment.Experiment.loss = @losses.TopK()",
      "losses.TopK.every = 2",
      "losses.TopK.gamma = 0.5",
      "losses.TopK.nu = 0.1",
    )
    input_fn = estimator.make_input_fn(built.input_fn, 0)
    every = self.estimator.evaluate(input_fn, steps=1)
    best = built.estimator(self.folder).evaluate(input_fn, steps=1)
    for name in ("d/loss", "d/score_fake"):
      self.assertAllClose(best[name], every[name])
    self.assertLess(best["g/loss"], every["g/loss"] - 1e-3)
    # At step 4, two of eight.
    built.step.count.assign(4)
    images, labels, _ = testing.batch(8, built.spec)
    spec = estimator._eval_spec(built.step, images, labels)
    _, values = spec.eval_metrics
    two = np.sort(values["d/score_fake"])[-2:]
    self.assertAllClose(values["g/loss"], np.full([8], -two.mean()))

  def test_samples_are_drawn_from_its_checkpoint(self):
    fresh = build("run.Run.num_steps = 4")
    before = fresh.sampler(self.labels, seed=1)
    made = Run(fresh, self.folder)
    made.restore()
    self.assertEqual(made.done, 4)
    images = fresh.sampler(self.labels, seed=1)
    self.assertAllClose(images, self.built.sampler(self.labels, seed=1))
    self.assertNotAllClose(images, before)
    self.assertTrue(os.path.exists(f"{self.folder}/samples/00000004.png"))

  def test_the_exported_model_returns_images(self):
    def receive():
      labels = tf.compat.v1.placeholder(tf.int32, [None], "labels")
      z = tf.compat.v1.placeholder(tf.float32, [None, 4], "z")
      features = {"labels": labels, "z": z}
      return tf.estimator.export.ServingInputReceiver(features, features)

    path = self.estimator.export_saved_model(f"{self.folder}/export", receive)
    loaded = tf.saved_model.load(path.decode())
    serve = loaded.signatures["serving_default"]
    images = serve(labels=tf.constant(self.labels), z=tf.constant(self.z))
    expected = self.built.step.ema.twin(self.z, self.labels, Mode.EVAL)
    self.assertAllClose(images["images"], expected, rtol=0, atol=1e-6)


class EnginesTakeTurnsTest(tf.test.TestCase):
  def tearDown(self):
    gin.clear_config()
    gc.collect()
    super().tearDown()

  def test_a_run_can_change_its_engine_and_back(self):
    folder = os.path.join(self.get_temp_dir(), "turns")
    run_test.run(ONE("/cpu:0"), f"{folder}/both", 4, *run_test.LINEAR)
    self.assertEqual(run(f"{folder}/both", 8).done, 8)
    both = run_test.run(ONE("/cpu:0"), f"{folder}/both", 12, *run_test.LINEAR)
    one = run_test.run(ONE("/cpu:0"), f"{folder}/one", 12, *run_test.LINEAR)
    expected, got = run_test.values(one), run_test.values(both)
    self.assertEqual(expected.keys(), got.keys())
    for name, value in expected.items():
      self.assertAllClose(got[name], value, rtol=0, atol=1e-6, msg=name)
    steps = [line["step"] for line in records.read(f"{folder}/both")]
    self.assertEqual(steps, [4, 8, 12])
    kept = checkpoints.Checkpoints(f"{folder}/both").paths()
    self.assertEqual([p.split("-")[-1] for p in kept], ["4", "8", "12"])


class GraphTest(tf.test.TestCase, parameterized.TestCase):
  """The graph for a TPU, which can be built without one."""

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def ops(self, num_shards, *more):
    """Returns the types of all operations in the training graph."""
    built = build(*more)
    model_fn = estimator.make_model_fn(built.make_step)
    with tf.Graph().as_default() as graph:
      images, labels, _ = testing.batch(2, built.spec)
      with tf_private.trace_for_tpu_shards(num_shards):
        model_fn(images, labels, TRAIN, {})
    made = graph.as_graph_def()
    nodes = [made.node, *(f.node_def for f in made.library.function)]
    return built.step, [node.op for part in nodes for node in part]

  def test_every_gradient_and_state_is_summed_over_the_replicas(self):
    step, ops = self.ops(4)
    nets = [player.net for player in step.players.values()]
    # Weights bring their gradient, all others themselves.
    num = sum(len(net.variables) for net in nets)
    # The logs are one more.
    self.assertEqual(ops.count("CrossReplicaSum"), num + 1)

  def test_replicas_that_train_alone_send_their_logs_only(self):
    alone = "experiment.player.exchange = @exchange.Exchange"
    _, ops = self.ops(4, alone)
    self.assertEqual(ops.count("CrossReplicaSum"), 1)
    self.assertIn("XlaReplicaId", ops)

  def test_every_replica_draws_its_own_noise(self):
    _, ops = self.ops(4)
    self.assertIn("XlaReplicaId", ops)
    self.assertNotIn("RandomStandardNormal", ops)

  def test_without_a_tpu_the_graph_has_no_tpu_operations(self):
    _, ops = self.ops(None)
    self.assertNotIn("CrossReplicaSum", ops)
    self.assertNotIn("XlaReplicaId", ops)
    self.assertIn("AssignSubVariableOp", ops)

  def test_one_program_has_all_phases_and_compiles(self):
    rare = (
      "from paragan_tf.game import penalties",
      "d/experiment.player.penalties = [@penalties.R1()]",
      "penalties.R1.period = 3",
    )
    logs = {}
    for jit_compile in (False, True):
      step = build(*rare).step
      call = tf.function(
        functools.partial(estimator._call_step, step),
        autograph=False,
        jit_compile=jit_compile,
      )
      batches = (testing.batch(4, build().spec, seed=t)[:2] for t in range(4))
      is_logged = tf.constant(True)
      logs[jit_compile] = [call(*batch, is_logged).numpy() for batch in batches]
      self.assertEqual(call.experimental_get_tracing_count(), 1)
    loss = step.log_names.index("d/loss")
    self.assertAllClose(logs[True], logs[False], rtol=1e-3, atol=1e-4)
    # In which the penalty is due: at 0 and 3.
    due = [row[loss] for row in logs[True]]
    self.assertGreater(min(due[0], due[3]), max(due[1], due[2]) + 0.1)

  @parameterized.parameters("Periodic", "AccumulatedGradients")
  def test_exchanges_that_let_replicas_differ_are_refused_on_a_tpu(self, name):
    built = build(f"experiment.player.exchange = @exchange.{name}")
    with self.assertRaisesRegex(
      ValueError, f"`{name}` of `g` lets replicas differ: take `AllReduce`"
    ):
      built.estimator(self.get_temp_dir(), tpu=object())
    built.estimator(self.get_temp_dir())

  def test_a_role_split_needs_two_cores_a_replica(self):
    role_split = "experiment.Experiment.schedule = @schedule.Asynchronous"
    built = build(role_split)
    with self.assertRaisesRegex(ValueError, "`on_cores`"):
      built.estimator(self.get_temp_dir(), tpu=object())
    built = build(role_split, "schedule.Asynchronous.on_cores = True")
    made = built.estimator(self.get_temp_dir())
    self.assertEqual(made.config.tpu_config.num_cores_per_replica, 2)


class Deployment:
  """TensorFlow's context for the input of the second of three hosts."""

  num_replicas = 12

  def current_input_fn_deployment(self):
    return "/cpu:0", 1, 3, 4


class InputFnTest(tf.test.TestCase):
  def test_each_host_feeds_its_own_replicas(self):
    asked = []

    def input_fn(params):
      asked.append(params)
      return tf.data.Dataset.from_tensors((tf.zeros([2]), tf.ones([2])))

    made = estimator.make_input_fn(input_fn, start_step=7)
    data = made(dict(batch_size=2, context=Deployment()))
    self.assertLen(data.element_spec, 2)
    made(dict(batch_size=24))
    self.assertEqual(
      asked,
      [
        dict(
          batch_size=2,
          start_step=7,
          num_shards=12,
          shards=range(4, 8),
          python=False,
        ),
        dict(batch_size=24, start_step=7),
      ],
    )

  def test_features_have_the_wait_for_each_batch(self):
    def slowly(k):
      time.sleep(0.3)
      return k

    def input_fn(params):
      del params
      data = tf.data.Dataset.range(3).map(
        lambda k: tf.numpy_function(slowly, [k], tf.int64)
      )
      return data.map(lambda k: (tf.fill([2], k), tf.ones([2]))).prefetch(1)

    for params, parts in (({}, 1), (dict(context=Deployment()), 3)):
      data = iter(estimator.measure_wait(input_fn)(params))
      features, labels = next(data)
      self.assertAllEqual(labels, [1.0, 1.0])
      self.assertAllEqual(features["images"], [0, 0])
      started = time.time()
      features, _ = next(data)
      passed = time.time() - started
      self.assertEqual(features["wait"].shape, [2])
      self.assertAllClose(features["wait"][1] * parts, 1.0)  # Late.
      self.assertBetween(features["wait"][0] * parts, 0.2, passed + 0.01)
      time.sleep(0.8)  # What comes next is there by now: nobody waits for it.
      features, _ = next(data)
      self.assertBetween(features["wait"][0] * parts, 0.0, 0.2)
      is_late = features["wait"][0] * parts > 0.002
      self.assertAllClose(features["wait"][1] * parts, float(is_late))

  def test_without_labels_elements_are_images(self):
    images = tf.data.Dataset.from_tensors((tf.zeros([2]),))
    data = estimator.make_input_fn(lambda params: images, 0)({"batch_size": 2})
    self.assertEqual(data.element_spec, tf.TensorSpec([2]))
    input_fn = estimator.make_input_fn(lambda params: images, 0)
    data = estimator.measure_wait(input_fn)({"batch_size": 2})
    self.assertCountEqual(data.element_spec, ["images", "wait"])


if __name__ == "__main__":
  testing.main()
