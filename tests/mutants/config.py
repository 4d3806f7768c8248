"""Bugs planted in the configuration."""

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        pitfall="20",
        file="config/rules.py",
        old="return c.rollout.top_p < 1 or c.rollout.top_k > 0 or c.rollout.min_p > 0",
        new="return c.rollout.top_p < 1",
        test="tests/unit/config/test_rules.py::test_pitfall_20_a_correction_with_truncated_sampling_is_refused",
    ),
]
