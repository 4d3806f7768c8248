"""The algorithms of `algorithm=NAME`: a class each, on the interface and the formulas of `rlvr.core.algorithms`."""
