"""Reinforcement-learning algorithms: one settings class each, made of shared pure functions; see docs/algorithms.md."""

from rlvr.algorithms.algorithm import Algorithm, ClippedRatio, Critic, TokenReturns

__all__ = ["Algorithm", "ClippedRatio", "Critic", "TokenReturns"]
