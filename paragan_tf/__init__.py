"""paragan_tf trains generative adversarial networks in parallel."""
