"""Benchmarks: one folder per suite, and what they have in common."""
