"""The sides of the suite `quality`.

    sngan, sagan, biggan, wgan_gp   backbones, one replica, Adam for both
    adabelief_adam                  SNGAN, AdaBelief for G
    paragan                         SNGAN, split roles, an exchange at every
                                    other step
    central                         SNGAN, four replicas, both players at the
                                    same time, optimistic Adam, all-reduce
    gossip, quantized               the same with their exchange

The nets and learning rates of the backbones are those of the suite `backbones`.
"""

from typing import Dict, NamedTuple, Tuple

from tools.suites.backbones.quality import make_small
from tools.suites.wire.sides import GOSSIP, QUANTIZED

_OPTIMISTIC = ("gin/optimizers/optimistic.gin",)
_RATES = (
  "g/OptimisticAdam.learning_rate = 5e-4",
  "d/OptimisticAdam.learning_rate = 5e-4",
)
_SIMULTANEOUS = (
  "Experiment.schedule = @schedule.Simultaneous",
  *_RATES,
)


class Side(NamedTuple):
  """How a side is trained.

  Attributes:
    title: In tables and plots.
    net: The backbone.
    files: Gin files that are read after that of its run.
    bindings: Gin bindings.
    num_replicas: Logical devices of one process.
  """

  title: str
  net: str = "sngan"
  files: Tuple[str, ...] = ()
  bindings: Tuple[str, ...] = ()
  num_replicas: int = 1


SIDES: Dict[str, Side] = {
  "sngan": Side("SNGAN"),
  "sagan": Side("SAGAN", "sagan"),
  "biggan": Side("BigGAN", "biggan"),
  "wgan_gp": Side("WGAN-GP", "wgan_gp"),
  "adabelief_adam": Side(
    "SNGAN, AdaBelief / Adam",
    files=("gin/optimizers/adabelief_adam.gin",),
    bindings=("g/AdaBelief.learning_rate = 5e-4",),
  ),
  "paragan": Side(
    "SNGAN, async", files=("gin/sync/paragan.gin",), num_replicas=2
  ),
  "central": Side(
    "SNGAN, optimistic, all-reduce",
    files=_OPTIMISTIC,
    bindings=_SIMULTANEOUS,
    num_replicas=4,
  ),
  "gossip": Side(
    "SNGAN, optimistic, gossip",
    files=GOSSIP,
    bindings=_RATES,
    num_replicas=4,
  ),
  "quantized": Side(
    "SNGAN, optimistic, 8 bits",
    files=QUANTIZED,
    bindings=_RATES,
    num_replicas=4,
  ),
}


def make_config(name: str, seed: int):
  """Returns the arguments of `Learner` for a side."""
  side = SIDES[name]
  gin_file, small = make_small(side.net)
  bindings = (
    *small,
    "Experiment.extractor = 'inception'",
    f"Experiment.seed = {seed}",
    *side.bindings,
  )
  return gin_file, side.files, bindings, side.num_replicas
