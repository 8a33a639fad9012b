"""Where G and D are played on replicas of their own.

Pseudo-code of one step:

    on a replica of G:   fakes = g(z); move = g's, against the D it has
    on a replica of D:   move = d's, on real images and the cache's fakes
    (each player is updated and exchanged, as in any step)
    at G's exchange:     the fakes go from each G into the caches it feeds

Where the replica's number is known while the step is traced, its graph holds
its own role only. On a TPU all replicas have one program, and `tf.cond` chooses
the role; everything that talks stands outside of it. On one replica both roles
are played, and neither waits for the other.
"""

import contextlib
from typing import (
  Any,
  Callable,
  ContextManager,
  Dict,
  List,
  Mapping,
  NamedTuple,
  Tuple,
  Union,
)

import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.game import noise, turns
from paragan_tf.game.cache import Cache, Parcel, Store, parcel
from paragan_tf.game.losses import LossFn
from paragan_tf.game.schedule import Asynchronous
from paragan_tf.types import Batch, ImageSpec, Mode, Net, Scores

Logs = Dict[str, tf.Tensor]
LOG_NAMES = (
  "cache/fill",
  "staleness/d_seen_by_g",
  "staleness/fakes_seen_by_d",
)


class Part(NamedTuple):
  """One player's move as this replica has it.

  Attributes:
    move: Zeros where this replica does not play the player.
    weight: What this replica counts in means.
    plays: Whether it plays, a Python bool where that is known.
    age: Steps that the view of the other player is old, where it plays.
  """

  move: turns.Move
  weight: Union[float, tf.Tensor] = 1.0
  plays: Union[bool, tf.Tensor] = True
  age: Union[int, tf.Tensor] = 0


class _Played(NamedTuple):
  """What both branches of the roles return."""

  g: turns.Move
  d: turns.Move
  sent: Parcel
  fakes_age: tf.Tensor


class RoleSplit(tf.Module):
  """The roles of all replicas, and the cache of fakes between them."""

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
    self._periods = periods
    self._seed = seed
    self._sizes = _sizes(schedule, batch_size, self._num)
    self.bound = schedule.bound(max(periods.values()))
    self._num_sent = min(periods["g"], schedule.cache_depth)
    self.cache = Cache(
      schedule.cache_depth, self._sizes.d, spec, schedule.cache_policy, seed
    )
    self._outbox = None
    if self._num_sent > 1:
      self._outbox = Store(
        self._num_sent, self._sizes.sent, spec, name="outbox"
      )
    # The step at which this replica last got D's weights.
    self.seen = tf.Variable(
      tf.zeros([], tf.int64), trainable=False, name="fakes/seen"
    )

  def play(
    self,
    nets: Mapping[str, Net],
    loss_fn: LossFn,
    terms: Mapping[str, turns.LossTerms],
    batch: Batch,
    phase: int,
    count: tf.Tensor,
  ) -> Tuple[Dict[str, Part], Parcel, Logs]:
    """Returns both players' moves, the fakes to send, and scalars to log."""

    def as_g():
      with self.place("g"):
        move, sent = self._g_move(nets, loss_fn, terms["g"], batch, count)
      return _Played(move, self._no_d_move(nets["d"]), sent, _no_age())

    def as_d():
      with self.place("d"):
        move, age = self._d_move(nets, loss_fn, terms["d"], batch, phase, count)
      return _Played(_nothing(nets["g"]), move, self._no_parcel(), age)

    def as_both():
      g, d = as_g(), as_d()
      return _Played(g.g, d.d, g.sent, d.fakes_age)

    plays, weights = self._standing()
    played = _choose(plays["g"], plays["d"], as_g, as_d, as_both)
    d_age = count - tf.convert_to_tensor(self.seen) + 1
    logs = {
      "cache/fill": weights["d"] * self.cache.fill_level(),
      "staleness/d_seen_by_g": weights["g"] * tf.cast(d_age, tf.float32),
      "staleness/fakes_seen_by_d": (
        weights["d"] * tf.cast(played.fakes_age, tf.float32)
      ),
    }
    parts = {
      "d": Part(played.d, weights["d"], plays["d"], played.fakes_age),
      "g": Part(played.g, weights["g"], plays["g"], d_age),
    }
    return parts, played.sent, logs

  def exchange(self, sent: Parcel, phase: int, count: tf.Tensor) -> None:
    """Brings the fakes to D when it is time. Replica context."""
    if phase % self._periods["d"] == self._periods["d"] - 1:
      self.seen.assign(count + 1)
    if self._outbox is not None:
      sent = self._outbox.push(sent)
    if phase % self._periods["g"] != self._periods["g"] - 1:
      return
    received = self._received(sent)
    steps = [count - i for i in reversed(range(self._num_sent))]
    self.cache.fill(received, steps)

  def num_bytes(self, phase: int) -> int:
    """Returns the bytes of fakes that a replica of G sends in a phase."""
    if self._both or phase % self._periods["g"] != self._periods["g"] - 1:
      return 0
    pixels = self.cache.images.shape[2:].num_elements()
    return self._num_sent * self._sizes.sent * 4 * (pixels + 1)

  def place(self, who: str) -> ContextManager:
    """Places a player on its core, where each replica has two."""
    if not self._schedule.on_cores:
      return contextlib.nullcontext()
    return collectives.on_core("gd".index(who))

  def damping(self, part: Part) -> Union[float, tf.Tensor]:
    """Returns what to multiply a player's rate with."""
    if not self._schedule.damping:
      return 1.0
    return 1.0 / tf.cast(tf.maximum(part.age, 1), tf.float64)

  def _standing(self):
    """Returns whom this replica plays, and what it counts in means."""
    if self._both:
      return {"g": True, "d": True}, {"g": 1.0, "d": 1.0}
    here = collectives.static_replica_id()
    factors = {
      who: self._num / self._roles.num_playing(who, self._num) for who in "gd"
    }
    if here is not None:
      plays: Dict[str, Any] = {w: self._roles.plays(here) == w for w in "gd"}
      return plays, {w: factors[w] * plays[w] for w in "gd"}
    is_g = self._looked_up(lambda replica: self._roles.plays(replica) == "g")
    plays = {"g": is_g, "d": tf.logical_not(is_g)}
    weights = {w: factors[w] * tf.cast(plays[w], tf.float32) for w in "gd"}
    return plays, weights

  def _looked_up(self, fn: Callable[[int], Any]):
    """Returns `fn` of this replica's number."""
    here = 0 if self._num == 1 else collectives.static_replica_id()
    if here is not None:
      return fn(here)
    table = tf.constant([fn(replica) for replica in range(self._num)])
    return tf.gather(table, collectives.replica_id())

  def _g_move(self, nets, loss_fn, terms, batch: Batch, count):
    size = self._sizes.g
    z = self._z(nets["g"], size, count, "z0", self._schedule.g_place)
    batch = Batch(
      turns.repeated(batch.images, size), turns.repeated(batch.labels, size), z
    )
    fakes = turns.draw(nets["g"], batch, Mode.TRAIN)
    move = turns.g_move(fakes, nets["d"], batch, loss_fn, terms)
    images = tf.stop_gradient(fakes.images)
    return move, parcel(images, batch.labels, self._sizes.sent)

  def _d_move(self, nets, loss_fn, terms, batch: Batch, phase: int, count):
    place = self._looked_up(self._schedule.shard)
    since = phase % self._periods["g"]
    images, labels, born = self.cache.take(since, count, place)

    def own():  # Before the first ones have come.
      z = self._z(nets["g"], self._sizes.d, count, "own", self._schedule.shard)
      drawn = nets["g"](z, batch.labels, Mode.FROZEN)
      return tf.stop_gradient(drawn), labels if batch.labels is None else (
        batch.labels
      )

    images, labels = tf.cond(born < 0, own, lambda: (images, labels))
    fakes = turns.Fakes(
      tf.ensure_shape(images, self.cache.images.shape[1:]),
      None if batch.labels is None else labels,
      lambda grad: [],
    )
    # The codes of fakes from the cache are not at hand, so G is not either.
    terms = terms._replace(g=None)
    move = turns.d_move(fakes, nets["d"], batch, loss_fn, terms)
    return move, tf.where(born < 0, _no_age(), count - born)

  def _z(self, g: Net, size: int, count, purpose: str, place) -> tf.Tensor:
    z_dim = g.z_dim  # type: ignore[attr-defined]
    share = self._looked_up(place)
    return noise.normal([size, z_dim], self._seed, count, purpose, share)

  def _received(self, sent: Parcel) -> Parcel:
    """Returns what the replicas that feed this one sent, put together."""
    if self._both:
      return sent
    parts: List[Parcel] = []
    for index in range(self._roles.num_sources):
      sources = self._roles.sources(index, self._num)
      parts.append(Parcel(*collectives.receive(sent, sources)))
    if self._roles.num_fed > 1:
      first = self._looked_up(self._roles.slice_place) * self._sizes.d
      parts = [
        Parcel(*(x[:, first : first + self._sizes.d] for x in part))
        for part in parts
      ]
    joined = Parcel(*(tf.concat(pieces, 1) for pieces in zip(*parts)))
    size = [self._num_sent, *self.cache.images.shape[1:]]
    return joined._replace(images=tf.ensure_shape(joined.images, size))

  def _no_d_move(self, d: Net) -> turns.Move:
    zeros = tf.zeros([self._sizes.d])
    return _nothing(d)._replace(scores=Scores(zeros, zeros))

  def _no_parcel(self) -> Parcel:
    shape = [1, self._sizes.sent, *self.cache.images.shape[2:]]
    return Parcel(tf.zeros(shape), tf.zeros(shape[:2], tf.int32))


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
  num_sources, num_fed = (roles.num_sources, roles.num_fed)
  if both:
    num_sources = num_fed = 1
  sent = d * num_fed // num_sources
  if d % num_sources or sent > g:
    raise ValueError(
      f"Each replica of D takes {d} fakes a step from {num_sources} of G, and "
      f"each of those draws {g} for {num_fed} of D: that does not fit; raise "
      "`g_batch_size`, or take other shares."
    )
  return _Sizes(g, d, sent)


def _choose(is_g, is_d, as_g, as_d, as_both) -> _Played:
  if is_g is True and is_d is True:
    return as_both()
  if is_g is True:
    return as_g()
  if is_d is True:
    return as_d()
  return tf.cond(is_g, as_g, as_d)


def _nothing(net: Net) -> turns.Move:
  """Returns the move of a player that is not played here."""
  grads = [tf.zeros(w.shape, w.dtype) for w in net.trainable_variables]
  return turns.Move(tf.zeros([]), grads)


def _no_age() -> tf.Tensor:
  return tf.zeros([], tf.int64)
