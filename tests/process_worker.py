"""One of several processes: the jobs that `multi_process_test` gives to all.

python -m tests.process_worker JOBS.json

A job is `[kind, folder, bindings]`; what is to be looked at is written there.
"""

import functools
import hashlib
import json
import os
import socket
import struct
import sys
import time
from unittest import mock

import gin
import numpy as np
import tensorflow as tf

import paragan_tf as pg
from paragan_tf import config, experiment, pairs
from paragan_tf.engine import strategies
from paragan_tf.outputs import report
from paragan_tf.run import Run
from paragan_tf.sync import compress, exchange, gossip, quantize, topology
from tests import api_test


def train(strategy, folder, bindings, should_stop=lambda run: False):
  """Trains in the folder, as the program does."""
  config.load(["gin/runs/fashion.gin"], bindings)
  made = Run(experiment.Experiment(strategy), folder)
  made.restore()
  made.open()
  made(lambda: should_stop(made))
  return made


def stop(strategy, folder, bindings):
  """Trains until one of the processes wants to stop, and writes where."""
  index = experiment.Processes(strategy).index
  made = train(
    strategy, folder, bindings, lambda run: index == 1 and run.done >= 8
  )
  _write(os.path.join(folder, "stopped"), index, made.done)
  return made


def read(strategy, folder, bindings):
  """Writes which images each replica gets, `[steps, replicas, b]`."""
  config.load(["gin/runs/fashion.gin"], bindings)
  made = experiment.Experiment(strategy)
  control = made.input_fn.make_control(0, made.images_per_step)
  iterator = iter(made.dataset(0, control))
  ids = []
  for i in range(10):
    images, _ = next(iterator)
    if control is not None:  # Each process has a depth of its own.
      depth = control._pipelines[0].variables[0]
      depth.assign((1, 9, 4)[(i + made.processes.index) % 3])
    pixels = np.stack(strategy.experimental_local_results(images))[..., 0, 0, 0]
    ids.append(np.round((pixels + 1.0) * 127.5).astype(int).tolist())
  _write(folder, made.processes.index, ids)
  return made, iterator


def meet(strategy, folder, bindings):
  """Writes what the processes decide together."""
  del bindings
  processes = experiment.Processes(strategy)
  decided = {
    "place": [processes.index, processes.count, processes.num_local_replicas],
    "nobody": processes.any(False),
    "one": processes.any(processes.index == 1),
    "same": processes.same(1e6 + 1),
    "not_same": processes.same(1e6 + processes.index),
  }
  _write(folder, processes.index, decided)


def evaluate(strategy, folder, bindings):
  """Trains by the API; writes what `evaluate` returns, does and refuses."""
  del bindings
  gin.clear_config()
  index = experiment.Processes(strategy).index
  gan = pg.Estimator(
    api_test.Module, api_test.Critic, os.path.join(folder, "run"), 8, z_dim=4
  )
  choice = strategies.Choice(strategy, "what there is")
  with mock.patch.object(strategies, "choose", return_value=choice):
    gan.train(api_test.input_fn, steps=2)
  with mock.patch.object(report, "write", wraps=report.write) as write:
    values = gan.evaluate()
  try:
    gan.evaluate(num_samples=10**6)
  except Exception as e:
    error = f"{type(e).__name__}: {e}"
  gan.train(steps=1)
  found = dict(values=values, num_reports=write.call_count, error=error)
  _write(folder, index, found)
  return gan


EXCHANGES = {
  "all_reduce": exchange.AllReduce,
  "ring": functools.partial(gossip.Gossip, topology.ring),
  "float32": functools.partial(
    quantize.Quantized, compress.Identity(), form="gather"
  ),
  "int8": functools.partial(quantize.Quantized, compress.Stochastic(8, 4096)),
  "two_phase": functools.partial(
    quantize.Quantized, compress.Stochastic(8, 4096), form="two_phase"
  ),
}
NUM_WEIGHTS = 200_000
# For four replicas: pairs, a source of several, a ring, and all of them mixed.
SOURCES = {
  "pairs": [0, 0, 2, 2],
  "apart": [0, 1, 0, 1],
  "one_to_all": [2, 2, 2, 2],
  "ring": [3, 0, 1, 2],
  "mixed": [1, 0, 0, 3],
}


def sockets(strategy, folder, bindings):
  """Writes what a step of each exchange sends, receives and calls."""
  index = experiment.Processes(strategy).index
  found = {
    name: _bytes_per_step(strategy, EXCHANGES[name], index) for name in bindings
  }
  _write(folder, index, found)


def message(replica):
  """Returns what a replica sends in `receive`, of every type that may come."""
  random = np.random.RandomState(replica)
  pixels = random.randint(256, size=[2, 3, 5]).astype(np.uint8)
  numbers = random.randn(2, 3).astype(np.float32)
  return [
    numbers,
    random.randint(-9, 9, size=[3]).astype(np.int32),
    pixels,
    tf.cast(numbers, tf.bfloat16),
    numbers.astype(np.float16),
    random.randint(1 << 40, size=[2, 2]),
    # As a float32, its bits are no number that may be computed with.
    np.array([0x7FA00001, 1], np.int32),
  ]


def receive(strategy, folder, bindings):
  """Writes what replicas receive from others, and how many bytes that takes."""
  index = experiment.Processes(strategy).index
  found = {}
  for name in bindings:
    found[name] = {
      "values": _receive_in_loop(strategy, SOURCES[name]),
      "bytes": _receive_bytes(strategy, SOURCES[name]),
    }
  _write(folder, index, found)


def _receive_in_loop(strategy, sources, num_steps=3):
  """Returns what each local replica receives in the last of some steps."""

  def replica(step):
    here = tf.distribute.get_replica_context().replica_id_in_sync_group
    rows = [message(i) for i in range(strategy.num_replicas_in_sync)]
    own = [tf.stack(column)[here] for column in zip(*rows)]
    # The first one differs from step to step, and nothing else.
    own[0] += tf.cast(step, tf.float32)
    # Otherwise replicas that have one source return one tensor, as one.
    return [tf.identity(value) for value in pairs.receive(own, sources)]

  def loop():
    def body(step, *_):
      got = strategy.run(replica, args=(step,))
      parts = map(strategy.experimental_local_results, got)
      return step + 1, *(tf.stack(part) for part in parts)

    start = [
      tf.zeros([num_local, *np.shape(x)], tf.convert_to_tensor(x).dtype)
      for x in message(0)
    ]
    return tf.while_loop(
      lambda step, *_: step < num_steps, body, [tf.constant(0), *start]
    )[1:]

  num_local = len(strategy.extended.worker_devices)
  got = tf.function(loop, autograph=False)()
  return [tf.cast(x, tf.float64).numpy().tolist() for x in got]


def _receive_bytes(strategy, sources):
  """Returns what this process gives and gets, though it uses nothing of it."""

  def replica():
    pairs.receive([tf.zeros([NUM_WEIGHTS])], sources)
    return tf.zeros([])

  return _count_bytes(
    strategy, tf.function(lambda: strategy.run(replica), autograph=False), 9
  )


def _bytes_per_step(strategy, make, index, num_steps=49):
  with strategies.scope(strategy):
    made = make()
    w = tf.Variable(tf.zeros([NUM_WEIGHTS]), name="w")
    made.init([w])
  grad = np.random.RandomState(index).randn(NUM_WEIGHTS).astype(np.float32)

  def step():
    grads = made.before_update([tf.constant(grad)], 0)
    w.assign_sub(made.average_updates(grads, 0)[0])
    made.after_update([w], [], 0)
    return tf.reduce_sum(w)

  run = tf.function(lambda: strategy.run(step), autograph=False)
  given, got = _count_bytes(strategy, run, num_steps)
  with strategy.scope():
    told = tuple(made.traffic([w], [], 0))
  (copy,) = strategies.copies(strategy, w)
  digest = hashlib.sha256(copy.numpy().tobytes()).hexdigest()
  ops = run.get_concrete_function().graph.get_operations()
  talks = [op.type for op in ops if op.type.startswith("Collective")]
  return [given, got, *told, talks, digest]


def _count_bytes(strategy, run, num_steps):
  """Returns the bytes that a call gives and gets, at this process's sockets."""
  run()  # The first one agrees on keys.
  # Neighbors may be a step behind.
  experiment.Processes(strategy).wait()
  time.sleep(0.2)
  before = _tcp_bytes()
  for _ in range(num_steps):
    run()
  experiment.Processes(strategy).wait()
  # Acknowledgments may be late.
  time.sleep(0.2)
  return [float(x) / num_steps for x in _tcp_bytes() - before]


def _tcp_bytes():
  """Returns what all connections of this process have given and got."""
  total = np.zeros([2])
  for fd in os.listdir("/proc/self/fd"):
    try:
      if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
        continue
      with socket.socket(fileno=os.dup(int(fd))) as opened:
        info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    except OSError:  # Gone, or no TCP.
      continue
    # `tcpi_bytes_acked` and `tcpi_bytes_received` of `struct tcp_info`.
    total += struct.unpack_from("=QQ", info, 120)
  return total


def _write(folder, index, value):
  os.makedirs(folder, exist_ok=True)
  with open(os.path.join(folder, f"{index}.json"), "w") as f:
    json.dump(value, f)


def main():
  """Reads the jobs and does them, one after the other."""
  with open(sys.argv[1]) as f:
    num_cpu_replicas, jobs = json.load(f)
  strategy = strategies.choose(
    strategies.DeviceOptions(
      num_cpu_replicas=num_cpu_replicas, join_timeout=60.0
    )
  ).strategy
  kinds = {
    "train": train,
    "stop": stop,
    "read": read,
    "meet": meet,
    "sockets": sockets,
    "receive": receive,
    "evaluate": evaluate,
  }
  made = [kinds[kind](strategy, *rest) for kind, *rest in jobs]
  # TensorFlow takes long to tear its graphs down: leave without. The others may
  # still need our last answer.
  experiment.Processes(strategy).wait()
  time.sleep(0.5)
  sys.stdout.flush()
  os._exit(0 if made else 1)


if __name__ == "__main__":
  main()
