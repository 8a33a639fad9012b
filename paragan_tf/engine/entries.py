"""The variables of a step, as a checkpoint keeps them."""

from typing import Dict, List, Optional

import tensorflow as tf

from paragan_tf.engine import strategies
from paragan_tf.engine.processes import Processes
from paragan_tf.engine.step import Step
from paragan_tf.sync.exchange import ErrorFeedback
from paragan_tf.types import Entry, VectorSlice


def make_entries(
  step: Step, strategy: tf.distribute.Strategy, processes: Processes
) -> List[Entry]:
  """Returns every variable of a step, with all its copies."""
  num = strategy.num_replicas_in_sync
  first = processes.index * (num // processes.count)
  own, feedbacks = _own(step), _feedbacks(step)
  summed = {v.name for feedback in feedbacks for v in feedback.summed}
  residual_targets = {
    name: VectorSlice(*target)
    for feedback in feedbacks
    for name, target in feedback.residual_targets.items()
  }
  return [
    Entry(
      variable.name.split(":")[0],
      strategies.copies(strategy, variable),
      agrees=variable.name not in own,
      first_replica=first,
      num_replicas=num,
      merged=own.get(variable.name),
      optional=variable.name in summed,
      absorbs=residual_targets.get(variable.name),
    )
    for variable in step.variables
  ]


def _own(step: Step) -> Dict[str, Optional[str]]:
  """Returns the variables that differ between replicas, and how they merge."""
  own: Dict[str, Optional[str]] = {}
  for name, player in step.players.items():
    exchange = player.exchange
    if exchange.replicas_agree:
      continue
    modules = [player.net, player.optimizer, exchange]
    if player.loss_scale is not None:
      modules.append(player.loss_scale)
    if name == "g":
      modules.append(step.ema.twin)
    rule = "mean" if exchange.mean_is_model else None
    own.update((v.name, rule) for module in modules for v in module.variables)
  for feedback in _feedbacks(step):
    own.update((v.name, "sum") for v in feedback.summed)
  own.update((v.name, None) for v in step.placement.variables)
  return own


def _feedbacks(step: Step) -> List[ErrorFeedback]:
  exchanges = [player.exchange for player in step.players.values()]
  return [x for x in exchanges if isinstance(x, ErrorFeedback)]
