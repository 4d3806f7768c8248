"""Reinforcement-learning algorithms as rows of a table of pure functions; see docs/algorithms.md."""

from rlvr.algorithms.algorithm import Algorithm, LossTerms
from rlvr.algorithms.table import TABLE, make_algorithm

__all__ = ["TABLE", "Algorithm", "LossTerms", "make_algorithm"]
