"""Packaging; `make lock` turns these pins into requirements.lock."""

import setuptools

# TensorFlow 2.15 is the last release with TPUEstimator and the last one that
# TF-GAN imports on; the pins below are the ones that import together with it.
RUNTIME = [
  "absl-py",
  "gin-config==0.5.0",
  "importlib-resources",  # tensorflow-datasets imports it, undeclared.
  "numpy==1.26.4",
  "pillow",
  "protobuf>=4.25,<4.26",
  "requests",
  "scipy",
  "setuptools<81",  # tensorflow-hub imports pkg_resources.
  "tensorflow-datasets",
  "tensorflow-estimator==2.15.0",
  "tensorflow-gan==2.1.0",
  "tensorflow-metadata<1.16",
  "tensorflow-probability==0.23.0",
  "tensorflow==2.15.1",
  "tf-keras==2.15.1",
  "tqdm",
]

setuptools.setup(
  name="paragan_tf",
  version="0.1.0",
  description="Trains generative adversarial networks in parallel.",
  license="MIT",
  python_requires=">=3.9,<3.12",
  packages=setuptools.find_packages(include=["paragan_tf", "paragan_tf.*"]),
  package_data={"paragan_tf": ["*/files/*"]},
  install_requires=RUNTIME,
  extras_require={
    "cuda": ["tensorflow[and-cuda]==2.15.1"],
    "dev": ["matplotlib", "mypy", "pytest", "pytest-xdist", "ruff"],
  },
)
