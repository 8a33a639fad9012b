"""What the benchmark can measure: one file a suite, and what suites share."""
