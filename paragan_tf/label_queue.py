"""Which label is trained next: the longest first, and failed ones again.

    labels = deal(sizes, index=0, count=8)      # those of one of 8 shards
    queue = LabelQueue(labels, max_restarts=2)
    label = queue.take()                        # `None` if none waits
    queue.fail(label)                           # whether it waits again

Everything here is a function of its arguments: no process, no clock.
"""

import collections
import re
from typing import Counter, Deque, List, Mapping, Optional, Sequence, Tuple

_SHARD = re.compile(r"(\d+|array)/(\d+)")
# How SLURM's arrays and Kubernetes' indexed jobs say which task this is.
_INDICES = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")


def order(sizes: Mapping[int, int]) -> List[int]:
  """Returns the labels that have images, those with the most first."""
  known = [label for label, size in sizes.items() if size]
  return sorted(known, key=lambda label: (-sizes[label], label))


def deal(sizes: Mapping[int, int], index: int, count: int) -> List[int]:
  """Returns the labels of a shard: every `count`-th, longest first.

  Shards differ by a label at most, and by few images.
  """
  return order(sizes)[index::count]


def parse_shard(text: str, environment: Mapping[str, str]) -> Tuple[int, int]:
  """Returns `(index, count)` of a shard like '2/8'.

  Args:
    text: `i/n`, or `array/n`: the index is that of the task in a SLURM array or
      of the pod in an indexed Kubernetes job.
    environment: The variables of this process.
  """
  found = _SHARD.fullmatch(text)
  if found is None:
    raise ValueError(
      f"`label_shard` must be 'i/n', as '2/8', or 'array/n', got '{text}'."
    )
  index, count = found[1], int(found[2])
  if index == "array":
    known = (environment[x] for x in _INDICES if x in environment)
    index = next(known, "")
    if not index.isdecimal():
      raise ValueError(
        f"`label_shard` '{text}' needs {' or '.join(_INDICES)}, and neither "
        "is set: name the shard, as '2/8'."
      )
  if int(index) >= count:
    raise ValueError(
      f"`label_shard` must be from 0/{count} to {count - 1}/{count}, got "
      f"'{index}/{count}': shards count from 0."
    )
  return int(index), count


class LabelQueue:
  """Labels that wait, in the order in which they are trained.

  Attributes:
    restarts: How often each label failed and waited again.
    failed: Labels that failed too often.
  """

  def __init__(self, labels: Sequence[int], max_restarts: int):
    if max_restarts < 0:
      raise ValueError(f"`max_restarts` must be 0 or more, got {max_restarts}.")
    self._waiting: Deque[int] = collections.deque(labels)
    self._max_restarts = max_restarts
    self.restarts: Counter[int] = collections.Counter()
    self.failed: List[int] = []

  def __len__(self) -> int:
    return len(self._waiting)

  def take(self) -> Optional[int]:
    """Returns the next label, which waits no more."""
    return self._waiting.popleft() if self._waiting else None

  def fail(self, label: int) -> bool:
    """Notes that a label failed; returns whether it waits again.

    It is the next one: its part of the budget is the longest that is left.
    """
    if self.restarts[label] >= self._max_restarts:
      self.failed.append(label)
      return False
    self.restarts[label] += 1
    self._waiting.appendleft(label)
    return True
