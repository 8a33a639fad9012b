"""Which image stands at which place of an epoch, for sets on disk.

    blocks   of neighbors in a file, read at once, in random order
    lanes    parts of the global batch; whoever feeds some of them reads their
             blocks only
    windows  of images of a lane, in random order

All is a function of (seed, epoch): a run resumes at any step without stored
state, and sees the same global batches on any number of replicas.
"""

import numpy as np


class Order:
  """A fresh order every epoch, each image once.

  Args:
    blocks: The block of each image, from 0 up, shape `[n]`.
    batch_size: Images of a global batch.
    seed: Of all epochs.
    window: Images among which to shuffle, over all lanes.
    num_lanes: Parts of the global batch that share no block, but at their ends.
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
    """Returns the image at each place of an epoch, shape `[n]`."""
    n = len(self)
    random = np.random.Generator(np.random.Philox([self._seed, epoch]))
    keys = random.random(int(self.blocks.max()) + 1)
    rows = np.argsort(keys[self.blocks], kind="stable")
    places, lanes = self._by_lane(epoch)
    starts = np.searchsorted(lanes, lanes)
    windows = (np.arange(n) - starts) // self._window
    result = np.empty(n, np.int64)
    result[places] = rows[np.lexsort([random.random(n), windows, lanes])]
    return result

  def _by_lane(self, epoch: int):
    """Returns the places of an epoch sorted by lane, and their lanes."""
    n = len(self)
    in_batch = (epoch * n + np.arange(n)) % self._batch_size
    lanes = in_batch * self._num_lanes // self._batch_size
    places = np.argsort(lanes, kind="stable")
    return places, lanes[places]
