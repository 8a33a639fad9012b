"""The engine room: running it."""
