"""Small products of one kind, computed as one.

    FusedPowerIterations(net)(x, labels, mode)    # its power iterations
    with projections(blocks, conds, mode, common): block(x, cond, mode)

What is computed ahead lies ready for the layer that asks for it.
"""

import contextlib
import threading
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import tensorflow as tf

from paragan_tf.nets.remat import move, read
from paragan_tf.nets.spectral import norm
from paragan_tf.nets.wrapped import Wrapped
from paragan_tf.types import Mode, Net

# Rows, and the tables that they are multiplied by.
_Asked = Tuple[tf.Tensor, List[tf.Tensor]]
_LARGEST = 1 << 18  # Entries of a matrix that is still worth a copy.


class _Ready(threading.local):
  """What one thread, that is one replica, has computed ahead."""

  def __init__(self):
    self.found: Dict[int, Any] = {}


_READY = _Ready()


def ready(layer: tf.Module) -> Any:
  """Returns what was computed ahead for a layer, or `None`."""
  return _READY.found.get(id(layer))


@contextlib.contextmanager
def _lies_ready(found: Dict[int, Any]) -> Iterator[None]:
  before = _READY.found
  _READY.found = {**before, **found}
  try:
    yield
  finally:
    _READY.found = before


class FusedPowerIterations(Wrapped):
  """Makes the power iterations of a net's small kernels together."""

  def run(self, fn, x, labels, mode):
    """Calls the net with its kernels at hand."""
    groups = _alike(self.net)
    found: Dict[int, Any] = {}
    for weights in groups:
      kernels = _kernels(weights, mode)
      found.update({id(w): k for w, k in zip(weights, kernels)})
    with _lies_ready(found):
      return fn(x, labels, mode)


def projections(
  blocks: Sequence[tf.Module], conds: Sequence, mode: Mode, common: int = 0
):
  """Lays scales and shifts ready, one product for all that follow a vector.

  Args:
    blocks: Those whose norms are asked for.
    conds: What the norms of each block follow.
    mode: Of the call.
    common: How many last entries all of the vectors have in common. If there
      are some, one product does for all vectors, see `_spread`.
  """
  groups: Dict[int, List[tf.Module]] = {}
  for block, cond in zip(blocks, conds):
    mine = [m for m in block.submodules if getattr(m, "joined", False)]
    groups.setdefault(id(cond), []).extend(mine)
  by_id = {id(cond): cond for cond in conds}
  groups = {key: affines for key, affines in groups.items() if affines}
  joined = [
    (affines[0].rows(by_id[key]), _tables(affines, mode))
    for key, affines in groups.items()
  ]
  if common and joined:
    joined = [_spread(joined, common)]
  products = [_products(rows, tables) for rows, tables in joined]
  parts = [part for product in products for part in product]
  asking = [affine for affines in groups.values() for affine in affines]
  return _lies_ready(
    {id(a): parts[2 * i : 2 * i + 2] for i, a in enumerate(asking)}
  )


def _tables(affines: Sequence[Any], mode: Mode) -> List[tf.Tensor]:
  return [table for affine in affines for table in affine.tables(mode)]


def _products(rows: tf.Tensor, tables: Sequence[tf.Tensor]) -> List[tf.Tensor]:
  """Returns the rows times each of the tables, by one product."""
  table = tf.cast(tf.concat(tables, 1), rows.dtype)
  return tf.split(tf.matmul(rows, table), [t.shape[1] for t in tables], 1)


def _spread(joined: Sequence[_Asked], common: int) -> _Asked:
  """Returns one matrix of rows, and tables that fit it, for several of each.

  Rows have what each vector has alone, side by side, then what is common;
  tables have zeros where a vector is not theirs. At 128 px BigGAN's rows are
  228 long where they were 148: a TPU fills both up to 256.
  """
  alone = [rows.shape[1] - common for rows, _ in joined]
  parts = [rows[:, :size] for (rows, _), size in zip(joined, alone)]
  spread: List[tf.Tensor] = []
  for i, (_, tables) in enumerate(joined):
    before, after = sum(alone[:i]), sum(alone[i + 1 :])
    for table in tables:
      own = tf.pad(table[: alone[i]], [[before, after], [0, 0]])
      spread.append(tf.concat([own, table[alone[i] :]], 0))
  return tf.concat([*parts, joined[0][0][:, -common:]], 1), spread


def _alike(net: Net) -> List[List[Any]]:
  """Returns small kernels with a power iteration, equal shapes together."""
  groups: Dict[Any, List[Any]] = {}
  if getattr(net, "remat", False):
    return []  # A block that is computed anew asks its variables alone.
  for module in getattr(net, "submodules", ()):
    if getattr(module, "u", None) is None:
      continue
    shape = [module.w.shape.num_elements() // module.w.shape[-1]]
    shape.append(module.w.shape[-1])
    if shape[0] * shape[1] <= _LARGEST:
      groups.setdefault(tuple(shape), []).append(module)
  return [group for group in groups.values() if len(group) > 1]


def _kernels(weights: Sequence[Any], mode: Mode) -> List[tf.Tensor]:
  """Returns `Weight.__call__` of each, by batched products."""
  columns = weights[0].w.shape[-1]
  matrices = tf.stack([tf.reshape(read(w.w), [-1, columns]) for w in weights])
  moves = mode is Mode.TRAIN
  sigma, u = norm(matrices, tf.stack([read(w.u) for w in weights]), moves)
  if moves:
    for weight, moved in zip(weights, tf.unstack(u)):
      move(weight.u, moved)
  parts = tf.unstack(matrices / sigma)
  return [tf.reshape(part, w.w.shape) for part, w in zip(parts, weights)]
