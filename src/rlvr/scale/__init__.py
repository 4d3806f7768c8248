"""Multiple processes and machines: launch, sharded weights, sharded checkpoints. `core` does not need it."""
