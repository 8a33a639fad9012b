"""Quantized updates with error feedback.

DQGAN (arXiv 2010.13359) is this, with `optimistic.OptimisticSGD` and
`schedule.Simultaneous`; the look-ahead point is the net's weights:

    each replica:  w_half = w - (eta F_prev + e)   # last update and residual
                   p = eta F(w_half) + e
                   send q = Q(p);  e <- p - q      # error feedback
    all:           w <- w - mean q

With `OptimisticAdam` it is a heuristic: the paper proves it for gradients.
"""

import math
import zlib
from typing import List, Optional, Sequence

import gin
import tensorflow as tf

from paragan_tf import collectives, pairs
from paragan_tf.sync import wire
from paragan_tf.sync.compress import Compressor, Identity, Stochastic
from paragan_tf.sync.exchange import (
  ErrorFeedback,
  Exchange,
  Traffic,
  assign_mean,
  size_in_bytes,
)

FORMS = ("auto", "gather", "two_phase")


@gin.register
class Quantized(ErrorFeedback, Exchange):
  """Averages compressed updates, with error feedback.

  The base weights are the same on all replicas, bit for bit; the points where
  they take gradients are not. Batch-norm statistics are averaged uncompressed,
  unless `statistics` is 'local'; an average of G and moments stay local.

  Resumed with more or fewer replicas, each starts from the mean residual, and
  from the residual of the second phase if there is no second phase any more, so
  that the point all converge to, `w - mean e - sum s`, does not change.

  Args:
    compressor: How an update is compressed; G and D may differ, by scope.
    min_size: Tensors with fewer entries are sent uncompressed.
    joined: All others are compressed as one vector, and not each by itself.
    error_feedback: Adds what compression left out to the next update. Without
      it, that is lost.
    half_step_residual: Takes the gradient where the residual is applied, too.
    form: 'gather' all-gathers the messages. 'two_phase' [ours] lets each
      replica average a chunk of all vectors, which is quantized again, with a
      residual of its own. 'auto' takes the first while it costs no more than a
      float32 all-reduce: with 8 bits, up to 8 replicas.
    statistics: 'mean' or 'local'.
    timeout: As that of `gossip.Gossip`.
  """

  communicates = True
  supports_roles = False
  mean_is_model = True
  log_names = ("residual",)

  def __init__(
    self,
    compressor: Optional[Compressor] = None,
    min_size: int = 256,
    joined: bool = False,
    error_feedback: bool = True,
    half_step_residual: bool = True,
    form: str = "auto",
    statistics: str = "mean",
    timeout: Optional[float] = None,
    name: str = "quantized",
  ):
    super().__init__(name=name)
    for what, value, allowed in (
      ("form", form, FORMS),
      ("statistics", statistics, ("mean", "local")),
    ):
      if value not in allowed:
        raise ValueError(
          f"`{what}` must be one of {', '.join(allowed)}, got {value!r}."
        )
    if compressor is not None and not isinstance(compressor, Compressor):
      kind = getattr(compressor, "__name__", "Stochastic")
      raise ValueError(
        f"`compressor` must be a compressor, got {compressor!r}: write "
        f"`@compress.{kind}()`, with parentheses."
      )
    if min_size < 0:
      raise ValueError(f"`min_size` must be at least 0, got {min_size}.")
    if timeout is not None and not timeout > 0.0:
      raise ValueError(f"`timeout` must be above 0 s, got {timeout}.")
    self.compressor = compressor or Stochastic()
    self._min_size = min_size
    self._joined = joined
    self._error_feedback = error_feedback
    self._half_step_residual = half_step_residual
    self._form = form
    if statistics == "local":
      self.exchanged_state = ()
    self._timeout = timeout
    self._m = 1
    self._seed = 0
    self._shapes: List[List[int]] = []
    self.t: tf.Variable = None
    self.e: List[tf.Variable] = []
    self.s: List[tf.Variable] = []

  def init(self, weights: Sequence[tf.Variable], seed: int = 0) -> None:
    """Makes the residuals `e` of each weight, and `s` of the second phase."""
    self._m = collectives.num_replicas()
    self._seed = seed
    self._shapes = [w.shape.as_list() for w in weights]
    self.t = tf.Variable(
      tf.zeros([], tf.int64), trainable=False, name=f"{self.name}/t"
    )
    self.e = [
      tf.Variable(
        tf.zeros(w.shape, w.dtype),
        trainable=False,
        name=f"{self.name}/{w.name.split(':')[0]}/e",
      )
      for w in weights
    ]
    if self.form == "two_phase":
      zeros = tf.zeros([self._num_large], weights[0].dtype)
      s = tf.Variable(zeros, trainable=False, name=self._s_name)
      self.s = [s]

  @property
  def summed(self) -> Sequence[tf.Variable]:  # type: ignore[override]
    """The residuals of the second phase: a replica has those of its chunk."""
    return self.s

  @property
  def residual_targets(self):
    """Without a second phase, its residuals go to those of the weights."""
    if self.s:
      return {}
    parts, start = {}, 0
    for e, shape in zip(self.e, self._shapes):
      if not self._is_small(shape):
        parts[e.name] = self._s_name, self._num_large, start
        start += math.prod(shape)
    return parts

  @property
  def _s_name(self) -> str:
    return f"{self.name}/s"

  @property
  def form(self) -> str:
    """How messages go around: 'gather' or 'two_phase'."""
    if not self._num_large:
      return "gather"
    if self._form != "auto":
      return self._form
    # A gather gives (M - 1) messages, an all-reduce 2 (M - 1) / M of all; give
    # or take a twentieth, for scales.
    cost = self._m * self._message_bytes()
    return "gather" if cost <= 1.05 * 8 * self._num else "two_phase"

  def average_updates(self, updates, phase):
    """Returns the mean of all compressed updates."""
    del phase
    self.t.assign(self.t + 1)
    p = [u + e for u, e in zip(updates, self.e)]
    sent, mean = (
      self._gather(p) if self.form == "gather" else self._two_phase(p)
    )
    if self._error_feedback:
      for e, v, q in zip(self.e, p, sent):
        e.assign(v - q)
    return mean

  def predict_updates(self, updates):
    """Returns the last update plus the residual."""
    if not self._half_step_residual:
      return updates
    return [u + e for u, e in zip(updates, self.e)]

  def after_update(self, weights, state, phase, counts=None):
    """Averages state; returns the norm of the residual."""
    del weights, phase, counts
    assign_mean(state)
    return {"residual": tf.cast(tf.linalg.global_norm(self.e), tf.float32)}

  def traffic(self, weights, state, phase):
    """Returns the size of the messages, and of state."""
    del weights, phase
    others, state_bytes = self._m - 1, size_in_bytes(state)
    if not others:
      return Traffic()
    if self.form == "gather":
      message = self._message_bytes()
      return Traffic(message + state_bytes, others * message + state_bytes)
    chunk = self.compressor.num_bytes(self._chunk)
    rest = self._small_bytes + state_bytes
    return Traffic((others + 1) * chunk + rest, 2 * others * chunk + rest)

  def summary(self) -> str:
    """Returns how short messages are, and how they go around."""
    share = self._message_bytes() / (4 * self._num)
    cost = self._m * share / 2
    return (
      f"Quantized by {self.compressor}, {share:.3f} of float32; {self.form}, "
      f"for a gather costs {cost:.2f} of an all-reduce"
    )

  def _gather(self, p: Sequence[tf.Tensor]):
    """Returns what this replica says, and the mean of what all say."""
    parts = self._parts(p)
    payload = wire.encoded(
      parts, [self._draw_seed(i) for i in range(len(parts))]
    )
    rows = collectives.all_gather(payload, self._timeout)
    every = [wire.decoded(rows[i], parts) for i in range(self._m)]
    here = collectives.static_replica_id()
    said = wire.decoded(payload, parts) if here is None else every[here]
    mean = [tf.add_n(qs) / self._m for qs in zip(*every)]
    return self._whole(said), self._whole(mean)

  def _two_phase(self, p: Sequence[tf.Tensor]):
    """Returns the same, by way of a replica for each part."""
    large, small = self._split(p)
    num, size = self._m, self._chunk
    rows = wire.chunks(wire.flat(large), num)
    code = self.compressor
    payloads = [
      wire.packed(code.encode(rows[i], self._draw_seed(i))) for i in range(num)
    ]
    said = [
      wire.opened(code, payload, size, rows.dtype) for payload in payloads
    ]
    mine = pairs.all_to_all(payloads, self._timeout)
    heard = [wire.opened(code, payload, size, rows.dtype) for payload in mine]
    mean = tf.add_n(heard) / num
    result = self._second(mean)
    shapes = [v.shape.as_list() for v in large]
    large_said = wire.unflat(tf.concat(said, 0), shapes)
    large_mean = wire.unflat(result, shapes)
    return (
      self._merged(large_said, small),
      self._merged(large_mean, collectives.mean(small)),
    )

  def _second(self, mean: tf.Tensor) -> tf.Tensor:
    """Says to all what this replica has averaged; returns the whole."""
    num, size, code = self._m, self._chunk, self.compressor
    here = collectives.place()
    (s,) = self.s
    r = mean
    if self._error_feedback:
      r += tf.gather(wire.chunks(tf.convert_to_tensor(s), num), here)
    payload = wire.packed(code.encode(r, self._draw_seed(num)))
    if self._error_feedback:
      owed = r - wire.opened(code, payload, size, r.dtype)
      place = tf.one_hot(here, num, dtype=r.dtype)[:, tf.newaxis]
      whole = tf.reshape(place * owed, [-1])
      s.assign(whole[: self._num_large])
    rows = collectives.all_gather(payload, self._timeout)
    parts = [wire.opened(code, rows[i], size, r.dtype) for i in range(num)]
    return tf.concat(parts, 0)

  def _draw_seed(self, index: int) -> tf.Tensor:
    """Returns the seed of a tensor, on this replica, at this update."""
    text = f"{self._seed}/{self.name}/{index}"
    key = zlib.crc32(text.encode()) & 0x3FFFFFFF
    here = tf.cast(collectives.replica_id(), tf.int32)
    return tf.stack([tf.cast(self.t, tf.int32), key + here])

  def _is_small(self, shape: Sequence[int]) -> bool:
    return math.prod(shape) < self._min_size

  def _split(self, values: Sequence[tf.Tensor]):
    """Returns those that are compressed, and those that go as they are."""
    small = [self._is_small(shape) for shape in self._shapes]
    return (
      [v for v, is_small in zip(values, small) if not is_small],
      [v for v, is_small in zip(values, small) if is_small],
    )

  def _merged(self, large, small) -> List[tf.Tensor]:
    large, small = iter(large), iter(small)
    return [
      next(small) if self._is_small(shape) else next(large)
      for shape in self._shapes
    ]

  def _parts(self, p: Sequence[tf.Tensor]) -> List[wire.Part]:
    """Returns what is said one by one, and how."""
    large, small = self._split(p)
    if self._joined and large:
      large = [wire.flat(large)]
    return [
      *(wire.Part(v, self.compressor) for v in large),
      *(wire.Part(v, Identity()) for v in small),
    ]

  def _whole(self, parts: Sequence[tf.Tensor]) -> List[tf.Tensor]:
    """Returns a tensor for each weight, out of one for each part."""
    num = sum(not self._is_small(shape) for shape in self._shapes)
    if not self._joined or not num:
      return self._merged(parts[:num], parts[num:])
    shapes = [s for s in self._shapes if not self._is_small(s)]
    return self._merged(wire.unflat(parts[0], shapes), parts[1:])

  @property
  def _num(self) -> int:
    return sum(math.prod(shape) for shape in self._shapes)

  @property
  def _num_large(self) -> int:
    sizes = (math.prod(s) for s in self._shapes if not self._is_small(s))
    return sum(sizes)

  @property
  def _small_bytes(self) -> int:
    return 4 * (self._num - self._num_large)

  @property
  def _chunk(self) -> int:
    return -(-self._num_large // self._m)

  def _message_bytes(self) -> int:
    sizes = [math.prod(s) for s in self._shapes if not self._is_small(s)]
    if self._joined and sizes:
      sizes = [sum(sizes)]
    return sum(map(self.compressor.num_bytes, sizes)) + self._small_bytes
