"""The order of the images of an epoch, for sets on disk.

    blocks   neighbors in a file, read at once; blocks are shuffled
    lanes    slices of the global batch; a process reads only the blocks of the
             lanes that it feeds
    windows  images of a lane; images are shuffled within a window

The order is a function of (seed, epoch): a run resumes at any step without
stored state, and sees the same global batches on any number of replicas.
"""

import numpy as np


class Order:
  """A new order every epoch, each image once.

  Args:
    blocks: The block of each image, from 0 up, shape `[n]`.
    batch_size: Images of a global batch.
    seed: Of the shuffles of all epochs.
    window: Number of images to shuffle among, over all lanes.
    num_lanes: Slices of the global batch; only adjacent ones may share a block.
  """

  def __init__(
    self,
    blocks: np.ndarray,
    batch_size: int,
    seed: int = 0,
    window: int = 8192,
    num_lanes: int = 16,
  ):
    self.blocks = np.asarray(blocks)
    self._batch_size = batch_size
    self._seed = seed
    self._num_lanes = min(num_lanes, batch_size)
    self._window = max(1, window // self._num_lanes)

  def __len__(self) -> int:
    return len(self.blocks)

  def rows(self, epoch: int) -> np.ndarray:
    """Returns the image at each position of an epoch, shape `[n]`."""
    n = len(self)
    random = np.random.Generator(np.random.Philox([self._seed, epoch]))
    keys = random.random(int(self.blocks.max()) + 1)
    rows = np.argsort(keys[self.blocks], kind="stable")
    positions, lanes = self._sort_by_lane(epoch)
    starts = np.searchsorted(lanes, lanes)
    windows = (np.arange(n) - starts) // self._window
    result = np.empty(n, np.int64)
    result[positions] = rows[np.lexsort([random.random(n), windows, lanes])]
    return result

  def _sort_by_lane(self, epoch: int):
    """Returns the positions of an epoch sorted by lane, and their lanes."""
    n = len(self)
    in_batch = (epoch * n + np.arange(n)) % self._batch_size
    lanes = in_batch * self._num_lanes // self._batch_size
    positions = np.argsort(lanes, kind="stable")
    return positions, lanes[positions]
