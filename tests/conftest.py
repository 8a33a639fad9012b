"""What happens around the tests of a process: devices, memory, folders.

The CPU is split before any test is read. Python collects garbage between
classes only: TensorFlow takes long to end an iterator that is collected within
a replica, and collecting while steps are traced takes a fifth of the time.
Temporary files are in one folder, which goes with the last process.
"""

import atexit
import gc
import importlib.util
import os
import random
import shutil
import tempfile
import threading

import pytest

from paragan_tf import quiet

quiet.install()

# Files in the order in which they are started: the longest first, so that no
# process works on one of them alone at the end.
_LONGEST = (
  "multi_process_test.py",
  "run_test.py",
  "nets_test.py",
  "role_split_test.py",
  "quantize_test.py",
)

# Files of which every test needs a package, which not every Python has.
_NEEDS = {
  "tensorflow_estimator": (
    "estimator_graph_test.py",
    "estimator_loop_test.py",
    "estimator_test.py",
  ),
  "tensorflow_gan": ("tf_gan_test.py",),
}
collect_ignore = [
  name
  for package, names in _NEEDS.items()
  if importlib.util.find_spec(package) is None
  for name in names
]


def pytest_configure(config):
  if not _is_worker(config):
    # Inherited by workers, and by what tests start.
    folder = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="paragan_tf_tests_")
    tempfile.tempdir = None
    # After TensorFlow's own clean-up, which complains if its folder is gone.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
  if _is_worker(config) or not config.getoption("numprocesses", None):
    from tests import testing  # Starts TensorFlow: not where tests only report.

    testing.strategy()
    _keep_kernels()


def _keep_kernels():
  # `tf.test.TestCase` sets a seed before each test, for which TensorFlow drops
  # every kernel that it has made; random draws of ours know no such seed.
  from tensorflow.python.eager import context

  def set_global_seed(self, seed):
    self._seed, self._rng = seed, random.Random(seed)

  context.Context._set_global_seed = set_global_seed


def pytest_collection_modifyitems(items):
  # Every `tf.test.TestCase` inherits a context manager with this name.
  items[:] = [item for item in items if item.name != "test_session"]
  order = {name: i for i, name in enumerate(_LONGEST)}
  items.sort(key=lambda item: order.get(item.path.name, len(order)))


def pytest_collection_finish(session):
  del session
  gc.collect()
  gc.freeze()  # Modules stay; they need not be looked at again.
  gc.disable()


@pytest.fixture(autouse=True, scope="class")
def _clean_class():
  """Leaves no config and no garbage of a class behind."""
  yield
  import gin

  gin.clear_config()
  gc.collect()


@pytest.fixture(autouse=True, scope="module")
def _free_graphs():
  """Frees the graphs of a file at its end."""
  yield
  from tensorflow.python.framework import ops

  # TensorFlow registers the gradients of `tf.custom_gradient` for each trace,
  # and never drops them, nor the graphs that they hold.
  registry = ops.gradient_registry._registry
  for name in [name for name in registry if name.startswith("CustomGradient")]:
    del registry[name]
  gc.collect()


def pytest_unconfigure(config):
  if _is_worker(config):
    # TensorFlow takes long to tear its graphs down; all has been reported.
    threading.Timer(1.0, os._exit, (0,)).start()


def _is_worker(config):
  return hasattr(config, "workerinput")
