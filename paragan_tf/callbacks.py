"""Callbacks of a run: functions, or objects with some of three methods.

    callback(step, logs)            # a function: at every stop for the log
    callback.on_log(step, logs)     # the same of an object
    callback.on_save(step, path)    # after a checkpoint was saved
    callback.on_end(step)           # when training ends, after the last save

`logs` maps names, such as `d/loss`, to floats. Of several processes each calls
its own. What a callback raises ends the training.
"""

from typing import Any, Sequence

_METHODS = ("on_log", "on_save", "on_end")


class Callbacks:
  """Calls the callbacks of a run, in their order."""

  def __init__(self, callbacks: Sequence[Any] = ()):
    for callback in callbacks:
      if not (callable(callback) or _methods_of(callback)):
        raise ValueError(
          "`callbacks` must be functions of (step, logs), or objects with "
          f"{', '.join(f'`{name}`' for name in _METHODS)} or some of them, got "
          f"{callback!r}."
        )
    self._callbacks = tuple(callbacks)

  def call(self, method: str, *args: Any) -> None:
    """Calls a method where there is one; functions are called for `on_log`."""
    for callback in self._callbacks:
      if method in _methods_of(callback):
        getattr(callback, method)(*args)
      elif method == "on_log" and not _methods_of(callback):
        callback(*args)


def _methods_of(callback: Any) -> Sequence[str]:
  found = (getattr(callback, name, None) for name in _METHODS)
  return [name for name, x in zip(_METHODS, found) if callable(x)]
