"""The sides of the suite `wire`: exchanges, and what each of them sends.

All train the same pair of nets in the same way, both players at the same time
with optimistic descent; only the exchange differs. The nets are matrices: 4 MB
of weights, and hardly anything to compute.
"""

import time
from typing import Any, Dict, NamedTuple, Sequence, Tuple

from tools.suites.ours import load_config

BASE = (
  "from paragan_tf.game import optimistic",
  "from paragan_tf.nets import linear",
  "from paragan_tf.sync import compress",
  "g/player.net = @linear.Generator",
  "d/player.net = @linear.Discriminator",
  "linear.Generator.z_dim = 1014",  # With ten classes, 1024 x 32 x 32 weights.
  "Experiment.schedule = @schedule.Simultaneous",
  "player.optimizer = @optimistic.OptimisticSGD",
  "optimistic.OptimisticSGD.learning_rate = 1e-3",
)
ACCUMULATED = ("gin/sync/gradients_every_other_step.gin",)
GOSSIP, QUANTIZED = ("gin/sync/gossip.gin",), ("gin/sync/quantized.gin",)
TOP = ("Quantized.compressor = @compress.TopK()", "compress.TopK.share = 0.01")
# Name: title, gin files, gin bindings.
EXCHANGES: Dict[str, Tuple[str, Sequence[str], Sequence[str]]] = {
  "all_reduce": ("all-reduce", (), ()),
  "periodic": ("all-reduce, 2nd steps", ("gin/sync/every_other_step.gin",), ()),
  "accumulated": ("gradients, 2nd steps", ACCUMULATED, ()),
  "gossip": ("ring gossip", GOSSIP, ()),
  "gossip_3": ("ring gossip, 3 rounds", GOSSIP, ("Gossip.rounds = 3",)),
  "dq8": ("DQGAN, 8 bits", QUANTIZED, ()),
  "dq4": ("DQGAN, 4 bits", QUANTIZED, ("Stochastic.bits = 4",)),
  "dq8_two_phase": (
    "DQGAN, 8 bits, by parts",
    QUANTIZED,
    ("Quantized.form = 'two_phase'",),
  ),
  "top1": ("DQGAN, largest 1 %", QUANTIZED, TOP),
}


class Payload(NamedTuple):
  """What one replica sends and receives in a step, as its exchanges count it.

  Attributes:
    sent: Bytes that it sends.
    received: Bytes that it receives.
    size: Bytes of all gradients in float32.
    form: How quantized messages are distributed, if they are quantized.
    rounds: Rounds of messages between neighbors, if it gossips.
  """

  sent: float
  received: float
  size: int
  form: str = ""
  rounds: int = 0


class TrainingWorker:
  """One process of a cluster, which trains with each of some exchanges."""

  def __init__(
    self, num_workers: int, names: Sequence[str], bindings: Sequence[str] = ()
  ):
    self._loops: Dict[str, Any] = {}
    strategy: Any = None
    for name in names:
      module = _load_config(name, num_workers, bindings)
      if strategy is None:
        _use_one_thread()
        strategy = module.strategies.choose().strategy
      experiment = module.Experiment(strategy)
      inner = experiment.inner_loop(0)
      inner.average_logs = False  # Once a call, so no part of a step.
      inner(experiment.step.cycle)  # Traces, so that no timed step does.
      self._loops[name] = inner

  def wait_until_ready(self) -> None:
    """Returns when the construction, and so all tracing, is done."""

  def run(self, name: str, num_steps: int) -> float:
    """Trains with one of the exchanges; returns the seconds it took here."""
    started = time.perf_counter()
    self._loops[name](num_steps)
    return time.perf_counter() - started


class PayloadCounter:
  """Counts what exchanges send, without starting the workers."""

  def __init__(self, max_workers: int):
    self._max_workers = max_workers

  def count(
    self, names: Sequence[str], num_workers: int, bindings: Sequence[str] = ()
  ) -> Dict[str, Payload]:
    """Returns the payload of one worker, by exchange."""
    return {name: self._count(name, num_workers, bindings) for name in names}

  def _count(self, name: str, num: int, bindings: Sequence[str]) -> Payload:
    module = _load_config(name, num, bindings)
    module.strategies.split_cpu(self._max_workers)
    import gin
    import tensorflow as tf

    from paragan_tf import experiment

    strategy = tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(num)])
    spec = gin.get_configurable(experiment.InputFn)().spec
    sent = received = size = 0.0
    form, rounds = "", 0
    with module.strategies.scope(strategy):
      for who in "gd":
        with gin.config_scope(who):
          side = experiment.player(spec, 0, who)
        weights, exchange = side.net.trainable_variables, side.exchange
        exchange.init(weights)
        for phase in range(exchange.period):
          args = [weights, [], phase]
          traffic = exchange.traffic(*args)
          sent += traffic.sent / exchange.period
          received += traffic.received / exchange.period
        form = form or getattr(exchange, "form", "")  # Of G: D is small.
        rounds = getattr(exchange, "rounds", 0)
        size += 4 * sum(w.shape.num_elements() for w in weights)
    return Payload(sent, received, int(size), form, rounds)


def _load_config(name: str, num_workers: int, bindings: Sequence[str]) -> Any:
  _, files, more = EXCHANGES[name]
  batch_size = f"Experiment.batch_size = {num_workers}"
  # Bindings override the files, some of which set an optimizer.
  return load_config((*BASE, batch_size, *more, *bindings), files)


def _use_one_thread() -> None:
  """Limits operations to one thread: many processes share few cores."""
  import tensorflow as tf

  tf.config.threading.set_intra_op_parallelism_threads(1)
