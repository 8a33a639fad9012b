"""Splits the CPU for the tests of one process, before any of them is read."""

from tests import testing


def pytest_configure():
  testing.strategy()
