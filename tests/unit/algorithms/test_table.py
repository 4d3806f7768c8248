"""Rows, their settings and their documentation."""

from pathlib import Path
from typing import get_args

import pytest
import yaml

from rlvr.algorithms import TABLE
from rlvr.algorithms.advantages import soft_overlong
from rlvr.algorithms.aggregation import AGGREGATIONS
from rlvr.algorithms.kl import ESTIMATORS
from rlvr.algorithms.ratios import CORRECTIONS
from rlvr.config import schema
from tests.unit.algorithms.cases import NAMES, algorithm

ROOT = Path(__file__).resolve().parents[3]
DOCS, CONF = ROOT / "docs" / "algorithms.md", ROOT / "src" / "rlvr" / "conf" / "algorithm"


def test_the_table_has_a_row_for_every_section_of_the_schema():
    sections = get_args(get_args(schema.AlgorithmConfig)[0])
    assert set(TABLE) == {get_args(section.model_fields["name"].annotation)[0] for section in sections} == set(NAMES)
    assert set(AGGREGATIONS) == set(get_args(schema.Aggregation))
    for field, choices in [("kl_estimator", ESTIMATORS), ("mismatch_correction", CORRECTIONS)]:
        assert set(choices) == set(get_args(schema.Algorithm.model_fields[field].annotation))


@pytest.mark.parametrize(
    ("name", "overrides", "needs"),
    [
        ("grpo", {"num_epochs": 1}, set()),
        ("grpo", {"num_epochs": 2}, {"old_logprobs"}),
        ("grpo", {"num_epochs": 1, "num_minibatches": 4}, {"old_logprobs"}),
        ("grpo", {"num_epochs": 1, "mismatch_correction": "mask"}, set()),
        ("grpo", {"num_epochs": 2, "mismatch_correction": "sequence_mask"}, {"old_logprobs"}),
        ("grpo", {"num_epochs": 1, "kl_coef": 0.1}, {"reference_logprobs"}),
        ("rloo", {"num_epochs": 1, "kl_coef": 0.1, "kl_placement": "reward"}, {"old_logprobs", "reference_logprobs"}),
        ("ppo", {"num_epochs": 1}, {"values"}),
    ],
)
def test_needs(name: str, overrides: dict[str, object], needs: set[str]):
    assert algorithm(name, **overrides).needs == needs


def test_settings_of_the_loop():
    dapo = algorithm("dapo", max_refills=5)
    assert (dapo.dynamic_sampling, dapo.max_refills) == (True, 5)
    ppo = algorithm("ppo", target_kl=0.02, num_minibatches=3)
    assert (ppo.target_kl, ppo.num_epochs, ppo.num_minibatches, ppo.dynamic_sampling) == (0.02, 2, 3, False)


def test_every_function_of_the_table_is_in_the_documentation():
    text = DOCS.read_text()
    functions = [f for row in TABLE.values() for f in (row.advantage, row.surrogate, row.reward, row.critic) if f]
    functions += [*AGGREGATIONS.values(), *ESTIMATORS.values()]
    functions += [f for correction in CORRECTIONS.values() for f in (correction.weight, correction.factor)]
    missing = {f.__name__ for f in functions if f"`{f.__name__}`" not in text}
    assert not missing


@pytest.mark.parametrize("name", NAMES)
def test_the_documented_row_is_the_row_and_its_default_settings(name: str):
    (line,) = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    defaults, row = yaml.safe_load((CONF / f"{name}.yaml").read_text()), TABLE[name]
    used = [f.__name__ for f in (row.advantage, row.surrogate, row.critic) if f]
    assert all(f"`{function}`" in line for function in [*used, defaults["aggregation"]])
    assert f"{defaults.get('clip_low', '-')} / {defaults['clip_high']} |" in line
    assert ("`soft_overlong`" in line) == (row.reward is soft_overlong)
