"""A GAN for each label beside one conditional GAN, and what a pool costs.

`quality` measures what both learn with the same compute, `scaling` what a
worker costs and how two of them slow each other down, and `simulation` takes
these costs to 2,000 workers.
"""

import functools
from typing import Dict, List

from tools.suites.machine_load import MachineLoad
from tools.suites.per_label import plot, quality, scaling, simulation
from tools.suites.suite import Options, Result

_NUM_LABELS, _QUICK_LABELS = 10, 4


def run(options: Options) -> Result:
  """Returns tables, the figures and a plot."""
  machine = MachineLoad()
  figures: Dict[str, float] = {}
  tables: List[str] = []
  if not options.quality:
    num = _QUICK_LABELS if options.quick else _NUM_LABELS
    figures.update(scaling.measure_start_up(num))
    figures.update(scaling.measure_scaling(options.quick))
    tables.append(scaling.format_table(figures))
    start = (
      figures["start_up.import_seconds"]
      + figures["start_up.first_label_cpu_seconds"]
    )
    # Of one thread, so that other programs do not count.
    further = figures["start_up.further_label_cpu_seconds"]
    figures.update(simulation.run(start, further))
    tables.append(simulation.format_table(figures))
  if options.quality or not options.quick:
    figures.update(quality.run(options))
    tables.append(quality.format_table(figures))
  figures.update(machine.figures())
  draw = functools.partial(plot.draw, figures)
  return Result("\n\n".join(tables), figures, draw)
