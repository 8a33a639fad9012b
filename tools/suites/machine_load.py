"""The load that other programs put on the machine during a measurement.

machine = MachineLoad()
...                                # start processes, measure, wait for them
figures.update(machine.figures())  # load_before, others_cores
"""

import os
import resource
import time
from typing import Dict, Optional

# Columns of /proc/stat: idle, and waiting for a disk.
_IDLE = (3, 4)
# From this column on, time is listed that earlier columns include.
_NUM_COLUMNS = 8


class MachineLoad:
  """Measures from its construction on.

  Attributes:
    load: The load average at construction.
  """

  def __init__(self) -> None:
    self.load = os.getloadavg()[0]
    self._began = time.monotonic()
    self._others = _read_others_seconds()

  def figures(self) -> Dict[str, float]:
    """Returns the load before, and the cores that others kept busy since.

    The others include a hypervisor that gave our cores to another guest. Only
    Linux reports it; elsewhere there is no `others_cores`.
    """
    figures = {"load_before": self.load}
    others = _read_others_seconds()
    if self._others is not None and others is not None:
      seconds = time.monotonic() - self._began
      figures["others_cores"] = max(0.0, (others - self._others) / seconds)
    return figures


def describe(figures: Dict[str, float]) -> str:
  """Returns the figures of `MachineLoad` as a sentence."""
  text = f"load {figures['load_before']:.1f} before"
  if "others_cores" in figures:
    text += f", others kept {figures['others_cores']:.1f} cores busy meanwhile"
  return text


def _read_others_seconds() -> Optional[float]:
  """Returns the CPU seconds of other programs, up to a constant."""
  try:
    with open("/proc/stat") as f:
      ticks = [int(x) for x in f.readline().split()[1:]]
  except OSError:
    return None
  busy = sum(ticks[:_NUM_COLUMNS]) - sum(ticks[i] for i in _IDLE)
  whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
  used = [resource.getrusage(who) for who in whose]
  own = sum(usage.ru_utime + usage.ru_stime for usage in used)
  return busy / os.sysconf("SC_CLK_TCK") - own
