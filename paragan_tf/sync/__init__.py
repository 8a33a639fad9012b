"""The sync room: one replica's update -> the update of all replicas."""
