"""Makes sharded TFRecords of a folder of images or a tfds set.

    python -m tools.make_tfrecords --source=folder:photos --output=data/photos
    python -m tools.make_tfrecords --source=tfds:cifar10 --output=data/cifar10

Encoded images go in as they are: `image` (bytes), `label` (int64, if there are
labels) and `name` (bytes). The same command resumes a run that was stopped.
"""

import dataclasses
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from concurrent import futures
from typing import Dict, Iterable, Iterator, List, Optional, Tuple

import numpy as np
import tqdm
from absl import flags

from paragan_tf import stopping
from tools import cli, encoded_images, packing

_SOURCE = flags.DEFINE_string(
  "source", None, "folder:PATH or tfds:NAME.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "Folder to write.", required=True)
_NUM_SHARDS = flags.DEFINE_integer(
  "num_shards",
  None,
  "Number of files, of each label with --by_label; by default of 100 MB.",
  lower_bound=1,
)
_BY_LABEL = flags.DEFINE_bool("by_label", False, "Gives each label its files.")
_SPLIT = flags.DEFINE_string(
  "split", "train", "Split of a tfds set; files are called after it."
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where tfds keeps its sets.")
_PROCESSES = flags.DEFINE_integer(
  "processes", 2, "How many write at a time.", lower_bound=1
)
_BROKEN = flags.DEFINE_enum(
  "broken", "refuse", ["refuse", "skip"], "What to do with broken images."
)
_SEED = flags.DEFINE_integer("seed", 0, "Settles the order of the images.")

_IMAGE_KEY = flags.DEFINE_string(
  "image_key", None, "Feature of a tfds set to take as the image."
)
_LABEL_KEY = flags.DEFINE_string(
  "label_key", None, "Feature of a tfds set to take as the label."
)

_RESUMES = stopping.End(words="the same command resumes.", asked="")
_BYTES_OF_A_SHARD = 100e6
_SECONDS_BETWEEN_LINES = 10.0

# A file that is written, and what is in it.
_Done = Tuple[str, packing.Content]


@dataclasses.dataclass(frozen=True)
class Arguments:
  """The arguments that determine the bytes that are written."""

  source: str
  num_shards: Optional[int] = None
  by_label: bool = False
  split: str = "train"
  data_dir: Optional[str] = None
  broken: str = "refuse"
  seed: int = 0
  image_key: Optional[str] = None
  label_key: Optional[str] = None


def main():
  """Reads the flags and writes."""
  arguments = Arguments(
    _SOURCE.value,
    _NUM_SHARDS.value,
    _BY_LABEL.value,
    _SPLIT.value,
    _DATA_DIR.value,
    _BROKEN.value,
    _SEED.value,
    _IMAGE_KEY.value,
    _LABEL_KEY.value,
  )
  # A signal leaves semaphores to the system, and is no reason to warn.
  os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
  with cli.stoppable(_RESUMES):
    cli.exit_on_error(lambda: make(_OUTPUT.value, arguments, _PROCESSES.value))


def make(
  output: str,
  arguments: Arguments,
  num_processes: int = 1,
) -> None:
  """Writes the files that are missing, then the manifest."""
  saved = dataclasses.asdict(arguments)
  del saved["broken"]  # A user may learn only on the way which one to choose.
  packing.check_arguments(output, saved)
  if _is_complete(output):
    return
  images = encoded_images.open_source(
    arguments.source,
    arguments.split,
    arguments.data_dir,
    arguments.broken,
    (arguments.image_key, arguments.label_key),
  )
  if arguments.by_label:
    images = encoded_images.load_labels(images)
  total = len(images.sizes)
  size = int(images.sizes.sum())
  packing.save_arguments(
    output, {**saved, "num_images": total, "num_bytes": size}
  )
  plan = make_plan(images, arguments)
  contents = {
    file: content
    for file in plan
    if (content := packing.load_content(output, file)) is not None
  }
  jobs = [
    (output, file, images.part(rows))
    for file, rows in plan.items()
    if file not in contents
  ]
  before = sum(
    content["count"] + len(content["broken"]) for content in contents.values()
  )
  written = _write_all(jobs, num_processes)
  for file, content in _show_progress(written, before, total):
    packing.save_content(output, file, content)
    contents[file] = content
  contents = {file: contents[file] for file in plan}
  num_broken = _report_broken(contents, arguments.broken)
  packing.finish(output, images, contents)
  left_out = num_broken + images.num_broken
  print(
    f"{output}: {total - num_broken:,} images in {len(plan):,} files"
    f"{f', {left_out:,} broken ones left out' if left_out else ''}."
  )


def _report_broken(contents: Dict[str, packing.Content], broken: str) -> int:
  """Prints the images that could not be decoded; counts or refuses them."""
  found = [x for content in contents.values() for x in content["broken"]]
  for name, reason in found:
    print(f"Left out: {name} ({reason})", flush=True)
  if found and broken == "refuse":
    raise ValueError(
      f"{len(found):,} images are broken, see above: fix them and set "
      "another `--output`, or skip them with `--broken=skip`."
    )
  return len(found)


def _is_complete(output: str) -> bool:
  """Returns whether all is written already, and prints it if so."""
  manifest = os.path.join(output, "manifest.json")
  if not cli.import_quietly("tensorflow").io.gfile.exists(manifest):
    return False
  index = cli.import_quietly("paragan_tf.data.shards").find(manifest)
  print(
    f"{output} is complete: {len(index.shard):,} images in "
    f"{len(index.paths):,} files."
  )
  return True


def make_plan(
  images: encoded_images.Images, arguments: Arguments
) -> Dict[str, np.ndarray]:
  """Returns which rows go into which file, sorted by the files' names."""
  random = np.random.RandomState(arguments.seed)
  rows = random.permutation(len(images.sizes))
  groups = {_clean(arguments.split): rows}
  if arguments.by_label and images.labels is not None:
    labels = images.labels[rows]
    stems = _make_stems(images.label_names)
    groups = {stem: rows[labels == i] for i, stem in enumerate(stems)}
  plan = {}
  for stem, group in groups.items():
    if not len(group):
      continue
    fitting = round(images.sizes[group].sum() / _BYTES_OF_A_SHARD)
    num = arguments.num_shards or max(1, fitting)
    for k in range(num):
      plan[f"{stem}-{k:05d}-of-{num:05d}.tfrecord"] = group[k::num]
  return dict(sorted(plan.items()))


def _write_all(
  jobs: List[Tuple[str, str, encoded_images.Images]], num_processes: int
) -> Iterator[_Done]:
  """Yields each file and its content once it is written, in any order."""
  if num_processes == 1 or len(jobs) < 2:
    for job in jobs:
      yield job[1], packing.write_shard(*job)
    return
  pool = futures.ProcessPoolExecutor(
    min(num_processes, len(jobs)),
    multiprocessing.get_context("spawn"),
    _follow_parent,
  )
  try:
    waiting = {pool.submit(packing.write_shard, *job): job[1] for job in jobs}
    for future in futures.as_completed(waiting):
      yield waiting[future], future.result()
  except futures.process.BrokenProcessPool as e:
    raise ValueError(
      "A process was killed, probably out of memory: start again with "
      "fewer `--processes`."
    ) from e
  finally:  # What is under way ends with this process.
    pool.shutdown(wait=False, cancel_futures=True)


def _follow_parent() -> None:
  """Leaves Ctrl-C to the parent, and exits when the parent has ended."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)

  def watch():
    multiprocessing.parent_process().join()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


def _show_progress(
  written: Iterable[_Done], count: int, total: int
) -> Iterator[_Done]:
  """Yields what was written, and shows a bar or, in a log, plain lines."""
  last_line_at, is_quiet = -math.inf, not sys.stderr.isatty()
  with tqdm.tqdm(
    total=total, initial=count, unit=" images", disable=is_quiet
  ) as bar:
    for file, content in written:
      num = content["count"] + len(content["broken"])
      count += num
      bar.update(num)
      now = time.monotonic()
      if is_quiet and (
        count == total or now - last_line_at >= _SECONDS_BETWEEN_LINES
      ):
        print(f"{count:,}/{total:,} images", file=sys.stderr, flush=True)
        last_line_at = now
      yield file, content


def _make_stems(names: Tuple[str, ...]) -> List[str]:
  """Returns the start of the file names of each label, all different."""
  clean = [_clean(name) for name in names]
  return [
    stem if clean.count(stem) == 1 else f"{stem}_{i}"
    for i, stem in enumerate(clean)
  ]


def _clean(name: str) -> str:
  return re.sub(r"[^\w.-]+", "_", name)


if __name__ == "__main__":
  cli.run(main, own_signals=True)
