"""Packaging; `make lock` turns these pins into requirements.lock."""

import pathlib
import re
import shutil

import setuptools
from setuptools.command.build_py import build_py

_ROOT = pathlib.Path(__file__).resolve().parent

# TensorFlow 2.15 is the last release with TPUEstimator and the last one that
# TF-GAN imports on, but there is none for Python 3.12. The pins of either group
# are those that import together.
_OLD = "python_version < '3.12'"
_NEW = "python_version >= '3.12'"
RUNTIME = [
  "absl-py",
  "gin-config==0.5.0",
  "importlib-resources",  # tensorflow-datasets imports it, undeclared.
  "packaging",
  "pillow",
  "requests",
  "scipy",
  "tensorflow-datasets>=4.9.3",
  "tqdm",
  f"numpy==1.26.4; {_OLD}",
  f"protobuf>=4.25,<4.26; {_OLD}",
  f"setuptools<81; {_OLD}",  # tensorflow-hub imports pkg_resources.
  f"tensorflow-estimator==2.15.0; {_OLD}",
  f"tensorflow-gan==2.1.0; {_OLD}",
  f"tensorflow-metadata<1.16; {_OLD}",
  # What pip would find after trying many versions of other packages.
  f"googleapis-common-protos<1.76; {_OLD}",
  "absl-py==1.4.0; python_version < '3.11'",
  "etils==1.13.0; python_version == '3.10'",
  "etils==1.5.2; python_version < '3.10'",
  "tensorflow-metadata==1.13.1; python_version < '3.11'",
  "tensorflow-datasets==4.9.3; python_version < '3.10'",
  f"tensorflow-probability==0.23.0; {_OLD}",
  f"tensorflow==2.15.1; {_OLD}",
  f"tf-keras==2.15.1; {_OLD}",
  f"numpy>=2.1,<3; {_NEW}",
  f"tensorflow>=2.20,<2.22; {_NEW}",
  f"tf-keras>=2.20,<2.22; {_NEW}",
]
EXTRAS = {
  "cuda": [
    f"tensorflow[and-cuda]==2.15.1; {_OLD}",
    f"tensorflow[and-cuda]==2.21.0; {_NEW}",
  ],
  # Its last release; the others must have its version. Older Pythons use the
  # TensorFlow of a TPU VM's image.
  "tpu": [
    f"tensorflow-tpu==2.20.0; {_NEW}",
    f"libtpu<0.0.44; {_NEW}",  # 0.0.51 lacks functions that it loads.
    f"tensorflow==2.20.0; {_NEW}",
    f"tf-keras>=2.20,<2.21; {_NEW}",
  ],
  "plot": ["matplotlib"],
  # For `tools.export --format=onnx`. TensorFlow 2.15 refuses the ml-dtypes of
  # later releases of onnx, and tf2onnx needs Python 3.10.
  "onnx": [
    "tf2onnx==1.17.0; python_version >= '3.10'",
    f"onnx==1.16.2; {_OLD}",
    f"onnxruntime==1.19.2; {_OLD}",
    f"onnx>=1.19; {_NEW}",
    f"onnxruntime>=1.23; {_NEW}",
  ],
  "dev": [
    "build",
    "hypothesis",
    "matplotlib",
    "mypy",
    "pytest",
    "pytest-xdist",
    "ruff",
  ],
}


class BuildPackage(build_py):
  """Copies what lies beside the package in a checkout into a wheel."""

  def run(self):
    """Builds the package."""
    super().run()
    if self.editable_mode:
      return
    share = pathlib.Path(self.build_lib, "paragan_tf", "share")
    shutil.rmtree(share, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for folder in ("gin", "tools"):
      shutil.copytree(_ROOT / folder, share / folder, ignore=ignore)
    shutil.copy(_ROOT / "requirements.lock", share)


def _version() -> str:
  text = (_ROOT / "paragan_tf" / "__init__.py").read_text()
  return re.search(r'^__version__ = "(.+)"$', text, re.M)[1]


setuptools.setup(
  name="paragan_tf",
  version=_version(),
  description="Trains generative adversarial networks in parallel.",
  long_description=(_ROOT / "README.md").read_text(),
  long_description_content_type="text/markdown",
  license="MIT",
  python_requires=">=3.9,<3.14",
  packages=setuptools.find_packages(include=["paragan_tf", "paragan_tf.*"]),
  package_data={"paragan_tf": ["files/*", "*/files/*"]},
  install_requires=RUNTIME,
  extras_require=EXTRAS,
  entry_points={"console_scripts": ["paragan = paragan_tf.__main__:main"]},
  cmdclass={"build_py": BuildPackage},
)
