"""TensorFlow's own `TPUStrategy` traces the training loop, on made-up cores.

Nothing runs. What a TPU would compile is the traced graph, so its messages are
counted in it, and none of them may be in a branch that some cores skip.
"""

import collections
import itertools

import gin
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import entries, strategies
from paragan_tf.nets import adapted
from tests import rehearsal_test, testing
from tools.tpu import rehearsal, virtual_tpu

NUM = 8
SUM, PERMUTE, ALL_TO_ALL = "CrossReplicaSum", "CollectivePermute", "AllToAll"
# Messages of one cycle; each of the linear nets has two weights. Fakes go as
# images and labels.
SCHEMES = (
  ("sync", "all_reduce", {SUM: 4}),
  ("every_other_step", "every_other_step", {SUM: 4}),
  ("gradients_every_other_step", "gradients_every_other_step", {SUM: 4}),
  ("async", "async", {SUM: 4, PERMUTE: 2}),
  ("paragan", "paragan", {SUM: 4, PERMUTE: 2}),
  (
    "async_gradients",
    "async gradients_every_other_step",
    {SUM: 4, PERMUTE: 2},
  ),
  ("gossip", "gossip", {PERMUTE: 2}),
  ("quantized", "quantized", {ALL_TO_ALL: 2}),
)
PRECISIONS = ("float32", "bfloat16")
SCHEDULES = ("Sequential", "Simultaneous", "Asynchronous")
EXCHANGES = {
  "exchange.Exchange": {},
  "exchange.AllReduce": {SUM: 4},
  "exchange.Periodic": {SUM: 4},
  "exchange.AccumulatedGradients": {SUM: 4},
  "gossip.Gossip": {PERMUTE: 4},
  "quantize.Quantized": {ALL_TO_ALL: 2},
}
IMPORTS = (
  "from paragan_tf.game import schedule",
  "from paragan_tf.sync import exchange",
  "from paragan_tf.sync import gossip",
  "from paragan_tf.sync import quantize",
)


def build(strategy, scheme="all_reduce", more=(), net="linear"):
  """Returns an experiment on the made-up cores, in the current graph."""
  sgd = rehearsal_test.SGD
  if scheme in ("gossip", "quantized"):
    sgd = rehearsal_test.OPTIMISTIC
  wanted = rehearsal_test.make(scheme, sgd, net, NUM, more)
  return rehearsal.build(wanted, strategy)


class TpuStrategyTest(tf.test.TestCase, parameterized.TestCase):
  def setUp(self):
    super().setUp()
    # Variables of cores that do not exist can be made in graphs only.
    self.enter_context(tf.Graph().as_default())
    self.strategy = virtual_tpu.make_strategy(NUM)

  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def assert_messages(self, graph, expected):
    found = virtual_tpu.find_communication(graph)
    self.assertEqual(
      dict(collections.Counter(message.kind for message in found)), expected
    )
    self.assertFalse([m for m in found if m.in_branch], "In a branch.")

  @parameterized.named_parameters(
    (f"{name}_{precision}", scheme, precision, messages)
    for (name, scheme, messages), precision in itertools.product(
      SCHEMES, PRECISIONS
    )
  )
  def test_the_loop_is_traced_with_its_messages(
    self, scheme, precision, messages
  ):
    more = [f"experiment.player.precision = '{precision}'"]
    experiment = build(self.strategy, scheme, more)
    program = virtual_tpu.trace_loop(experiment)
    self.assert_messages(program.graph, messages)
    # Seconds of waiting and late batches; logs stay on the cores.
    self.assertEqual(program.structured_outputs.shape, [2])

  def test_the_logs_of_all_cores_are_one_message_for_a_call(self):
    experiment = build(self.strategy)
    fetched = virtual_tpu.make_loop(experiment)._fetch.get_concrete_function()
    self.assert_messages(fetched.graph, {SUM: 1})
    num_logs = len(experiment.step.log_names)
    self.assertEqual(fetched.structured_outputs.shape, [num_logs])

  @pytest.mark.soak
  def test_every_schedule_exchange_and_precision_is_traced(self):
    for schedule, exchange, precision in itertools.product(
      SCHEDULES, EXCHANGES, PRECISIONS
    ):
      with self.subTest(f"{schedule} {exchange} {precision}"):
        self.trace_product(schedule, exchange, precision)

  def trace_product(self, schedule, exchange, precision):
    more = [
      *IMPORTS,
      f"experiment.Experiment.schedule = @schedule.{schedule}",
      f"experiment.player.exchange = @{exchange}",
      f"experiment.player.precision = '{precision}'",
    ]
    messages = dict(EXCHANGES[exchange])
    with tf.Graph().as_default():
      strategy = virtual_tpu.make_strategy(NUM)
      if schedule == "Asynchronous":
        if not exchange.startswith("exchange.") or not messages:
          with self.assertRaisesRegex(ValueError, "on separate replicas"):
            build(strategy, more=more)
          return
        messages[PERMUTE] = 2
      if schedule == "Simultaneous" and "Gossip" in exchange:
        messages[PERMUTE] = 2  # Both players send one message.
      self.assert_messages(
        virtual_tpu.trace_loop(build(strategy, more=more)).graph, messages
      )

  def test_every_variable_of_a_step_is_in_the_program(self):
    experiment = build(self.strategy, "paragan")
    program = virtual_tpu.trace_loop(experiment)
    captured = {id(x) for x in program.captured_inputs}
    for variable in experiment.step.variables:
      handles = {id(v.handle) for v in variable.values}
      self.assertLen(handles, NUM)
      self.assertContainsSubset(handles, captured, variable.name)

  def test_the_sampler_sends_nothing(self):
    experiment = build(self.strategy)
    z_dim = experiment.step.ema.twin.z_dim
    drawn = experiment.sampler._draw.get_concrete_function(
      tf.TensorSpec([256, z_dim]), tf.TensorSpec([256], tf.int32)
    )
    self.assertEqual(drawn.structured_outputs.shape, [256, 32, 32, 1])
    self.assert_messages(drawn.graph, {})

  def test_the_mean_of_all_averages_is_one_sum_for_each_variable(self):
    experiment = build(self.strategy, "gossip")
    num = len(experiment.step.ema.twin.variables)
    graph = experiment._consolidate_graph.get_concrete_function().graph
    self.assert_messages(graph, {SUM: num})

  def test_norms_over_groups_add_their_messages(self):
    counts = []
    for size in (1, 2, NUM):
      more = [
        "from paragan_tf.nets import norms",
        f"norms.BatchNorm.group_size = {size}",
      ]
      with tf.Graph().as_default():
        strategy = virtual_tpu.make_strategy(NUM)
        program = virtual_tpu.trace_loop(
          build(strategy, more=more, net="dcgan")
        )
        found = virtual_tpu.find_communication(program.graph)
      self.assertFalse([m for m in found if m.in_branch])
      self.assertEqual({m.kind for m in found}, {SUM})
      counts.append(len(found))
    # Three norms, each with two moments, forward and backward.
    self.assertEqual([n - counts[0] for n in counts], [0, 12, 12])

  def test_a_checkpoint_has_one_value_of_what_cores_agree_on(self):
    more = ["g/experiment.player.optimizer = @optimizers.Adam"]
    more += ["d/experiment.player.optimizer = @optimizers.Adam"]
    experiment = build(self.strategy, "paragan", more)
    args = experiment.step, self.strategy, experiment.processes
    state = entries.StepState(*args)
    found = {entry.name: entry for entry in state.entries}
    for who in "gd":
      weight = f"{who}/linear/weight/w"
      self.assertTrue(found[weight].agrees)
      self.assertLen(found[weight].copies, NUM)
      # Moments are on the cores that train the player.
      moment = found[f"{who}_optimizer/{weight}/m"]
      self.assertTrue(moment.agrees)
      self.assertEqual(moment.replicas, tuple(range("gd".index(who), NUM, 2)))
    averaged = state._average.get_concrete_function()
    num = 2 * 2 * 2 + len(experiment.step.ema.twin.variables)
    self.assert_messages(averaged.graph, {SUM: num})

  def test_whether_a_users_net_writes_is_found_by_tracing(self):
    with strategies.scope(self.strategy):
      variable = tf.Variable(0.0)
      writes = adapted._writes_variables
      self.assertTrue(writes(lambda: variable.assign_add(1.0)))
      self.assertFalse(writes(lambda: variable + 1.0))

  def test_a_message_in_a_branch_is_found(self):
    @tf.function(autograph=False)
    def program():
      def replica():
        context = tf.distribute.get_replica_context()
        return tf.cond(
          tf.equal(context.replica_id_in_sync_group, 0),
          lambda: tf.raw_ops.CrossReplicaSum(
            input=tf.ones([2]), group_assignment=[list(range(NUM))]
          ),
          lambda: tf.zeros([2]),
        )

      return self.strategy.run(replica)

    graph = program.get_concrete_function().graph
    self.assertEqual(
      virtual_tpu.find_communication(graph), [virtual_tpu.Message(SUM, True)]
    )


if __name__ == "__main__":
  testing.main()
