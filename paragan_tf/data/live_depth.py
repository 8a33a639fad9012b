"""Buffers of `tf.data` whose depth changes while they run, by ops alone.

A buffer of `tf.data` has a fixed number of slots. Here blanks take some of
them: with one blank before each element, half as many elements are ahead.

    elements -> blanks before each -> slots -> elements without the blanks

The number of blanks is computed when an element enters, so the depth follows a
variable during the run. No op waits for another one: the elements and their
order are those without a buffer, whatever the depth, and a pipeline may end at
any element.
"""

from typing import Callable

import tensorflow as tf

# Returns the number of elements to have ahead; called in a graph.
NumAheadFn = Callable[[], tf.Tensor]

_no_autograph = tf.autograph.experimental.do_not_convert


def prefetch(
  data: tf.data.Dataset, num_ahead: NumAheadFn, num_slots: int
) -> tf.data.Dataset:
  """Returns the same elements, `num_ahead` of them made in advance."""
  slots = _space(data, num_ahead, num_slots).prefetch(num_slots)
  real = slots.filter(_no_autograph(lambda is_real, element: is_real))
  return real.map(_no_autograph(lambda is_real, element: element))


def map_ahead(
  data: tf.data.Dataset,
  fn: Callable,
  num_ahead: NumAheadFn,
  num_slots: int,
) -> tf.data.Dataset:
  """Returns `fn(*element)`, computed at the same time for those ahead.

  Args:
    data: Tuples.
    fn: Returns vectors that are not empty.
    num_ahead: Elements to have ahead.
    num_slots: Maximum of `num_ahead`.
  """

  @_no_autograph
  def at_slot(is_real, element):
    return tf.cond(is_real, lambda: fn(*element), lambda: _blanks(spec))

  spec = data.map(_no_autograph(fn)).element_spec
  slots = _space(data, num_ahead, num_slots).map(
    at_slot, num_parallel_calls=num_slots, deterministic=True
  )
  return slots.filter(_no_autograph(lambda *values: tf.size(values[0]) > 0))


def map_rows(
  data: tf.data.Dataset,
  fn: Callable,
  num_parallel: NumAheadFn,
  num_slots: int,
  batch_size: int,
) -> tf.data.Dataset:
  """Returns batches of `fn(*row)`, of `num_parallel` rows at the same time.

  Args:
    data: Tuples of vectors; one entry of each makes a row.
    fn: Returns a tuple of tensors.
    num_parallel: Rows to compute at the same time.
    num_slots: Maximum of `num_parallel`.
    batch_size: Rows of a batch.
  """

  @_no_autograph
  def at_slot(is_real, *row):
    values = tf.cond(is_real, lambda: fn(*row), lambda: _blanks(spec))
    return is_real, values

  @_no_autograph
  def restore_shapes(_, values):
    return tuple(
      tf.ensure_shape(x, [batch_size, *s.shape]) for x, s in zip(values, spec)
    )

  spec = data.unbatch().map(_no_autograph(fn)).element_spec
  slots = data.map(
    _no_autograph(lambda *rows: _space_rows(rows, num_parallel(), num_slots))
  ).unbatch()
  values = slots.map(at_slot, num_parallel_calls=num_slots, deterministic=True)
  real = values.filter(_no_autograph(lambda is_real, element: is_real))
  return real.batch(batch_size, drop_remainder=True).map(restore_shapes)


def _space(
  data: tf.data.Dataset, num_ahead: NumAheadFn, num_slots: int
) -> tf.data.Dataset:
  """Returns `(is_real, element)`, each after its blanks."""

  @_no_autograph
  def fill_slots(index, element):
    ends = _slots_before(tf.stack([index, index + 1]), num_ahead(), num_slots)
    slots = tf.data.Dataset.range(ends[0] - ends[1] + 1, 1)
    # A blank holds a reference to the element, not a copy.
    return slots.map(_no_autograph(lambda i: (tf.equal(i, 0), element)))

  return data.enumerate().flat_map(fill_slots)


def _space_rows(rows, num_ahead: tf.Tensor, num_slots: int):
  """Returns `is_real` and vectors with blanks before their entries."""
  count = tf.size(rows[0], tf.int64)
  ends = _slots_before(tf.range(1, count + 1), num_ahead, num_slots)
  slots = tf.range(_slots_before(count, num_ahead, num_slots))
  source = tf.searchsorted(ends, slots, side="right")
  is_real = tf.equal(tf.gather(ends, source), slots + 1)

  def spread(values):
    values = tf.gather(values, source)
    if values.dtype != tf.string:
      return values
    return tf.where(is_real, values, "")  # Without the bytes of an image.

  return (is_real, *map(spread, rows))


def _slots_before(
  index: tf.Tensor, num_ahead: tf.Tensor, num_slots: int
) -> tf.Tensor:
  """Returns how many slots the elements before an index take."""
  num_ahead = tf.clip_by_value(tf.cast(num_ahead, tf.int64), 1, num_slots)
  return index * num_slots // num_ahead


def _blanks(spec):
  """Returns empty tensors of the spec's types and ranks."""
  return tf.nest.map_structure(
    lambda s: (
      tf.zeros([0] * s.shape.rank, s.dtype)
      if s.dtype != tf.string
      else tf.fill([0] * s.shape.rank, "")
    ),
    spec,
  )
