"""rlvr: reinforcement learning from verifiable rewards, from a laptop CPU to many GPUs."""

__version__ = "0.1.0"
