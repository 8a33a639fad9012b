"""The sync room: one replica's update -> everyone's."""
