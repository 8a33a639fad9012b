"""paragan_tf trains generative adversarial networks in parallel."""

import importlib
import os

from paragan_tf import quiet

__version__ = "0.2.0"

# TensorFlow leaves its oneDNN kernels off on CPUs without AVX-512; they make
# an SNGAN step on such a CPU 1.4 times as fast. Read when TensorFlow is
# imported, so a program that imported it before keeps its own setting.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
quiet.install()

_API = {
  "Config": "paragan_tf.api",
  "Estimator": "paragan_tf.api",
  "ScalingManager": "paragan_tf.api",
  "fashion_mnist": "paragan_tf.api",
  "compare": "paragan_tf.comparison",
  "load": "paragan_tf.trained",
  "allow_gin_imports": "paragan_tf.gin_imports",
  "DeviceOptions": "paragan_tf.engine.strategies",
}


def __getattr__(name: str):
  # Imported on first use: reading flags or gin does not load TensorFlow.
  if name not in _API:
    raise AttributeError(f"module 'paragan_tf' has no attribute '{name}'")
  return getattr(importlib.import_module(_API[name]), name)


def __dir__():
  return [*globals(), *_API]
