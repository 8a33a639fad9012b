"""Fuses small matrix products of equal shape into one.

    forward = begin(net, mode)                                # power iterations
    forward = projections(blocks, conds, forward, common)     # scales, shifts
    block(x, cond, forward)

The results are in `forward`, where the layers find theirs.
"""

from typing import Any, Dict, List, Sequence, Tuple

import tensorflow as tf

from paragan_tf.hardware import ResolvedLayout
from paragan_tf.nets.forward import Forward
from paragan_tf.nets.layout import pad_channels
from paragan_tf.nets.spectral import norm
from paragan_tf.types import Mode

# Rows, and the tables that they are multiplied by.
_Product = Tuple[tf.Tensor, List[tf.Tensor]]
_LARGEST = 1 << 18  # Entries of a matrix that is still worth a copy.


def begin(net: tf.Module, mode: Mode) -> Forward:
  """Begins a pass of a net, with the power iterations that it joins."""
  forward = Forward.of(mode)
  kernels: Dict[int, tf.Tensor] = {}
  for weights in _groups(net):
    kernels.update(zip(map(id, weights), _kernels(weights, forward)))
  return forward.with_precomputed(kernels) if kernels else forward


def projections(
  blocks: Sequence[tf.Module],
  conds: Sequence,
  forward: Forward,
  common: int = 0,
) -> Forward:
  """Precomputes scales and shifts, one product for all norms of a vector.

  Args:
    blocks: The blocks that the norms are in.
    conds: What the norms of each block depend on.
    forward: The pass.
    common: How many last entries all of the vectors have in common. If there
      are some, one product is enough for all vectors, see `_join`.
  """
  groups: Dict[int, List[tf.Module]] = {}
  for block, cond in zip(blocks, conds):
    inside = block.submodules
    found = [m for m in inside if getattr(m, "join_projections", False)]
    groups.setdefault(id(cond), []).extend(found)
  by_id = {id(cond): cond for cond in conds}
  groups = {key: affines for key, affines in groups.items() if affines}
  joined = [
    (affines[0].rows(by_id[key]), _tables(affines, forward))
    for key, affines in groups.items()
  ]
  layout: Any = next((a[0].layout for a in groups.values()), None)
  if common and joined:
    joined = [_join(joined, common)]
  products = [_products(rows, tables, layout) for rows, tables in joined]
  parts = [part for product in products for part in product]
  ordered = [affine for affines in groups.values() for affine in affines]
  return forward.with_precomputed(
    {id(a): parts[2 * i : 2 * i + 2] for i, a in enumerate(ordered)}
  )


def _tables(affines: Sequence[Any], forward: Forward) -> List[tf.Tensor]:
  return [table for affine in affines for table in affine.tables(forward)]


def _products(
  rows: tf.Tensor, tables: Sequence[tf.Tensor], layout: ResolvedLayout
) -> List[tf.Tensor]:
  """Returns the rows times each of the tables, by one product."""
  widths = [layout.padded_width(table.shape[1]) for table in tables]
  rows = pad_channels(rows, layout.padded_width(rows.shape[1]))
  table = tf.concat([pad_channels(t, w) for t, w in zip(tables, widths)], 1)
  table = tf.cast(pad_channels(table, rows.shape[1], 0), rows.dtype)
  return tf.split(tf.matmul(rows, table), widths, 1)


def _join(joined: Sequence[_Product], common: int) -> _Product:
  """Returns one matrix of rows, and tables that fit it, for several of each.

  A row has what belongs to each vector alone, then what all have in common. A
  table has zeros where the entries are another vector's. At 128 px BigGAN's
  rows are 228 long instead of 148: a TPU pads both to 256.
  """
  alone = [rows.shape[1] - common for rows, _ in joined]
  parts = [rows[:, :size] for (rows, _), size in zip(joined, alone)]
  padded: List[tf.Tensor] = []
  for i, (_, tables) in enumerate(joined):
    before, after = sum(alone[:i]), sum(alone[i + 1 :])
    for table in tables:
      own = tf.pad(table[: alone[i]], [[before, after], [0, 0]])
      padded.append(tf.concat([own, table[alone[i] :]], 0))
  return tf.concat([*parts, joined[0][0][:, -common:]], 1), padded


def _groups(net: tf.Module) -> List[List[Any]]:
  """Returns the small kernels to join, those of equal shapes together."""
  if getattr(net, "remat", False):
    return []  # `remat` gives each block the values of its variables.
  groups: Dict[Any, List[Any]] = {}
  for module in net.submodules:
    if not getattr(module, "join_power_iterations", False) or module.u is None:
      continue
    columns = module.w.shape[-1]
    shape = (module.w.shape.num_elements() // columns, columns)
    if shape[0] * shape[1] <= _LARGEST:
      groups.setdefault(shape, []).append(module)
  return [group for group in groups.values() if len(group) > 1]


def _kernels(weights: Sequence[Any], forward: Forward) -> List[tf.Tensor]:
  """Returns `Weight.__call__` of each, by batched products."""
  columns = weights[0].w.shape[-1]
  read = forward.read
  matrices = tf.stack([tf.reshape(read(w.w), [-1, columns]) for w in weights])
  update_u = forward.mode is Mode.TRAIN
  sigma, u = norm(matrices, tf.stack([read(w.u) for w in weights]), update_u)
  if update_u:
    for weight, value in zip(weights, tf.unstack(u)):
      forward.assign_state(weight.u, value)
  parts = tf.unstack(matrices / sigma)
  return [tf.reshape(part, w.w.shape) for part, w in zip(parts, weights)]
