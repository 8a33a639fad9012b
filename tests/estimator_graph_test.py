"""TPUEstimator's own graph for a TPU, built on made-up hosts and cores."""

import collections
import os
import signal
from unittest import mock

import gin
import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.python.training import training

from paragan_tf.data import input_fn, python_ops
from paragan_tf.engine import estimator, estimator_loop
from tests import estimator_test
from tools.tpu import estimator_graph

TRAIN = tf.estimator.ModeKeys.TRAIN
EVAL = tf.estimator.ModeKeys.EVAL
PREDICT = tf.estimator.ModeKeys.PREDICT
# In every fourth step: two of four phases differ.
RARE = (
  "from paragan_tf.game import penalties",
  "d/experiment.player.penalties = [@penalties.R1()]",
  "penalties.R1.period = 4",
)
OTHER_COLLECTIVES = {
  "AllToAll",
  "CollectivePermute",
  "CollectiveGatherV2",
  "CollectiveReduceV2",
  "XlaAllReduce",
  "XlaReduceScatter",
}
ON_CORES = (
  "experiment.Experiment.schedule = @schedule.Asynchronous",
  "schedule.Asynchronous.on_cores = True",
)


def predict_input_fn(params):
  """Returns labels to predict images of."""
  labels = {"labels": tf.zeros([64], tf.int32)}
  return tf.data.Dataset.from_tensor_slices(labels).batch(
    params["batch_size"], drop_remainder=True
  )


class EstimatorGraphTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def build(self, mode, *more, num_hosts=1):
    """Returns the experiment and the graph; each core has two images."""
    size = 2 * 8 * num_hosts
    experiment = estimator_test.build(
      f"experiment.Experiment.batch_size = {size}", *more
    )
    folder = os.path.join(self.get_temp_dir(), self._testMethodName)
    feed = estimator.make_input_fn(experiment.input_fn, 0)
    if mode == TRAIN:
      feed = estimator.measure_wait(feed)
    if mode == PREDICT:
      feed = predict_input_fn
    with estimator_graph.made_up_tpu(num_hosts) as tpu:
      made = experiment.estimator(folder, tpu)
      return experiment, estimator_graph.build(made, feed, mode)

  @parameterized.named_parameters(
    ("train", TRAIN),
    ("evaluate", EVAL),
    ("predict", PREDICT),
    ("rare_penalty", TRAIN, *RARE),
    ("g_and_d_on_two_cores", TRAIN, *ON_CORES),
  )
  def test_variables_are_created_outside_of_the_cores_program(
    self, mode, *more
  ):
    experiment, built = self.build(mode, *more)
    self.assertEmpty(estimator_graph.find_initialized_inside(built.graph))
    names = {v.name for v in experiment.step.variables}
    with built.graph.as_default():
      self.assertEqual({v.name for v in tf.compat.v1.global_variables()}, names)

  def count(self, built):
    """Returns how many operations of each type the cores run."""
    nodes = estimator_graph.list_inside(built.graph)
    return collections.Counter(node.op for node in nodes)

  @parameterized.named_parameters(("one_phase", 1), ("two_phases", 2, *RARE))
  def test_cores_sum_gradients_state_and_logs_and_send_nothing_else(
    self, num_phases, *more
  ):
    experiment, built = self.build(TRAIN, *more)
    counts = self.count(built)
    nets = [player.net for player in experiment.step.players.values()]
    num = sum(len(net.variables) for net in nets)
    # The logs are summed once, after whatever the phase does.
    self.assertEqual(counts["CrossReplicaSum"], num_phases * num + 1)
    self.assertEqual(counts["Case"], num_phases - 1)
    self.assertNoCommonElements(counts, OTHER_COLLECTIVES)
    everywhere = [op.type for op in built.graph.get_operations()]
    self.assertNotIn("CrossReplicaSum", everywhere)  # Only in their functions.

  @parameterized.named_parameters(("one_phase", 1), ("two_phases", 2, *RARE))
  def test_cores_count_the_steps(self, num_phases, *more):
    _, built = self.build(TRAIN, *more)
    counted = [
      node
      for node in estimator_graph.list_inside(built.graph)
      if node.op == "AssignAddVariableOp"
      and node.attr["dtype"].type == tf.int64.as_datatype_enum
    ]
    self.assertLen(counted, num_phases)

  def test_a_step_sends_the_host_the_loss_only(self):
    _, built = self.build(TRAIN)
    sent = [
      list(node.attr["dtypes"].list.type)
      for node in estimator_graph.list_inside(built.graph)
      if node.op == "OutfeedEnqueueTuple"
    ]
    self.assertEqual(sent, [[tf.float32.as_datatype_enum]])

  def test_each_host_feeds_its_cores_without_python(self):
    asked = []
    call = input_fn.InputFn.__call__

    def noted(self, params):
      asked.append(dict(params))
      return call(self, params)

    with mock.patch.object(input_fn.InputFn, "__call__", noted):
      _, built = self.build(TRAIN, num_hosts=2)
    expected = [
      dict(batch_size=2, start_step=0, num_shards=16, shards=s, python=False)
      for s in (range(8), range(8, 16))
    ]
    self.assertEqual(asked, expected)
    made = built.graph.as_graph_def()
    nodes = [made.node, *(f.node_def for f in made.library.function)]
    types = {node.op for part in nodes for node in part}
    self.assertIn("InfeedEnqueueTuple", types)
    self.assertNoCommonElements(types, {"PyFunc", "EagerPyFunc"})

  def test_depth_from_step_timing_is_a_variable_on_each_host(self):
    experiment = estimator_test.build(
      "experiment.Experiment.batch_size = 32",
      "input_fn.InputFn.prefetch = 'step_timing'",
    )
    control = experiment.input_fn.make_control(0, 32)
    feed = estimator.make_input_fn(experiment.input_fn, 0, control)
    with estimator_graph.made_up_tpu(2) as tpu:
      made = experiment.estimator(self.get_temp_dir(), tpu)
      built = estimator_graph.build(made, estimator.measure_wait(feed), TRAIN)
    self.assertEmpty(estimator_graph.find_initialized_inside(built.graph))
    with built.graph.as_default():
      found = [
        v.handle.device
        for v in tf.compat.v1.local_variables()
        if "input_depth" in v.op.name
      ]
    hosts = [f"/job:worker/task:{i}/device:CPU:0" for i in range(2)]
    self.assertCountEqual(found, hosts)
    made = built.graph.as_graph_def()
    self.assertEmpty(python_ops.find_in_graph(made))
    written = []
    logs = {"images_per_second": 1.0, "input_wait": 0.5, "input_late": 1.0}
    for step in (20, 40):
      control.update(
        step,
        logs,
        lambda variables: [np.zeros(v.shape, np.int64) for v in variables],
        lambda variable, value: written.append((variable.op.name, value)),
      )
    depths = [value for name, value in written if "depth" in name]
    # The first loop is traced, and changes nothing.
    self.assertEqual(depths, [2, 2, 4, 4])

  def test_ctrl_c_is_handled_by_the_program_during_calls(self):
    def handle(number, frame):
      raise AssertionError("Nobody pressed it.")

    before = signal.signal(signal.SIGINT, handle)
    self.addCleanup(signal.signal, signal.SIGINT, before)
    _, built = self.build(TRAIN)
    names = [type(hook).__name__ for hook in built.spec.training_hooks]
    first = names.index("InstallSignalHandlerHook")
    kill, keep = built.spec.training_hooks[first : first + 2]
    for handler in (handle, signal.SIG_DFL):  # As it is after a first Ctrl-C.
      signal.signal(signal.SIGINT, handler)
      keep.after_run(None, None)
      kill.before_run(None)
      self.assertEqual(signal.getsignal(signal.SIGINT), signal.SIG_DFL)
      keep.before_run(None)
      self.assertEqual(signal.getsignal(signal.SIGINT), handler)

  def test_hooks_are_called_in_the_order_that_they_rely_on(self):
    # All of `estimator.train` runs, but for the session.
    experiment = estimator_test.build("experiment.Experiment.batch_size = 16")
    with (
      estimator_graph.made_up_tpu() as tpu,
      mock.patch.object(
        training, "MonitoredTrainingSession", side_effect=InterruptedError
      ) as session,
    ):
      made = experiment.estimator(self.get_temp_dir(), tpu, saves=False)
      with self.assertRaises(InterruptedError):
        experiment.estimator_loop(made, [], [4]).train(0, 12, [4], [])
    given = session.call_args.kwargs
    hooks = [type(hook).__name__ for hook in given["hooks"]]
    # Its variable of steps is written, then read; so is the handler.
    expected = ["_StopHook", "TPUInfeedOutfeedSessionHook"]
    expected += ["InstallSignalHandlerHook", "_SignalHook"]
    self.assertEqual([name for name in hooks if name in expected], expected)
    self.assertEmpty(given["chief_only_hooks"])  # None that saves.

  def test_the_loop_finds_its_variables(self):
    _, built = self.build(TRAIN)
    with built.graph.as_default():
      names = {v.op.name for v in tf.compat.v1.local_variables()}
    expected = {estimator.LOG_SUMS, estimator.LOG_STEP}
    expected.add(estimator_loop._ITERATIONS)
    self.assertContainsSubset(expected, names)

  def test_a_variable_that_needs_the_cores_program_is_found(self):
    with tf.Graph().as_default() as graph:
      inside = tf.compat.v1.AttrValue(s=b"cluster")
      with graph._attr_scope({"_tpu_replicate": inside}):
        value = tf.constant(1.0)
      tf.compat.v1.get_variable(
        "bad", initializer=2.0 * value, use_resource=True
      )
      tf.compat.v1.get_variable("good", initializer=2.0, use_resource=True)
    found = estimator_graph.find_initialized_inside(graph)
    self.assertEqual(found, ["bad"])


if __name__ == "__main__":
  tf.test.main()
