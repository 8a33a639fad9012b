"""The nets room: `Batch` -> `Scores`."""
