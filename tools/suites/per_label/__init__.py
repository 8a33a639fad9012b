"""Suite `per_label`: a GAN for each label, beside one conditional GAN."""

from tools.suites.per_label.suite import run

__all__ = ["run"]
