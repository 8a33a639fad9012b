"""The paper's case: BigGAN at 128 px, 16 images a core, 1 to 1024 TPU v3 cores.

Weak scaling: each core keeps its 16 images. Nothing ran on a TPU. Times of a
step are the TPU compiler's estimates (docs/layout.md), bytes are counted from
the nets, and links have published figures. What nobody published is assumed,
and named so.
"""

import math
from typing import Dict, List, NamedTuple, Sequence, Tuple

from paragan_tf.engine.scaling.costs import (
  SCHEMES,
  Machine,
  Prediction,
  Scheme,
  predict,
)
from paragan_tf.engine.scaling.links import LINKS, Link
from paragan_tf.engine.scaling.profile import Fit, Profile
from paragan_tf.engine.scaling.simulation import Disturbances, simulate
from tools import cli

GIN_FILE = "gin/runs/biggan_imagenet128_tpu.gin"
BATCH = 16
PAPER_EFFICIENCY = 0.91
PAPER_HOURS = (15 * 24.0, 14.0)
CORES = tuple(1 << i for i in range(11))
SIMULATED = (1024, 4096)


class Input(NamedTuple):
  """A figure that enters, and where it is from."""

  value: float
  source: str


_CYCLES = "TPU compiler's cycles, docs/layout.md"
# A core's step, in seconds, with 16 images and with 32.
STEP_SECONDS = Input(0.1433, _CYCLES)
STEP_SECONDS_32 = Input(0.2448, _CYCLES)
# With 32 images, for a core that trains one player.
G_SECONDS_32 = Input(0.1537, _CYCLES)
D_SECONDS_32 = Input(0.1457, _CYCLES)
JITTER = Input(0.02, "assumed: a core's step scatters by 2 %")
IMAGES = Input(2048 * 150_000.0, "BigGAN's batch and steps, from memory")
DOLLARS = Input(
  1.0, "a v3 core-hour: 8 dollars for a v3-8 on demand, from memory"
)
STALLS = Input(1e-5, "assumed: share of a core's steps that take 10 more")
CONGESTION = Input(
  1e-3, "assumed: share of exchanges that find a port half busy"
)
READING = Input(
  2.0, "assumed: images are read so many times as fast as trained"
)


class Counts(NamedTuple):
  """Bytes of both players, by building their nets from the run's config."""

  gradient_bytes: Dict[str, int]
  state_bytes: Dict[str, int]
  message_bytes: int

  @property
  def parameters(self) -> float:
    """Millions of parameters of G and D."""
    return sum(self.gradient_bytes.values()) / 4e6


def count(gin_file: str = GIN_FILE, bindings: Sequence[str] = ()) -> Counts:
  """Returns the bytes of a run's players; no weight is initialized.

  It needs a process of its own: gin and TensorFlow keep what they were told.
  """
  from tools.tpu import export

  experiment = cli.import_experiment()
  files = [gin_file, "gin/sync/quantized.gin"]
  cli.import_quietly("paragan_tf.config").load(files, list(bindings))
  import gin
  import tensorflow as tf

  spec = export.find_image_spec(experiment)
  found = Counts({}, {}, 0)
  with tf.Graph().as_default(), export.use_zero_weights():
    for who in "gd":
      with gin.config_scope(who):
        side = experiment.player(spec, 0, who)
      side.exchange.init(side.weights)
      found.gradient_bytes[who] = _size(side.weights)
      found.state_bytes[who] = _size(side.state)
      found = found._replace(
        message_bytes=found.message_bytes + side.exchange._message_bytes()
      )
  return found


def _size(variables: Sequence) -> int:
  return sum(v.shape.num_elements() * v.dtype.size for v in variables)


class Counter:
  """Counts in a process of its own."""

  def count(self) -> Counts:
    """Returns the bytes of the paper's nets."""
    return count()


def make_profile(counts: Counts) -> Profile:
  """Returns the profile of a core."""
  slope = (STEP_SECONDS_32.value - STEP_SECONDS.value) / BATCH
  fixed = STEP_SECONDS.value - BATCH * slope
  return Profile(
    device="tpu_v3",
    num_threads=1,
    num_cores=1,
    config_hash="",
    batches=(BATCH, 2 * BATCH),
    num_batches=1,
    step_seconds=Fit(fixed, slope),
    scheme_seconds={},
    player_seconds={
      # Measured at 32, where they are used.
      "g": Fit(0.0, G_SECONDS_32.value / (2 * BATCH)),
      "d": Fit(0.0, D_SECONDS_32.value / (2 * BATCH)),
    },
    memory_bytes=Fit(0.0, 0.0),
    memory_limit=0,
    memory_source="TPU compiler",
    input_images_per_second=READING.value * BATCH / STEP_SECONDS.value,
    gradient_bytes=counts.gradient_bytes,
    state_bytes=counts.state_bytes,
    message_bytes=counts.message_bytes,
    codec_seconds={"encode": 0.0, "decode": 0.0},
    noise_scale={},
    exchange_engine="",
    exchange_workers=0,
    exchange_seconds={},
  )


def predict_all(
  counts: Counts, jitter: float = JITTER.value
) -> Dict[Tuple[str, int], Prediction]:
  """Returns the closed form, by scheme and number of cores."""
  profile = make_profile(counts)
  return {
    (name, m): predict(
      profile, scheme, m, BATCH, LINKS["tpu_v3"], Machine(jitter=jitter)
    )
    for name, scheme in SCHEMES.items()
    for m in CORES
  }


def simulate_all(
  counts: Counts, num_steps: int = 4000
) -> Dict[Tuple[str, int], Prediction]:
  """Returns the simulation with all disturbances, by scheme and cores."""
  disturbances = Disturbances(
    jitter=JITTER.value,
    stall_rate=STALLS.value,
    stall=10.0,
    congestion_rate=CONGESTION.value,
    congestion=2.0,
    input_jitter=0.5,
    read_ahead=4,
  )
  profile = make_profile(counts)
  # A pod has 2048 cores; beyond that, as if its torus were larger.
  link: Link = LINKS["tpu_v3"]._replace(max_workers=0)
  return {
    (name, m): simulate(
      profile, scheme, m, BATCH, link, None, disturbances, num_steps
    )
    for name, scheme in SCHEMES.items()
    for m in SIMULATED
  }


def find_jitter(counts: Counts, scheme: Scheme, efficiency: float) -> float:
  """Returns the jitter at which 1024 cores have an efficiency; may be < 0."""
  still, moved = (
    predict(
      make_profile(counts),
      scheme,
      1024,
      BATCH,
      LINKS["tpu_v3"],
      Machine(jitter=jitter),
    )
    for jitter in (0.0, 0.01)
  )
  target = still.step_seconds * still.efficiency / efficiency
  slope = (moved.step_seconds - still.step_seconds) / 0.01
  return (target - still.step_seconds) / slope


def gather(
  counts: Counts,
  predicted: Dict[Tuple[str, int], Prediction],
  simulated: Dict[Tuple[str, int], Prediction],
) -> Dict[str, float]:
  """Returns the figures by name."""
  figures: Dict[str, float] = {"paper_million_parameters": counts.parameters}
  for (name, m), one in predicted.items():
    figures[f"planned_efficiency_{m}_{name}"] = one.efficiency
  # Not `per_label`, which trains another model on each worker.
  best = max(
    (n for n in SCHEMES if n != "per_label"),
    key=lambda n: predicted[n, 1024].efficiency,
  )
  figures["planned_efficiency_1024_best"] = predicted[best, 1024].efficiency
  still = predict_all(counts, jitter=0.0)
  for name in SCHEMES:
    key = f"planned_efficiency_1024_{name}_no_jitter"
    figures[key] = still[name, 1024].efficiency
  for (name, m), one in simulated.items():
    figures[f"simulated_efficiency_{m}_{name}"] = one.efficiency
    for part in ("compute", "wait", "wire", "input"):
      share = getattr(one, part) / one.step_seconds
      figures[f"simulated_{part}_share_{m}_{name}"] = share
  figures["paper_sync_jitter"] = find_jitter(
    counts, SCHEMES["sync"], PAPER_EFFICIENCY
  )
  for m in CORES:
    hours = IMAGES.value / predicted["sync", m].images_per_second / 3600
    figures[f"paper_hours_{m}"] = hours
    figures[f"paper_dollars_{m}"] = hours * m * DOLLARS.value
  for hours in PAPER_HOURS:
    figures[f"paper_cores_{hours:.0f}h"] = _find_cores(predicted, hours)
  return figures


def _find_cores(
  predicted: Dict[Tuple[str, int], Prediction], hours: float
) -> float:
  """Returns how many cores take that long, between the powers of two."""
  rates = [predicted["sync", m].images_per_second for m in CORES]
  wanted = IMAGES.value / hours / 3600
  i = max(1, next(i for i, rate in enumerate(rates) if rate >= wanted))
  low, high = math.log(rates[i - 1]), math.log(rates[i])
  place = (math.log(wanted) - low) / (high - low)
  return CORES[i - 1] * 2**place


def format_table(
  figures: Dict[str, float], predicted: Dict[Tuple[str, int], Prediction]
) -> str:
  """Returns the figures as text."""
  shown = (1, 8, 64, 256, 1024)
  lines = [
    "BigGAN 128, 16 images a TPU v3 core: the TPU compiler's estimates and "
    "published links",
    f"{figures['paper_million_parameters']:.2f} million parameters of G and D, "
    "counted",
    "",
    f"{'efficiency':28}" + "".join(f"{m:>8}" for m in shown) + "   no jitter",
  ]
  for name in SCHEMES:
    cells = [f"{predicted[name, m].efficiency:8.3f}" for m in shown]
    still = figures[f"planned_efficiency_1024_{name}_no_jitter"]
    lines.append(f"{name:28}{''.join(cells)}{still:12.3f}")
  lines.append(f"{'the paper':28}{'':32}{PAPER_EFFICIENCY:8.2f}")
  lines += ["", *_format_simulation(figures), "", *_format_hours(figures)]
  inputs = (
    ("s a step, 16 images", STEP_SECONDS),
    ("s a step, 32 images", STEP_SECONDS_32),
    ("s a step of G alone", G_SECONDS_32),
    ("s a step of D alone", D_SECONDS_32),
    ("jitter", JITTER),
    ("stalls", STALLS),
    ("congestion", CONGESTION),
    ("reading", READING),
    ("images", IMAGES),
    ("dollars a core-hour", DOLLARS),
  )
  lines += ["", "What enters"]
  lines += [f"{n:28}{x.value:<12g}{x.source}" for n, x in inputs]
  link = LINKS["tpu_v3"]
  lines.append(
    f"{'bytes/s of a chip':28}{link.bytes_per_second:<12.3g}{link.source}"
  )
  return "\n".join(lines)


def _format_simulation(figures: Dict[str, float]) -> List[str]:
  heads = ("efficiency", "compute", "wait", "wire", "input")
  lines = [
    "Simulated with jitter, stalls, congestion and reads that scatter: shares "
    "of a step",
    f"{'':28}{'cores':>6}" + "".join(f"{head:>12}" for head in heads),
  ]
  for name in SCHEMES:
    for m in SIMULATED:
      values = [figures[f"simulated_efficiency_{m}_{name}"]]
      values += [figures[f"simulated_{h}_share_{m}_{name}"] for h in heads[1:]]
      cells = "".join(f"{value:12.3f}" for value in values)
      lines.append(f"{name:28}{m:6}{cells}")
  return lines


def _format_hours(figures: Dict[str, float]) -> List[str]:
  lines = [f"{'cores':>6}{'hours':>10}{'dollars':>10}   sync"]
  for m in CORES:
    hours, dollars = figures[f"paper_hours_{m}"], figures[f"paper_dollars_{m}"]
    lines.append(f"{m:6}{hours:10.1f}{dollars:10.0f}")
  for hours in PAPER_HOURS:
    cores = figures[f"paper_cores_{hours:.0f}h"]
    lines.append(f"{hours:.0f} hours take {cores:.1f} cores")
  jitter = figures["paper_sync_jitter"]
  lines.append(
    f"sync has the paper's {PAPER_EFFICIENCY:.0%} at a jitter of {jitter:.1%}"
  )
  return lines
