"""Suite `rehearsal`: what can be shown of a TPU without one."""

from tools.suites.rehearsal.suite import run

__all__ = ["run"]
