"""A GAN for each label: a pool of processes that never communicate.

    pool = LabelPool(model_dir, shard)    # refuses what is wrong
    pool.open()                           # makes the folder
    is_complete = pool()                  # trains all labels, then reports

W-CGAN (arXiv 2207.12315). Each worker trains one label at a time, as a run of
its own (`label_trainer.py`), with the same budget. Pseudo-code:

    start a worker for each core; give it the label with the most images
    for each event:
      done             give the worker the next label, or let it end
      failed, killed   the label waits again, up to a limit; a new worker
      log              show it
"""

import os
import queue
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

import gin
import numpy as np
import tensorflow as tf

from paragan_tf import (
  child_process,
  config,
  label_finish,
  label_queue,
  stopping,
)
from paragan_tf.data import index_files, preflight
from paragan_tf.data.input_fn import InputFn
from paragan_tf.engine import budget
from paragan_tf.label_process import Event, Events, WorkerProcess
from paragan_tf.outputs import labels, records
from paragan_tf.outputs.checkpoints import Writers
from paragan_tf.outputs.label_table import LabelTable, Live
from paragan_tf.outputs.labels import LabelState
from paragan_tf.outputs.run_folder import RunFolder
from paragan_tf.run import InputError, Run


class LabelsFailedError(Exception):
  """Some labels failed too often; the others are done."""


_POLL_SECONDS = 0.2
_GRACE_SECONDS = 60.0
_BUDGET = ("num_steps", "max_images", "max_seconds")


@gin.configurable(denylist=["model_dir", "shard"])
class LabelPool:
  """Trains a GAN for each label on this machine.

  Args:
    model_dir: Folder of all labels.
    shard: `(index, count)`: trains the labels of one of `count` shards only.
    num_workers: Labels that are trained at the same time; by default as many as
      the GPUs suffice for, or the cores if there is none.
    threads_per_worker: By default the cores are shared equally.
    devices_per_label: GPUs of a label, or logical devices of the CPU, each with
      a replica. With 2 and `gin/sync/async.gin`, G has one and the critic the
      other.
    max_restarts: How often a label that fails begins again.
  """

  def __init__(
    self,
    model_dir: str,
    shard: Tuple[int, int] = (0, 1),
    num_workers: Optional[int] = None,
    threads_per_worker: Optional[int] = None,
    devices_per_label: int = 1,
    max_restarts: int = 2,
  ):
    _check_counts(
      num_workers=num_workers,
      threads_per_worker=threads_per_worker,
      devices_per_label=devices_per_label,
    )
    self.model_dir = model_dir
    self.folder = RunFolder(model_dir, Writers())
    self._stop = stopping.Request()
    self._text = gin.config_str()
    config.check_resumable(self.folder.read_config(), self._text, model_dir)
    with index_files.reading_from(model_dir):
      self._input_fn = gin.get_configurable(InputFn)()
    self._budget = _find_budget()
    sizes = _count_images(self._input_fn)
    names = self._input_fn.source.label_names
    self._states = {
      label: self._begin(LabelState(label, names[label], size))
      for label, size in sizes.items()
    }
    self._num_gpus = len(tf.config.list_physical_devices("GPU"))
    self._cores = _count_cores()
    self._shard = shard
    self._own = label_queue.deal(sizes, *shard)
    self._waiting = [x for x in self._own if not self._is_done(x)]
    self._queue = label_queue.LabelQueue(self._waiting, max_restarts)
    self._devices = devices_per_label
    if self._num_gpus:
      name_gpus(0, devices_per_label, self._num_gpus)  # Refuses too many.
    found = (self._num_gpus or self._cores) // devices_per_label
    wanted = num_workers or max(1, found)
    self._num_workers = min(wanted, max(1, len(self._waiting)))
    self._threads = threads_per_worker or max(
      1, self._cores // self._num_workers
    )
    self._events: Events = queue.Queue()
    self._workers: Dict[int, WorkerProcess] = {}
    self._live: Dict[int, Live] = {}
    self._refused = ""
    self._table = LabelTable()

  @property
  def failed(self) -> List[int]:
    """Labels that failed too often."""
    return self._queue.failed

  def summary(self) -> str:
    """Returns what would run, in a few lines."""
    known = [x.images for x in self._states.values() if x.images]
    limits = ", ".join(f"{k} {v:,}" for k, v in self._budget.items())
    index, count = self._shard
    return (
      f"data      {self._input_fn.name}, {len(known)} labels of "
      f"{min(known):,} to {max(known):,} images\n"
      f"labels    {len(self._own)} of shard {index}/{count}, "
      f"{len(self._queue)} to train; {limits} each\n"
      f"workers   {self._num_workers} at a time, {self._threads} thread(s) "
      f"and {self._devices} device(s) each, no communication\n"
      f"folder    {self.model_dir}"
    )

  def rehearse(self) -> None:
    """Checks the input, and writes nothing."""
    preflight.check(self._input_fn, images_per_step=1)

  def open(self) -> None:
    """Checks the input, makes the folder, saves the config."""
    preflight.check(self._input_fn, images_per_step=1)
    for remark in preflight.remarks(self._input_fn):
      print(f"Note: {remark}", flush=True)
    path = os.path.join(self.model_dir, "config.gin")
    try:
      records.write_file(path, self._text.encode())
    except (tf.errors.OpError, OSError) as e:
      raise ValueError(
        f"`model_dir` must be a writable folder, got '{self.model_dir}' "
        f"({str(e).splitlines()[0]}): set another one."
      ) from e
    self._input_fn.save_index(self.model_dir)
    for label in self._waiting:
      self._set(label, state=labels.WAITING, restarts=0, reason="")
    self._write_manifest()

  def attach(self, stop: stopping.Stop) -> None:
    """Lets signals stop the pool."""
    self._stop = stop

  def __call__(self) -> bool:
    """Trains all labels, then reports.

    Returns:
      Whether it is complete; otherwise it was stopped, and labels saved.
    """
    print(self.summary(), flush=True)
    self._stop.has_unsaved = True
    try:
      self._train()
    finally:
      for worker in self._workers.values():
        worker.kill()
    self._stop.has_unsaved = False
    if self._refused:
      raise InputError(self._refused)
    self._write_manifest()
    self._table.close(self._list_own())
    done = (labels.DONE, labels.EMPTY, labels.FAILED)
    if any(x.state not in done for x in self._list_own()):
      print("Stopped; the same command resumes.", flush=True)
      return False
    if self.failed:
      raise LabelsFailedError("; ".join(map(self._describe, self.failed)))
    if all(x.state in done[:2] for x in labels.read_manifest(self.model_dir)):
      label_finish.finish(self.model_dir)
    return True

  def _describe(self, label: int) -> str:
    state = self._states[label]
    return (
      f"Label {label} ({state.name}) failed {state.restarts + 1} time(s): "
      f"{state.reason}"
    )

  def _train(self) -> None:
    deadline = float("inf")
    for index in range(self._num_workers):
      self._start(index)
    while self._workers:
      is_ending = self._stop.is_requested() or bool(self._refused)
      if is_ending and deadline == float("inf"):
        deadline = time.monotonic() + _GRACE_SECONDS
        for worker in self._workers.values():
          worker.stop()
      if time.monotonic() > deadline:
        for worker in self._workers.values():
          worker.kill()
      try:
        worker, event = self._events.get(timeout=_POLL_SECONDS)
      except queue.Empty:
        continue
      if event is None:
        self._end(worker)
      else:
        self._handle(worker, event)
      self._table.update(self._list_own(), self._live)

  def _start(self, index: int) -> None:
    """Starts a worker with the next label, if one waits."""
    label = self._queue.take()
    if label is None:
      return
    environment = child_process.limit_threads(self._threads)
    if self._num_gpus:
      environment["CUDA_VISIBLE_DEVICES"] = name_gpus(
        index, self._devices, self._num_gpus
      )
    worker = WorkerProcess(
      index, self.model_dir, self._devices, environment, self._events
    )
    self._workers[index] = worker
    self._give(worker, label)

  def _give(self, worker: WorkerProcess, label: int) -> None:
    worker.train(label)
    self._set(label, state=labels.RUNNING)

  def _handle(self, worker: WorkerProcess, event: Event) -> None:
    label = event["label"]
    known = self._live.get(label, Live())
    self._live[label] = Live(
      event.get("d_loss", known.d_loss),
      event.get("num_steps", known.num_steps),
      event.get("seconds_left", known.seconds_left),
    )
    if "step" in event:
      self._states[label] = self._states[label]._replace(steps=event["step"])
    if event["event"] == "refused":
      self._refused, worker.label = event["reason"], None
    elif event["event"] == "failed":
      self._fail(worker, event["reason"])
    elif event["event"] in ("done", "stopped"):
      self._finish(worker, event["event"])

  def _finish(self, worker: WorkerProcess, state: str) -> None:
    """Notes the end of a label; gives the worker the next one."""
    label, worker.label = worker.label, None
    assert label is not None
    steps = self._states[label].steps
    folder = labels.folder(self.model_dir, label)
    seconds = records.seconds_at(folder, steps)
    self._set(label, state=state, seconds=seconds, reason="")
    upcoming = None if worker.is_stopping else self._queue.take()
    if upcoming is None:
      worker.stop()
    else:
      self._give(worker, upcoming)

  def _fail(self, worker: WorkerProcess, reason: str) -> None:
    label, worker.label = worker.label, None
    assert label is not None
    again = self._queue.fail(label)
    self._set(
      label,
      state=labels.WAITING if again else labels.FAILED,
      restarts=self._queue.restarts[label],
      reason=reason,
    )
    what = "begins again" if again else "is given up"
    self._table.note(
      f"Label {label} ({self._states[label].name}) failed and {what}: {reason}"
    )

  def _end(self, worker: WorkerProcess) -> None:
    """Notes the end of a worker; starts another one if labels wait."""
    reason = worker.wait()
    del self._workers[worker.index]
    if worker.label is not None and not self._refused:
      if worker.is_stopping:
        self._set(worker.label, state=labels.STOPPED)
      else:
        self._fail(worker, reason)
    if not (worker.is_stopping or self._refused):
      self._start(worker.index)

  def _set(self, label: int, **changes: Any) -> None:
    """Changes the state of a label, and writes it."""
    state = self._states[label]._replace(budget=self._budget, **changes)
    self._states[label] = state
    labels.write_state(self.model_dir, state)
    if state.state not in (labels.RUNNING, labels.WAITING):
      self._write_manifest()

  def _write_manifest(self) -> None:
    labels.write_manifest(
      self.model_dir,
      self._input_fn.name,
      list(self._states.values()),
      self._own,
    )

  def _begin(self, state: LabelState) -> LabelState:
    """Returns the state that was written before, with today's images."""
    if not state.images:
      return state._replace(state=labels.EMPTY)
    known = labels.read_state(self.model_dir, state.label)
    if known is None:
      return state
    return known._replace(name=state.name, images=state.images)

  def _is_done(self, label: int) -> bool:
    state = self._states[label]
    return state.state == labels.DONE and state.budget == self._budget

  def _list_own(self) -> List[LabelState]:
    return [self._states[label] for label in sorted(self._own)]


def _count_images(input_fn: InputFn) -> Dict[int, int]:
  """Returns how many images each label has to train on."""
  found, name = input_fn.source.train.labels, input_fn.name
  num = len(input_fn.source.label_names)
  if not num or not input_fn.conditional:
    raise ValueError(
      f"A GAN for each label needs labels, and '{name}' has none, or "
      "`InputFn.conditional` is False: name a source with labels."
    )
  if found is None:
    raise ValueError(
      f"A GAN for each label needs the labels of '{name}' beforehand, and they "
      "are inside of its records: `python -m tools.make_tfrecords --by_label` "
      "writes an index that has them, and files of their own."
    )
  counts = np.bincount(found, minlength=num)
  return {label: int(count) for label, count in enumerate(counts)}


def _find_budget() -> Mapping[str, float]:
  bound = gin.get_bindings(Run, resolve_references=False)
  found = {name: bound[name] for name in _BUDGET if bound.get(name) is not None}
  budget.Seconds(found.get("max_seconds"))  # Refuses what is wrong now.
  return found


def _check_counts(**given: Optional[int]) -> None:
  for name, value in given.items():
    if value is not None and value < 1:
      raise ValueError(
        f"`{name}` must be at least 1, got {value}: leave it out for the "
        "default."
      )


def name_gpus(index: int, num_devices: int, num_gpus: int) -> str:
  """Returns the GPUs of a worker; workers share them if they are too few."""
  if num_devices > num_gpus:
    raise ValueError(
      f"`devices_per_label` must be at most the number of GPUs, {num_gpus}, "
      f"got {num_devices}."
    )
  first = index % (num_gpus // num_devices) * num_devices
  return ",".join(str(first + i) for i in range(num_devices))


def _count_cores() -> int:
  """Returns the cores that this process may use."""
  if hasattr(os, "sched_getaffinity"):  # Not on macOS.
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
