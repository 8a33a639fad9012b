"""Links between workers, with published rates and latencies.

`bytes_per_second` is what a port sends in one direction over all its links,
while it receives as many. Vendors often print the sum of both directions.
Values that no source was at hand for say `from memory`.
"""

import math
from typing import Dict, NamedTuple


class Link(NamedTuple):
  """What connects workers.

  Attributes:
    name: Of the link, as in `LINKS`.
    bytes_per_second: Of a port, in one direction.
    latency: Seconds of a hop, from one port to the next.
    source: Where both figures are from.
    axes: Of a torus whose axes are rings; 0 for a switch, which connects any
      two ports.
    sharers: Workers that share a port, as the two cores of a TPU v3 do. They
      exchange through memory, at no cost.
    max_workers: How many workers it can connect; 0 for no limit.
  """

  name: str
  bytes_per_second: float
  latency: float
  source: str = ""
  axes: int = 0
  sharers: int = 1
  max_workers: int = 0


_DOCS = "https://cloud.google.com/tpu/docs/"
# Where the latency of a hop is about 1 us.
_BOOK = "https://jax-ml.github.io/scaling-book/sharding"
_NVLINK = "https://en.wikipedia.org/wiki/NVLink"
_INFINIBAND = "https://advancedclustering.com/act_kb/infiniband-types-speeds"
_DAC = "https://atgbics.com/pages/direct-attach-infiniband-port-speed-overview"


def _tpu(name: str, rate: float, source: str, *shape: int) -> Link:
  return Link(name, rate, 1e-6, f"{source}; latency: {_BOOK}", *shape)


def _nvlink(generation: int, rate: float, num_gpus: int) -> Link:
  return Link(
    f"nvlink{generation}",
    rate,
    2e-6,
    f"rate, half of the sum of both directions: {_NVLINK}; latency from memory",
    max_workers=num_gpus,
  )


def _infiniband(name: str, rate: float, source: str) -> Link:
  text = f"4 lanes: {source}; latency from memory"
  return Link(f"infiniband_{name}", rate, 1.5e-6, text)


def _ethernet(gbits: int, latency: float) -> Link:
  text = "rate: IEEE 802.3, its name; latency of TCP from memory"
  return Link(f"ethernet_{gbits}g", gbits * 1e9 / 8, latency, text)


_ALL = (
  _tpu("tpu_v2", 2.48e11, "4 links of 496 Gbit/s, from memory", 2, 2, 512),
  # 340 TB/s of all-reduce over 1024 chips; 4 links of 656 Gbit/s are 328 GB/s.
  _tpu("tpu_v3", 340e12 / 1024, f"340 TB/s a pod: {_DOCS}v3", 2, 2, 2048),
  _tpu("tpu_v4", 1.1e15 / 4096, f"1.1 PB/s a pod: {_DOCS}v4", 3, 2, 8192),
  _tpu("tpu_v5e", 2e11, f"400 GB/s both ways: {_DOCS}v5e", 2, 1, 256),
  _tpu("tpu_v5p", 6e11, f"1200 GB/s both ways: {_DOCS}v5p", 3, 1, 8960),
  _tpu("tpu_v6e", 4e11, f"800 GB/s both ways: {_DOCS}v6e", 2, 1, 256),
  _nvlink(1, 8e10, 8),
  _nvlink(2, 1.5e11, 8),
  _nvlink(3, 3e11, 8),
  _nvlink(4, 4.5e11, 8),
  _nvlink(5, 9e11, 72),
  _infiniband("qdr", 4e9, _INFINIBAND),
  _infiniband("fdr", 6.75e9, _INFINIBAND),
  _infiniband("edr", 1.25e10, _DAC),
  _infiniband("hdr", 2.5e10, _DAC),
  _infiniband("ndr", 5e10, _DAC),
  _ethernet(1, 5e-5),
  _ethernet(10, 2e-5),
  _ethernet(25, 1e-5),
  _ethernet(100, 5e-6),
)
LINKS: Dict[str, Link] = {link.name: link for link in _ALL}


def find(name: str) -> Link:
  """Returns a published link."""
  if name not in LINKS:
    raise ValueError(f"`link` must be one of {', '.join(LINKS)}, got '{name}'.")
  return LINKS[name]


def check(link: Link, num_workers: int = 1) -> None:
  """Refuses a link that cannot be, or that cannot connect so many workers."""
  if not link.bytes_per_second > 0:
    raise ValueError(
      "`bytes_per_second` of a link must be above 0, got "
      f"{link.bytes_per_second}."
    )
  if not 0 <= link.latency < math.inf:
    raise ValueError(
      f"`latency` of a link must be 0 or more seconds, got {link.latency}."
    )
  if link.axes < 0 or link.sharers < 1:
    raise ValueError(
      "`axes` of a link must be at least 0 and `sharers` at least 1, got "
      f"{link.axes} and {link.sharers}."
    )
  if 0 < link.max_workers < num_workers:
    raise ValueError(
      f"`num_workers` must be at most {link.max_workers} on '{link.name}', got "
      f"{num_workers}: take fewer, or a link that connects more."
    )
