"""Suite `step`: the speed of one training step, compared with TF-GAN."""

from tools.suites.step.suite import run

__all__ = ["run"]
