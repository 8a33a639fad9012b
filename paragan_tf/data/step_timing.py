"""Lets the depth of pipelines follow the step timings of a run.

    pipeline = Pipeline(options, is_live=True)
    data = pipeline.prefetch(batches, num_per_step)
    pipeline.update(timing, counted)        # after each inner loop

Everything in a pipeline is an op of TensorFlow; the variables are on its host.
A pipeline without a control has the least depth.
"""

import dataclasses
import math
import os
from typing import (
  Any,
  Callable,
  NamedTuple,
  Optional,
  Tuple,
  Union,
)

import gin
import numpy as np
import tensorflow as tf

from paragan_tf.data import live_depth, loop_control
from paragan_tf.data.congestion import Bounds, Plan
from paragan_tf.data.loop_control import LoopBounds, LoopPlan, LoopTiming

NAME = "step_timing"
# Latencies are counted in buckets, each sqrt(2) times the one before.
_NUM_BUCKETS = 36
_FIRST_SECONDS = 1e-3
_MEASURED = ("bytes", "images")  # What is counted after the buckets.


@gin.register
@dataclasses.dataclass(frozen=True)
class StepTiming:
  """Bounds of pipelines whose depth follows step timings.

  Attributes:
    min_depth: Minimum number of batches to make ahead.
    min_encoded_bytes: Bytes to read ahead at least, of sets on disk: encoded
      images are small, and a slow read may come at any time.
    max_depth: Maximum number of batches.
    max_bytes: Maximum number of bytes ahead, on each host; wins over
      `max_depth`, not over `min_depth`.
    max_readers: Maximum number of reads in flight.
    min_decoders: Minimum number of images that are decoded at the same time; by
      default half of `max_decoders`.
    max_decoders: Maximum of it; by default the number of cores.
  """

  min_depth: int = 2
  min_encoded_bytes: int = 16 << 20
  max_depth: int = 64
  max_bytes: int = 1 << 30
  max_readers: int = 64
  min_decoders: Optional[int] = None
  max_decoders: Optional[int] = None

  def __post_init__(self):
    _ = self.make_bounds()  # Checks them.
    if self.min_encoded_bytes < 0:
      raise ValueError(
        "`StepTiming.min_encoded_bytes` must be at least 0, got "
        f"{self.min_encoded_bytes}."
      )

  @property
  def num_decoders(self) -> Tuple[int, int]:
    """The minimum and the maximum of decoders."""
    most = os.cpu_count() or 1
    if self.max_decoders is not None:
      most = self.max_decoders
    least = max(1, most // 2)
    return (least if self.min_decoders is None else self.min_decoders), most

  def make_bounds(
    self, bytes_per_step: float = 0.0, is_reading: bool = False
  ) -> LoopBounds:
    """Returns the bounds of a pipeline.

    Args:
      bytes_per_step: Of what is ahead; 0 if not known.
      is_reading: Whether it is read, not made.
    """
    least, most = self.num_decoders
    if not 1 <= least <= most:
      raise ValueError(
        f"`StepTiming.max_decoders` must be at least {max(least, 1)}, got "
        f"{most}."
      )
    min_depth, max_depth = self.min_depth, self.max_depth
    if bytes_per_step:
      max_depth = self.fit_depth(bytes_per_step)
    if is_reading and bytes_per_step:
      fits = int(self.min_encoded_bytes // bytes_per_step)
      min_depth = min(max(min_depth, fits), max_depth)
    return LoopBounds(
      Bounds(
        Plan(1, min_depth), Plan(self.max_readers, max_depth), self.max_bytes
      ),
      Bounds(Plan(least, 1), Plan(most, 1), self.max_bytes),
    )

  def fit_depth(self, bytes_per_step: float) -> int:
    """Returns the maximum depth within the bounds of bytes."""
    fits = int(self.max_bytes // max(bytes_per_step, 1.0))
    return max(self.min_depth, min(self.max_depth, fits))


class Reads(NamedTuple):
  """What is read for a step: images, and their bytes; 0 if not known yet."""

  num_images: int
  num_bytes: float = 0.0


def check_prefetch(prefetch: Union[int, str], where: str) -> None:
  """Raises a `ValueError` unless it is a number or 'step_timing'."""
  is_number = isinstance(prefetch, int) and (
    prefetch >= 1 or prefetch == tf.data.AUTOTUNE
  )
  if not is_number and prefetch != NAME:
    raise ValueError(
      f"`{where}` must be a number, at least 1, or '{NAME}', got {prefetch!r}."
    )


class Pipeline:
  """The variables of one pipeline: its plan, and what it measures.

  Args:
    options: Bounds.
    is_live: Whether the plan may change; if not, there are no variables.
    reads: What is read for a step, if anything is.
  """

  def __init__(
    self, options: StepTiming, is_live: bool, reads: Optional[Reads] = None
  ):
    self.options = options
    # 0 if nothing is read.
    self._images_per_step = reads.num_images if reads else 0
    # Of what is ahead; 0 if not known yet.
    self._bytes_per_step = reads.num_bytes if reads else 0.0
    self._state = loop_control.start(self._bounds())
    self._num_steps = 0  # Done with this pipeline.
    self._counted = np.zeros([_NUM_BUCKETS + len(_MEASURED)], np.int64)
    # Maps the depth to reads in flight.
    self._count_reads: Callable[[int], int] = lambda depth: 0
    self.plan = self._make_plan()
    self.variables: Tuple[tf.Variable, ...] = ()
    if is_live:
      self.variables = (
        _make_variable(self.plan.depth, "input_depth"),
        _make_variable(self.plan.num_decoders, "input_decoders"),
        _make_variable(self._counted, "input_reads"),
      )

  @property
  def pool_size(self) -> int:
    """Threads for all reads in flight and all decoders."""
    return self.options.max_readers + self.options.num_decoders[1] + 1

  def depth(self) -> tf.Tensor:
    """Returns the batches to have ahead; called in a graph."""
    if not self.variables:
      return tf.constant(self.plan.depth, tf.int64)
    return self.variables[0].read_value()

  def num_decoders(self) -> tf.Tensor:
    """Returns the images to decode at the same time; called in a graph."""
    if not self.variables:
      return tf.constant(self.plan.num_decoders, tf.int64)
    return self.variables[1].read_value()

  def prefetch(
    self, batches: tf.data.Dataset, num_per_step: int
  ) -> tf.data.Dataset:
    """Returns the same batches, some of them made ahead.

    Args:
      batches: What a pipeline yields.
      num_per_step: Elements that a step takes.
    """
    spec = tf.nest.flatten(batches.element_spec)
    sizes = [s.shape.num_elements() * s.dtype.size for s in spec]
    self._bytes_per_step = float(num_per_step * sum(sizes))
    num_slots = self.options.fit_depth(self._bytes_per_step) * num_per_step
    return live_depth.prefetch(
      batches, lambda: self.depth() * num_per_step, num_slots
    )

  def read_ahead(
    self,
    chunks: tf.data.Dataset,
    read: Callable,
    num_ahead: Callable[[Any], Any],
    num_lanes: int = 1,
  ) -> tf.data.Dataset:
    """Returns `read(*chunk)`, some of them read ahead.

    Args:
      chunks: What is read at once.
      read: Reads a chunk with a number of concurrent reads; returns vectors, of
        bytes first.
      num_ahead: Maps the depth, a number or a tensor, to a number of chunks.
      num_lanes: Number of calls for one pipeline.
    """
    num_slots = int(num_ahead(self.options.max_depth))
    concurrent = max(1, self.options.max_readers // (num_slots * num_lanes))
    self._count_reads = lambda depth: concurrent * num_lanes * num_ahead(depth)
    return live_depth.map_ahead(
      chunks,
      lambda *chunk: self._measure(lambda: read(*chunk, concurrent)),
      lambda: num_ahead(self.depth()),
      num_slots,
    )

  def map_rows(
    self, data: tf.data.Dataset, fn: Callable, batch_size: int
  ) -> tf.data.Dataset:
    """Returns batches of `fn(*row)`, by as many decoders as planned."""
    _, most = self.options.num_decoders
    return live_depth.map_rows(data, fn, self.num_decoders, most, batch_size)

  def _measure(self, read: Callable[[], Tuple[tf.Tensor, ...]]):
    """Returns what `read` does, and counts its latency, bytes and images."""
    if not self.variables:
      return read()
    started = tf.timestamp()
    with tf.control_dependencies([started]):
      values = read()
    with tf.control_dependencies(values):
      seconds = tf.maximum(tf.timestamp() - started, _FIRST_SECONDS)
    octaves = tf.math.log(seconds / _FIRST_SECONDS) / math.log(2)
    bucket = tf.minimum(tf.cast(2 * octaves, tf.int64), _NUM_BUCKETS - 1)
    num_bytes = tf.reduce_sum(tf.strings.length(values[0]))
    counts = tf.cast([num_bytes, tf.size(values[0])], tf.int64)
    latency = tf.one_hot(bucket, _NUM_BUCKETS, dtype=tf.int64)
    counted = self.variables[2].assign_add(
      tf.concat([latency, counts], 0), read_value=False
    )
    with tf.control_dependencies([counted]):
      return tuple(tf.identity(x) for x in values)

  def update(self, timing: LoopTiming, counted: np.ndarray) -> None:
    """Plans anew, by the timing of a loop and what was counted by its end."""
    new = self.count_steps(timing.num_steps, counted)
    timing = timing._replace(latencies=list_latencies(new[:_NUM_BUCKETS]))
    self._state = loop_control.advance(self._state, timing, self._bounds())
    self.plan = self._make_plan()

  def count_steps(self, num_steps: int, counted: np.ndarray) -> np.ndarray:
    """Counts a loop, and plans by its bytes alone; returns its counts."""
    new = counted - self._counted
    self._num_steps += num_steps
    self._counted = counted
    if new[-1]:
      self._bytes_per_step = self._images_per_step * new[-2] / new[-1]
      self.plan = self._make_plan()
    return new

  @property
  def num_bytes(self) -> float:
    """Estimated bytes ahead."""
    if not self._images_per_step:
      return self.plan.depth * self._bytes_per_step
    ahead = self._counted[-1] / self._images_per_step - self._num_steps
    return max(ahead, 0.0) * self._bytes_per_step

  @property
  def num_reads(self) -> int:
    """Reads that may be in flight; 0 if the pipeline does not read."""
    return self._count_reads(self.plan.depth)

  def _bounds(self) -> LoopBounds:
    return self.options.make_bounds(
      self._bytes_per_step, is_reading=self._images_per_step > 0
    )

  def _make_plan(self) -> LoopPlan:
    return self._state.plan(self._bounds())


def list_latencies(counts: np.ndarray) -> Tuple[float, ...]:
  """Returns the seconds of reads that were counted in buckets, ascending."""
  centers = _FIRST_SECONDS * 2 ** ((np.arange(len(counts)) + 0.5) / 2)
  return tuple(np.repeat(centers, np.maximum(counts, 0)).tolist())


def _make_variable(value: Any, name: str) -> tf.Variable:
  """Makes a variable that is not saved, on the CPU of a pipeline's host."""
  value = np.asarray(value, np.int64)
  with tf.device("CPU:0"):
    if tf.executing_eagerly():
      return tf.Variable(value, trainable=False, name=name)
    return tf.compat.v1.Variable(
      value,
      trainable=False,
      name=name,
      use_resource=True,
      collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )
