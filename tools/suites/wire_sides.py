"""Who is measured by the suite `wire`, and what each of them says.

All train the same pair in the same way, both players at the same time with
optimistic descent; only the exchange differs. The nets are matrices: 4 MB of
weights, and hardly anything to compute.
"""

import time
from typing import Any, Dict, NamedTuple, Sequence, Tuple

from tools.suites.ours import load

_BASE = (
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
GOSSIP, QUANTIZED = ("gin/sync/gossip.gin",), ("gin/sync/quantized.gin",)
TOP = ("Quantized.compressor = @compress.TopK()", "compress.TopK.share = 0.01")
# Name: title, gin files, gin bindings.
WAYS: Dict[str, Tuple[str, Sequence[str], Sequence[str]]] = {
  "all_reduce": ("all-reduce", (), ()),
  "periodic": ("all-reduce, 2nd steps", ("gin/sync/every_other_step.gin",), ()),
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


class Said(NamedTuple):
  """What one replica says and hears in a step, by its exchanges' own count.

  Attributes:
    given: Bytes that it says.
    received: Bytes that it hears.
    size: Bytes of all gradients in float32.
    form: How messages of few bits go around, if they are.
    rounds: How often neighbors talk, if they do.
  """

  given: float
  received: float
  size: int
  form: str = ""
  rounds: int = 0


class Member:
  """One of several processes: trains in each of some ways, when told to."""

  def __init__(
    self, num_workers: int, names: Sequence[str], bindings: Sequence[str] = ()
  ):
    self._loops: Dict[str, Any] = {}
    strategy: Any = None
    for name in names:
      module = _load(name, num_workers, bindings)
      if strategy is None:
        _use_one_thread()
        strategy = module.strategies.choose().strategy
      inner = module.Experiment(strategy).inner_loop(0)
      inner._processes = _Alone()
      inner(inner._step.cycle)  # Traces, while gin is as this way needs it.
      self._loops[name] = inner

  def names(self) -> Sequence[str]:
    """Returns the ways, when all of them are ready."""
    return list(self._loops)

  def run(self, name: str, num_steps: int) -> float:
    """Trains in one of the ways; returns the seconds it took here."""
    started = time.perf_counter()
    self._loops[name](num_steps)
    return time.perf_counter() - started


class Counter:
  """Counts what is said with so many workers, and starts none of them."""

  def __init__(self, most_workers: int):
    self._most = most_workers

  def count(
    self, names: Sequence[str], num_workers: int, bindings: Sequence[str] = ()
  ) -> Dict[str, Said]:
    """Returns what a worker says in each way."""
    return {name: self._said(name, num_workers, bindings) for name in names}

  def _said(self, name: str, num: int, bindings: Sequence[str]) -> Said:
    module = _load(name, num, bindings)
    module.strategies._split_cpu(self._most)
    import gin
    import tensorflow as tf

    from paragan_tf import experiment

    strategy = tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(num)])
    spec = gin.get_configurable(experiment.InputFn)().spec
    given = received = size = 0.0
    form, rounds = "", 0
    with module.strategies.scope(strategy):
      for who in "gd":
        with gin.config_scope(who):
          side = experiment.player(spec, 0, who)
        weights, exchange = side.net.trainable_variables, side.exchange
        exchange.init(weights)
        for phase in range(exchange.period):
          said = [weights, [], phase]
          given += exchange.num_bytes(*said) / exchange.period
          received += exchange.num_bytes_received(*said) / exchange.period
        form = form or getattr(exchange, "form", "")  # Of G: D is small.
        rounds = getattr(exchange, "rounds", 0)
        size += 4 * sum(w.shape.num_elements() for w in weights)
    return Said(given, received, int(size), form, rounds)


class _Alone:
  """Instead of the mean of logs, which is made once a call, not a step."""

  def mean(self, value):
    """Returns what is here."""
    return value


def _load(name: str, num_workers: int, bindings: Sequence[str]) -> Any:
  _, files, more = WAYS[name]
  batch_size = f"Experiment.batch_size = {num_workers}"
  # The last word is ours: files of exchanges bring an optimizer.
  return load((*_BASE, batch_size, *more, *bindings), files)


def _use_one_thread() -> None:
  """Many processes share few cores."""
  import tensorflow as tf

  tf.config.threading.set_intra_op_parallelism_threads(1)
