"""The versions that a run computes with."""

import platform
from importlib import metadata
from typing import Dict

import tensorflow as tf

from paragan_tf import __version__

# By the names of their packages; those that are not installed are left out.
_PACKAGES = ("keras", "tf-keras", "tensorflow-gan", "numpy")


def read_versions() -> Dict[str, str]:
  """Returns the versions of Python and of the packages that are installed.

  The first ones are asked themselves: a checkout is not installed, and
  TensorFlow comes in packages of several names.
  """
  versions = {
    "Python": platform.python_version(),
    "paragan_tf": __version__,
    "tensorflow": tf.__version__,
  }
  for package in _PACKAGES:
    try:
      versions[package] = metadata.version(package)
    except metadata.PackageNotFoundError:
      continue
  return versions
