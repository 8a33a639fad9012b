"""A worker of a pool: trains the labels that it is told, one after the other.

    python -m paragan_tf.label_worker MODEL_DIR NUM_DEVICES

Lines of JSON come in, and others go out:

    {"train": 3}      {"event": "log", "label": 3, "step": 20, "loss": 0.1, ...}
                      {"event": "done", "label": 3, "step": 600, ...}
    {"stop": true}    {"event": "stopped", "label": 3, ...}

When its input ends, the pool has ended: it saves and ends too. What the runs
print goes to `log.txt` in the folder of each label. After a failure the process
ends, so that nothing of it is left.
"""

import json
import os
import queue
import sys
import threading
from typing import Any, Callable, Dict, Optional, TextIO

from paragan_tf import config, label_trainer
from paragan_tf.data import sources
from paragan_tf.outputs import labels
from paragan_tf.outputs.checkpoints import Writers
from paragan_tf.outputs.run_folder import RunFolder
from paragan_tf.run import Run
from paragan_tf.start import ERRORS

# What ends a label, and is told in one sentence.
_KNOWN = (ValueError, *ERRORS)


class Commands:
  """The pool's commands, read while a label is trained."""

  def __init__(self, stream: TextIO):
    self._stream = stream
    self._labels: queue.Queue[Optional[int]] = queue.Queue()
    self._is_stopping = threading.Event()
    threading.Thread(target=self._read, daemon=True).start()

  def should_stop(self) -> bool:
    """Returns whether the pool wants to stop, or has ended."""
    return self._is_stopping.is_set()

  def next_label(self) -> Optional[int]:
    """Waits for the next label; `None` at the end."""
    return self._labels.get()

  def _read(self) -> None:
    for line in self._stream:
      found = json.loads(line)
      if "train" not in found:
        break
      self._labels.put(found["train"])
    self._is_stopping.set()
    self._labels.put(None)


class Reporter:
  """Tells the pool how far a label is; a callback of its run."""

  def __init__(self, stream: TextIO):
    self._stream = stream
    self._run: Optional[Run] = None
    self._label = -1

  def begin(self, label: int) -> None:
    """Reports another label from now on."""
    self._label, self._run = label, None

  def follow(self, run: Run) -> None:
    """Reports a run that is restored."""
    self._run = run
    self.send("log")

  def on_log(self, step: int, logs: Dict[str, float]) -> None:
    """Sends the losses."""
    del step
    self.send("log", d_loss=logs["d/loss"], g_loss=logs["g/loss"])

  def send(self, event: str, **more: Any) -> None:
    """Sends an event with the state of the label."""
    state: Dict[str, Any] = {"event": event, "label": self._label}
    if self._run is not None:
      state["step"], state["num_steps"] = self._run.done, self._run.num_steps
      state["seconds_left"] = self._run.seconds.left
    line = json.dumps({**state, **more})
    print(line, file=self._stream, flush=True)


def train_label(
  trainer: label_trainer.LabelTrainer,
  label: int,
  reporter: Reporter,
  should_stop: Callable[[], bool],
) -> None:
  """Trains a label to its end, or until it is to stop."""
  run = trainer.prepare(label)
  reporter.follow(run)
  if not run.is_complete:
    run(should_stop)
  run.folder.close()
  reporter.send("done" if run.is_complete else "stopped")


def _load_config(model_dir: str) -> None:
  text = RunFolder(model_dir, Writers()).read_config()
  config.load_saved(text or "", os.path.join(model_dir, "config.gin"))


def _redirect_prints(path: str) -> None:
  os.makedirs(os.path.dirname(path), exist_ok=True)
  file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  for number in (1, 2):
    os.dup2(file, number)
  os.close(file)


def main() -> int:
  """Trains labels until there are no more; returns the exit code."""
  model_dir, num_devices = sys.argv[1], int(sys.argv[2])
  reporter = Reporter(os.fdopen(os.dup(1), "w"))
  commands = Commands(sys.stdin)
  try:
    _load_config(model_dir)
    trainer = label_trainer.LabelTrainer(model_dir, [reporter], num_devices)
    with sources.keep():
      while (label := commands.next_label()) is not None:
        if commands.should_stop():
          break
        reporter.begin(label)
        folder = labels.folder(model_dir, label)
        _redirect_prints(os.path.join(folder, "log.txt"))
        train_label(trainer, label, reporter, commands.should_stop)
  except label_trainer.RefusedError as e:
    reporter.send("refused", reason=str(e))
    return 2
  except _KNOWN as e:
    reporter.send("failed", reason=" ".join(str(e).split()))
    return 1
  except Exception as e:
    reporter.send("failed", reason=f"{type(e).__name__}: {e}"[:500])
    raise
  return 0


if __name__ == "__main__":
  code = main()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)  # Threads of TensorFlow need not be waited for.
