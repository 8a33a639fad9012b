"""The same step under TPUEstimator; the only file that imports `tf.estimator`.

Pseudo-code:

    model_fn(TRAIN)    step = make_step(global_step); log_sums += step(batch)
    model_fn(EVAL)     losses and scores of the average of G against D
    model_fn(PREDICT)  images of the average of G

The keys of a checkpoint are the variables' names here too, so a run can resume
with another engine.

TensorFlow 2.15 is the last one that has TPUEstimator. Without it this file
imports, and what needs it is refused.
"""

import signal
from typing import Any, Callable, Dict, Mapping, Optional, Type

import gin
import tensorflow as tf

from paragan_tf import collectives
from paragan_tf.engine.loop import LATE_SECONDS
from paragan_tf.engine.step import Step
from paragan_tf.types import Mode, Scores

# A local variable: the sums of the logs, in order of their names, of seconds of
# waiting for input, and of late batches, since it was last initialized.
LOG_SUMS = "log_sums"
# Another one: the next step at which norms are to be logged, counted from 1.
LOG_STEP = "log_step"
_NEVER = 1 << 40

# Maps the global step to a step with new variables.
MakeStep = Callable[[tf.Variable], Step]


def check_exists() -> None:
  """Raises a `ValueError` if this TensorFlow has no TPUEstimator."""
  if not hasattr(tf, "estimator"):
    raise ValueError(
      "TPUEstimator needs `tf.estimator`, which TensorFlow has up to 2.15, got "
      f"TensorFlow {tf.__version__}: use Python 3.9 to 3.11 with TensorFlow "
      "2.15.1, which `make PYTHON=python3.11` installs, or "
      "`--engine=strategy`, which runs the same step on the same TPU and reads "
      "the same checkpoints."
    )


def nan_loss_error() -> Type[Exception]:
  """Returns what an estimator raises when the loss of a step is NaN."""
  return tf.estimator.NanLossDuringTrainingError


def _tpu_api():
  check_exists()
  return tf.compat.v1.estimator.tpu


@gin.configurable(allowlist=["iterations_per_loop", "keep_checkpoints"])
def make_estimator(
  make_step: MakeStep,
  model_dir: str,
  batch_size: int,
  tpu: Optional[tf.distribute.cluster_resolver.ClusterResolver] = None,
  cores_per_replica: Optional[int] = None,
  saves: bool = True,
  iterations_per_loop: int = 100,
  keep_checkpoints: int = 3,
) -> "tf.compat.v1.estimator.tpu.TPUEstimator":
  """Makes the estimator of a run.

  Args:
    make_step: Makes the step in the estimator's graph.
    model_dir: Folder of its checkpoints.
    batch_size: Images per step, over all replicas.
    tpu: The TPU to train on; the CPU if `None`.
    cores_per_replica: TPU cores of one replica, one by default.
    saves: Whether it saves a checkpoint at the end of each `train`; not where
      an `EstimatorLoop` drives it, whose actions save.
    iterations_per_loop: Steps that a TPU runs in one call from the host, at
      most.
    keep_checkpoints: Number of checkpoints to keep, if it saves.
  """
  api = _tpu_api()
  config = api.RunConfig(
    cluster=tpu,
    model_dir=model_dir,
    save_checkpoints_steps=_NEVER if saves else None,
    save_checkpoints_secs=None,
    save_summary_steps=None,
    log_step_count_steps=None,
    keep_checkpoint_max=keep_checkpoints,
    tpu_config=api.TPUConfig(
      iterations_per_loop=iterations_per_loop,
      num_cores_per_replica=cores_per_replica,
      per_host_input_for_training=api.InputPipelineConfig.PER_HOST_V2,
    ),
  )
  return api.TPUEstimator(
    make_model_fn(make_step),
    config=config,
    use_tpu=tpu is not None,
    train_batch_size=batch_size,
    eval_batch_size=batch_size,
    predict_batch_size=batch_size,
    export_to_tpu=False,
  )


def make_model_fn(make_step: MakeStep):
  """Returns `model_fn(features, labels, mode, params)` for a TPUEstimator.

  Features are images in TRAIN and EVAL, or in TRAIN a dict with `images` and
  `wait`, from `measure_wait`; in PREDICT a dict with `labels`, `z` or both.
  """
  check_exists()

  def model_fn(features, labels, mode, params):
    on_tpu = "context" in params
    # On a TPU this runs inside a loop on all cores: variables that are created
    # there would need a value of the loop before it starts.
    with tf.init_scope():
      step = make_step(tf.compat.v1.train.get_or_create_global_step())
    if mode == tf.estimator.ModeKeys.TRAIN:
      return _train_spec(step, features, labels, on_tpu)
    if mode == tf.estimator.ModeKeys.EVAL:
      return _eval_spec(step, features, labels)
    return _predict_spec(step, features)

  return model_fn


def make_input_fn(
  input_fn: Callable[[Mapping[str, Any]], tf.data.Dataset],
  start_step: int,
  control: Optional[Any] = None,
):
  """Returns `input_fn(params)` for a TPUEstimator, from `start_step` on.

  Args:
    input_fn: An `InputFn`.
    start_step: The step of its first batch.
    control: What lets its depth follow step timings, if anything does.
  """

  def estimator_input_fn(params):
    shards: Dict[str, Any] = {}
    if "context" in params:  # On a TPU, called for each of its hosts.
      context = params["context"]
      _, call, _, local = context.current_input_fn_deployment()
      shards = dict(
        num_shards=context.num_replicas,
        shards=range(call * local, (call + 1) * local),
        python=False,  # A host of a TPU runs TensorFlow's operations only.
      )
    if control is not None:
      shards["control"] = control
    data = input_fn(
      dict(batch_size=params["batch_size"], start_step=start_step, **shards)
    )
    if len(data.element_spec) == 1:  # Estimators take pairs, or features alone.
      data = data.map(lambda images: images)
    return data

  return estimator_input_fn


def measure_wait(input_fn: Callable[[Mapping[str, Any]], tf.data.Dataset]):
  """Returns an `input_fn` whose features are dicts of `images` and `wait`.

  `wait`, shape `[2]`, is the time in seconds from the request of the batch to
  its arrival, and whether it is late, both divided by the number of hosts.
  """

  def measured_input_fn(params):
    num_hosts = 1
    if "context" in params:
      num_hosts = params["context"].current_input_fn_deployment()[2]

    def add_wait(requested, element):
      pair = element if isinstance(element, tuple) else (element,)
      with tf.control_dependencies(tf.nest.flatten(element)):
        wait = tf.timestamp() - requested
      is_late = tf.cast(wait > LATE_SECONDS, tf.float64)
      wait = tf.cast(tf.stack([wait, is_late]) / num_hosts, tf.float32)
      features = {"images": pair[0], "wait": wait}
      return (features, *pair[1:]) if len(pair) > 1 else features

    # `zip` takes them in order: it reads the clock, then waits for the batch.
    requested = tf.data.Dataset.range(_NEVER).map(lambda _: tf.timestamp())
    data = tf.data.Dataset.zip((requested, input_fn(params))).map(add_wait)
    options = tf.data.Options()
    # Otherwise a prefetch thread would wait for batches, not the device.
    options.experimental_optimization.inject_prefetch = False
    return data.with_options(options)

  return measured_input_fn


def _train_spec(step: Step, features, labels, on_tpu: bool):
  images, wait = features, tf.zeros([2])
  if isinstance(features, Mapping):
    images, wait = features["images"], features["wait"]
  # Kept on the device and read at stops: nothing is sent to the host in steps
  # but the loss, by TPUEstimator itself.
  sums = _make_local_variable(LOG_SUMS, [len(step.log_names) + 2], tf.float32)
  log_step = _make_local_variable(LOG_STEP, [], tf.int64)

  # Inside a `tf.function` the updates keep their order; in a plain graph G
  # might read D before its update.
  @tf.function(autograph=False)
  def train():
    is_logged = tf.equal(step.count + 1, log_step)
    logs = _call_step(step, images, labels, is_logged)
    # Replicas must agree on a variable, so it has their means.
    waits = wait * collectives.num_replicas()
    sums.assign_add(collectives.mean([tf.concat([logs, waits], 0)])[0])
    return logs

  logs = train()
  return _tpu_api().TPUEstimatorSpec(
    mode=tf.estimator.ModeKeys.TRAIN,
    loss=logs[step.log_names.index("d/loss")],
    train_op=tf.group(logs),
    training_hooks=[_SignalHook()] if on_tpu else [],
  )


def _call_step(step: Step, images, labels, is_logged) -> tf.Tensor:
  """Trains for one step, in the phase of its count; returns the logs."""

  def at(phase: int) -> tf.Tensor:
    logs = step(images, labels, phase, is_logged)
    return tf.stack([tf.cast(logs[n], tf.float32) for n in step.log_names])

  if step.cycle == 1:
    return at(0)
  # All replicas are at the same step, so all take the same branch: only then
  # may collectives be inside.
  phase = tf.cast(step.count % step.cycle, tf.int32)
  firsts = [step.first_like(i) for i in range(step.cycle)]
  phases = sorted(set(firsts))
  branches = {i: lambda phase=p: at(phase) for i, p in enumerate(phases)}
  branch = tf.gather([phases.index(first) for first in firsts], phase)
  return tf.switch_case(branch, branches)


def _make_local_variable(name: str, shape, dtype: tf.DType) -> tf.Variable:
  """Makes a variable that is not saved, outside of the loop on the cores."""
  with tf.init_scope():
    return tf.compat.v1.get_variable(
      name,
      shape,
      dtype,
      initializer=tf.compat.v1.zeros_initializer(),
      trainable=False,
      use_resource=True,
      collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )


class _SignalHook(tf.compat.v1.train.SessionRunHook):
  """Keeps the program's handler of Ctrl-C.

  On a TPU, TPUEstimator has a hook that lets Ctrl-C kill the process during
  each call: nothing would be saved. The hooks of a spec come after that one.
  """

  def __init__(self):
    self._handler = signal.getsignal(signal.SIGINT)

  def before_run(self, run_context):
    """Sets the handler that there was after the last call."""
    if self._handler is not None:  # It is not Python's.
      signal.signal(signal.SIGINT, self._handler)

  def after_run(self, run_context, run_values):
    """Notes the handler: the program may have changed it."""
    self._handler = signal.getsignal(signal.SIGINT)


def _eval_spec(step: Step, images, labels):
  g, d = step.ema.twin, step.players["d"].net
  z = tf.random.normal([images.shape[0], g.z_dim], seed=step.game.seed)
  scores = Scores(
    real=d(images, labels, Mode.EVAL),
    fake=d(g(z, labels, Mode.EVAL), labels, Mode.EVAL),
  )
  loss = step.game.loss_at(tf.convert_to_tensor(step.count))(scores)
  rows = tf.ones_like(scores.real)
  values = {
    "d/loss": loss.d * rows,
    "g/loss": loss.g * rows,
    "d/score_real": scores.real,
    "d/score_fake": scores.fake,
  }

  def metric_fn(**values) -> Dict[str, Any]:
    return {n: tf.compat.v1.metrics.mean(v) for n, v in values.items()}

  return _tpu_api().TPUEstimatorSpec(
    mode=tf.estimator.ModeKeys.EVAL,
    loss=loss.d,
    eval_metrics=(metric_fn, values),
  )


def _predict_spec(step: Step, features: Mapping[str, tf.Tensor]):
  g = step.ema.twin
  z, labels = features.get("z"), features.get("labels")
  if z is None:
    z = tf.random.normal([tf.shape(labels)[0], g.z_dim], seed=step.game.seed)
  images = {"images": g(z, labels, Mode.EVAL)}
  return _tpu_api().TPUEstimatorSpec(
    mode=tf.estimator.ModeKeys.PREDICT, predictions=images
  )
