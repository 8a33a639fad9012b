"""What a step costs on many workers: predicted, simulated, measured.

Predictions for real processes on this machine come from one worker's profile
and from exchanges over loopback (`model.py`), then the processes train over the
emulated links of the suite `wire`. The paper's case is arithmetic (`paper.py`).
"""

import functools

from tools.suites.machine_load import MachineLoad, describe
from tools.suites.scaling import figures, measure, paper, plot
from tools.suites.suite import Options, Result
from tools.suites.wire.suite import check_links
from tools.suites.workers import Worker, close_all, find_cores

_WORKERS = (2, 4)
_QUICK_LINKS = ("100mbit", "10ms")
_LINKS = ("1gbit", "100mbit", "1ms", "10ms")
# For one worker; with 2 and with 4 workers, for exchanges and for each link.
_QUICK_SECONDS, _SECONDS = (20.0, 10.0, 8.0), (30.0, 15.0, 13.0)


def run(options: Options) -> Result:
  """Returns a table, the figures and a plot."""
  find_cores("scaling")
  machine = MachineLoad()
  links = _QUICK_LINKS if options.quick else _LINKS
  seconds = _QUICK_SECONDS if options.quick else _SECONDS
  solo = measure.measure_solo(seconds[0])
  exchanged = [
    one
    for num in _WORKERS
    for one in measure.measure_exchanges(seconds[1], num)
  ]
  checks = check_links(links)
  names = (measure.LOOPBACK, *links)
  measured = [
    one
    for num in _WORKERS
    for one in measure.measure_runs(num, names, seconds[2], checks)
  ]
  values = figures.gather(solo, exchanged, measured)
  tables = [figures.format_table(values, measured)]
  counter = Worker("counter", paper.Counter)
  with close_all([counter]):
    counts = counter.call("count")
  predicted = paper.predict_all(counts)
  values.update(paper.gather(counts, predicted, paper.simulate_all(counts)))
  values.update(machine.figures())
  tables.append(paper.format_table(values, predicted))
  tables += [figures.format_targets(values), describe(values)]
  draw = functools.partial(plot.draw, values, measured)
  return Result("\n\n".join(tables), values, draw)
