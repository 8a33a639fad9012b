"""Command-line programs: flags, then one call into `run` or `api`."""
