"""Rules between staleness and what corrects for it; `rules.py` includes the table."""

from rlvr.config.rule import Rule
from rlvr.config.schema import Config

MAX_MEAN_WEIGHT = 1.2
"""Largest cap of a geometric mean: 0.18 nats a token. Rows that are so far from their sampler are none to train on."""


def _updates(c: Config) -> int:
    return c.algorithm.num_epochs * c.algorithm.num_minibatches


SCALE_RULES = (
    Rule(
        lambda c: c.rollout.max_staleness > 0 and _updates(c) > 1 and c.algorithm.mismatch_correction == "none",
        "rollout.max_staleness={c.rollout.max_staleness}: with algorithm.num_epochs={c.algorithm.num_epochs} x "
        "num_minibatches={c.algorithm.num_minibatches} updates per batch the clipped ratio is to the policy before "
        "them, and nothing corrects for the older one that sampled (docs/algorithms.md has what that costs); set "
        "algorithm.mismatch_correction=truncate (and rollout.top_p=1.0: it wants the whole vocabulary), or "
        "algorithm.num_epochs=1 algorithm.num_minibatches=1.",
    ),
    Rule(
        lambda c: c.algorithm.mismatch_correction == "geometric_mask" and c.algorithm.mismatch_cap > MAX_MEAN_WEIGHT,
        "algorithm.mismatch_cap={c.algorithm.mismatch_cap}: algorithm.mismatch_correction=geometric_mask compares it "
        "with a mean over the tokens of a row, which is never so far from 1; set it to 1.05, or to 1.2 at most.",
    ),
)
