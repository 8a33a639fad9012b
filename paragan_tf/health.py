"""What a run does when its numbers go wrong: warns, stops, or rolls back.

`watchdog.py` decides, `probe.py` looks; here the run's folder and the other
processes come in.
"""

import json
import os
from typing import Dict, List, Optional

import tensorflow as tf

from paragan_tf import watchdog as watchdogs
from paragan_tf.engine import finite, loop
from paragan_tf.experiment import Experiment
from paragan_tf.outputs.checkpoints import Checkpoints, step_of
from paragan_tf.outputs.records import write_file
from paragan_tf.outputs.run_folder import RunFolder
from paragan_tf.probe import Probe
from paragan_tf.watchdog import Signals, SkipCounter, Watchdog

_FOLDER, _FILE = "good", "rate_scale.json"


class RollBackError(Exception):
  """Training is to go on from an earlier checkpoint, `path`."""

  def __init__(self, path: str):
    super().__init__(path)
    self.path = path


class Health:
  """Follows a run, and acts on what its watchdog says.

  All processes call its methods at the same steps.

  Args:
    watchdog: Decides.
    experiment: What trains.
    folder: Of the run.
    probes: Whether samples can be looked at, which TPUEstimator's cannot.
  """

  def __init__(
    self,
    watchdog: Watchdog,
    experiment: Experiment,
    folder: RunFolder,
    probes: bool = True,
  ):
    self._watchdog, self._experiment = watchdog, experiment
    self._folder = folder
    self._probe = Probe(experiment) if probes else None
    self._skips = SkipCounter(watchdog.max_skipped)
    self._history: List[Signals] = []
    self._is_suspicious = self._is_warned = False
    self._num_rollbacks = 0
    self._last_step: Optional[int] = None
    self._last_look = 0
    self._good: Optional[str] = None
    self._file = os.path.join(folder.path, _FOLDER, _FILE)

  def begin(self, step: int, saved: Optional[str]) -> None:
    """Starts to follow at a step, whose checkpoint is `saved`.

    Called again for the next steps, or after a roll back, which goes back.
    """
    if self._last_step is not None and step >= self._last_step:
      return
    self._last_step = self._last_look = step
    self._good = saved
    if self._probe is not None:
      self._history = [
        watchdogs.at_start(step, self._probe.top_singular_value())
      ]
    if tf.io.gfile.exists(self._file):
      self._experiment.step.rate_scale = self._read_scale()

  def follow(
    self, step: int, logs: loop.Logs, saved: Optional[str]
  ) -> Dict[str, float]:
    """Returns the logs to record; raises if training should not go on."""
    assert self._last_step is not None
    shares = {who: _count_skipped(logs, who) for who in "dg"}
    is_full = self._skips.add(shares, step - self._last_step)
    self._last_step = step
    if is_full:  # In all processes, as logs are means over them.
      self._fail(step)
    if step - self._last_look >= self._watchdog.every:
      self._last_look = step
      self._look(step, saved)
    return finite.correct(logs)

  def finish(self) -> None:
    """Raises if the last steps were skipped, so that they are not saved."""
    if self._skips.in_a_row > 0:
      self._fail(self._last_step or 0)

  def _fail(self, step: int) -> None:
    raise FloatingPointError(
      f"Losses or gradients are not finite, and {self._skips.in_a_row} steps "
      f"in a row were skipped by step {step}: training diverged; lower a "
      f"learning rate. The last checkpoint is kept: {self._good}."
    )

  @property
  def may_save(self) -> bool:
    """Whether a checkpoint of now would be worth the place of an older one."""
    return not self._skips.in_a_row and not self._is_suspicious

  def _look(self, step: int, saved: Optional[str]) -> None:
    if self._probe is None:
      return
    now = self._probe(step)
    self._history.append(now)
    # They must agree, as they save together.
    is_odd = self._experiment.processes.any(
      bool(self._watchdog.find_evidence(self._history))
    )
    self._is_suspicious = is_odd and not self._is_warned
    if not is_odd and not self._skips.in_a_row:
      self._good = saved or self._good
    reason = self._watchdog.judge(self._history)
    if self._experiment.processes.any(reason is not None):
      self._act(step, reason or "another process sees it")

  def _act(self, step: int, reason: str) -> None:
    """Keeps the last good checkpoint, and does what the config says."""
    if self._is_warned and self._watchdog.on_collapse == "warn":
      return
    self._is_warned, self._is_suspicious = True, False
    # By the chief: what is committed already is known there.
    kept = self._experiment.processes.on_chief(self._keep_good)
    words = (
      f"The run has collapsed or diverged by step {step}: {reason}. The last "
      f"good checkpoint is kept: {kept}."
    )
    action = self._watchdog.on_collapse
    if action == "warn":
      if self._folder.is_writer:
        print(
          f"Warning: {words} `Watchdog.on_collapse` can also stop the run, or "
          "roll it back.",
          flush=True,
        )
      return
    if action == "stop" or self._num_rollbacks >= self._watchdog.max_rollbacks:
      raise FloatingPointError(f"{words} Lower a learning rate.")
    if kept is None:
      raise FloatingPointError(f"{words} Lower `Run.save_every`, or a rate.")
    self._roll_back(kept, words)

  def _keep_good(self) -> Optional[str]:
    """Copies the last good checkpoint where no later one replaces it."""
    path = self._good
    if path is None or not tf.io.gfile.exists(f"{path}.index"):
      return None
    folder = os.path.join(self._folder.path, _FOLDER)
    if os.path.dirname(path) == folder:
      return path
    return Checkpoints(folder, keep=1).adopt(path, step_of(path))

  def _roll_back(self, path: str, words: str) -> None:
    self._num_rollbacks += 1
    self._experiment.step.rate_scale /= 2
    scale = self._experiment.step.rate_scale
    if self._folder.is_writer:
      write_file(self._file, json.dumps({"rate_scale": scale}).encode())
      print(
        f"{words} Training goes on from there, with learning rates multiplied "
        f"by {scale:g}.",
        flush=True,
      )
    self._history, self._is_warned = [], False
    self._skips = SkipCounter(self._watchdog.max_skipped)
    raise RollBackError(path)

  def _read_scale(self) -> float:
    try:
      with tf.io.gfile.GFile(self._file) as f:
        scale = float(json.loads(f.read())["rate_scale"])
      if 0.0 < scale <= 1.0:
        return scale
    except (ValueError, KeyError, TypeError, tf.errors.OpError):
      pass
    raise ValueError(
      f"'{self._file}' must say `rate_scale`, from 0 to 1, and does not: "
      "remove it to train with the rates of the config."
    )


def _count_skipped(logs: loop.Logs, who: str) -> float:
  """Returns the share of steps that a player skipped for bad numbers.

  A loss scale finds its value by skipping steps, as long as it can be halved.
  """
  if logs.get(f"{who}/loss_scale", 1.0) > 1.0:
    return 0.0
  return logs.get(f"{who}/{finite.SKIPPED}", 0.0)
