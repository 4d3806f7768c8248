"""The checks of `rlvr doctor`, by subject."""
