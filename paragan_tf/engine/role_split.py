"""G and D on replicas of their own, and the fakes between them.

Pseudo-code of one step:

    on a replica of G:   fakes = g(z); move = g's, against its copy of D
    on a replica of D:   move = d's, on real images and fakes of the cache
    (each player is updated and exchanged, as in any step)
    at G's exchange:     each G sends its fakes to the caches of its Ds

Where the replica's number is known while the step is traced, its graph holds
its own role only. On a TPU all replicas run one program, and `tf.cond` chooses
the role; all communication is outside of it. One replica alone trains both,
and neither player waits for the other.
"""

from typing import (
  Any,
  Callable,
  ContextManager,
  List,
  Mapping,
  NamedTuple,
  Sequence,
  Union,
)

import tensorflow as tf

from paragan_tf import collectives, pairs
from paragan_tf.engine.placement import Contribution, Game, Placement, Role
from paragan_tf.game import turns
from paragan_tf.game.cache import Cache, FakeBatches, Store, make_batch
from paragan_tf.game.schedule import Asynchronous
from paragan_tf.sync.exchange import is_period_end
from paragan_tf.types import Batch, ImageSpec, Mode, Net, Scores


class _Played(NamedTuple):
  """What both roles return."""

  g: turns.Move
  d: turns.Move
  sent: FakeBatches
  fakes_age: tf.Tensor


class RoleSplit(Placement):
  """Each replica trains one player; D's trains on a cache of G's fakes."""

  log_names = (
    "cache/fill",
    "staleness/d_seen_by_g",
    "staleness/fakes_seen_by_d",
  )

  def __init__(
    self,
    schedule: Asynchronous,
    spec: ImageSpec,
    batch_size: int,
    periods: Mapping[str, int],
    seed: int,
  ):
    super().__init__(name="role_split")
    self._schedule = schedule
    self._roles = schedule.roles
    self._num = collectives.num_replicas()
    self._both = schedule.plays_both(self._num)
    self.is_split = not self._both
    self._periods = periods
    self._sizes = _sizes(schedule, batch_size, self._num)
    self.bound = schedule.bound(max(periods.values()))
    self._num_sent = min(periods["g"], schedule.cache_depth)
    self.cache = Cache(
      schedule.cache_depth,
      self._sizes.d,
      spec,
      schedule.cache_policy,
      seed,
      schedule.cache_dtype,
    )
    self._outbox = None
    if self._num_sent > 1:
      self._outbox = Store(
        self._num_sent,
        self._sizes.sent,
        spec,
        schedule.cache_dtype,
        name="outbox",
      )
    # The step at which this replica last got D's weights.
    self.seen = tf.Variable(
      tf.zeros([], tf.int64), trainable=False, name="fakes/seen"
    )

  def play(self, game, batch, phase, count):
    """Yields the one turn of both; then sends G's fakes to D."""
    roles = self.roles()
    trains = {who: role.trains for who, role in roles.items()}
    weights = {who: role.weight for who, role in roles.items()}
    played = self._choose(trains, game, batch, phase, count)
    d_age = count - tf.convert_to_tensor(self.seen) + 1
    ages = {"d": played.fakes_age, "g": d_age}
    contributions = {
      who: Contribution(
        getattr(played, who), weights[who], trains[who], self._damping(age)
      )
      for who, age in ages.items()
    }
    yield contributions, self._logs(weights, ages)
    self._send(played.sent, phase, count)

  def _choose(self, trains, game, batch, phase, count) -> _Played:
    """Computes the moves of this replica's role, or of both."""

    def as_g():
      with self.device("g"):
        move, sent = self._g_move(game, batch, phase, count)
      return _Played(move, self._no_d_move(game.net("d")), sent, _no_age())

    def as_d():
      with self.device("d"):
        move, age = self._d_move(game, batch, phase, count)
      return _Played(_no_move(game.net("g")), move, self._no_fakes(), age)

    if trains["g"] is True and trains["d"] is True:
      g, d = as_g(), as_d()
      return _Played(g.g, d.d, g.sent, d.fakes_age)
    if trains["g"] is True:
      return as_g()
    if trains["d"] is True:
      return as_d()
    return tf.cond(trains["g"], as_g, as_d)

  def _logs(self, weights, ages):
    d_age, fakes_age = (tf.cast(ages[who], tf.float32) for who in "gd")
    values = (
      weights["d"] * self.cache.fill_level(),
      weights["g"] * d_age,
      weights["d"] * fakes_age,
    )
    return dict(zip(self.log_names, values))

  def _send(self, sent: FakeBatches, phase: int, count: tf.Tensor) -> None:
    """Sends the fakes to D when they are due. Replica context."""
    if self._is_due("d", phase):
      self.seen.assign(count + 1)
    if self._outbox is not None:
      sent = self._outbox.push(sent)
    if not self._is_due("g", phase):
      return
    received = self._receive(sent)
    steps = [count - i for i in reversed(range(self._num_sent))]
    self.cache.fill(received, steps)

  def _is_due(self, who: str, phase: int) -> bool:
    """Returns whether a player is exchanged at the end of a phase."""
    return is_period_end(phase, self._periods[who])

  def num_bytes(self, phase: int) -> int:
    """Returns the bytes of fakes that a replica of G sends in a phase."""
    if self._both or not self._is_due("g", phase):
      return 0
    images = self.cache.images
    size = images.shape[2:].num_elements() * images.dtype.size
    size += self.cache.labels.dtype.size
    return self._num_sent * self._sizes.sent * size

  def device(self, who: str) -> ContextManager:
    """Places a player on its core, where each replica has two."""
    if not self._schedule.on_cores:
      return super().device(who)
    return collectives.on_core("gd".index(who))

  def _damping(self, age: tf.Tensor) -> Union[float, tf.Tensor]:
    """Returns what to multiply the learning rate with."""
    if not self._schedule.damping:
      return 1.0
    return 1.0 / tf.cast(tf.maximum(age, 1), tf.float64)

  def roles(self) -> Mapping[str, Role]:
    """Returns which players this replica trains, and its weights in means."""
    if self._both:
      return {who: Role(True, 1.0) for who in "gd"}
    replica = collectives.static_replica_id()
    factors = {
      who: self._num / len(self.owners(who, self._num)) for who in "gd"
    }
    if replica is not None:
      role = self._roles.role_of(replica)
      return {w: Role(role == w, factors[w] * (role == w)) for w in "gd"}
    is_g = self._look_up(lambda replica: self._roles.role_of(replica) == "g")
    trains = {"g": is_g, "d": tf.logical_not(is_g)}
    return {
      who: Role(trains[who], factors[who] * tf.cast(trains[who], tf.float32))
      for who in "gd"
    }

  def owners(self, who: str, num_replicas: int) -> Sequence[int]:
    """Returns the ids of the replicas that train a player."""
    ids = range(num_replicas)
    if self._both:
      return ids
    return [i for i in ids if self._roles.role_of(i) == who]

  def variables_of(self, who: str) -> Sequence[tf.Variable]:
    """Returns the cache of D, or what G keeps until it is sent."""
    if who == "d":
      return self.cache.variables
    return (self.seen, *(self._outbox.variables if self._outbox else ()))

  def _look_up(self, fn: Callable[[int], Any]):
    """Returns `fn` of this replica's number."""
    here = 0 if self._num == 1 else collectives.static_replica_id()
    if here is not None:
      return fn(here)
    table = tf.constant([fn(replica) for replica in range(self._num)])
    return tf.gather(table, collectives.replica_id())

  def _g_move(self, game: Game, batch: Batch, phase: int, count):
    size = self._sizes.g
    shard = self._look_up(self._schedule.g_index)
    batch = Batch(
      turns.repeat_rows(batch.images, size),
      turns.repeat_rows(batch.labels, size),
      game.z(size, count, "z0", shard),
    )
    fakes = game.draw(batch, Mode.TRAIN)
    move = game.move("g", fakes, batch, game.terms("g", phase, count))
    images = tf.stop_gradient(fakes.images)
    images = tf.ensure_shape(images, [size, *self.cache.shape[1:]])
    dtype = self._schedule.cache_dtype
    return move, make_batch(images, batch.labels, self._sizes.sent, dtype)

  def _d_move(self, game: Game, batch: Batch, phase: int, count):
    shard = self._look_up(self._schedule.shard)
    since = phase % self._periods["g"]
    images, labels, born = self.cache.take(since, count, shard)

    def own():  # Before any fakes were received.
      z = game.z(self._sizes.d, count, "own", shard)
      drawn = game.net("g")(z, batch.labels, Mode.FROZEN)
      own_labels = labels if batch.labels is None else batch.labels
      return tf.stop_gradient(drawn), own_labels

    images, labels = tf.cond(born < 0, own, lambda: (images, labels))
    fakes = turns.Fakes(
      tf.ensure_shape(images, self.cache.shape),
      None if batch.labels is None else labels,
      lambda grad: [],
    )
    # The codes of cached fakes are gone, so no penalty can draw them again.
    terms = game.terms("d", phase, count)._replace(g=None)
    move = game.move("d", fakes, batch, terms)
    return move, tf.where(born < 0, _no_age(), count - born)

  def _receive(self, sent: FakeBatches) -> FakeBatches:
    """Returns the fakes of all replicas that feed this one, concatenated."""
    if self._both:
      return sent
    parts: List[FakeBatches] = []
    for index in range(self._roles.num_sources):
      sources = self._roles.sources(index, self._num)
      parts.append(FakeBatches(*pairs.receive(sent, sources)))
    if self._roles.num_targets > 1:
      index = self._look_up(self._roles.slice_index)
      # XLA compiles no slice whose bounds a TPU reads at run time.
      shape = [self._num_sent, self._roles.num_targets, self._sizes.d]
      parts = [
        FakeBatches(
          *(
            tf.gather(tf.reshape(x, [*shape, *x.shape[2:]]), index, axis=1)
            for x in part
          )
        )
        for part in parts
      ]
    joined = FakeBatches(*(tf.concat(pieces, 1) for pieces in zip(*parts)))
    size = [self._num_sent, *self.cache.images.shape[1:]]
    return joined._replace(images=tf.ensure_shape(joined.images, size))

  def _no_d_move(self, d: Net) -> turns.Move:
    zeros = tf.zeros([self._sizes.d])
    return _no_move(d)._replace(scores=Scores(zeros, zeros))

  def _no_fakes(self) -> FakeBatches:
    shape = [1, self._sizes.sent, *self.cache.images.shape[2:]]
    images = tf.zeros(shape, self.cache.images.dtype)
    return FakeBatches(images, tf.zeros(shape[:2], tf.int32))


class _Sizes(NamedTuple):
  """Images of one replica: G draws, D takes of each kind, G sends."""

  g: int
  d: int
  sent: int


def _sizes(schedule: Asynchronous, batch_size: int, num: int) -> _Sizes:
  roles = schedule.roles
  both = schedule.plays_both(num)
  num_d = schedule.num_shards(num)
  num_g = num if both else roles.num_playing("g", num)
  g_batch_size = schedule.g_batch_size or batch_size
  for name, size, count in (
    ("g_batch_size", g_batch_size, num_g),
    ("batch_size", batch_size, num_d),
  ):
    if size < count or size % count:
      raise ValueError(
        f"`{name}` must be a multiple of the {count} replica(s) that play that "
        f"role, got {size}: none may stay without work."
      )
  g, d = g_batch_size // num_g, batch_size // num_d
  num_sources, num_targets = (roles.num_sources, roles.num_targets)
  if both:
    num_sources = num_targets = 1
  sent = d * num_targets // num_sources
  if d % num_sources or sent > g:
    raise ValueError(
      f"Each replica of D takes {d} fakes a step from {num_sources} of G, and "
      f"each of those draws {g} for {num_targets} of D: that does not fit; "
      "raise `g_batch_size`, or change `g_per_group`."
    )
  return _Sizes(g, d, sent)


def _no_move(net: Net) -> turns.Move:
  """Returns the move of a player that another replica trains."""
  grads = [tf.zeros(w.shape, w.dtype) for w in net.trainable_variables]
  return turns.Move(tf.zeros([]), grads)


def _no_age() -> tf.Tensor:
  return tf.zeros([], tf.int64)
