"""What a step costs on many workers, in closed form.

    prediction = predict(profile, SCHEMES["sync"], 1024, 16, LINKS["tpu_v3"])

The parts of a step follow one another, so their sum is the step:

    compute    of a worker, mean of both roles if workers have one each
    wait       for the slower role, and for the slowest of all workers
    software   of the messages: what the processor does for them
    wire       until their last byte has arrived
    input      what is left until the next batch is ready
"""

import functools
import math
from typing import NamedTuple, Optional, Tuple

import numpy as np

from paragan_tf.engine.scaling import links
from paragan_tf.engine.scaling.links import Link
from paragan_tf.engine.scaling.messages import (
  Messages,
  count_messages,
  join,
)
from paragan_tf.engine.scaling.profile import Fit, Profile
from paragan_tf.engine.scaling.schemes import COLLECTIVES, SCHEMES, Scheme

__all__ = [
  "SCHEMES",
  "Machine",
  "Parts",
  "Prediction",
  "Scheme",
  "expected_max",
  "predict",
  "split_step",
]

# Standard deviations of a step that a long ring of gossip loses: a worker waits
# for its neighbors, which waited for theirs. From `simulation.py`.
GOSSIP_WAIT = 1.14

# Share of a step's computation that is left when the statistics of the nets are
# known: a backward pass takes twice as long as a forward pass.
_BACKWARD = 2 / 3


class Machine(NamedTuple):
  """What workers share, and what its software takes.

  Attributes:
    name: Of the machine.
    workers: That run on one machine.
    cores: Of the machine, each for one thread.
    contention: Time of a step when all cores are busy, relative to one worker
      alone: cores share caches, memory and clock.
    jitter: Standard deviation of a worker's step, relative to its mean.
    call_seconds: Processor time of an exchange, of one worker.
    message_seconds: The same of each of its messages.
    byte_seconds: The same of each byte that is sent and received.
    requests: Latencies before the first byte, where a receiver asks for it.
  """

  name: str = "one worker each"
  workers: int = 1
  cores: int = 1
  contention: float = 1.0
  jitter: float = 0.0
  call_seconds: float = 0.0
  message_seconds: float = 0.0
  byte_seconds: float = 0.0
  requests: int = 0


class Prediction(NamedTuple):
  """A step, and what it is made of; all times are in seconds.

  Attributes:
    scheme: Its name.
    num_workers: How many train.
    batch_per_worker: Images of a worker, in each batch.
    step_seconds: The sum of the parts below, mean over the period.
    compute: See above, as the other parts.
    wait: For the slower role, and for the slowest worker.
    software: Of the messages.
    wire: Of the messages.
    input: Wait for images.
    images_per_second: Of all workers; an image counts once, whichever role
      trains on it.
    efficiency: Relative to as many workers that train alone.
    bytes_sent: By a worker, mean over the period.
  """

  scheme: str
  num_workers: int
  batch_per_worker: int
  step_seconds: float
  compute: float
  wait: float
  software: float
  wire: float
  input: float
  images_per_second: float
  efficiency: float
  bytes_sent: float


class Parts(NamedTuple):
  """What a step of one worker takes before anyone waits, in seconds.

  Attributes:
    compute: Of a worker, by role: one, or those of G and of D.
    shares: Of the workers, by role.
    software: Of one exchange.
    wire: Of one exchange.
    input: Until a batch is ready, while the workers compute.
    messages: Of one exchange.
    images: Of all workers, in a step.
  """

  compute: Tuple[float, ...]
  shares: Tuple[float, ...]
  software: float
  wire: float
  input: float
  messages: Messages
  images: int


def predict(
  profile: Profile,
  scheme: Scheme,
  num_workers: int,
  batch_per_worker: int,
  link: Link,
  machine: Optional[Machine] = None,
) -> Prediction:
  """Returns what a step takes.

  Args:
    profile: Of one worker.
    scheme: How the workers train together.
    num_workers: How many there are.
    batch_per_worker: Images of a worker, in each batch.
    link: Between the workers.
    machine: That the workers share; by default each has one of its own, whose
      software takes no time.
  """
  machine = machine or Machine()
  parts = split_step(
    profile, scheme, num_workers, batch_per_worker, link, machine
  )
  compute = float(np.dot(parts.compute, parts.shares))
  slowest = max(parts.compute)
  wait = slowest - compute
  # The faster role's deviations delay nobody.
  late_share = sum(
    share for c, share in zip(parts.compute, parts.shares) if c == slowest
  )
  num_late = max(1, round(late_share * num_workers))
  wait += slowest * machine.jitter * _wait_factor(scheme, num_late)
  software, wire = parts.software / scheme.period, parts.wire / scheme.period
  busy = compute + wait + software + wire
  unread = max(0.0, parts.input - busy)
  rate = parts.images / (busy + unread)
  seconds_alone = profile.step_seconds.at(batch_per_worker)
  alone = _images(profile, scheme, 1, batch_per_worker) / seconds_alone
  return Prediction(
    scheme=scheme.name,
    num_workers=num_workers,
    batch_per_worker=batch_per_worker,
    step_seconds=busy + unread,
    compute=compute,
    wait=wait,
    software=software,
    wire=wire,
    input=unread,
    images_per_second=rate,
    efficiency=rate / (num_workers * alone),
    bytes_sent=parts.messages.num_bytes / scheme.period,
  )


def split_step(
  profile: Profile,
  scheme: Scheme,
  num_workers: int,
  batch_per_worker: int,
  link: Link,
  machine: Machine,
) -> Parts:
  """Returns what a step of one worker takes; arguments as of `predict`."""
  _check(scheme, num_workers, batch_per_worker, machine)
  links.check(link, num_workers)
  m, b = num_workers, batch_per_worker
  compute, shares = _count_compute(profile, scheme, m, b)
  slow = _slowdown(profile, machine, m)
  compute = tuple(slow * c for c in compute)
  late, early = count_messages(profile, scheme, m, b, link)
  messages = join(late, early)
  # Threads of messages find the cores as busy as those that compute do.
  share = _share_cores(profile, machine, m)
  software = share * _handle(messages, machine)
  # What leaves early is under way while the gradients are computed.
  latency = max(
    _count_latencies(late, machine) * link.latency,
    _count_latencies(early, machine) * link.latency - _BACKWARD * min(compute),
  )
  # Of two calls at the same time, one is on the wire while the processor
  # handles the other.
  at_once = max(1, late.calls) / max(1, late.rounds)
  hidden = (1 - 1 / at_once) * min(
    share * _handle(late, machine), late.seconds_of_bytes
  )
  rate = profile.input_images_per_second
  images = _images(profile, scheme, m, b)
  return Parts(
    compute=compute,
    shares=shares,
    software=software,
    wire=messages.seconds_of_bytes - hidden + latency,
    input=images / m / rate if rate else 0.0,
    messages=messages,
    images=images,
  )


@functools.cache
def expected_max(num: int) -> float:
  """Returns the expected maximum of `num` standard normal numbers."""
  step = 1e-3
  x = np.arange(-12.0, 12.0, step) + step / 2
  below = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x]) ** num
  return float(np.where(x > 0, 1 - below, -below).sum() * step)


def _wait_factor(scheme: Scheme, num_workers: int) -> float:
  """Returns the standard deviations of a step that a worker waits for others.

  Between two exchanges, deviations partly cancel: their sum grows with the root
  of the number of steps.
  """
  if scheme.collective == "none":
    return 0.0
  factor = expected_max(num_workers) / math.sqrt(scheme.period)
  if scheme.collective == "neighbors":
    return min(factor, GOSSIP_WAIT)
  return factor


def _count_compute(
  profile: Profile, scheme: Scheme, m: int, b: int
) -> Tuple[Tuple[float, ...], Tuple[float, ...]]:
  """Returns the seconds of a step by role, and the roles' shares of workers."""
  if scheme.roles is None or m == 1:
    line: Fit = profile.scheme_seconds.get(scheme.compute, profile.step_seconds)
    return (line.at(b) + _more_codec(profile, scheme, m),), (1.0,)
  shares = tuple(n / sum(scheme.roles) for n in scheme.roles)
  # A role's workers share the batch of all workers.
  seconds = tuple(
    profile.player_seconds[who].at(b / share)
    for who, share in zip("gd", shares)
  )
  return seconds, shares


def _more_codec(profile: Profile, scheme: Scheme, m: int) -> float:
  """Returns the time of messages beyond those of a profile's one worker."""
  if scheme.collective not in ("gather", "two_phase") or m == 1:
    return 0.0
  encode, decode = (profile.codec_seconds[x] for x in ("encode", "decode"))
  if scheme.collective == "gather":
    return (m - 1) * decode  # Of the others.
  # A worker decodes its own parts, then the parts that it averages, then all
  # means; it encodes a mean, and decodes that.
  return encode / m + (2 + 1 / m) * decode


def _handle(messages: Messages, machine: Machine) -> float:
  """Returns the processor time of messages, of one worker."""
  return (
    messages.calls * machine.call_seconds
    + messages.num_messages * machine.message_seconds
    + messages.num_bytes * machine.byte_seconds
  )


def _count_latencies(messages: Messages, machine: Machine) -> float:
  """Returns the latencies that follow one another, with those of requests."""
  return messages.hops + messages.rounds * machine.requests


def _slowdown(profile: Profile, machine: Machine, m: int) -> float:
  """Returns the time of a worker's step, relative to one alone."""
  threads = max(1, profile.num_threads) * min(m, machine.workers)
  alone = max(1, profile.num_threads)
  busy = min(threads, machine.cores)
  crowd = 0.0
  if machine.cores > alone:
    crowd = max(0.0, (busy - alone) / (machine.cores - alone))
  contention = 1.0 + (machine.contention - 1.0) * crowd
  return contention * _share_cores(profile, machine, m)


def _share_cores(profile: Profile, machine: Machine, m: int) -> float:
  """Returns how many threads want a core; at least 1."""
  threads = max(1, profile.num_threads)
  wanted = threads * min(m, machine.workers)
  return max(1.0, wanted / max(machine.cores, threads))


def _images(profile: Profile, scheme: Scheme, m: int, b: int) -> int:
  batches = 1 if scheme.roles and m > 1 else profile.num_batches
  return m * b * batches


def _check(scheme: Scheme, m: int, b: int, machine: Machine) -> None:
  """Refuses what cannot be, with the rule."""
  for name, value in (("num_workers", m), ("batch_per_worker", b)):
    if value < 1 or value != int(value):
      raise ValueError(f"`{name}` must be an integer above 0, got {value}.")
  if scheme.collective not in COLLECTIVES:
    raise ValueError(
      f"`collective` must be one of {', '.join(COLLECTIVES)}, got "
      f"'{scheme.collective}'."
    )
  if scheme.period < 1 or scheme.turns < 1 or scheme.rounds < 1:
    raise ValueError(
      "`period`, `turns` and `rounds` of a scheme must be at least 1, got "
      f"{scheme.period}, {scheme.turns} and {scheme.rounds}."
    )
  if scheme.roles and m > 1 and m % sum(scheme.roles):
    raise ValueError(
      f"`num_workers` must be a multiple of {sum(scheme.roles)} with roles "
      f"{scheme.roles}, got {m}."
    )
  if machine.workers < 1 or machine.cores < 1 or machine.contention < 1:
    raise ValueError(
      "`workers`, `cores` and `contention` of a machine must be at least 1, "
      f"got {machine.workers}, {machine.cores} and {machine.contention}."
    )
  costs = (machine.call_seconds, machine.message_seconds, machine.byte_seconds)
  if min(*costs, machine.jitter, machine.requests) < 0:
    raise ValueError(
      f"Times and `jitter` of a machine must be 0 or more, got {machine}."
    )
