"""Every optimizer against its published pseudo-code, and what all promise."""

import functools
import itertools
import os

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import strategies
from paragan_tf.game import layerwise, lookahead, optimistic, optimizers
from tests import testing

NUM_STEPS = 20
NAMES = ("d/block1/w", "d/block1/b")
SHAPES = ((3, 4), (4,))


# The twins: straight from the papers, one weight `w`, gradients `gs`, one
# learning rate for each of them. They yield the weight after every update.


def sgd_twin(w, gs, alphas):
  for g, alpha in zip(gs, alphas):
    w = w - alpha * g
    yield w


def optimistic_sgd_twin(w, gs, alphas):
  last = np.zeros_like(w)
  for g, alpha in zip(gs, alphas):
    w = w - 2 * alpha * g + last
    last = alpha * g
    yield w


def momentum_twin(w, gs, epsilons, mu, nesterov):
  theta, v = w, np.zeros_like(w)
  for g, epsilon in zip(gs, epsilons):
    v = mu * v - epsilon * g
    theta = theta + v
    yield theta + mu * v if nesterov else theta


def rmsprop_twin(w, gs, alphas, rho, epsilon):
  mean_square = np.zeros_like(w)
  for g, alpha in zip(gs, alphas):
    mean_square = rho * mean_square + (1 - rho) * g**2
    w = w - alpha * g / (np.sqrt(mean_square) + epsilon)
    yield w


def adam_twin(theta, gs, alphas, beta1, beta2, epsilon):
  m, v = np.zeros_like(theta), np.zeros_like(theta)
  for t, (g, alpha) in enumerate(zip(gs, alphas), start=1):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t)
    theta = theta - alpha * m_hat / (np.sqrt(v_hat) + epsilon)
    yield theta


def optimistic_adam_twin(theta, gs, alphas, beta1, beta2, epsilon):
  steps = [np.zeros_like(theta)]
  at = theta
  for moved in adam_twin(theta, gs, alphas, beta1, beta2, epsilon):
    steps.append(at - moved)
    at = moved
    theta = theta - 2 * steps[-1] + steps[-2]
    yield theta


def adabelief_twin(theta, gs, alphas, beta1, beta2, epsilon):
  m, s = np.zeros_like(theta), np.zeros_like(theta)
  for t, (g, alpha) in enumerate(zip(gs, alphas), start=1):
    m = beta1 * m + (1 - beta1) * g
    s = beta2 * s + (1 - beta2) * (g - m) ** 2 + epsilon
    m_hat = m / (1 - beta1**t)
    s_hat = s / (1 - beta2**t)
    theta = theta - alpha * m_hat / (np.sqrt(s_hat) + epsilon)
    yield theta


def radam_twin(theta, gs, alphas, beta1, beta2, epsilon):
  m, v = np.zeros_like(theta), np.zeros_like(theta)
  rho_inf = 2 / (1 - beta2) - 1
  for t, (g, alpha) in enumerate(zip(gs, alphas), start=1):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat = m / (1 - beta1**t)
    rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)
    if rho > 4:
      v_hat = np.sqrt(v / (1 - beta2**t))
      r = (rho - 4) * (rho - 2) * rho_inf
      r = np.sqrt(r / ((rho_inf - 4) * (rho_inf - 2) * rho))
      theta = theta - alpha * r * m_hat / (v_hat + epsilon)
    else:
      theta = theta - alpha * m_hat
    yield theta


def lars_twin(w, gs, gammas, momentum, beta, eta):
  v = np.zeros_like(w)
  for g, gamma in zip(gs, gammas):
    if w.ndim > 1:
      w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(g)
      local = eta * w_norm / (g_norm + beta * w_norm)
      v = momentum * v + gamma * local * (g + beta * w)
    else:
      v = momentum * v + gamma * g
    w = w - v
    yield w


def lamb_twin(x, gs, etas, beta1, beta2, epsilon, decay):
  m, v = np.zeros_like(x), np.zeros_like(x)
  for t, (g, eta) in enumerate(zip(gs, etas), start=1):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    r = (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
    u = r + decay * x
    x = x - eta * np.linalg.norm(x) / np.linalg.norm(u) * u
    yield x


def lookahead_twin(phi, gs, rates, k, alpha, mu):
  theta, v = phi, np.zeros_like(phi)
  gs = iter(zip(gs, rates))
  while True:
    for i in range(1, k + 1):
      g, rate = next(gs, (None, None))
      if g is None:
        return
      v = mu * v - rate * g
      theta = theta + v
      if i == k:
        theta = phi = phi + alpha * (theta - phi)
      yield theta


def make_lookahead(learning_rate, k, alpha, mu, name="lookahead"):
  inner = functools.partial(optimizers.Momentum, learning_rate, mu)
  return lookahead.Lookahead(inner, k, alpha, name=name)


# Name, class, twin, and the values that both take; the first is the rate.
# Epsilons are large, so that their place shows.
OPTIMIZERS = (
  ("sgd", optimizers.SGD, sgd_twin, (0.1,)),
  ("optimistic_sgd", optimistic.OptimisticSGD, optimistic_sgd_twin, (0.1,)),
  ("momentum", optimizers.Momentum, momentum_twin, (0.1, 0.9, False)),
  ("nesterov", optimizers.Momentum, momentum_twin, (0.1, 0.9, True)),
  ("rmsprop", optimizers.RMSProp, rmsprop_twin, (0.05, 0.9, 1e-2)),
  ("adam", optimizers.Adam, adam_twin, (0.05, 0.5, 0.99, 1e-2)),
  ("adam_no_momentum", optimizers.Adam, adam_twin, (0.05, 0.0, 0.999, 1e-8)),
  (
    "optimistic_adam",
    optimistic.OptimisticAdam,
    optimistic_adam_twin,
    (0.05, 0.5, 0.99, 1e-2),
  ),
  ("adabelief", optimizers.AdaBelief, adabelief_twin, (0.05, 0.5, 0.99, 1e-2)),
  ("radam", optimizers.RAdam, radam_twin, (0.05, 0.5, 0.9999, 1e-2)),
  ("radam_short", optimizers.RAdam, radam_twin, (0.05, 0.5, 0.8, 1e-2)),
  ("radam_never", optimizers.RAdam, radam_twin, (0.05, 0.5, 0.6, 1e-2)),
  ("lars", layerwise.LARS, lars_twin, (1.0, 0.9, 5e-2, 1e-1)),
  ("lamb", layerwise.LAMB, lamb_twin, (0.05, 0.9, 0.99, 1e-2, 0.1)),
  ("lookahead", make_lookahead, lookahead_twin, (0.1, 4, 0.3, 0.9)),
)

# Those with slots, with norms of whole weights, and with `tf.cond`.
BRANCHES = ("adam", "lamb", "lookahead")

BAD_VALUES = (
  ("negative_rate", optimizers.SGD, "learning_rate", -1),
  ("zero_rate", optimizers.Adam, "learning_rate", 0.0),
  ("nan_rate", optimizers.Adam, "learning_rate", float("nan")),
  ("word_for_rate", layerwise.LAMB, "learning_rate", "fast"),
  ("full_momentum", optimizers.Momentum, "momentum", 1.0),
  ("lars_momentum", layerwise.LARS, "momentum", -0.1),
  ("lars_decay", layerwise.LARS, "weight_decay", -1e-4),
  ("lars_trust", layerwise.LARS, "trust", 0),
  ("rmsprop_decay", optimizers.RMSProp, "decay", 1.5),
  ("rmsprop_epsilon", optimizers.RMSProp, "epsilon", 0.0),
  ("adam_beta1", optimizers.Adam, "beta1", 1),
  ("adam_beta2", optimizers.Adam, "beta2", -0.5),
  ("adam_epsilon", optimizers.Adam, "epsilon", float("inf")),
  ("adabelief_no_belief", optimizers.AdaBelief, "beta1", 0.0),
  ("radam_beta2", optimizers.RAdam, "beta2", 1.0),
  ("lamb_decay", layerwise.LAMB, "weight_decay", -2),
  ("no_period", lookahead.Lookahead, "sync_period", 0),
  ("part_of_a_period", lookahead.Lookahead, "sync_period", 2.5),
  ("slow_rate_0", lookahead.Lookahead, "slow_rate", 0.0),
  ("slow_rate_above_1", lookahead.Lookahead, "slow_rate", 1.1),
  ("no_factory", lookahead.Lookahead, "inner", 7),
)


def make_weights(dtype=tf.float64):
  rng = np.random.default_rng(1)
  return [
    tf.Variable(rng.normal(size=shape), dtype=dtype, name=name)
    for name, shape in zip(NAMES, SHAPES)
  ]


def make_grads(num_steps=NUM_STEPS, seed=2):
  """Returns gradients `[step][weight]`."""
  rng = np.random.default_rng(seed)
  return [[rng.normal(size=s) for s in SHAPES] for _ in range(num_steps)]


def train(optimizer, weights, grads, wrap=lambda fn: fn):
  """Applies every step's gradients; returns the weights after each."""
  dtype = weights[0].dtype
  step = wrap(lambda *g: optimizer.apply(g, weights))
  history = []
  for g in grads:
    step(*[tf.constant(x, dtype) for x in g])
    history.append(testing.values(weights))
  return history


def start(make, args, dtype=tf.float64):
  weights = make_weights(dtype)
  optimizer = make(*args, name="d_optimizer")
  optimizer.init(weights)
  return optimizer, weights


class OptimizersTest(tf.test.TestCase, parameterized.TestCase):
  def tearDown(self):
    gin.clear_config()
    super().tearDown()

  def assert_follows(self, twin, history, alphas, args, rtol=1e-12):
    for i, w in enumerate(testing.values(make_weights())):
      gs = [g[i] for g in make_grads(len(history))]
      expected = list(twin(w, gs, alphas, *args))
      for h, x in zip(history, expected):
        self.assertAllClose(h[i], x, rtol=rtol, atol=rtol)
      self.assertLen(expected, len(history))

  @parameterized.named_parameters(*OPTIMIZERS)
  def test_equals_its_paper(self, make, twin, args):
    history = train(*start(make, args), make_grads())
    self.assert_follows(twin, history, [args[0]] * NUM_STEPS, args[1:])

  @parameterized.named_parameters(*OPTIMIZERS)
  def test_a_rate_is_asked_for_at_the_count_of_updates_done(
    self, make, twin, args
  ):
    rates = args[0] * np.linspace(0.0, 1.0, num=8)
    schedule = lambda t: tf.gather(tf.constant(rates), t)  # noqa: E731
    optimizer, weights = start(make, (schedule, *args[1:]))
    history = []
    for g, rate in zip(make_grads(8), rates):
      self.assertEqual(optimizer.rate(), rate)
      history += train(optimizer, weights, [g])
    self.assert_follows(twin, history, rates, args[1:])

  @parameterized.named_parameters(*OPTIMIZERS)
  def test_float32_stays_near_its_paper(self, make, twin, args):
    history = train(*start(make, args, tf.float32), make_grads())
    rates = [args[0]] * NUM_STEPS
    self.assert_follows(twin, history, rates, args[1:], rtol=3e-6)

  @parameterized.named_parameters(*OPTIMIZERS)
  def test_without_gradient_nothing_moves(self, make, twin, args):
    optimizer, weights = start(make, args)
    if hasattr(optimizer, "weight_decay"):
      optimizer.weight_decay = 0.0
    before = testing.values(weights)
    train(optimizer, weights, [[np.zeros(s) for s in SHAPES]] * 6)
    for w, expected in zip(weights, before):
      self.assertAllEqual(w, expected)

  @parameterized.named_parameters(*OPTIMIZERS)
  def test_first_update_goes_downhill(self, make, twin, args):
    optimizer, weights = start(make, args)
    before = testing.values(weights)
    optimizer.apply([tf.identity(w) for w in weights], weights)
    for w, old in zip(weights, before):
      self.assertAllEqual(np.sign(w - old), -np.sign(old))
      self.assertLess(np.sum(w**2), np.sum(old**2))

  @parameterized.named_parameters(*OPTIMIZERS)
  def test_state_is_named_and_belongs_to_the_module(self, make, twin, args):
    optimizer, weights = start(make, args)
    expected = {}
    for o in (optimizer, getattr(optimizer, "inner", optimizer)):
      expected[f"{o.name}/t:0"] = ([], tf.int64)
      for w, slot in itertools.product(weights, o.slot_names):
        name = w.name.replace(":0", f"/{slot}:0")
        expected[f"{o.name}/{name}"] = (w.shape, tf.float64)
    found = {v.name: (v.shape, v.dtype) for v in optimizer.variables}
    self.assertEqual(found, expected)
    self.assertEqual(len(optimizer.variables), len(expected))
    self.assertEmpty(optimizer.trainable_variables)

  @parameterized.parameters((0.0, False), (0.5, True))
  def test_adam_keeps_a_mean_only_for_momentum(self, beta1, is_kept):
    optimizer, weights = start(optimizers.Adam, [1e-2, beta1])
    train(optimizer, weights, make_grads(2))
    for m, v in zip(optimizer.slots["m"], optimizer.slots["v"]):
      self.assertEqual(np.any(m.numpy()), is_kept)
      self.assertTrue(np.all(v.numpy()))

  @parameterized.named_parameters(*OPTIMIZERS)
  def test_a_checkpoint_continues_bit_for_bit(self, make, twin, args):
    grads = make_grads()
    through = train(*start(make, args), grads)
    path = os.path.join(self.get_temp_dir(), "checkpoint")
    optimizer, weights = start(make, args)
    train(optimizer, weights, grads[:10])
    path = tf.train.Checkpoint(o=optimizer, w=weights).write(path)
    optimizer, weights = start(make, args)
    state = tf.train.Checkpoint(o=optimizer, w=weights).read(path)
    state.assert_consumed()
    continued = train(optimizer, weights, grads[10:])
    self.assertAllClose(continued, through[10:], rtol=0, atol=0)

  @parameterized.named_parameters(*OPTIMIZERS)
  def test_compiled_it_equals_its_paper(self, make, twin, args):
    wrap = functools.partial(tf.function, jit_compile=True, autograph=False)
    history = train(*start(make, args), make_grads(9), wrap)
    self.assert_follows(twin, history, [args[0]] * 9, args[1:])

  @parameterized.named_parameters(*(o for o in OPTIMIZERS if o[0] in BRANCHES))
  def test_a_replica_updates_as_if_alone(self, make, twin, args):
    self.check_replicas(make, args)

  @parameterized.named_parameters(
    *(o for o in OPTIMIZERS if o[0] not in BRANCHES)
  )
  @pytest.mark.soak
  def test_a_replica_of_any_other_optimizer_updates_as_if_alone(
    self, make, twin, args
  ):
    self.check_replicas(make, args)

  def check_replicas(self, make, args):
    strategy = testing.strategy()
    with strategies.scope(strategy):
      optimizer, weights = start(make, args)
    step = lambda g: optimizer.apply(g, weights)  # noqa: E731
    run = tf.function(lambda g: strategy.run(step, args=(g,)), autograph=False)
    grads = [make_grads(5, seed) for seed in range(testing.NUM_REPLICAS)]
    for g in zip(*grads):
      run(testing.distribute(g))
    together = zip(*[strategy.experimental_local_results(w) for w in weights])
    for replica, g in zip(together, grads):
      alone = train(*start(make, args), g)[-1]
      self.assertAllClose(list(replica), alone, rtol=1e-12, atol=1e-12)

  @parameterized.named_parameters(*OPTIMIZERS)
  def test_a_missing_gradient_names_its_weight(self, make, twin, args):
    optimizer, weights = start(make, args)
    apply = lambda g: optimizer.apply([g, None], weights)  # noqa: E731
    for fn in (apply, tf.function(apply, autograph=False)):
      with self.assertRaisesRegex(ValueError, "None for `d/block1/b:0`"):
        fn(tf.zeros(SHAPES[0], tf.float64))

  @parameterized.named_parameters(*OPTIMIZERS)
  def test_state_is_made_once_and_for_all_weights(self, make, twin, args):
    weights = make_weights()
    grads = [tf.zeros_like(w) for w in weights]
    optimizer = make(*args, name="d_optimizer")
    with self.assertRaisesRegex(ValueError, "`d_optimizer` must come before"):
      optimizer.apply(grads, weights)
    optimizer.init(weights)
    with self.assertRaisesRegex(ValueError, "got 1 and 1"):
      optimizer.apply(grads[:1], weights[:1])
    with self.assertRaisesRegex(
      ValueError, "`d_optimizer` must be called once"
    ):
      optimizer.init(weights)

  @parameterized.named_parameters(*BAD_VALUES)
  def test_a_bad_value_is_refused(self, make, argument, value):
    arguments = {argument: value}
    if make is lookahead.Lookahead:
      arguments.setdefault("inner", optimizers.SGD)
    with self.assertRaisesRegex(
      ValueError, f"`{argument}` must .* got {value!r}"
    ):
      make(**arguments)

  def test_a_sparse_gradient_counts_as_a_dense_one(self):
    optimizer, (w, b) = start(optimizers.Adam, (0.1,))
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(tf.gather(w, [1, 1])) + tf.reduce_sum(b)
    grads = tape.gradient(loss, [w, b])
    self.assertIsInstance(grads[0], tf.IndexedSlices)
    before = w.numpy()
    optimizer.apply(grads, [w, b])
    self.assertAllClose(before - w, [[0.0] * 4, [0.1] * 4, [0.0] * 4])

  def test_a_zero_weight_is_trusted_as_it_is(self):
    g = tf.constant([[3.0, 4.0]])
    for optimizer, expected in (
      (layerwise.LARS(0.1, trust=0.5, weight_decay=0.1), [[-0.3, -0.4]]),
      (layerwise.LAMB(0.1), [[-0.1, -0.1]]),
    ):
      w = tf.Variable(tf.zeros([1, 2]), name="w")
      optimizer.init([w])
      optimizer.apply([g], [w])
      self.assertAllClose(w, expected)

  def test_lookahead_steps_back_on_every_kth_update(self):
    w = tf.Variable(0.0, name="w")
    inner = functools.partial(optimizers.SGD, 1.0)
    optimizer = lookahead.Lookahead(inner, sync_period=2, slow_rate=0.5)
    optimizer.init([w])
    w.assign(10.0)  # As restoring does, after `init`.
    seen = []
    for _ in range(4):
      optimizer.apply([tf.constant(-1.0)], [w])
      seen.append(w.numpy())
    self.assertAllEqual(seen, [11.0, 11.0, 12.0, 12.0])

  def test_gin_hands_lookahead_its_inner_optimizer(self):
    gin.parse_config("""
      g/Lookahead.inner = @g/Adam
      g/Adam.learning_rate = 0.25
      g/Adam.beta1 = 0.75
    """)
    with gin.config_scope("g"):
      optimizer = gin.get_configurable(lookahead.Lookahead)(name="g_optimizer")
    optimizer.init(make_weights())
    self.assertEqual(optimizer.rate(), 0.25)
    self.assertEqual(optimizer.inner.beta1, 0.75)
    self.assertEqual(optimizer.inner.name, "g_optimizer_inner")


class BilinearTest(tf.test.TestCase, parameterized.TestCase):
  """min over x, max over y of x A y, whose only solution is zero."""

  def play(self, make, seed, num_steps):
    """Returns the last distance from the solution over the first."""
    random = np.random.RandomState(seed)
    u, _ = np.linalg.qr(random.randn(10, 10))
    v, _ = np.linalg.qr(random.randn(10, 10))
    a = tf.constant(u * random.uniform(0.3, 1.0, 10) @ v)
    x, y = (tf.Variable(random.randn(10, 1), name=name) for name in "xy")
    players = [make(name=name) for name in "xy"]
    for player, w in zip(players, (x, y)):
      player.init([w])

    def step():
      grads = tf.matmul(a, y), -tf.matmul(a, x, transpose_a=True)
      for player, grad, w in zip(players, grads, (x, y)):
        player.apply([grad], [w])

    @tf.function
    def steps():
      for _ in tf.range(num_steps):
        step()

    def distance():
      return np.linalg.norm(np.concatenate([x.numpy(), y.numpy()]))

    first = distance()
    steps()
    return distance() / first

  @parameterized.parameters(0, 1)
  def test_optimism_finds_what_descent_runs_away_from(self, seed):
    hopeful = functools.partial(optimistic.OptimisticSGD, 0.2)
    self.assertLess(self.play(hopeful, seed, 2000), 1e-2)
    plain = functools.partial(optimizers.SGD, 0.2)
    self.assertGreater(self.play(plain, seed, 2000), 1e6)


if __name__ == "__main__":
  tf.test.main()
