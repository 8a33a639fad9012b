"""The data room: bytes -> one replica's `Batch`."""
