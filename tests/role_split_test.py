"""G and D on replicas of their own: who sees what, and how old it is."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf import collectives, tf_private
from paragan_tf.engine import strategies
from paragan_tf.engine.player import Player
from paragan_tf.engine.role_split import RoleSplit
from paragan_tf.engine.step import Step
from paragan_tf.game import (
  cache,
  losses,
  noise,
  optimistic,
  optimizers,
  penalties,
  schedule,
  turns,
)
from paragan_tf.game.augment import Ada
from paragan_tf.game.ema import Ema
from paragan_tf.nets import linear
from paragan_tf.sync import exchange
from paragan_tf.types import Batch, Mode
from tests import testing

BATCH = 8
RATE = 0.05
SEED = 3


def make_step(
  strategy,
  make_exchange=exchange.AllReduce,
  g_rate=RATE,
  d_rate=RATE,
  batch_size=BATCH,
  spectral=False,
  make_optimizer=optimizers.SGD,
  **options,
):
  """Builds an asynchronous step of linear nets; exchanges may differ."""
  # Fakes as they are, to compare with a loop written by hand.
  made = schedule.Asynchronous(**{"cache_dtype": "float32", **options})
  makes = make_exchange
  if not isinstance(makes, dict):
    makes = {"g": make_exchange, "d": make_exchange}
  with strategies.scope(strategy):
    g = linear.Generator(testing.SPEC, 0, name="g")
    twin = linear.Generator(testing.SPEC, 0, name="g_ema")
    d = linear.Discriminator(testing.SPEC, 0, spectral=spectral, name="d")
    players = [
      Player(g, make_optimizer(g_rate, "g_optimizer"), makes["g"]()),
      Player(d, make_optimizer(d_rate, "d_optimizer"), makes["d"]()),
    ]
    periods = {w: p.exchange.period for w, p in zip("gd", players)}
    return Step(
      *players,
      losses.non_saturating,
      made,
      Ema(g, twin),
      SEED,
      placement=RoleSplit(made, testing.SPEC, batch_size, periods, SEED),
    )


def data(step, share=None, num_shards=1):
  """Returns a step's real images and labels, or one share of them."""
  images, labels = (
    testing.images(BATCH, seed=step),
    testing.labels(BATCH, seed=step),
  )
  if share is None:
    return images, labels
  return [np.split(x, num_shards)[share] for x in (images, labels)]


class Runner:
  """Trains a step on the four replicas, or on one."""

  def __init__(self, step, strategy=None):
    self.step = step
    self.strategy = strategy or testing.strategy()
    self.logs = []
    self._run = tf.function(
      lambda x, y, phase: self.strategy.run(step, (x, y, phase)),
      autograph=False,
    )

  def __call__(self, t):
    num = self.strategy.num_replicas_in_sync
    made = self.step.schedule
    shares = [
      data(t, made.shard(r) if num > 1 else 0, made.num_shards(num))
      for r in range(num)
    ]
    if num > 1:
      x, y = (testing.distribute(part) for part in zip(*shares))
    else:
      x, y = (tf.constant(part) for part in shares[0])
    logs = self._run(x, y, t % self.step.cycle)
    local = self.strategy.experimental_local_results
    self.logs.append(
      {k: np.mean([float(r) for r in local(v)]) for k, v in logs.items()}
    )

  def weights(self, who="gd"):
    """Returns what each replica holds, stacked."""
    return [
      np.stack(strategies.copies(self.strategy, variable))
      for w in who
      for variable in self.step.players[w].net.trainable_variables
    ]


def one():
  return tf.distribute.OneDeviceStrategy("/cpu:0")


def by_hand(num_steps):
  """G sees D as it was after the step before, D the fakes of that step."""
  g = linear.Generator(testing.SPEC, 0, name="g")
  d = linear.Discriminator(testing.SPEC, 0, name="d")
  last = None
  for t in range(num_steps):
    images, labels = map(tf.constant, data(t))
    z = noise.normal([BATCH, 4], SEED, tf.constant(t, tf.int64), "z0", 0)
    batch = Batch(images, labels, z)
    fakes = turns.draw(g, batch, Mode.TRAIN)
    g_grads = turns.g_move(fakes, d, batch, losses.non_saturating).grads
    if last is None:
      z = noise.normal([BATCH, 4], SEED, tf.constant(t, tf.int64), "own", 0)
      last = g(z, labels, Mode.FROZEN), labels
    seen = turns.Fakes(*last, lambda grad: [])
    d_grads = turns.d_move(seen, d, batch, losses.non_saturating).grads
    last = tf.identity(fakes.images), labels
    for net, grads in ((g, g_grads), (d, d_grads)):
      for w, grad in zip(net.trainable_variables, grads):
        w.assign_sub(RATE * grad)
  return [w.numpy() for net in (g, d) for w in net.trainable_variables]


def ops(graph):
  """Returns the types of all operations, those in functions too."""
  definition = graph.as_graph_def()
  nodes = list(definition.node)
  for function in definition.library.function:
    nodes += function.node_def
  return [node.op for node in nodes]


class RoleSplitTest(tf.test.TestCase, parameterized.TestCase):
  @parameterized.named_parameters(("one", one), ("four", testing.strategy))
  def test_the_path_is_that_of_a_loop_written_by_hand(self, strategy):
    runner = Runner(make_step(strategy(), cache_depth=1), strategy())
    for t in range(6):
      runner(t)
    for got, expected in zip(runner.weights(), by_hand(6)):
      for replica in got:
        self.assertAllClose(replica, expected, rtol=1e-5, atol=1e-6)

  def test_moves_are_blind_to_each_other_for_one_step(self):
    def run(**rates):
      runner = Runner(make_step(testing.strategy(), cache_depth=1, **rates))
      found = []
      for t in range(3):
        runner(t)
        found.append({who: runner.weights(who) for who in "gd"})
      return found

    usual = run()
    for moved, still in (("d", "g"), ("g", "d")):
      faster = run(**{f"{moved}_rate": 10 * RATE})
      for a, b in zip(usual[0][still], faster[0][still]):
        self.assertAllEqual(a, b)
      self.assertNotAllClose(usual[0][moved][0], faster[0][moved][0])
      # Later they see what the other did.
      self.assertNotAllClose(usual[2][still][0], faster[2][still][0])

  def test_a_replica_holds_its_own_role_only(self):
    step = make_step(testing.strategy(), exchange.Periodic)
    graphs = []

    def replica(x, y):
      graph = tf.compat.v1.get_default_graph()
      before = len(graph.get_operations())
      step(x, y, 0)
      own = graph.get_operations()[before:]
      graphs.append([op.type for op in own])
      return tf.zeros([])

    shares = [data(0, r // 2, 2) for r in range(4)]
    testing.run_on_replicas(replica, *zip(*shares))
    self.assertLen(graphs, 4)
    # G's last layer is tanh, D's has none: the gradient of G's weights goes
    # through TanhGrad, and D's alone does not. Both ask whether an update may
    # be applied; only D asks its cache whether fakes have come.
    for number, graph in enumerate(graphs):
      plays_g = number % 2 == 0
      self.assertEqual("TanhGrad" in graph, plays_g, number)
    ifs = [graph.count("If") for graph in graphs]
    self.assertEqual(ifs[::2], [ifs[0]] * 2)
    self.assertEqual(ifs[1::2], [ifs[0] + 1] * 2)

  @parameterized.parameters(
    (1, 1, "oldest"),
    (2, 1, "oldest"),
    (2, 3, "oldest"),
    (3, 2, "oldest"),
    (2, 2, "newest"),
    (2, 2, "random"),
  )
  def test_nothing_is_older_than_the_bound(self, period, depth, policy):
    step = make_step(
      one(),
      lambda: exchange.Periodic(period),
      cache_depth=depth,
      cache_policy=policy,
    )
    runner = Runner(step, one())
    warm_up = (depth + 1) * period
    for t in range(warm_up + 12 * period):
      runner(t)
    names = ("staleness/d_seen_by_g", "staleness/fakes_seen_by_d")
    d_ages, ages = np.array([[x[n] for n in names] for x in runner.logs]).T
    self.assertAllEqual(np.unique(d_ages), range(1, period + 1))
    self.assertAllLessEqual(ages, step.placement.bound)
    self.assertEqual(ages[warm_up:].max(), step.placement.bound)
    self.assertEqual(runner.logs[-1]["cache/fill"], 1.0)

  @parameterized.named_parameters(
    ("every_step", exchange.AllReduce, 1),
    ("every_other_step", lambda: exchange.Periodic(2), 2),
    ("gradients_every_other_step", exchange.AccumulatedGradients, 2),
  )
  def test_a_cycle_communicates_once_for_both_players(self, make, cycle):
    step = make_step(testing.strategy(), make)
    self.assertEqual(step.cycle, cycle)
    shared = self.collectives_of(step)
    # In one memory copies do; elsewhere one message of each of the four.
    self.assertEmpty(shared)
    with mock.patch.object(
      collectives, "_replicas_share_memory", lambda: False
    ):
      self.assertEqual(self.collectives_of(step), ["CollectiveReduceV2"] * 4)

  def test_copies_and_messages_come_to_the_same(self):
    self.check_copies(exchange.AllReduce)

  @pytest.mark.soak
  def test_copies_of_weights_and_messages_come_to_the_same(self):
    self.check_copies(exchange.Periodic)

  def check_copies(self, make):
    results = []
    for copies in (True, False):
      with mock.patch.object(
        collectives, "_replicas_share_memory", return_value=copies
      ):
        runner = Runner(make_step(testing.strategy(), make, spectral=True))
        for t in range(4):
          runner(t)
      results.append(runner.weights())
    for a, b in zip(*results):
      self.assertAllClose(a, b, rtol=0, atol=1e-6)

  def test_exchanges_that_differ_communicate_separately(self):
    makes = {"g": exchange.AllReduce, "d": lambda: exchange.Periodic(2)}
    step = make_step(testing.strategy(), makes)
    with mock.patch.object(
      collectives, "_replicas_share_memory", lambda: False
    ):
      # G's gradients twice, D's weights once.
      found = self.collectives_of(step)
    self.assertEqual(found, ["CollectiveReduceV2"] * 4 * 3)

  def collectives_of(self, step):
    """Returns the collectives of a whole cycle."""

    def whole_cycle(x, y):
      for phase in range(step.cycle):
        testing.strategy().run(step, (x, y, phase))

    shares = [data(0, r // 2, 2) for r in range(4)]
    x, y = (testing.distribute(part) for part in zip(*shares))
    traced = tf.function(whole_cycle, autograph=False)
    found = ops(traced.get_concrete_function(x, y).graph)
    return [op for op in found if "Collective" in op]

  def test_others_see_what_a_hopeful_player_has_settled(self):
    step = make_step(
      testing.strategy(),
      exchange.Periodic,
      make_optimizer=optimistic.OptimisticSGD,
    )
    runner = Runner(step)
    start = runner.weights("g")
    runner(0)
    for w, before in zip(runner.weights("g"), start):
      self.assertAllEqual(w[1::2], before[1::2])  # They play D.
      self.assertNotAllClose(w[::2], before[::2])
    runner(1)
    player = step.players["g"]
    base = player.optimizer.base(player.net.trainable_variables)
    for w, x in zip(runner.weights("g"), base):
      base = np.stack(strategies.copies(testing.strategy(), x))
      self.assertAllClose(base, np.tile(base[:1], [4] + [1] * x.shape.rank))
      self.assertAllEqual(w[1::2], base[1::2])
      self.assertNotAllClose(w[::2], base[::2], rtol=0, atol=1e-6)

  def test_bytes_are_counted(self):
    sizes = {}
    for name, make in (
      ("all", exchange.AllReduce),
      ("two", exchange.Periodic),
      ("accumulated", exchange.AccumulatedGradients),
    ):
      step = make_step(testing.strategy(), make, cache_depth=1)
      with testing.strategy().scope():
        sizes[name] = [step.traffic(phase) for phase in range(step.cycle)]
    weights = 4 * (7 * 64 + 64 + 67 + 1)
    fakes = 4 * 4 * (64 + 1)
    # As much is given as received.
    both = (weights + fakes,) * 2
    half = [(0, 0), both]
    self.assertEqual(sizes, {"all": [both], "two": half, "accumulated": half})

  def test_on_a_tpu_the_role_is_chosen_without_communication_inside(self):
    with tf_private.trace_for_tpu_shards(4):
      step = make_step(tf.distribute.get_strategy(), exchange.Periodic)
      run = tf.function(lambda x, y: step(x, y, 1), autograph=False)
      graph = run.get_concrete_function(*data(0, 0, 2)).graph
    outside = [op.type for op in graph.get_operations()]
    functions = graph.as_graph_def().library.function
    inside = [node.op for f in functions for node in f.node_def]
    self.assertIn("If", outside)
    self.assertIn("TanhGrad", inside)
    for collective in ("CrossReplicaSum", "CollectivePermute"):
      self.assertIn(collective, outside)
      self.assertNotIn(collective, inside)

  def test_on_two_cores_of_a_tpu_each_has_its_own(self):
    with tf_private.trace_for_tpu_shards(4):
      step = make_step(tf.distribute.get_strategy(), on_cores=True)
      run = tf.function(lambda x, y: step(x, y, 0), autograph=False)
      graph = run.get_concrete_function(*data(0, 0, 4)).graph
    found = {}
    for op in graph.get_operations():
      if "REPLICATED_CORE" in op.device:
        core = int(op.device.rsplit(":", 1)[1])
        found.setdefault(core, set()).add(op.type)
    # G draws and learns on the one, D draws nothing and learns on the other.
    self.assertIn("TanhGrad", found[0])
    self.assertNotIn("TanhGrad", found[1])
    self.assertIn("ConcatV2", found[1])

  def test_elsewhere_cores_mean_that_each_replica_plays_both(self):
    step = make_step(testing.strategy(), cache_depth=1, on_cores=True)
    runner = Runner(step)
    alone = Runner(make_step(one(), cache_depth=1), one())
    for t in range(4):
      runner(t)
      alone(t)
    for a, b in zip(runner.weights(), alone.weights()):
      self.assertAllClose(a, np.broadcast_to(b, a.shape), atol=1e-6)

  def test_the_roles_of_a_tpu_compile(self):
    # XLA for the CPU knows no collectives; the rest of the program is the same.
    with (
      tf_private.trace_for_tpu_shards(4),
      mock.patch.object(
        tf.compat.v1.tpu, "cross_replica_sum", lambda value: 4.0 * value
      ),
      mock.patch.object(
        tf.raw_ops,
        "CollectivePermute",
        lambda input, source_target_pairs: 1 * input,
      ),
    ):
      step = make_step(tf.distribute.get_strategy(), exchange.Periodic)
      run = tf.function(
        lambda x, y: step(x, y, 1), autograph=False, jit_compile=True
      )
      text = run.experimental_get_compiler_ir(*data(0, 0, 2))(stage="hlo")
    self.assertIn("replica-id", text)
    self.assertIn("conditional(", text)

  def test_one_program_compiles_to_the_same_values(self):
    results = []
    for jit in (False, True):
      step = make_step(
        tf.distribute.get_strategy(), exchange.Periodic, spectral=True
      )
      run = tf.function(step, autograph=False, jit_compile=jit)
      for t in range(5):
        run(*map(tf.constant, data(t)), t % step.cycle)
      results.append([variable.numpy() for variable in step.variables])
    for a, b in zip(*results):
      self.assertAllClose(a, b, rtol=1e-4, atol=1e-5)

  def test_fakes_come_from_the_partner(self):
    step = make_step(testing.strategy(), cache_depth=1)
    runner = Runner(step)
    g = linear.Generator(testing.SPEC, 0, name="g")
    runner(0)
    caches = np.stack(
      strategies.copies(testing.strategy(), step.placement.cache.images)
    )[:, 0]
    labels = data(0)[1]
    for group in range(2):
      z = noise.normal([4, 4], SEED, tf.constant(0, tf.int64), "z0", group)
      rows = labels[4 * group : 4 * group + 4]
      drawn = g(z, tf.constant(rows), Mode.EVAL)
      self.assertAllClose(caches[2 * group + 1], drawn, atol=1e-6)

  def test_with_a_fixed_d_g_equals_sequential_training(self):
    tiny = 1e-30
    runner = Runner(make_step(one(), d_rate=tiny), one())
    role_split = runner.step
    with strategies.scope(one()):
      g = linear.Generator(testing.SPEC, 0, name="g")
      twin = linear.Generator(testing.SPEC, 0, name="g_ema")
      d = linear.Discriminator(testing.SPEC, 0, name="d")
      sequential = Step(
        Player(g, optimizers.SGD(RATE, "g_o"), exchange.AllReduce()),
        Player(d, optimizers.SGD(tiny, "d_o"), exchange.AllReduce()),
        losses.non_saturating,
        schedule.Sequential(),
        Ema(g, twin),
        SEED,
      )
    other = tf.function(sequential, autograph=False)
    for t in range(4):
      runner(t)
      other(*map(tf.constant, data(t)), 0)
    for a, b in zip(
      role_split.players["g"].net.trainable_variables, g.trainable_variables
    ):
      # To the last bit but one: the graphs are not fused alike.
      self.assertAllClose(a, b, rtol=1e-6, atol=1e-8)
    self.assertNotAllClose(
      g.trainable_variables[0],
      linear.Generator(testing.SPEC, 0, name="g").trainable_variables[0],
    )

  @parameterized.parameters((3, 1), (1, 3), (2, 2))
  def test_shares_of_roles(self, g_per_group, d_per_group):
    batch = 12
    made = schedule.Asynchronous(
      g_per_group=g_per_group, d_per_group=d_per_group
    )
    roles = made.roles
    names = "".join(roles.role_of(r) for r in range(4))
    self.assertEqual(names, "g" * g_per_group + "d" * d_per_group)
    step = make_step(
      testing.strategy(),
      batch_size=batch,
      g_per_group=g_per_group,
      d_per_group=d_per_group,
      g_batch_size=12 if g_per_group == 1 else None,
    )
    run = tf.function(
      lambda x, y: testing.strategy().run(step, (x, y, 0)), autograph=False
    )
    num = made.num_shards(4)
    images, labels = testing.images(batch), testing.labels(batch)
    x, y = (
      testing.distribute([np.split(p, num)[made.shard(r)] for r in range(4)])
      for p in (images, labels)
    )
    for _ in range(2):
      run(x, y)
    born = np.stack(
      strategies.copies(testing.strategy(), step.placement.cache.born)
    )
    self.assertAllEqual(born[-1], [0, 1])
    caches = np.stack(
      strategies.copies(testing.strategy(), step.placement.cache.images)
    )[g_per_group:, 1]
    rows = caches.reshape([-1, 64])
    self.assertLen(np.unique(rows.round(5), axis=0), len(rows))

  def test_what_does_not_fit_is_refused(self):
    cases = (
      (
        dict(g_per_group=2, d_per_group=3),
        "divide the other, got 2 and 3",
      ),
      (dict(g_per_group=0), "at least 1.*got 0"),
      (dict(cache_depth=0), "`cache_depth` must be at least 1, got 0"),
      (dict(cache_policy="best"), "`cache_policy` must be one of.*'best'"),
      (dict(g_per_group=2), "groups of 3, got 4 replicas"),
      (dict(g_batch_size=1), "`g_batch_size` must be a multiple of the 2"),
      (dict(g_batch_size=4), "takes 4 fakes.*draws 2"),
      (
        dict(batch_size=1, g_batch_size=8),
        "`batch_size` must be a multiple of the 2",
      ),
      (dict(staleness_bound=1), "`staleness_bound` must be at least 2.*got 1"),
    )
    for options, words in cases:
      with self.assertRaisesRegex(ValueError, words):
        make_step(testing.strategy(), **options)

  @parameterized.parameters(losses.hinge, losses.relativistic)
  def test_g_may_draw_more_than_d_takes(self, loss):
    step = make_step(testing.strategy(), g_batch_size=2 * BATCH)
    step.game = step.game._replace(loss_fn=loss)
    runner = Runner(step)
    before = runner.weights()
    for t in range(2):
      runner(t)
    for a, b in zip(before, runner.weights()):
      self.assertAllEqual(np.isfinite(b), np.ones_like(b, bool))
      if a.ndim > 2:  # D's bias has no gradient in a balanced game.
        self.assertNotAllClose(a, b, atol=1e-6)

  @parameterized.parameters(exchange.AllReduce, exchange.Periodic)
  def test_what_adapts_to_d_agrees_where_only_some_play_it(self, make):
    step = make_step(testing.strategy(), make)
    with strategies.scope(testing.strategy()):
      lecam = penalties.LeCam(start_step=1, decay=0.5)
      ada = Ada(policy=("flip",), target=0.0, speed=8)
    step.game = step.game._replace(augment=ada)
    step.players["d"] = step.players["d"]._replace(penalties=(lecam,))
    runner = Runner(step)
    for t in range(2):
      runner(t)
    for variable in (lecam.real, lecam.fake, ada.p):
      copies = np.stack(strategies.copies(runner.strategy, variable))
      self.assertAllEqual(copies, np.broadcast_to(copies[0], copies.shape))
      self.assertNotEqual(copies[0], 0.0)

  @parameterized.parameters(("uint8", 1, 1 / 255), ("bfloat16", 2, 1 / 256))
  def test_fakes_are_sent_and_kept_in_fewer_bytes(self, dtype, size, error):
    full, small = (
      Runner(make_step(testing.strategy(), cache_dtype=x))
      for x in ("float32", dtype)
    )
    for runner in (full, small):
      runner(0)
    caches = [runner.step.placement.cache for runner in (full, small)]
    pixels = [
      [
        cache.decode(copy[-1], kind, x.shape)  # The one that is filled.
        for copy in strategies.copies(testing.strategy(), x.images)
      ]
      for kind, x in zip(("float32", dtype), caches)
    ]
    pixels = [np.stack(x) for x in pixels]
    self.assertLess(np.abs(pixels[0] - pixels[1]).max(), error + 1e-6)
    self.assertGreater(np.abs(pixels[0] - pixels[1]).max(), 0.0)
    num_pixels = testing.SPEC.resolution**2 * testing.SPEC.channels
    sent = [x.step.placement.num_bytes(0) for x in (full, small)]
    num_images = BATCH // 2
    self.assertEqual(sent[0], num_images * (4 * num_pixels + 4))
    self.assertEqual(sent[1], num_images * (size * num_pixels + 4))

  def test_uint8_has_the_levels_of_real_images(self):
    pixels = np.arange(258).reshape([1, 2, 129, 1, 1]).clip(0, 255)
    levels = (pixels / 127.5 - 1.0).astype(np.float32)
    kept = cache.encode(tf.constant(levels), "uint8")
    self.assertEqual((kept.dtype, kept.shape), (tf.int32, [1, 2, 33]))
    got = cache.decode(kept[0], "uint8", levels.shape[1:])
    self.assertAllClose(got, levels[0], atol=1e-6)
    beyond = tf.constant([[[[-1.5]], [[1.5]]]])
    kept = cache.encode(beyond, "uint8")
    self.assertAllEqual(
      cache.decode(kept[0], "uint8", [2, 1, 1]), [[[-1]], [[1]]]
    )

  def test_damping_divides_the_rate_by_the_age(self):
    runner = Runner(
      make_step(
        one(), lambda: exchange.Periodic(2), damping=True, cache_depth=2
      ),
      one(),
    )
    for t in range(6):
      runner(t)
    rates = [(logs["g/rate"], logs["d/rate"]) for logs in runner.logs[4:]]
    self.assertAllClose(rates, [(RATE, RATE / 2), (RATE / 2, RATE / 2)])

  def test_replicas_that_share_gradients_share_the_damping(self):
    """The staleness is that of the replicas which train the player."""
    runner = Runner(
      make_step(testing.strategy(), damping=True, cache_depth=3, d_per_group=1)
    )
    for t in range(8):
      runner(t)
    for copies in runner.weights():
      self.assertAllEqual(copies, np.broadcast_to(copies[0], copies.shape))
    # Fakes wait in the cache for three steps, G sees D one step late.
    self.assertAllClose(runner.logs[-1]["d/rate"], RATE / 3)
    self.assertAllClose(runner.logs[-1]["g/rate"], RATE)


if __name__ == "__main__":
  testing.main()
