"""Suite `async`: how a role split compares with data-parallel training."""

from tools.suites.async_.suite import run

__all__ = ["run"]
