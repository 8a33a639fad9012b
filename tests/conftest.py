"""Splits the CPU for the tests of one process, before any of them is read."""

import os
import threading

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_configure(config):
  if _is_worker(config) or not config.getoption("numprocesses", None):
    from tests import testing  # Starts TensorFlow: not where tests only report.

    testing.strategy()


def pytest_unconfigure(config):
  # TensorFlow takes long to tear its graphs down; all has been reported.
  if _is_worker(config):
    threading.Timer(1.0, os._exit, (0,)).start()


def _is_worker(config):
  return hasattr(config, "workerinput")
