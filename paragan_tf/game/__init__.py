"""The game room: `Scores` -> an update, on one replica."""
