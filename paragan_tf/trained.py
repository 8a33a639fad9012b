"""Loads a trained G from the folder of a run or of an export.

    g = trained.load("runs/fashion")
    g.sample(8).images
    g.export("exports/fashion")

No data is read: the config and `generator.json` of a run say what G is, and a
checkpoint has its values.
"""

import os
import re
from typing import Any, Dict, List, Optional, Sequence, Union

import gin
import numpy as np
import tensorflow as tf

from paragan_tf import config
from paragan_tf.engine.player import Player
from paragan_tf.experiment import MakeNet, player
from paragan_tf.generator import Generator
from paragan_tf.label_generator import LabelGenerator
from paragan_tf.outputs import export, labels, stored
from paragan_tf.outputs.best import Best
from paragan_tf.outputs.checkpoints import Checkpoints, Writers
from paragan_tf.outputs.g_info import GInfo
from paragan_tf.outputs.run_folder import RunFolder
from paragan_tf.types import ImageSpec, Net

_NAME = "g_ema"  # Of the moving average of G.
_NUM_LISTED = 3
Shapes = Dict[str, List[int]]
BEST = "best"
# A step, `BEST`, or `None` for the newest checkpoint.
Step = Union[int, str, None]


def load(
  model_dir: str,
  step: Step = None,
  make_g: Optional[MakeNet] = None,
) -> Generator:
  """Returns the moving average of G of a run, or the G of an export.

  Without `make_g`, gin's config is replaced by that of the run.

  Args:
    model_dir: The folder of a run, or of an export.
    step: Which checkpoint, or `best`; the newest by default.
    make_g: Makes G, if no config says what it is.
  """
  folder = RunFolder(model_dir, Writers())
  text = folder.read_config()
  if text is None:
    return _load_export(model_dir, step)
  if labels.is_pool(model_dir):
    return _load_labels(model_dir, text, step)
  path = _find_checkpoint(folder.checkpoints, model_dir, step)
  info = folder.read_g_info()
  if make_g is None:
    if info is not None and info.own_net:
      raise _own_net_error(model_dir)
    config.load_saved(text, os.path.join(model_dir, "config.gin"))
    if "net" not in _player_bindings():
      raise _own_net_error(model_dir)
  try:
    if info is None:
      info = _find_info(path)
    return _build(info, path, make_g)
  except config.WRONG as e:
    raise ValueError(config.sentence(e)) from e


def has_g(model_dir: str) -> bool:
  """Returns whether a folder has a checkpoint and says what its G is like."""
  folder = RunFolder(model_dir, Writers())
  latest = folder.checkpoints.latest()
  return latest is not None and folder.read_g_info() is not None


def _load_labels(model_dir: str, text: str, step: Step) -> LabelGenerator:
  """Returns the G of every label as one; reads no weights yet."""
  if step is not None:
    raise ValueError(
      f"`step` must be left out, got {step}: '{model_dir}' has a run for each "
      "label; name the folder of one, as 'labels/00003', to choose its step."
    )
  states = labels.read_manifest(model_dir)
  folders = [
    RunFolder(labels.folder(model_dir, x.label), Writers()) for x in states
  ]
  known = filter(None, (folder.read_g_info() for folder in folders))
  info = next(known, None)
  if info is None:
    raise ValueError(
      f"No label in '{model_dir}' has begun yet: wait until one has trained "
      "for `Run.save_every` steps."
    )
  config.load_saved(text, os.path.join(model_dir, "config.gin"))
  g = _make_player(info.spec, None).net

  def read_values(label: int) -> List[np.ndarray]:
    folder = folders[label]
    path = _find_checkpoint(folder.checkpoints, folder.path, None)
    return [np.array(x) for x in _read_values(g, info, path).values()]

  return LabelGenerator(
    g,
    info._replace(
      num_classes=len(states),
      label_names=tuple(x.name for x in states),
      step=min(x.steps for x in states),
    ),
    read_values,
    [x.images for x in states],
    lambda: _make_player(info.spec, None).net,
    _query("Experiment.num_standing", 0),
  )


def _load_export(folder: str, step: Step) -> Generator:
  path = export.find(folder)
  if path is None:
    raise ValueError(
      "`model_dir` must be the folder of a run or of an export, got "
      f"'{folder}': {_describe(folder)}; `python -m tools.train "
      "--gin_file=FILE --model_dir=FOLDER` makes a run."
    )
  if step is not None:
    raise ValueError(
      f"`step` must be left out, got {step}: '{folder}' is an export, which "
      "has one G."
    )
  return Generator(*export.load(path))


def _describe(folder: str) -> str:
  if not tf.io.gfile.isdir(folder):
    return "there is no such folder"
  return "it has neither 'config.gin' nor 'saved_model.pb'"


def _find_checkpoint(found: Checkpoints, model_dir: str, step: Step) -> str:
  if step == BEST:
    path = Best(model_dir).path()
    if path is None:
      raise ValueError(
        f"`step` must be a number, got 'best': nothing is measured yet in "
        f"'{model_dir}'; `python -m tools.evaluate --model_dir={model_dir}` "
        "keeps the best checkpoint."
      )
    return path
  newest = found.latest()
  if newest is None:
    raise ValueError(
      f"The run in '{model_dir}' has no checkpoint yet: wait until it has "
      "trained for `Run.save_every` steps, or stop it with Ctrl-C, which saves."
    )
  if step is None:
    return newest
  paths = found.paths()
  if found.path(int(step)) not in paths:
    steps = ", ".join(re.findall(r"\d+$", path)[0] for path in paths)
    raise ValueError(
      f"`step` must be that of a checkpoint in '{model_dir}', {steps}; got "
      f"{step}: take one of these, or leave it out for the newest."
    )
  found.check(found.path(int(step)))
  return found.path(int(step))


def _own_net_error(model_dir: str) -> ValueError:
  return ValueError(
    f"The G of '{model_dir}' is a net of your own program, which no config "
    "can make: write `Estimator.export_saved_model(EXPORT)` there and give "
    "`--model_dir=EXPORT`, or call `Estimator.sample` there."
  )


def _player_bindings() -> Dict[str, Any]:
  with gin.config_scope("g"):
    return gin.get_bindings(player, resolve_references=False)


def _make_player(spec: ImageSpec, make_g: Optional[MakeNet]) -> Player:
  given = {} if make_g is None else {"net": make_g}
  with gin.config_scope("g"):
    return player(spec, 0, _NAME, **given)


def _build(info: GInfo, path: str, make_g: Optional[MakeNet]) -> Generator:
  """Makes G and reads its values."""
  made = _make_player(info.spec, make_g)
  values = _read_values(made.net, info, path)
  for variable, value in zip(made.net.variables, values.values()):
    variable.assign(value)
  info = info._replace(step=int(re.findall(r"\d+$", path)[0]))
  num_standing = 0 if make_g else _query("Experiment.num_standing", 0)
  return Generator(made.net, info, num_standing)


def _read_values(g: Net, info: GInfo, path: str) -> Dict[str, tf.Tensor]:
  """Returns the values of G's variables in a checkpoint, in their order."""
  variables = {v.name.split(":")[0]: v for v in g.variables}
  shapes = {name: v.shape.as_list() for name, v in variables.items()}
  differences = _compare(shapes, _read_shapes(path))
  if differences:
    raise ValueError(
      f"Checkpoint '{path}' belongs to another G than its folder says: "
      f"{'; '.join(differences)}. Put back the 'config.gin' that it was "
      "trained with, or give another `model_dir`."
    )
  specs = {n: tf.TensorSpec(v.shape, v.dtype) for n, v in variables.items()}
  values = stored.read_values(path, specs, info.mean_of_replicas)
  return {name: values[name] for name in variables}


def _read_shapes(path: str) -> Shapes:
  found = stored.read_shapes(path)
  return {k: v for k, v in found.items() if k.startswith(f"{_NAME}/")}


def _compare(expected: Shapes, stored: Shapes) -> List[str]:
  """Returns what differs, in a few words each."""
  found = []
  missing = sorted(expected.keys() - stored.keys())
  if missing:
    found.append(f"it lacks {_list_first(missing)}")
  more = sorted(stored.keys() - expected.keys())
  if more:
    found.append(f"it also has {_list_first(more)}")
  other = [
    f"`{name}` has the shape {stored[name]} there, and {shape} by the config"
    for name, shape in sorted(expected.items())
    if name in stored and stored[name] != shape
  ]
  found += other[:_NUM_LISTED]
  if len(other) > _NUM_LISTED:
    found.append(f"{len(other) - _NUM_LISTED} more shapes differ")
  return found


def _list_first(names: Sequence[str]) -> str:
  listed = ", ".join(f"`{name}`" for name in names[:_NUM_LISTED])
  more = len(names) - _NUM_LISTED
  return listed + (f" and {more} more" if more > 0 else "")


def _query(name: str, default: Any) -> Any:
  try:
    return gin.query_parameter(name)
  except ValueError:  # Not bound.
    return default


def _find_info(path: str) -> GInfo:
  """Returns what the G of an older run is like, by the shapes it stored."""
  stored = _read_shapes(path)
  resolution = _query("InputFn.resolution", None)
  if resolution is None:
    raise ValueError(
      f"The run of '{path}' does not say what its images are like: train it "
      "for a step more with its own command, which writes 'generator.json'."
    )
  tried = []
  for channels in (3, 1):
    for num_classes in (0, _find_num_classes(resolution, channels, stored)):
      spec = ImageSpec(resolution, channels, num_classes)
      tried.append((len(_differ(_trace_shapes(spec), stored)), spec))
  spec = min(tried, key=lambda row: row[0])[1]
  made = _make_player(spec, None)
  return GInfo(
    *spec,
    z_dim=made.net.z_dim,  # type: ignore[attr-defined]
    mixes_classes=spec.num_classes > 1,
    mean_of_replicas=made.exchange.mean_is_model,
    truncation=_query("Experiment.truncation", None),
  )


def _differ(a: Shapes, b: Shapes) -> List[str]:
  return [name for name in a.keys() | b.keys() if a.get(name) != b.get(name)]


def _find_num_classes(resolution: int, channels: int, stored: Shapes) -> int:
  """Returns how many classes make stored shapes, 0 if no shape depends on it.

  Two nets with few classes show which sizes grow, and how fast.
  """
  two, three = (
    _trace_shapes(ImageSpec(resolution, channels, num)) for num in (2, 3)
  )
  for name, shape in two.items():
    found = stored.get(name)
    for i, (a, b) in enumerate(zip(shape, three[name])):
      if found is not None and b > a and (found[i] - a) % (b - a) == 0:
        return 2 + (found[i] - a) // (b - a)
  return 0


def _trace_shapes(spec: ImageSpec) -> Shapes:
  """Returns the shapes of G's variables, and makes none of their values."""
  with tf.Graph().as_default():
    variables = _make_player(spec, None).net.variables
    return {v.name.split(":")[0]: v.shape.as_list() for v in variables}
