"""Suite `backbones`: how fast each backbone trains, and how well."""

from tools.suites.backbones.suite import run

__all__ = ["run"]
