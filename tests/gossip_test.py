"""Gossip communicates with neighbors only, keeps the mean, and gives DPOSG."""

import collections
import functools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import tf_private
from paragan_tf.engine import strategies
from paragan_tf.engine.player import Player
from paragan_tf.game import lookahead, optimistic, optimizers
from paragan_tf.nets import linear
from paragan_tf.sync import gossip, quantize, topology
from paragan_tf.sync.exchange import AllReduce, Periodic
from tests import testing
from tests.games import Workers, bilinear, tanh_game

M = testing.NUM_REPLICAS
# All workers are neighbors except 1 and 3, with different weights.
UNEVEN = (
  (0.3, 0.2, 0.4, 0.1),
  (0.2, 0.5, 0.3, 0.0),
  (0.4, 0.3, 0.2, 0.1),
  (0.1, 0.0, 0.1, 0.8),
)


def uneven():
  return topology.custom(UNEVEN)


def star():
  """Connects all to the first one: it has three neighbors, the others one."""
  return topology.custom(
    [[0.25] * 4, *([0.25, *(0.75 * row)] for row in np.eye(3))]
  )


# With four workers, a torus is a ring and an exponential graph is complete.
TOPOLOGIES = (
  ("ring", topology.ring),
  ("complete", topology.complete),
  ("star", star()),
  ("custom", uneven()),
)


def mix(exchange, values, state):
  """Runs one exchange; returns weights, state and logs of all replicas."""
  with strategies.scope(testing.strategy()):
    weights = [
      tf.Variable(tf.zeros(v.shape[1:]), name=f"w{i}")
      for i, v in enumerate(values)
    ]
    variable = tf.Variable(tf.zeros(state.shape[1:]), trainable=False, name="s")
    exchange.init(weights)

  def replica(values, state):
    for w, v in zip(weights, values):
      w.assign(v)
    variable.assign(state)
    logs = exchange.after_update(weights, [variable], 0)
    return [tf.identity(w) for w in weights], tf.identity(variable), logs

  parts = [[v[i] for v in values] for i in range(M)]
  results = testing.run_on_replicas(replica, parts, list(state))
  mixed = [np.stack([r[0][i] for r in results]) for i in range(len(values))]
  return mixed, np.stack([r[1] for r in results]), [r[2] for r in results]


def random_values(seed):
  """Returns two weights and a state of all replicas."""
  random = np.random.RandomState(seed)
  shapes = ([M, 2, 3], [M, 5], [M])
  return [random.randn(*shape).astype(np.float32) for shape in shapes]


def make(graph, **options):
  """Builds a gossip in the strategy's scope."""
  with strategies.scope(testing.strategy()):
    return gossip.Gossip(graph, **options)


def spread(x):
  return np.linalg.norm(x - x.mean(0))


class MixingTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(*TOPOLOGIES)
  def test_rounds_equal_a_power_of_the_matrix(self, graph):
    for rounds, seed in ((1, 0), (1, 1), (3, 2)):
      exchange = make(graph, rounds=rounds)
      w = exchange.topology.matrix
      self.assertEqual(len(w), M)
      power = np.linalg.matrix_power(w, rounds)
      *values, state = random_values(seed)
      mixed, mixed_state, _ = mix(exchange, values, state)
      for x, y in zip([*values, state], [*mixed, mixed_state]):
        expected = np.tensordot(power, x, 1)
        self.assertAllClose(y, expected, rtol=0, atol=1e-5)
        self.assertAllClose(y.mean(0), x.mean(0), rtol=0, atol=1e-6)
        rho = exchange.topology.rho
        self.assertLessEqual(spread(y), rho**rounds * spread(x) + 1e-5)

  def test_options_choose_whether_statistics_and_moments_are_mixed(self):
    def state_names(statistics, moments):
      exchange = gossip.Gossip(statistics=statistics, moments=moments)
      net = linear.Discriminator(testing.SPEC, 0, spectral=True, name="d")
      optimizer = optimistic.OptimisticAdam(name="o")
      optimizer.init(net.trainable_variables)
      state = Player(net, optimizer, exchange).state
      return {v.name.split("/")[-1] for v in state}

    self.assertEqual(state_names("local", "local"), set())
    self.assertEqual(state_names("mixed", "local"), {"u:0"})
    self.assertEqual(state_names("local", "mixed"), {"m:0", "v:0"})
    self.assertEqual(state_names("mixed", "mixed"), {"u:0", "m:0", "v:0"})

  def test_slow_weights_are_mixed_if_weights_are(self):
    def state_names(exchange):
      net = linear.Discriminator(testing.SPEC, 0, name="d")
      optimizer = lookahead.Lookahead(optimistic.OptimisticAdam, name="o")
      optimizer.init(net.trainable_variables)
      state = Player(net, optimizer, exchange).state
      return {v.name.split("/")[-1] for v in state}

    self.assertEqual(state_names(gossip.Gossip()), {"phi:0"})
    mixed = gossip.Gossip(moments="mixed")
    self.assertEqual(state_names(mixed), {"phi:0", "m:0", "v:0"})
    self.assertEqual(state_names(Periodic()), {"phi:0"})
    # These keep the slow weights of all replicas equal from the first step on.
    self.assertEqual(state_names(AllReduce()), set())
    self.assertEqual(state_names(quantize.Quantized()), set())

  def test_auto_rounds_leave_at_most_the_target(self):
    exchange = make(topology.ring, rounds="auto", target=0.01)
    self.assertAllClose(exchange.topology.rho, 1 / 3)
    self.assertEqual(exchange.rounds, 5)
    self.assertIn("rho 0.3333, rounds 5", exchange.summary())
    *values, state = random_values(0)
    mixed, _, _ = mix(exchange, values, state)
    self.assertLess(spread(mixed[0]), 0.01 * spread(values[0]))

  def test_logged_distance_is_that_of_neighbors(self):
    *values, state = random_values(3)
    exchange = make(topology.complete)
    _, _, logs = mix(exchange, values, state)
    flat = [x.reshape([M, -1]) for x in [*values, state]]
    distance = spread(np.concatenate(flat, 1)) / np.sqrt(M)
    squares = [log["distance"] ** 2 for log in logs]
    self.assertAllClose(np.sqrt(np.mean(squares)), distance, rtol=1e-5)
    self.assertAllClose(logs[0]["rho"], 0.0, atol=1e-6)
    self.assertEqual(logs[0]["rounds"], 1.0)

  def test_count_sketches_preserve_distances(self):
    for seed in range(5):
      random = np.random.RandomState(seed)
      one, other = random.randn(2, 3000).astype(np.float32)
      # The mean difference is not 0, so sums without signs would be too large.
      other = one + 0.01 * other + 0.003
      sketches = [gossip._count_sketch(tf.constant(v)) for v in (one, other)]
      distance = np.linalg.norm(sketches[0] - sketches[1])
      self.assertAllClose(distance, np.linalg.norm(one - other), rtol=0.15)


class StructureTest(tf.test.TestCase, parameterized.TestCase):
  def collectives(self, exchange):
    """Returns all collectives in the graph of one step."""
    with strategies.scope(testing.strategy()):
      w = tf.Variable(tf.zeros([3]), name="w")
      exchange.init([w])

    @functools.partial(tf.function, autograph=False)
    def mix_once():
      def replica():
        exchange.after_update([w], [], 0)
        return tf.zeros([])

      return testing.strategy().run(replica)

    graph = mix_once.get_concrete_function().graph
    for function in graph.as_graph_def().library.function:
      self.assertEmpty([n for n in function.node_def if "Collective" in n.op])
    return [op for op in graph.get_operations() if "Collective" in op.type]

  @parameterized.named_parameters(*TOPOLOGIES)
  def test_only_neighbors_communicate(self, graph):
    for rounds in (1, 3):
      exchange = make(graph, rounds=rounds, timeout=7.0)
      found = self.collectives(exchange)
      num_edges = len(exchange.topology.edges())
      self.assertLen(found, 2 * num_edges * rounds)
      self.assertEqual({op.type for op in found}, {"CollectiveGatherV2"})
      times = {op.get_attr("timeout_seconds") for op in found}
      self.assertEqual(times, {7.0})
      # Each edge has its own group, whose two members are on two devices.
      groups = collections.defaultdict(list)
      for op in found:
        size, key, _ = (tf.get_static_value(x) for x in op.inputs[1:4])
        self.assertEqual(size, 2)
        groups[int(key)].append(op.device)
      self.assertLen(groups, num_edges)
      for devices in groups.values():
        counts = collections.Counter(devices)
        self.assertEqual(list(counts.values()), [rounds] * 2)

  def test_on_a_tpu_neighbors_communicate_by_permutes(self):
    with tf.Graph().as_default() as graph, tf_private.trace_for_tpu_shards(M):
      exchange = gossip.Gossip(topology.ring, rounds=2)
      w = tf.Variable(tf.zeros([3]), name="w")
      exchange.init([w])
      exchange.after_update([w], [], 0)
    ops = [op for op in graph.get_operations() if "Collective" in op.type]
    self.assertEqual({op.type for op in ops}, {"CollectivePermute"})
    # A ring of four has two groups of pairs.
    self.assertLen(ops, 2 * 2)
    sent = {
      tuple(pair)
      for op in ops[:2]
      for pair in tf.get_static_value(op.inputs[1])
    }
    ring = {(i, (i + k) % M) for i in range(M) for k in (1, M - 1)}
    self.assertEqual(sent, ring)

  def test_exchanges_with_equal_graph_and_rounds_can_be_fused(self):
    one, same = make(topology.ring), make(topology.ring)
    self.assertTrue(one.can_fuse_with(same))
    for other in (make(topology.complete), make(topology.ring, rounds=2)):
      self.assertFalse(one.can_fuse_with(other))


class DposgTest(tf.test.TestCase, parameterized.TestCase):
  """Optimistic, simultaneous and gossip: the algorithm of the paper."""

  def by_hand(self, game, w, x, eta, num_steps):
    """Returns the base weights of all workers, computed in NumPy."""
    y, g = x, np.zeros_like(x)
    for _ in range(num_steps):
      z = y - eta * g
      g = np.stack([game(i, z[i]) for i in range(M)])
      y = w @ (y - eta * g)
    return y

  @parameterized.parameters(0, 1)
  def test_equals_the_algorithm_in_numpy(self, seed):
    start = np.random.RandomState(seed).randn(M, 6)
    game = tanh_game(seed)
    for rounds in (1, 2):
      exchange = make(topology.ring, rounds=rounds)
      w = np.linalg.matrix_power(exchange.topology.matrix, rounds)
      workers = Workers(
        functools.partial(optimistic.OptimisticSGD, 0.1), exchange, start
      )
      workers.play(game, 20)
      expected = self.by_hand(game, w, start, 0.1, 20)
      self.assertAllClose(workers.base(), expected, rtol=0, atol=1e-10)

  def test_workers_with_equal_start_and_game_equal_one_worker(self):
    start = np.tile(np.random.RandomState(0).randn(1, 6), [M, 1])
    game = tanh_game(1, same=True)
    workers = Workers(
      functools.partial(optimistic.OptimisticSGD, 0.1),
      make(topology.ring),
      start,
    )
    workers.play(game, 15)
    z, u = start[0], np.zeros([6])
    for _ in range(15):
      last, u = u, 0.1 * game(0, z)
      z = z - 2 * u + last
    for weights in workers.weights():
      self.assertAllClose(weights, z, rtol=0, atol=1e-10)

  @parameterized.parameters(0, 1)
  def test_mean_weights_follow_the_mean_update(self, seed):
    start = np.random.RandomState(seed).randn(M, 6)
    workers = Workers(
      functools.partial(optimistic.OptimisticAdam, 0.1), make(uneven()), start
    )
    expected, game = start.mean(0), tanh_game(seed)
    for _ in range(5):
      updates = workers.play(game, 1)
      expected = expected - updates.mean(0)
      self.assertAllClose(workers.base().mean(0), expected, atol=1e-12)

  def test_on_an_affine_game_the_mean_equals_one_worker(self):
    # Its convergence to the solution is tested in `optimizers_test`.
    start = np.random.RandomState(0).randn(M, 20)
    game = bilinear(0, 10)
    workers = Workers(
      functools.partial(optimistic.OptimisticSGD, 0.2),
      make(topology.ring),
      start,
    )
    workers.play(game, 300)
    z, u = start.mean(0), np.zeros([20])
    for _ in range(300):
      last, u = u, 0.2 * game(0, z)
      z = z - 2 * u + last
    self.assertAllClose(workers.base().mean(0), z + u, rtol=0, atol=1e-10)
    self.assertLess(np.linalg.norm(z), np.linalg.norm(start.mean(0)))

  @parameterized.parameters(0, 1)
  def test_more_rounds_are_closer_to_all_reduce(self, seed):
    start = np.tile(np.random.RandomState(seed).randn(1, 20), [M, 1])
    game = tanh_game(seed, size=20, strength=3.0)
    make_optimizer = functools.partial(optimistic.OptimisticSGD, 0.2)

    def mean_of(exchange):
      workers = Workers(make_optimizer, exchange, start)
      workers.play(game, 40)
      return workers.base().mean(0)

    reference = mean_of(AllReduce())
    gaps = [
      np.linalg.norm(mean_of(make(topology.ring, rounds=t)) - reference)
      for t in (1, 2, 8)
    ]
    self.assertLess(gaps[1], gaps[0])
    self.assertLess(gaps[2], gaps[1])


class LookaheadTest(tf.test.TestCase, parameterized.TestCase):
  """Slow weights are mixed like weights; moments by their option."""

  ETA, MU, PERIOD, ALPHA = 0.1, 0.8, 3, 0.4

  def by_hand(self, game, w, x, mixes_moments, num_steps):
    """Returns fast and slow weights of all workers, computed in NumPy."""
    theta, phi, v = x, x, np.zeros_like(x)
    for t in range(1, num_steps + 1):
      g = np.stack([game(i, theta[i]) for i in range(M)])
      v = self.MU * v + self.ETA * g
      theta = theta - v
      if t % self.PERIOD == 0:
        theta = phi = phi + self.ALPHA * (theta - phi)
      theta, phi = w @ theta, w @ phi
      v = w @ v if mixes_moments else v
    return theta, phi

  @parameterized.parameters("local", "mixed")
  def test_equals_the_algorithm_in_numpy(self, moments):
    start = np.random.RandomState(0).randn(M, 6)
    game = tanh_game(0)
    exchange = make(topology.ring, moments=moments)
    inner = functools.partial(optimizers.Momentum, self.ETA, self.MU)
    workers = Workers(
      functools.partial(lookahead.Lookahead, inner, self.PERIOD, self.ALPHA),
      exchange,
      start,
    )
    w = exchange.topology.matrix
    # Between two synchronizations, and at one.
    for num_more, num_steps in ((8, 8), (1, 9)):
      workers.play(game, num_more)
      theta, phi = self.by_hand(game, w, start, moments == "mixed", num_steps)
      self.assertAllClose(workers.base(), theta, rtol=0, atol=1e-10)
      (slow,) = workers.optimizer.slots["phi"]
      copies = np.stack(strategies.copies(testing.strategy(), slow))
      self.assertAllClose(copies, phi, rtol=0, atol=1e-10)
    self.assertAllClose(theta, phi, rtol=0, atol=1e-10)


class RefusedTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(
    ("no_rounds", dict(rounds=0), "`rounds` must be at least 1.* got 0"),
    ("unknown_rounds", dict(rounds="many"), "`rounds` must .* got 'many'"),
    ("statistics", dict(statistics="mean"), "`statistics` .* got 'mean'"),
    ("moments", dict(moments=1), "`moments` must be 'mixed' or 'local', got 1"),
    ("zero_timeout", dict(timeout=0.0), "`timeout` must be above 0 s, got 0.0"),
    (
      "target_above_1",
      dict(rounds="auto", target=2.0),
      "`target`, .* must be in .0, 1., got 2.0: take",
    ),
    (
      "too_many_rounds",
      dict(rounds=3, timeout=60.0),
      "`rounds` must be at most 2 with `timeout` 60 s and 2 neigh.* got 3: ",
    ),
    (
      "too_many_auto_rounds",
      dict(rounds="auto", target=1e-9, timeout=20.0),
      "`rounds` must be at most 6 .* got 19: .* thread for each message",
    ),
  )
  def test_an_invalid_option_is_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      make(topology.ring, **options)

  def test_a_name_is_refused_as_topology(self):
    with self.assertRaisesRegex(
      ValueError, "`topology` .* got 'ring': write `@topology.ring`"
    ):
      make("ring")

  def test_a_graph_of_another_size_is_refused(self):
    three = topology.custom([[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]])
    with self.assertRaisesRegex(ValueError, "`topology` .* 4, got 3: start"):
      make(three)

  def test_a_matrix_that_changes_the_mean_is_refused(self):
    with self.assertRaisesRegex(ValueError, "must be doubly stochastic"):
      make(topology.custom([[0.5, 0.4], [0.4, 0.6]]))


if __name__ == "__main__":
  testing.main()
