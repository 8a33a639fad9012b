"""How large a checkpoint is on several replicas, compared with one.

  python -m tools.suites.rehearsal.checkpoint_bytes 8

Prints the bytes of a checkpoint after two steps, for each scheme in which
replicas differ between two exchanges.
"""

import glob
import json
import os
import sys
import tempfile
from typing import Dict

from tools.suites.ours import load_config

_SCHEMES = ("every_other_step", "gradients_every_other_step", "paragan")
_BINDINGS = (
  "experiment.Experiment.extractor = None",
  "run.Run.num_steps = 2",
  "run.Run.save_every = 2",
)


def measure(num_replicas: int) -> Dict[str, int]:
  """Returns the bytes of each scheme's checkpoint; called once a process."""
  strategy, found = None, {}
  for scheme in _SCHEMES:
    files = [f"gin/sync/{scheme}.gin"]
    module = load_config(_BINDINGS, files, "gin/runs/smoke.gin")
    if strategy is None:
      options = module.strategies.DeviceOptions(num_cpu_replicas=num_replicas)
      strategy = module.strategies.choose(options).strategy
    with tempfile.TemporaryDirectory() as folder:
      run = module.Run(module.Experiment(strategy), folder)
      run.restore()
      run.open()
      run.train(2)
      run.close_progress()
      run.save()
      files = glob.glob(os.path.join(glob.escape(folder), "model.ckpt-2.*"))
      found[scheme] = sum(map(os.path.getsize, files))
      run.folder.close()
  return found


if __name__ == "__main__":
  print(json.dumps(measure(int(sys.argv[1]))))
