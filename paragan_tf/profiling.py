"""Profiles a worker of a run: in processes of its own, and once.

    found = profiling.profile(Source(("gin/runs/fashion.gin",)))

Each batch is measured in a new process, so that its peak memory is its own. A
profile is kept in a folder, by config, device and threads.
"""

import hashlib
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
from typing import (
  Any,
  Callable,
  Dict,
  List,
  Mapping,
  NamedTuple,
  Optional,
  Sequence,
  Tuple,
)

import gin
import tensorflow as tf

from paragan_tf import config, hardware, worker_profile
from paragan_tf.engine import strategies
from paragan_tf.engine.scaling.profile import MEMORY_SOURCES, Fit, Profile, fit
from paragan_tf.experiment import Experiment

# What a plan sets, or does not change the work of a worker.
_PLANNED = (
  "experiment.Experiment.batch_size",
  "experiment.player.rate_factor",
  "experiment.player.warm_up_steps",
  "holding.Hold.",
)
_EXCHANGED_BY = 2  # Replicas whose exchange is timed.
_QUANTIZED = "gin/sync/quantized.gin"
_CHILD = "from paragan_tf import profiling; profiling.serve()"
_MARK = "profile: "  # Begins the line with a child's result.

# Called with the measurements done and their total.
ProgressFn = Callable[[int, int], None]


class Source(NamedTuple):
  """What is profiled.

  Attributes:
    gin_files: Config files, read in order.
    gin_bindings: Single bindings, read after them.
    num_threads: Of the worker; 0 for all of the machine.
    batches: Of one worker; by default a quarter, the whole and twice what the
      config says.
  """

  gin_files: Tuple[str, ...]
  gin_bindings: Tuple[str, ...] = ()
  num_threads: int = 0
  batches: Tuple[int, ...] = ()


def profile(
  source: Source,
  cache_dir: Optional[str] = None,
  refresh: bool = False,
  progress: Optional[ProgressFn] = None,
) -> Profile:
  """Returns the profile of a config; measures it unless it is kept.

  Args:
    source: What to profile.
    cache_dir: Where profiles are kept; `default_cache` if `None`.
    refresh: Measures anew.
    progress: Called after each measurement.
  """
  config.load(source.gin_files, source.gin_bindings)
  source = source._replace(batches=_check_batches(source.batches))
  path = cache_path(cache_dir, config_hash(), source.num_threads)
  if path.is_file() and not refresh:
    return read(str(path), config_hash())
  found = _measure(source, config_hash(), progress or (lambda done, all: None))
  write(found, path)
  return found


def write(found: Profile, path: pathlib.Path) -> None:
  """Keeps a profile; a reader never sees a part of it."""
  path.parent.mkdir(parents=True, exist_ok=True)
  part = path.with_suffix(f".{os.getpid()}")
  part.write_text(found.to_json())
  part.replace(path)


def read(path: str, expected_hash: Optional[str] = None) -> Profile:
  """Reads a profile; refuses that of another config than expected."""
  try:
    found = Profile.from_json(pathlib.Path(path).read_text())
  except (OSError, ValueError, TypeError, KeyError) as e:
    raise ValueError(f"The profile '{path}' cannot be read: {e}") from e
  if expected_hash is not None and found.config_hash != expected_hash:
    raise ValueError(
      f"The profile '{path}' is of another config ({found.config_hash}, this "
      f"one is {expected_hash}): measure this one."
    )
  return found


def config_hash(nets: str = "") -> str:
  """Returns the hash of the config that was read, without what a plan sets.

  Args:
    nets: Text of what the config does not say.
  """
  found = config.fingerprint(_PLANNED)
  if not nets:
    return found
  return hashlib.sha256(f"{found}\n{nets}".encode()).hexdigest()[:16]


def default_cache() -> str:
  """Returns the folder of the user's profiles."""
  cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  return str(pathlib.Path(cache, "paragan_tf", "profiles"))


def cache_path(
  cache_dir: Optional[str], hashed: str, num_threads: int
) -> pathlib.Path:
  """Returns where the profile of a config on this device is kept."""
  device = re.sub(r"\W+", "_", device_name()).strip("_")
  name = f"{hashed}_{device}_{num_threads or 'all'}.json"
  return pathlib.Path(cache_dir or default_cache(), name)


def device_name() -> str:
  """Returns the name of what a worker here trains on."""
  for gpu in tf.config.list_physical_devices("GPU"):
    details = tf.config.experimental.get_device_details(gpu)
    return str(details.get("device_name", "gpu"))
  info = pathlib.Path("/proc/cpuinfo")
  found = info.is_file() and re.search(
    r"^model name\s*: (.*)$", info.read_text(), re.M
  )
  return found[1] if found else platform.processor() or "cpu"


def num_cores() -> int:
  """Returns the cores that this program may use."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def memory_limit() -> int:
  """Returns the bytes of the machine that this program may use."""
  limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  group = pathlib.Path("/sys/fs/cgroup/memory.max")
  if group.is_file() and group.read_text().strip().isdecimal():
    limit = min(limit, int(group.read_text()))
  return limit


def _check_batches(batches: Sequence[int]) -> Tuple[int, ...]:
  """Returns the batches of a worker in order, those of the config if none."""
  if not batches:
    whole = _read_batch_size()
    batches = (max(1, whole // 4), whole, 2 * whole)
  if min(batches) < 1 or len(set(batches)) < 2:
    raise ValueError(
      "`batches` must be two or more different numbers above 0, got "
      f"{list(batches)}: a line needs two points."
    )
  return tuple(sorted(set(batches)))


def _read_batch_size() -> int:
  try:
    return int(gin.query_parameter("experiment.Experiment.batch_size"))
  except ValueError:
    return 64


def _measure(source: Source, hashed: str, progress: ProgressFn) -> Profile:
  """Measures all batches, then what does not depend on them."""
  batches = source.batches
  small, usual = batches[0], batches[len(batches) // 2]
  jobs: List[Dict[str, Any]] = [
    {"batch": b, "players": b in (small, usual), "extras": b == usual}
    for b in batches
  ]
  jobs += [{"batch": b, "files": [_QUANTIZED]} for b in (small, usual)]
  total = len(jobs) + 1
  rows: List[Dict[str, Any]] = []
  for i, job in enumerate(jobs):
    if "files" not in job and _exceeds(rows, job["batch"]):
      rows.append({})
    else:
      rows.append(_run(source, job))
    progress(i + 1, total)
  extras = rows[batches.index(usual)]["extras"]
  exchanged = _run(source, {"shapes": extras["shapes"]})
  progress(total, total)
  return assemble(source, hashed, rows, exchanged)


def profile_here(
  make: Callable[[int], Experiment],
  hashed: str,
  batches: Sequence[int],
  progress: Optional[ProgressFn] = None,
) -> Profile:
  """Returns the profile of a worker in this process.

  For nets of a program, which no other process can build. Peak memory is that
  of the process, so batches are measured from small to large.

  Args:
    make: Makes a worker with a batch.
    hashed: Of the config, nets included.
    batches: Of the worker.
    progress: Called after each measurement.
  """
  source = Source((), batches=_check_batches(batches))
  rows: List[Dict[str, Any]] = []
  for i, batch in enumerate(source.batches):
    if not _exceeds(rows, batch):
      is_last = i == len(source.batches) - 1 or not i
      rows.append(measure_batch(make(batch), players=is_last, extras=not i))
    if progress is not None:
      progress(i + 1, len(source.batches))
  return assemble(source, hashed, rows, {})


def _exceeds(rows: Sequence[Mapping], batch: int) -> bool:
  """Returns whether a batch is expected to need more than all memory."""
  found = [x for x in rows if x]
  if len(found) < 2 or not found[0]["limit"]:
    return False
  line = fit([x["batch"] for x in found], [x["memory"] for x in found])
  return line.at(batch) > found[0]["limit"]


def assemble(
  source: Source,
  hashed: str,
  rows: Sequence[Mapping[str, Any]],
  exchanged: Mapping[str, Any],
) -> Profile:
  """Returns the profile that measurements make."""
  num = len(source.batches)  # Those that did not fit have empty rows.
  plain, quantized = [x for x in rows[:num] if x], rows[num:]
  extras = next(x["extras"] for x in plain if x.get("extras"))
  with_players = [x for x in plain if x.get("players")]
  codec = extras["codec"]
  scheme_seconds: Dict[str, Fit] = {}
  if quantized:
    line = _fit(quantized, "seconds")
    more = codec["encode"] + codec["decode"]
    scheme_seconds["quantized"] = line
    # The same work, without messages that are encoded.
    scheme_seconds["gossip"] = line._replace(fixed=max(0.0, line.fixed - more))
  on_gpu = plain[0]["on_gpu"]
  return Profile(
    device=device_name(),
    num_threads=source.num_threads,
    num_cores=num_cores(),
    config_hash=hashed,
    batches=tuple(x["batch"] for x in plain),
    num_batches=extras["num_batches"],
    step_seconds=_fit(plain, "seconds"),
    scheme_seconds=scheme_seconds,
    player_seconds={
      who: fit(
        [x["batch"] for x in with_players],
        [x["players"][who] for x in with_players],
      )
      for who in "gd"
    },
    memory_bytes=_fit(plain, "memory"),
    memory_limit=plain[0]["limit"],
    memory_source=MEMORY_SOURCES[on_gpu],
    input_images_per_second=extras["input"],
    gradient_bytes=extras["gradient_bytes"],
    state_bytes=extras["state_bytes"],
    message_bytes=codec["bytes"],
    codec_seconds={"encode": codec["encode"], "decode": codec["decode"]},
    noise_scale=extras["noise_scale"],
    exchange_engine="replicas in one process" if exchanged else "",
    exchange_workers=exchanged.get("workers", 0),
    exchange_seconds=exchanged.get("seconds", {}),
  )


def _fit(rows: Sequence[Mapping[str, Any]], name: str) -> Fit:
  return fit([x["batch"] for x in rows], [x[name] for x in rows])


def _run(source: Source, job: Mapping[str, Any]) -> Dict[str, Any]:
  """Runs a job in a new process; returns what it measures."""
  job = {**source._asdict(), **job}
  environment = dict(os.environ)
  if source.num_threads:
    for pool in ("OMP_NUM", "TF_NUM_INTRAOP", "TF_NUM_INTEROP"):
      environment[f"{pool}_THREADS"] = str(source.num_threads)
  environment.pop("TF_CONFIG", None)
  done = subprocess.run(
    [sys.executable, "-c", _CHILD],
    input=json.dumps(job),
    capture_output=True,
    text=True,
    check=False,
    env=environment,
  )
  lines = [x for x in done.stdout.splitlines() if x.startswith(_MARK)]
  if done.returncode or not lines:
    reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    raise ValueError(f"The worker cannot be profiled: {reason}")
  return json.loads(lines[-1][len(_MARK) :])


def serve() -> None:
  """Does the job that stdin describes, and prints what it measures."""
  job = json.load(sys.stdin)
  if "shapes" in job:
    options = strategies.DeviceOptions(num_cpu_replicas=_EXCHANGED_BY)
    if len(tf.config.list_physical_devices("GPU")) > 1:
      options = strategies.DeviceOptions()
    strategy = strategies.choose(options).strategy
    found = {
      "workers": strategy.num_replicas_in_sync,
      "seconds": worker_profile.time_exchanges(strategy, job["shapes"]),
    }
  else:
    config.load([*job["gin_files"], *job.get("files", ())], job["gin_bindings"])
    strategy = strategies.choose(_one_device()).strategy
    found = measure_batch(
      Experiment(strategy, batch_size=job["batch"]),
      job.get("players", False),
      job.get("extras", False),
    )
  print(_MARK + json.dumps(found))


def _one_device() -> strategies.DeviceOptions:
  gpus = tf.config.list_physical_devices("GPU")
  tf.config.set_visible_devices(gpus[:1], "GPU")
  return strategies.DeviceOptions()


def measure_batch(
  experiment: Experiment, players: bool, extras: bool
) -> Dict[str, Any]:
  """Returns what is measured of a worker with the batch of an experiment.

  Args:
    experiment: Of one replica.
    players: Whether to time each player alone.
    extras: Whether to measure what does not depend on the batch.
  """
  worker = worker_profile.Worker(experiment)
  on_gpu = bool(tf.config.list_logical_devices("GPU"))
  found: Dict[str, Any] = {
    "batch": experiment.batch_size,
    "seconds": worker.time_step(),
    "memory": worker_profile.peak_bytes(),
    "on_gpu": on_gpu,
    "limit": hardware.profile("auto").memory if on_gpu else memory_limit(),
  }
  if players:
    found["players"] = worker.time_players()
  if extras:
    found["extras"] = {
      "num_batches": experiment.step.schedule.num_batches,
      "input": worker.count_images(),
      "gradient_bytes": worker.gradient_bytes(),
      "state_bytes": worker.state_bytes(),
      "codec": worker.time_codec(),
      "shapes": worker.shapes(),
      "noise_scale": worker.find_noise_scale(),
    }
  return found
