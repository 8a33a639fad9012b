"""The plot of the suite `input`: bursts of congestion, over time."""

from typing import Dict, List

from tools.suites.input.sides import Trace

_COLORS = {
  "step_timing": "#c53030",
  "threads": "#dd6b20",
  "prefetch_2": "#a0aec0",
  "autotune": "#2b6cb0",
  "autotune_default": "#90cdf4",
}
_TITLES = {
  "step_timing": "tf.data, depth from step timing",
  "threads": "threads, congestion-aware",
  "prefetch_2": "prefetch(2)",
  "autotune": "AUTOTUNE",
  "autotune_default": "AUTOTUNE, TensorFlow's threads",
}
_PLANS = {"step_timing": "-", "threads": ":"}


def draw(traces: Dict[str, List[Trace]], path: str) -> None:
  """Writes a PNG: waits, bytes held, and the depth of ours."""
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  figure, panels = pyplot.subplots(3, 1, figsize=(10, 9), sharex=True)
  for name, own in traces.items():
    trace = own[0]
    style = dict(color=_COLORS[name], label=_TITLES[name], linewidth=1.5)
    panels[0].plot(trace.times, 1e3 * trace.waits, **style)
    panels[1].plot(trace.times, trace.num_bytes / 1e6, **style)
  for name, line in _PLANS.items():
    ours, style = traces[name][0], dict(color=_COLORS[name], linestyle=line)
    label = f"depth: {_TITLES[name]}"
    panels[2].step(ours.times, ours.depths, label=label, **style)
  labels = ("wait for a batch, ms", "held, MB", "batches ahead")
  for axes, label in zip(panels, labels):
    axes.set_ylabel(label)
    axes.legend(frameon=False, loc="best")
    axes.spines[["top", "right"]].set_visible(False)
  panels[0].set_title("Bursts of congestion: ten times the latency")
  panels[2].set_xlabel("seconds")
  figure.tight_layout()
  figure.savefig(path, dpi=110)
  pyplot.close(figure)
