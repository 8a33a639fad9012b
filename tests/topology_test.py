"""Mixing matrices: promises of all, and known values of each."""

import collections
import itertools

import gin
import numpy as np
from absl.testing import absltest, parameterized

from paragan_tf.sync import topology

SIZES = range(1, 17)
PRIMES = (2, 3, 5, 7, 11, 13)


def path(m):
  """Returns a path of workers with Metropolis weights."""
  W = np.diag(np.full([m - 1], 1 / 3), 1)
  W += W.T
  return topology.custom(W + np.diag(1.0 - W.sum(1)))


def cases():
  """Yields every topology of up to 16 workers, with its name."""
  for make in (topology.ring, topology.complete, topology.exponential, path):
    for m in SIZES:
      yield f"{make.__name__}_{m}", make, m
  for m in SIZES:
    if m not in PRIMES:
      yield f"torus_{m}", topology.torus, m


class TopologyTest(parameterized.TestCase):
  @parameterized.named_parameters(*cases())
  def test_w_is_symmetric_and_doubly_stochastic(self, make, m):
    W = make(m).matrix
    self.assertEqual((W.shape, W.dtype), ((m, m), np.float64))
    np.testing.assert_array_equal(W, W.T)
    np.testing.assert_allclose(W.sum(0), np.ones([m]), atol=1e-14)
    np.testing.assert_allclose(W.sum(1), np.ones([m]), atol=1e-14)
    self.assertGreaterEqual(W.min(), 0.0)
    self.assertGreater(np.diag(W).min(), 0.0)

  @parameterized.named_parameters(*cases())
  def test_rounds_keep_the_mean_and_shrink_the_spread(self, make, m):
    graph = make(m)
    X = np.random.RandomState(m).randn(m, 7)
    mean = X.mean(0)
    before = np.linalg.norm(X - mean)
    for t in (1, 2, 5, 20):
      mixed = np.linalg.matrix_power(graph.matrix, t) @ X
      np.testing.assert_allclose(mixed.mean(0), mean, atol=1e-13)
      after = np.linalg.norm(mixed - mean)
      self.assertLessEqual(after, graph.rho**t * before + 1e-12)

  @parameterized.named_parameters(*cases())
  def test_rho_is_attained_by_some_spread(self, make, m):
    graph = make(m)
    self.assertBetween(graph.rho, 0.0, 1.0 - 1e-3)
    # The spectral norm is attained by the spread that shrinks least.
    mean = np.full([m, m], 1 / m)
    norm = np.linalg.norm(graph.matrix - mean, ord=2)
    self.assertAlmostEqual(norm, graph.rho, places=12)

  @parameterized.named_parameters(*cases())
  def test_neighbors_and_edges_are_consistent(self, make, m):
    graph = make(m)
    neighbors = collections.defaultdict(set)
    for i, j in graph.edges():
      self.assertLess(i, j)
      self.assertGreater(graph.matrix[i, j], 0.0)
      neighbors[i].add(j)
      neighbors[j].add(i)
    for i in range(m):
      self.assertEqual(set(graph.neighbors(i)), neighbors[i])
    num_nonzero = np.count_nonzero(graph.matrix) - m
    self.assertEqual(2 * len(graph.edges()), num_nonzero)

  @parameterized.named_parameters(*cases())
  def test_colors_have_each_edge_once_and_no_worker_twice(self, make, m):
    graph = make(m)
    edges = list(itertools.chain(*graph.colors()))
    self.assertCountEqual(edges, graph.edges())
    for color in graph.colors():
      workers = list(itertools.chain(*color))
      self.assertNotEmpty(workers)
      self.assertLen(set(workers), len(workers))
    degree = max(len(graph.neighbors(i)) for i in range(m))
    self.assertBetween(len(graph.colors()), degree, max(degree, 2 * degree - 1))

  def test_ring_has_weights_of_a_third(self):
    np.testing.assert_allclose(topology.ring(1).matrix, [[1.0]])
    np.testing.assert_allclose(topology.ring(2).matrix, np.full([2, 2], 0.5))
    third = 1 / 3
    np.testing.assert_allclose(
      topology.ring(4).matrix,
      [
        [third, third, 0, third],
        [third, third, third, 0],
        [0, third, third, third],
        [third, 0, third, third],
      ],
    )
    self.assertEqual(topology.ring(8).neighbors(0), (1, 7))
    self.assertEqual(topology.ring(4).edges(), ((0, 1), (0, 3), (1, 2), (2, 3)))
    self.assertLen(topology.ring(8).colors(), 2)
    self.assertLen(topology.ring(5).colors(), 3)

  def test_complete_computes_the_mean(self):
    graph = topology.complete(5)
    np.testing.assert_allclose(graph.matrix, np.full([5, 5], 0.2))
    self.assertLen(graph.edges(), 10)

  def test_exponential_connects_workers_at_powers_of_two(self):
    graph = topology.exponential(16)
    self.assertEqual(graph.neighbors(0), (1, 2, 4, 8, 12, 14, 15))
    self.assertEqual(topology.exponential(11).neighbors(3), (1, 2, 4, 5, 7, 10))
    self.assertAlmostEqual(graph.matrix[0, 4], 1 / 8)

  def test_torus_is_a_grid_that_wraps_around(self):
    # 12 workers: 0 1 2 3 / 4 5 6 7 / 8 9 10 11.
    graph = topology.torus(12)
    self.assertEqual(graph.neighbors(0), (1, 3, 4, 8))
    self.assertEqual(graph.neighbors(6), (2, 5, 7, 10))
    self.assertAlmostEqual(graph.matrix[6, 6], 0.2)
    # With two rows, the row above is the row below.
    self.assertEqual(topology.torus(6).neighbors(0), (1, 2, 3))

  @parameterized.named_parameters(
    ("ring_of_8", topology.ring, 8, (1 + 2 * np.cos(np.pi / 4)) / 3),
    ("ring_of_16", topology.ring, 16, (1 + 2 * np.cos(np.pi / 8)) / 3),
    ("ring_of_4", topology.ring, 4, 1 / 3),
    ("ring_of_3", topology.ring, 3, 0.0),
    ("one_worker", topology.ring, 1, 0.0),
    ("complete", topology.complete, 7, 0.0),
    ("torus_of_16", topology.torus, 16, 0.6),
    ("torus_of_9", topology.torus, 9, 0.4),
    ("exponential_of_16", topology.exponential, 16, 0.5),
    ("path_of_3", path, 3, 2 / 3),
  )
  def test_rho_equals_the_known_value(self, make, m, rho):
    self.assertAlmostEqual(make(m).rho, rho, places=12)

  def test_ring_of_eight_has_the_published_rho(self):
    self.assertAlmostEqual(topology.ring(8).rho, 0.8047, places=4)

  @parameterized.parameters(0.9, 0.5, 0.1, 1e-3, 1e-9)
  def test_rounds_for_is_the_smallest_sufficient_number(self, target):
    for make in (topology.ring, topology.complete, topology.exponential):
      for m in (1, 4, 8, 16):
        graph = make(m)
        t = graph.rounds_for(target)
        self.assertLessEqual(graph.rho**t, target)
        self.assertTrue(t == 1 or graph.rho ** (t - 1) > target)

  def test_rounds_for_a_power_of_rho_is_its_exponent(self):
    graph = topology.custom([[0.75, 0.25], [0.25, 0.75]])  # Its rho is 0.5.
    self.assertEqual([graph.rounds_for(2.0**-t) for t in (1, 2, 9)], [1, 2, 9])
    self.assertEqual(topology.ring(8).rounds_for(0.1), 11)

  @parameterized.parameters(0.0, 1.0, -0.1, float("nan"))
  def test_a_target_outside_of_0_to_1_is_refused(self, target):
    with self.assertRaisesRegex(
      ValueError, f"`target`.*in .0, 1., got {target}"
    ):
      topology.ring(4).rounds_for(target)

  @parameterized.parameters(*PRIMES)
  def test_a_torus_of_a_prime_is_refused(self, m):
    with self.assertRaisesRegex(
      ValueError, f"`m`.* not be a prime .* got {m}: take"
    ) as caught:
      topology.torus(m)
    remedy = int(str(caught.exception).split("take ")[1].split()[0])
    self.assertEqual(topology.torus(remedy).num_workers, remedy)

  @parameterized.parameters(
    topology.ring, topology.complete, topology.exponential, topology.torus
  )
  def test_zero_workers_are_refused(self, make):
    with self.assertRaisesRegex(ValueError, "`m`.*at least 1, got 0"):
      make(0)

  @parameterized.named_parameters(
    ("empty", [], "`matrix` must be square.* got 0 rows"),
    ("ragged", [[1, 0], [0]], "square.* got 2 rows of .1, 2."),
    ("wide", [[0.5, 0.5, 0], [0.5, 0.5, 0]], "square.* got 2 rows of .3."),
    ("asymmetric", [[0.5, 0.5], [0.25, 0.75]], "symmetric.* by 0.25"),
    ("sums_below_1", [[0.5, 0.4], [0.4, 0.6]], "stochastic.* sum to 0.9:"),
    ("sums_above_1", [[0.7, 0.4], [0.4, 0.6]], "stochastic.* sum to 1.1:"),
    ("negative", [[1.5, -0.5], [-0.5, 1.5]], "negative.* got -0.5"),
    ("nan", [[np.nan, 0.5], [0.5, 0.5]], "negative.* got nan"),
    ("disconnected", np.eye(3), "`rho`.* below 1, got 1, .*: connect all"),
    ("swap", [[0, 1], [1, 0]], "`rho`.* below 1, got 1, .*diagonal positive"),
  )
  def test_a_matrix_without_convergence_is_refused(self, W, message):
    with self.assertRaisesRegex(ValueError, message):
      topology.custom(W)

  def test_rounding_errors_in_a_matrix_are_corrected(self):
    graph = topology.custom([[0.75, 0.25 + 1e-12], [0.25, 0.75]])
    self.assertEqual(graph.matrix[0, 1], graph.matrix[1, 0])

  def test_a_topology_is_immutable(self):
    matrix = np.full([2, 2], 0.5)
    graph = topology.custom(matrix)
    with self.assertRaises(ValueError):
      graph.matrix[0, 0] = 1.0
    with self.assertRaises(AttributeError):
      graph.name = "other"
    matrix[0, 0] = 7.0
    self.assertEqual(graph.matrix[0, 0], 0.5)

  def test_gin_builds_a_topology(self):
    gin.parse_config("topology.custom.matrix = [[.5, .5], [.5, .5]]")
    self.addCleanup(gin.clear_config)
    graph = gin.get_configurable(topology.custom)()
    self.assertEqual((graph.name, graph.num_workers), ("custom", 2))


if __name__ == "__main__":
  absltest.main()
