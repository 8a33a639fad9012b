"""What the rest of the machine did while we measured.

meanwhile = Meanwhile()
...                                  # processes begin, work and are waited for
figures.update(meanwhile.figures())  # load_before, others_cores
"""

import os
import resource
import time
from typing import Dict, Optional

_IDLE = (
  3,
  4,
)  # Idle, and waiting for a disk: places in the line of /proc/stat.
_TWICE = 8  # From there on: what the first places have counted already.


class Meanwhile:
  """Counts from when it is made."""

  def __init__(self) -> None:
    self.load = os.getloadavg()[0]
    self._began = time.monotonic()
    self._others = _others()

  def figures(self) -> Dict[str, float]:
    """Returns the load before, and the cores that others kept busy since.

    A hypervisor that gave our cores to another guest is one of the others. Only
    Linux tells; elsewhere there is no `others_cores`.
    """
    figures = {"load_before": self.load}
    others = _others()
    if self._others is not None and others is not None:
      seconds = time.monotonic() - self._began
      figures["others_cores"] = max(0.0, (others - self._others) / seconds)
    return figures


def words(figures: Dict[str, float]) -> str:
  """Returns what `Meanwhile.figures` said."""
  text = f"load {figures['load_before']:.1f} before"
  if "others_cores" in figures:
    text += f", others kept {figures['others_cores']:.1f} cores busy meanwhile"
  return text


def _others() -> Optional[float]:
  """Returns the seconds of all cores that others used, up to a constant."""
  try:
    with open("/proc/stat") as f:
      ticks = [int(x) for x in f.readline().split()[1:]]
  except OSError:
    return None
  busy = sum(ticks[:_TWICE]) - sum(ticks[i] for i in _IDLE)
  whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
  used = [resource.getrusage(who) for who in whose]
  own = sum(usage.ru_utime + usage.ru_stime for usage in used)
  return busy / os.sysconf("SC_CLK_TCK") - own
