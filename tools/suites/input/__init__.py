"""Suite `input`: whether the input pipeline keeps the device busy."""

from tools.suites.input.suite import run

__all__ = ["run"]
