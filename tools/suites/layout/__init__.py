"""Suite `layout`: what the layout pass gains on a CPU."""

from tools.suites.layout.suite import run

__all__ = ["run"]
