"""What a run costs on many workers: pure arithmetic, without TensorFlow."""
