"""Command-line programs: flags, then one call into `experiment`."""
