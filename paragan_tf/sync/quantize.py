"""Quantized updates with error feedback.

With `optimistic.OptimisticSGD` and `schedule.Simultaneous` it is DQGAN (arXiv
2010.13359); the net's weights are `w_half`:

    each replica:  w_half = w - (eta F_prev + e)   # last update and residual
                   p = eta F(w_half) + e
                   send q = Q(p);  e <- p - q      # error feedback
    all:           w <- w - mean q

With `OptimisticAdam` it is a heuristic: the paper has a proof for gradients.
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

  The base weights are equal on all replicas, bit for bit; the points where
  gradients are taken are not. Batch-norm statistics are averaged uncompressed,
  unless `statistics` is 'local'; an average of G and moments stay local.

  If a run resumes with more or fewer replicas, each starts from the mean
  residual. If there is no second phase any more, its residual is added. So
  `w - mean e - sum s`, the weights after all residuals are sent, do not change.

  Args:
    compressor: Of the updates; G and D may differ, by gin scope.
    min_size: Tensors with fewer entries are sent uncompressed.
    joined: Whether all others are compressed as one vector, not separately.
    error_feedback: Whether the compression error is added to the next update.
      Otherwise it is lost.
    half_step_residual: Whether the gradient is taken at a point that includes
      the residual.
    form: 'gather' all-gathers the messages. 'two_phase' [ours] lets each
      replica average a chunk of all vectors, and quantizes the mean again, with
      a residual `s`. 'auto' is 'gather' if it costs no more than a float32
      all-reduce (with 8 bits, up to 8 replicas), and 'two_phase' otherwise.
    statistics: 'mean' or 'local'.
    timeout: As in `gossip.Gossip`.
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
    for option, value, allowed in (
      ("form", form, FORMS),
      ("statistics", statistics, ("mean", "local")),
    ):
      if value not in allowed:
        raise ValueError(
          f"`{option}` must be one of {', '.join(allowed)}, got {value!r}."
        )
    if compressor is not None and not isinstance(compressor, Compressor):
      kind = getattr(compressor, "__name__", "Stochastic")
      raise ValueError(
        f"`compressor` must be a compressor, got {compressor!r}: write "
        f"`@compress.{kind}()`, with parentheses."
      )
    if min_size < 0:
      raise ValueError(f"`min_size` must be at least 0, got {min_size}.")
    pairs.check_timeout(timeout)
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
    """Creates residuals: `e` of each weight, and `s` of the second phase."""
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
  def summed_residuals(self) -> Sequence[tf.Variable]:  # type: ignore[override]
    """Residuals of the second phase: each replica has those of its chunk."""
    return self.s

  @property
  def residual_targets(self):
    """Without a second phase, its residuals are added to those of weights."""
    if self.s:
      return {}
    targets, start = {}, 0
    for e, shape in zip(self.e, self._shapes):
      if not self._is_small(shape):
        targets[e.name] = self._s_name, self._num_large, start
        start += math.prod(shape)
    return targets

  @property
  def _s_name(self) -> str:
    return f"{self.name}/s"

  @property
  def form(self) -> str:
    """How messages are exchanged: 'gather' or 'two_phase'."""
    if not self._num_large:
      return "gather"
    if self._form != "auto":
      return self._form
    # On a ring, an all-gather sends M - 1 messages, and an all-reduce
    # 2 (M - 1) / M times the weights. The scales may cost 5 % more.
    cost = self._m * self._message_bytes()
    return "gather" if cost <= 1.05 * 8 * self._num_elements else "two_phase"

  def average_updates(self, updates, phase):
    """Returns the mean of all compressed updates."""
    del phase
    self.t.assign(self.t + 1)
    p = [u + e for u, e in zip(updates, self.e)]
    sent, mean = (
      self._average_by_gather(p)
      if self.form == "gather"
      else self._average_in_two_phases(p)
    )
    if self._error_feedback:
      for e, v, q in zip(self.e, p, sent):
        e.assign(v - q)
    return mean

  def predict_updates(self, updates):
    """Returns the last updates plus the residuals."""
    if not self._half_step_residual:
      return updates
    return [u + e for u, e in zip(updates, self.e)]

  def after_update(self, weights, state, phase, counts=None):
    """Averages the state; returns the norm of the residuals."""
    del weights, phase, counts
    assign_mean(state)
    return {"residual": tf.cast(tf.linalg.global_norm(self.e), tf.float32)}

  def traffic(self, weights, state, phase):
    """Returns the size of the messages and the state."""
    del weights, phase
    num_others, state_bytes = self._m - 1, size_in_bytes(state)
    if not num_others:
      return Traffic()
    if self.form == "gather":
      message = self._message_bytes()
      return Traffic(message + state_bytes, num_others * message + state_bytes)
    chunk = self.compressor.num_bytes(self._chunk_size)
    rest = self._small_bytes + state_bytes
    return Traffic(
      (num_others + 1) * chunk + rest, 2 * num_others * chunk + rest
    )

  def summary(self) -> str:
    """Returns the compressor, the compression ratio and the form."""
    ratio = self._message_bytes() / (4 * self._num_elements)
    cost = self._m * ratio / 2
    return (
      f"Quantized by {self.compressor}, {ratio:.3f} of float32; {self.form}, "
      f"as a gather costs {cost:.2f} of an all-reduce"
    )

  def _average_by_gather(self, p: Sequence[tf.Tensor]):
    """Returns what this replica sent, decoded, and the mean over replicas."""
    tensors = self.make_tensors(p)
    payload = wire.encode(
      tensors, [self._draw_seed(i) for i in range(len(tensors))]
    )
    rows = collectives.all_gather(payload, self._timeout)
    received = [wire.decode(rows[i], tensors) for i in range(self._m)]
    replica = collectives.static_replica_id()
    sent = (
      wire.decode(payload, tensors) if replica is None else received[replica]
    )
    mean = [tf.add_n(qs) / self._m for qs in zip(*received)]
    return self._join_tensors(sent), self._join_tensors(mean)

  def _average_in_two_phases(self, p: Sequence[tf.Tensor]):
    """Returns the same; each replica averages one chunk of all vectors."""
    large, small = self._split(p)
    num = self._m
    rows = wire.chunks(wire.flatten(large), num)
    payloads = self._encode_rows(rows)
    sent = self._decode_rows(payloads, rows.dtype)
    received = self._decode_rows(
      pairs.all_to_all(payloads, self._timeout), rows.dtype
    )
    mean = self._run_second_phase(wire.sum_rows(received) / num)
    shapes = [v.shape.as_list() for v in large]
    large_sent = wire.unflatten(wire.concat_rows(sent), shapes)
    large_mean = wire.unflatten(mean, shapes)
    return (
      self._merge(large_sent, small),
      self._merge(large_mean, collectives.mean(small)),
    )

  def _run_second_phase(self, mean: tf.Tensor) -> tf.Tensor:
    """Sends the mean of this replica's chunk to all; returns all chunks."""
    num, size, code = self._m, self._chunk_size, self.compressor
    index = collectives.row_index()
    (s,) = self.s
    r = mean
    if self._error_feedback:
      r += tf.gather(wire.chunks(tf.convert_to_tensor(s), num), index)
    payload = wire.pack(code.encode(r, self._draw_seed(num)))
    if self._error_feedback:
      error = r - wire.decode_message(code, payload, size, r.dtype)
      is_chunk = tf.one_hot(index, num, dtype=r.dtype)[:, tf.newaxis]
      errors = tf.reshape(is_chunk * error, [-1])
      s.assign(errors[: self._num_large])
    rows = collectives.all_gather(payload, self._timeout)
    return wire.concat_rows(self._decode_rows(rows, r.dtype))

  def _encode_rows(self, rows: tf.Tensor) -> wire.Rows:
    """Returns the message to each replica."""
    return wire.map_rows(
      lambda row, seed: wire.pack(self.compressor.encode(row, seed)),
      [rows, self._draw_seeds(self._m)],
      tf.int32,
    )

  def _decode_rows(self, rows: wire.Rows, dtype: tf.DType) -> wire.Rows:
    """Decodes a message of each replica."""
    return wire.map_rows(
      lambda row: wire.decode_message(
        self.compressor, row, self._chunk_size, dtype
      ),
      [rows],
      dtype,
    )

  def _draw_seed(self, index: int) -> tf.Tensor:
    """Returns the seed of one tensor, on this replica, at this update."""
    replica = tf.cast(collectives.replica_id(), tf.int32)
    return tf.stack([tf.cast(self.t, tf.int32), self._key(index) + replica])

  def _draw_seeds(self, num: int) -> tf.Tensor:
    """Returns the seeds of the first `num` tensors, one per row."""
    keys = tf.constant([self._key(index) for index in range(num)])
    replica = tf.cast(collectives.replica_id(), tf.int32)
    t = tf.fill([num], tf.cast(self.t, tf.int32))
    return tf.stack([t, keys + replica], 1)

  def _key(self, index: int) -> int:
    text = f"{self._seed}/{self.name}/{index}"
    return zlib.crc32(text.encode()) & 0x3FFFFFFF

  def _is_small(self, shape: Sequence[int]) -> bool:
    return math.prod(shape) < self._min_size

  def _split(self, values: Sequence[tf.Tensor]):
    """Returns the tensors to compress, and those to send uncompressed."""
    small = [self._is_small(shape) for shape in self._shapes]
    return (
      [v for v, is_small in zip(values, small) if not is_small],
      [v for v, is_small in zip(values, small) if is_small],
    )

  def _merge(self, large, small) -> List[tf.Tensor]:
    """Reverses `_split`."""
    large, small = iter(large), iter(small)
    return [
      next(small) if self._is_small(shape) else next(large)
      for shape in self._shapes
    ]

  def make_tensors(self, p: Sequence[tf.Tensor]) -> List[wire.CompressedTensor]:
    """Returns what is encoded separately, with its compressor."""
    large, small = self._split(p)
    if self._joined and large:
      large = [wire.flatten(large)]
    return [
      *(wire.CompressedTensor(v, self.compressor) for v in large),
      *(wire.CompressedTensor(v, Identity()) for v in small),
    ]

  def _join_tensors(self, tensors: Sequence[tf.Tensor]) -> List[tf.Tensor]:
    """Reverses `make_tensors`: returns a tensor for each weight."""
    num = sum(not self._is_small(shape) for shape in self._shapes)
    if not self._joined or not num:
      return self._merge(tensors[:num], tensors[num:])
    shapes = [s for s in self._shapes if not self._is_small(s)]
    return self._merge(wire.unflatten(tensors[0], shapes), tensors[1:])

  @property
  def _num_elements(self) -> int:
    return sum(math.prod(shape) for shape in self._shapes)

  @property
  def _num_large(self) -> int:
    sizes = (math.prod(s) for s in self._shapes if not self._is_small(s))
    return sum(sizes)

  @property
  def _small_bytes(self) -> int:
    return 4 * (self._num_elements - self._num_large)

  @property
  def _chunk_size(self) -> int:
    return -(-self._num_large // self._m)

  def _message_bytes(self) -> int:
    sizes = [math.prod(s) for s in self._shapes if not self._is_small(s)]
    if self._joined and sizes:
      sizes = [sum(sizes)]
    return sum(map(self.compressor.num_bytes, sizes)) + self._small_bytes
