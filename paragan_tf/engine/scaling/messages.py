"""The messages of an exchange: bytes, hops, and how long they are on the wire.

Over a switch, collectives are rings, as TensorFlow's are: an all-reduce passes
every m-th part on 2 (m - 1) times, an all-gather passes every message on m - 1
times. On a torus, rings along all axes work at once, in both directions; a byte
of an all-to-all then passes a quarter of each axis, on average.

All-reduces follow one another. Quantized updates of both players are messages
of their own, under way at the same time. Beside them, the statistics of the
nets leave as soon as they are known, while the gradients are computed.
"""

from typing import NamedTuple, Tuple

from paragan_tf.engine.scaling.links import Link
from paragan_tf.engine.scaling.profile import Profile
from paragan_tf.engine.scaling.schemes import Scheme

_SKETCH_BYTES = 1024  # That gossip sends to each neighbor, beside weights.


class Messages(NamedTuple):
  """What a worker sends over its port.

  Attributes:
    num_bytes: Of a port, in one direction.
    num_messages: That it sends.
    calls: Collectives that it calls.
    hops: Messages that are sent one after the other.
    rounds: Collectives that are called one after the other.
    seconds_of_bytes: How long the bytes take, without latencies.
  """

  num_bytes: float = 0.0
  num_messages: float = 0.0
  calls: int = 0
  hops: float = 0.0
  rounds: int = 0
  seconds_of_bytes: float = 0.0


def count_messages(
  profile: Profile, scheme: Scheme, m: int, b: int, link: Link
) -> Tuple[Messages, Messages]:
  """Returns the messages of one exchange of both players.

  First those that wait for gradients, then those that leave before.

  Args:
    profile: Has the bytes of gradients, state and quantized messages.
    scheme: How the workers train together.
    m: Workers.
    b: Images of a worker.
    link: Between the workers.
  """
  if m == 1 or scheme.collective == "none":
    return Messages(), Messages()
  gradients, state = dict(profile.gradient_bytes), dict(profile.state_bytes)
  if scheme.turns > 1:  # D moves, and is exchanged, once a batch.
    for values in (gradients, state):
      values["d"] *= profile.num_batches
  size, rest = sum(gradients.values()), sum(state.values())
  calls = scheme.turns
  if scheme.collective in ("gather", "two_phase"):
    kind = gather if scheme.collective == "gather" else two_phase
    players = len(gradients)
    with_state = sum(value > 0 for value in state.values())
    early = all_reduce(rest, m, link, with_state) if rest else Messages()
    return _at_once(kind(profile.message_bytes, m, link), players), early
  if scheme.separate_state and rest:
    own = all_reduce(rest, m, link, calls)
  else:
    size, own = size + rest, Messages()
  if scheme.collective == "all_reduce":
    fakes = _send_fakes(scheme, m, b, link)
    return join(all_reduce(size, m, link, calls), own, fakes), Messages()
  return neighbors(size, m, link, scheme.rounds), Messages()


def join(*messages: Messages) -> Messages:
  """Returns the sum of messages, one after the other."""
  return Messages(*(sum(column) for column in zip(*messages)))


def _at_once(messages: Messages, num: int) -> Messages:
  """Returns messages whose bytes are those of `num` calls at the same time."""
  return messages._replace(
    num_messages=num * messages.num_messages, calls=num * messages.calls
  )


def all_reduce(size: float, m: int, link: Link, calls: int = 1) -> Messages:
  """Returns the messages of `calls` all-reduces, of `size` bytes in all."""
  p = _ports(m, link)
  num_bytes = 2 * (p - 1) / p * size
  return _send(num_bytes, 2 * calls * _hops(p, link), calls, link)


def gather(size: float, m: int, link: Link) -> Messages:
  """Returns the messages of an all-gather of `size` bytes of each worker."""
  p = _ports(m, link)
  num_bytes = max(0, m - link.sharers) * size
  return _send(num_bytes, _hops(p, link), 1, link)


def two_phase(size: float, m: int, link: Link) -> Messages:
  """Returns those of an all-to-all of parts, and a gather of their means."""
  p = _ports(m, link)
  sent = min(m, link.sharers) * (p - 1) / p * size
  # On a torus, bytes pass other chips on their way.
  spread = max(1.0, link.axes * _side(p, link) / 4) if link.axes else 1.0
  hops = link.axes * _side(p, link) / 2 if link.axes else 1
  first = _send(sent, hops if p > 1 else 0, 1, link, spread)
  return join(first, gather(size / m, m, link))


def neighbors(size: float, m: int, link: Link, rounds: int = 1) -> Messages:
  """Returns those of a ring, of which a port has both ends."""
  if _ports(m, link) == 1:
    return _send(0, 0, 1, link)
  num = min(2, _ports(m, link) - 1)
  num_bytes = num * (rounds * size + _SKETCH_BYTES)
  # Of the links of a torus, those of one axis.
  return _send(num_bytes, rounds, 1, link, max(1, link.axes))


def _send_fakes(scheme: Scheme, m: int, b: int, link: Link) -> Messages:
  """Returns the messages from workers of G to those of D."""
  if not scheme.roles or link.sharers % sum(scheme.roles) == 0:
    return Messages()  # None, or both roles share the memory of a chip.
  share = scheme.roles[0] / sum(scheme.roles)
  num_bytes = scheme.period * scheme.image_bytes * b / share
  return _send(num_bytes, 1, 1, link) if num_bytes else Messages()


def _send(
  num_bytes: float, hops: float, calls: int, link: Link, spread: float = 1.0
) -> Messages:
  seconds = spread * num_bytes / link.bytes_per_second
  return Messages(num_bytes, hops, calls, hops, calls, seconds)


def _ports(m: int, link: Link) -> int:
  return -(-m // link.sharers)


def _side(p: int, link: Link) -> float:
  return p ** (1 / link.axes)


def _hops(p: int, link: Link) -> float:
  """Returns the hops of a pass over all ports."""
  if p == 1:
    return 0
  return link.axes * _side(p, link) / 2 if link.axes else p - 1
