"""Suite `wire`: what exchanges send, and what a slow link costs them."""

from tools.suites.wire.suite import run

__all__ = ["run"]
