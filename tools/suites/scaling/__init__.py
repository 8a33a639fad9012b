"""Suite `scaling`: steps on many workers, predicted, simulated and measured."""

from tools.suites.scaling.suite import run

__all__ = ["run"]
