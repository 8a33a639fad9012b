"""The outputs room: what a run leaves behind."""
