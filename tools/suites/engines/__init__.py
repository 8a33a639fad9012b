"""Suite `engines`: what the host and a second process cost."""

from tools.suites.engines.suite import run

__all__ = ["run"]
