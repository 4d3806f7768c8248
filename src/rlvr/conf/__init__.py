"""The Hydra groups and root configurations of rlvr: the only home of default values."""
