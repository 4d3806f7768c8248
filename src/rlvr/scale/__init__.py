"""Several processes and machines: launching, sharded weights, their checkpoints. Nothing in `core` needs it."""
