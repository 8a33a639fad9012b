"""Suite `quality`: what small nets learn on CIFAR-10, in FID."""

from tools.suites.quality.suite import run

__all__ = ["run"]
