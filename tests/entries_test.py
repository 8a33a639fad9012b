"""What a checkpoint keeps of replicas that differ."""

import functools
import os
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from paragan_tf.engine import strategies
from paragan_tf.engine.entries import StepState
from paragan_tf.engine.player import Player
from paragan_tf.engine.processes import Processes
from paragan_tf.engine.role_split import RoleSplit
from paragan_tf.engine.step import Step
from paragan_tf.game import losses, optimizers, schedule
from paragan_tf.game.ema import Ema
from paragan_tf.nets import linear
from paragan_tf.outputs import checkpoints, stored
from paragan_tf.sync import exchange
from tests import testing

BATCH = 8
EXCHANGES = {
  "weights": exchange.Periodic,
  "gradients": exchange.AccumulatedGradients,
}
SCHEDULES = (
  ("both_everywhere", schedule.Simultaneous, {"g": range(4), "d": range(4)}),
  ("role_split", schedule.Asynchronous, {"g": (0, 2), "d": (1, 3)}),
)


def make_step(strategy, make_schedule, make_exchange):
  """Makes a step of linear nets that exchange something at every other step."""
  made = make_schedule()
  with strategies.scope(strategy):
    g, twin = (
      linear.Generator(testing.SPEC, 0, name=n) for n in ("g", "g_ema")
    )
    d = linear.Discriminator(testing.SPEC, 0, spectral=True, name="d")
    players = [
      Player(
        net,
        optimizers.Adam(0.05, name=f"{who}_optimizer"),
        make_exchange(2, name=f"{who}_exchange"),
      )
      for who, net in (("g", g), ("d", d))
    ]
    placement = None
    if isinstance(made, schedule.Asynchronous):
      periods = {"g": 2, "d": 2}
      placement = RoleSplit(made, testing.SPEC, BATCH, periods, 0)
    ema = Ema(g, twin, decay=0.5, start_step=1)
    loss = losses.non_saturating
    return Step(*players, loss, made, ema, 0, placement=placement)


class Trained:
  """A step on several replicas or one, and its state."""

  def __init__(self, make_schedule, make_exchange, num_replicas):
    self.strategy = testing.strategy()
    if num_replicas == 1:
      self.strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    self.step = make_step(self.strategy, make_schedule, make_exchange)
    self.state = StepState(self.step, self.strategy, Processes(self.strategy))
    self._run = tf.function(
      lambda x, y, phase: self.strategy.run(self.step, (x, y, phase)),
      autograph=False,
    )
    self._first = [x.numpy() for x in self._all_copies()]

  def _all_copies(self):
    return [
      copy
      for variable in self.step.variables
      for copy in strategies.copies(self.strategy, variable)
    ]

  def reset(self):
    """Assigns the values that the variables were made with."""
    for copy, value in zip(self._all_copies(), self._first):
      copy.assign(value)

  def train(self, start, stop):
    num = self.strategy.num_replicas_in_sync
    num_shards = self.step.schedule.num_shards(num)
    for t in range(start, stop):
      batch = testing.images(BATCH, seed=t), testing.labels(BATCH, seed=t)
      parts = [np.split(x, num_shards) for x in batch]
      if num == 1:
        x, y = (tf.constant(part[0]) for part in parts)
      else:
        ids = [self.step.schedule.shard(replica) for replica in range(num)]
        x, y = (testing.distribute([p[i] for i in ids]) for p in parts)
      self._run(x, y, t % 2)

  def entry(self, name):
    return next(x for x in self.state.entries if x.name == name)

  def copies(self, name):
    """Returns the values of the replicas that use a variable."""
    return np.stack([copy.numpy() for copy in self.entry(name).copies])

  def values(self):
    return {
      f"{entry.name}/{replica}": copy.numpy()
      for entry in self.state.entries
      for replica, copy in zip(entry.replicas, entry.copies)
    }


@functools.cache
def trace(*args):
  """Returns what `Trained(*args)` is; all tests of one kind share its trace."""
  return Trained(*args)


def new(make_schedule, what="weights", num_replicas=4):
  trained = trace(make_schedule, EXCHANGES[what], num_replicas)
  trained.reset()
  return trained


class StateTest(tf.test.TestCase, parameterized.TestCase):
  def save(self, trained, num_steps, name):
    folder = tempfile.mkdtemp(prefix=name, dir=self.get_temp_dir())
    kept = checkpoints.Checkpoints(folder)
    return kept.save(num_steps, trained.state.prepare_save(num_steps))

  @parameterized.named_parameters(*SCHEDULES)
  def test_moments_are_averaged_over_those_who_train_the_player(
    self, make_schedule, owners
  ):
    trained = new(make_schedule)
    trained.train(0, 2)
    names = {who: f"{who}_optimizer/{who}/linear/weight/w/v" for who in "gd"}
    before = {who: trained.copies(name) for who, name in names.items()}
    path = self.save(trained, 2, "run")
    for who, name in names.items():
      self.assertEqual(trained.entry(name).replicas, tuple(owners[who]))
      self.assertGreater(np.ptp(before[who], 0).max(), 0)  # They did differ.
      mean = np.mean(before[who], 0)
      for copy in trained.copies(name):
        self.assertAllClose(copy, mean)
      kept = tf.train.load_checkpoint(path).get_tensor(name)
      self.assertAllClose(kept, mean)

  @parameterized.product(
    make_schedule=(schedule.Simultaneous, schedule.Asynchronous),
    what=tuple(EXCHANGES),
  )
  def test_training_on_equals_a_resumed_run_bit_for_bit(
    self, make_schedule, what
  ):
    for stop in (2, 3):  # At the end of a period, and within one.
      trained = new(make_schedule, what)
      trained.train(0, stop)
      path = self.save(trained, stop, "run")
      trained.train(stop, 6)
      expected = trained.values()
      trained.reset()
      stored.restore(path, trained.state.entries)
      trained.train(stop, 6)
      got = trained.values()
      for name, value in expected.items():
        self.assertAllEqual(got[name], value, f"{name}, {stop}")

  @parameterized.parameters(
    (schedule.Simultaneous, "weights"), (schedule.Asynchronous, "gradients")
  )
  def test_a_checkpoint_does_not_grow_with_the_replicas(
    self, make_schedule, what
  ):
    sizes = []
    for num_replicas in (1, 4):
      trained = new(make_schedule, what, num_replicas)
      trained.train(0, 2)
      path = self.save(trained, 2, str(num_replicas))
      data = f"{path}.data-00000-of-00001"
      sizes.append(os.path.getsize(data))
    self.assertLess(abs(sizes[1] / sizes[0] - 1.0), 0.02, sizes)

  @parameterized.named_parameters(*SCHEDULES)
  def test_gradients_within_a_period_are_those_of_each_replica(
    self, make_schedule, owners
  ):
    trained = new(make_schedule, "gradients")
    trained.train(0, 3)
    path = self.save(trained, 3, "run")
    read = tf.train.load_checkpoint(path)
    keys = read.get_variable_to_shape_map()
    for who in "gd":
      name = f"{who}_exchange/{who}/linear/weight/w/sum"
      names = [name, *(f"{name}/replica_{r}" for r in (1, 2, 3))]
      found = [r for r in range(4) if names[r] in keys]
      self.assertEqual(found, list(owners[who]))
      sums = [read.get_tensor(names[r]) for r in found]
      self.assertAllGreater([np.abs(x).max() for x in sums], 0.0)
      self.assertGreater(np.ptp(sums, 0).max(), 0.0)
      # What is trained is the same everywhere.
      self.assertIn(f"{who}/linear/weight/w", keys)
      self.assertIn(f"{who}_optimizer/{who}/linear/weight/w/m", keys)
    self.assertIn("g_ema/linear/weight/w", keys)
    self.assertIn("d/linear/weight/u/replica_3", keys)

  def test_all_that_a_checkpoint_has_once_is_equal_on_all_replicas(self):
    trained = new(schedule.Simultaneous, "gradients")
    for stop in range(1, 5):
      trained.train(stop - 1, stop)
      for entry in trained.state.prepare_save(stop):
        if entry.agrees:
          for copy in entry.copies:
            self.assertAllEqual(copy, entry.copies[0], (entry.name, stop))

  def test_saving_within_a_period_changes_nothing(self):
    trained = new(schedule.Simultaneous)
    trained.train(0, 3)
    before = trained.values()
    path = self.save(trained, 3, "run")
    for name, value in trained.values().items():
      self.assertAllEqual(before[name], value, name)
    keys = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    self.assertIn("g/linear/weight/w/replica_3", keys)


if __name__ == "__main__":
  testing.main()
