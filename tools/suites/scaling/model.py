"""Predictions of the suite `scaling`, from what was measured beforehand.

What enters: steps of one worker over its batch, alone and beside another one
that it does not communicate with; its bytes and its codec; exchanges of as many
workers that train nothing, over loopback; and the emulated links as they were
requested. No run of workers that train together does.
"""

from typing import Dict, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from paragan_tf.engine.scaling import messages
from paragan_tf.engine.scaling.costs import (
  SCHEMES,
  Machine,
  Prediction,
  Scheme,
  predict,
)
from paragan_tf.engine.scaling.links import Link
from paragan_tf.engine.scaling.profile import Profile, fit
from paragan_tf.engine.scaling.simulation import Disturbances, simulate
from tools.suites.scaling.measure import (
  BATCH,
  BATCHES,
  EXCHANGES,
  LOOPBACK,
  Exchanged,
  Solo,
)
from tools.suites.wire.figures import LINKS

_NUM_CORES = 2
# All play simultaneously, so both players' gradients are one message.
_SCHEMES: Dict[str, Scheme] = {
  name: SCHEMES[name]._replace(turns=1) for name in EXCHANGES
}
Case = Tuple[str, int, str]  # Scheme, workers, link.


class Software(NamedTuple):
  """Seconds of an exchange: `call + hops * message + bytes * byte`."""

  call: float
  message: float
  byte: float
  error: float


def make_profile(solo: Solo) -> Profile:
  """Returns the profile of one worker."""
  lines = {
    name: fit(BATCHES, [solo.alone[exchange, b] for b in BATCHES])
    for name, exchange in (("sync", "all_reduce"), ("quantized", "dq8"))
  }
  return Profile(
    device="cpu",
    num_threads=1,
    num_cores=_NUM_CORES,
    config_hash="",
    batches=BATCHES,
    num_batches=1,
    step_seconds=lines["sync"],
    scheme_seconds={"quantized": lines["quantized"]},
    player_seconds={},
    memory_bytes=fit([1], [1.0]),
    memory_limit=0,
    memory_source="measured on this CPU",
    input_images_per_second=0.0,  # Of the step, as the images are in memory.
    noise_scale={},
    exchange_engine="gRPC over loopback",
    exchange_workers=2,
    exchange_seconds={},
    **solo.counts,  # type: ignore[arg-type]
  )


def fit_software(exchanged: Sequence[Exchanged], num_workers: int) -> Software:
  """Returns the times of so many workers, by least relative residuals."""
  link = Link("none", 1.0, 0.0)
  rows, seconds = [], []
  for one in exchanged:
    if one.num_workers != num_workers:
      continue
    kind = getattr(messages, one.collective)
    sent = kind(one.num_bytes, num_workers, link)
    rows.append([1.0, sent.num_messages, sent.num_bytes])
    seconds.append(one.seconds)
  table = np.array(rows) / np.array(seconds)[:, np.newaxis]
  found = _solve(table)
  error = float(np.sqrt(np.mean((table @ found - 1) ** 2)))
  call, message, byte = map(float, found)
  return Software(call, message, byte, error)


def _solve(table: np.ndarray) -> np.ndarray:
  """Returns the coefficients, none below 0, whose sums are nearest to 1."""
  used = list(range(table.shape[1]))
  while True:
    part = np.linalg.lstsq(table[:, used], np.ones(len(table)), rcond=None)[0]
    if min(part) >= 0:
      found = np.zeros(table.shape[1])
      found[used] = part
      return found
    used.pop(int(np.argmin(part)))


def make_machine(
  solo: Solo, exchanged: Sequence[Exchanged], num_workers: int
) -> Machine:
  """Returns this machine, with some workers."""
  ratios = [solo.together[key] / solo.alone[key] for key in solo.alone]
  software = fit_software(exchanged, num_workers)
  # Of one worker alone: those that share a core take turns.
  share = max(1.0, num_workers / _NUM_CORES)
  return Machine(
    "this one",
    workers=num_workers,
    cores=_NUM_CORES,
    contention=max(1.0, float(np.median(ratios))),
    jitter=measure_jitter(solo),
    call_seconds=software.call / share,
    message_seconds=software.message / share,
    byte_seconds=software.byte / share,
    requests=1,
  )


def measure_jitter(solo: Solo) -> float:
  """Returns how a step scatters; outliers count as much as they take."""
  steps = np.asarray(solo.steps)
  return float(steps.std() / steps.mean())


def make_link(name: str) -> Link:
  """Returns a link of the suite `wire`, as it was requested."""
  if name == LOOPBACK:
    return Link(name, np.inf, 0.0)
  return Link(name, LINKS[name].rate, LINKS[name].latency)


def predict_case(
  solo: Solo, exchanged: Sequence[Exchanged], case: Case
) -> Prediction:
  """Returns the closed form of a case."""
  name, num, link = case
  machine = make_machine(solo, exchanged, num)
  return predict(
    make_profile(solo), _SCHEMES[name], num, BATCH, make_link(link), machine
  )


def simulate_case(
  solo: Solo, exchanged: Sequence[Exchanged], case: Case
) -> Prediction:
  """Returns the simulation of a case, which draws from measured steps."""
  name, num, link = case
  machine = make_machine(solo, exchanged, num)
  steps = np.asarray(solo.steps) / np.mean(solo.steps)
  return simulate(
    make_profile(solo),
    _SCHEMES[name],
    num,
    BATCH,
    make_link(link),
    machine,
    Disturbances(steps=tuple(steps)),
    num_steps=1000,
  )


def compute_errors(
  predicted: Mapping[Case, Prediction], seconds: Mapping[Case, float]
) -> Dict[Case, float]:
  """Returns by how much predicted images/s differ from the measured ones."""
  return {
    case: abs(seconds[case] / predicted[case].step_seconds - 1)
    for case in seconds
  }
