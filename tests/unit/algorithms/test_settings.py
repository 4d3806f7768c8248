"""Settings of the algorithms: defaults, what they demand of a run, their documentation."""

import inspect
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from rlvr import registry
from rlvr.algorithms import Algorithm, Critic, advantages, losses
from rlvr.conditions import condition
from rlvr.core.settings import RolloutSettings
from rlvr.errors import ConfigError
from rlvr.settings import dumped, only_if, validated
from tests.unit.algorithms.cases import CORRECTIONS, MODES, NAMES, OWN_NAME, ROOT, algorithm

DOCS = ROOT / "docs" / "algorithms.md"
METHODS = ("advantages", "surrogate", "value_loss")


def made(name: str, **values: Any) -> Algorithm:
    """An algorithm with our defaults."""
    return validated(registry.find("algorithm", name), values)


def functions_of(name: str) -> set[str]:
    """The shared functions that the algorithm's methods call."""
    methods = [getattr(registry.find("algorithm", name), method, None) for method in METHODS]
    called = {found for method in methods if method is not None for found in method.__code__.co_names}
    return {found for found in called if inspect.isfunction(getattr(advantages, found, getattr(losses, found, None)))}


def run(**rollout: Any) -> SimpleNamespace:
    """A run's sections, as far as an algorithm reads them."""
    values = {"prompts_per_step": 4, "group_size": 4, "max_completion_tokens": 16, **rollout}
    return SimpleNamespace(rollout=RolloutSettings(**values), engine=SimpleNamespace(in_process=True))


def test_all_algorithms_are_found_without_loading_torch() -> None:
    code = "import sys; from rlvr import registry; print(*registry.names('algorithm')); print('torch' in sys.modules)"
    names, torch_is_loaded = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert set(names.split()) == {*NAMES, "distill"}  # whose advantages are no function of the reward: test_distill.py
    assert torch_is_loaded == "False"


def test_the_tests_have_every_choice() -> None:
    fields = Algorithm.model_fields
    assert get_args(fields["aggregation"].annotation) == MODES
    assert get_args(fields["mismatch_correction"].annotation) == CORRECTIONS


@pytest.mark.parametrize(
    ("name", "differing"),
    [
        ("grpo", {}),
        ("dr_grpo", {"aggregation": "fixed_length"}),
        ("dapo", {"clip_high": 0.28}),
        ("rloo", {"aggregation": "sequence_sum"}),
        ("gspo", {"aggregation": "sequence_mean", "clip_low": 3e-4, "clip_high": 4e-4, "num_minibatches": 4}),
        ("cispo", {"clip_low": None}),
        ("reinforce_pp", {"kl_estimator": "k1", "kl_placement": "reward"}),
        ("ppo", {"kl_estimator": "k1", "kl_placement": "reward", "num_epochs": 2, "num_minibatches": 2}),
    ],
)
def test_defaults(name: str, differing: dict[str, Any]) -> None:
    shared = {"aggregation": "token_mean", "clip_low": 0.2, "clip_high": 0.2, "num_epochs": 1, "num_minibatches": 1}
    shared |= {"kl_coef": 0.0, "kl_estimator": "k3", "kl_placement": "loss"}
    found = dumped(made(name))
    assert found["name"] == name
    assert {key: found.get(key) for key in shared} == shared | differing
    descriptions = [field.description for field in type(made(name)).model_fields.values()]
    assert all(descriptions), "a field that is redeclared keeps its description"


@pytest.mark.parametrize(
    ("name", "overrides", "columns"),
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
def test_columns(name: str, overrides: dict[str, object], columns: set[str]) -> None:
    assert algorithm(name, **overrides).algorithm.columns().keys() == columns


def test_what_the_loop_asks() -> None:
    assert [made("dapo", **x).refills for x in ({}, {"max_refills": 0}, {"dynamic_sampling": False})] == [3, 0, None]
    assert made("grpo").refills is None
    ppo = made("ppo", target_kl=0.02)
    assert [ppo.stop_early(kl) for kl in (0.0299, 0.0301)] == [False, True]
    assert not made("ppo").stop_early(1e9)
    assert {name for name in NAMES if made(name).returns_per_token} == {"reinforce_pp", "ppo"}
    assert {name for name in NAMES if isinstance(made(name), Critic)} == {"ppo"}
    assert not isinstance(made("reinforce_pp"), Critic)


@pytest.mark.parametrize(
    ("name", "values", "key"),
    [
        ("ppo", {"clip_low": 1.0}, "clip_low"),
        ("gspo", {"clip_low": 1.5}, "clip_low"),
        ("grpo", {"clip_high": 0.0}, "clip_high"),
        ("grpo", {"mismatch_cap": 1.0}, "mismatch_cap"),
        ("grpo", {"mismatch_correction": "geometric_mask"}, "mismatch_cap"),
        ("grpo", {"mismatch_correction": "geometric_mask", "mismatch_cap": 1.21}, "mismatch_cap"),
        ("cispo", {"clip_low": 0.2}, "clip_low"),
        ("dr_grpo", {"std_normalization": "none"}, "std_normalization"),
        ("ppo", {"num_epochs": 0}, "num_epochs"),
        ("reinforce_pp", {"gamma": 1.1}, "gamma"),
    ],
)
def test_values_that_are_refused(name: str, values: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as error:
        made(name, **values)
    (found,) = error.value.errors()
    assert key in (*found["loc"], found.get("ctx", {}).get("key"))
    made("grpo", mismatch_correction="geometric_mask", mismatch_cap=1.2)  # near one suits a mean


@pytest.mark.parametrize("name", [*NAMES, OWN_NAME])
def test_only_algorithms_that_compare_a_group_need_one(name: str) -> None:
    settings, alone = made(name), run(group_size=1, prompts_per_step=16)
    settings.check_run(run())
    needs_none = name in ("ppo", "reinforce_pp", OWN_NAME)
    refused = pytest.raises(ConfigError, match=f"^rollout.group_size=1: algorithm={name} compares .* such as ppo")
    with nullcontext() if needs_none else refused:
        settings.check_run(alone)


@pytest.mark.parametrize(
    ("name", "values", "rollout", "message"),
    [
        ("ppo", {"num_minibatches": 3}, {}, "algorithm.num_minibatches=3: does not divide"),
        ("grpo", {"mismatch_correction": "truncate"}, {"top_p": 0.9}, "top_p=0.9"),
        ("grpo", {"mismatch_correction": "mask"}, {"top_k": 5}, "top_k=5"),
        ("grpo", {"mismatch_correction": "mask"}, {"min_p": 0.1}, "min_p=0.1"),
        ("grpo", {"mismatch_correction": "truncate"}, {"top_p": 0.9, "max_staleness": 1}, "top_p=0.9"),
        ("grpo", {"num_epochs": 2}, {"max_staleness": 1}, "rollout.max_staleness=1: with algorithm.num_epochs=2"),
        ("ppo", {}, {"max_staleness": 1}, "set algorithm.mismatch_correction=truncate"),
        ("gspo", {}, {"max_staleness": 1}, "num_minibatches=4 updates per batch"),
        ("dapo", {"overlong_buffer_tokens": 16}, {}, "algorithm.overlong_buffer_tokens=16"),
        (OWN_NAME, {"num_minibatches": 2}, {}, "makes one update per batch"),
    ],
)
def test_runs_that_are_refused(name: str, values: dict[str, Any], rollout: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        made(name, **values).check_run(run(**rollout))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "values", "rollout"),
    [
        ("grpo", {}, {"max_staleness": 1}),  # a plain policy gradient on slightly old data
        ("grpo", {}, {"max_staleness": 1, "top_p": 0.9}),
        ("ppo", {"mismatch_correction": "truncate"}, {"max_staleness": 4}),
    ],
)
def test_runs_that_are_allowed(name: str, values: dict[str, Any], rollout: dict[str, Any]) -> None:
    made(name, **values).check_run(run(**rollout))


@pytest.mark.parametrize(
    ("said", "rollout", "in_process", "found"),
    [
        ("auto", {}, True, "none"),
        ("auto", {"max_staleness": 1}, True, "truncate"),
        ("auto", {}, False, "truncate"),
        ("auto", {"max_staleness": 1, "top_p": 0.9}, True, "none"),  # the weights would be of another distribution
        ("none", {"max_staleness": 1}, False, "none"),
        ("icepop", {}, True, "icepop"),
    ],
)
def test_late_samples_are_corrected_unless_the_user_says_otherwise(
    said: str, rollout: dict[str, Any], in_process: bool, found: str
) -> None:
    seen = run(**rollout)
    seen.engine.in_process = in_process
    assert made("grpo", mismatch_correction=said).fitted(seen).mismatch_correction == found


FEW = {"kl_estimator", "kl_placement", "kl_unbiased", "mismatch_cap"}
CLIPS = {"clip_low", "clip_high", "dual_clip"}
USED = {"kl_coef": 0.1, "mismatch_correction": "mask", "kl_placement": "loss"}  # with which none of FEW is idle


@pytest.mark.parametrize(
    ("name", "values", "idle"),
    [
        ("grpo", {}, {*FEW, *CLIPS}),
        ("grpo", {"num_epochs": 2}, FEW),
        ("grpo", {"num_minibatches": 2, **USED}, set()),
        ("cispo", USED, {"clip_high"}),
        ("reinforce_pp", {"num_epochs": 2}, FEW),
        ("gspo", {"num_minibatches": 1}, {*FEW, *CLIPS}),
        ("ppo", USED, set()),
        ("ppo", {"value_coef": 0.0, **USED}, {"value_clip"}),
        (
            "ppo",
            {"num_epochs": 1, "num_minibatches": 1, **USED},
            {*CLIPS, "value_clip", "target_kl"},
        ),
        ("dapo", {"num_epochs": 2, **USED}, set()),
        ("dapo", {"num_epochs": 2, "dynamic_sampling": False, **USED}, {"max_refills"}),
        ("dapo", {"num_epochs": 2, "overlong_buffer_tokens": 0, **USED}, {"overlong_penalty"}),
        ("dapo", {"num_epochs": 2, "overlong_penalty": 0.0, **USED}, {"overlong_buffer_tokens"}),
    ],
)
def test_settings_without_effect(name: str, values: dict[str, Any], idle: set[str]) -> None:
    settings, seen = made(name, **values).fitted(run()), run()
    seen.task = SimpleNamespace(has_tools=True)
    texts = {key: only_if(type(settings), key) for key in type(settings).model_fields}
    assert {key for key, text in texts.items() if text and not condition(text).holds(settings, seen)} == idle


def test_every_function_and_choice_is_in_the_documentation() -> None:
    text = DOCS.read_text()
    names = {"kl_estimate", "mismatch_weight", "mismatch_factor", "loss_weights"}.union(*map(functions_of, NAMES))
    assert {"clip", "clipped_value_loss", "group_normalized"} <= names
    choices = get_args(Algorithm.model_fields["kl_estimator"].annotation)
    assert not {name for name in [*names, *choices, *MODES, *CORRECTIONS] if f"`{name}`" not in text}


@pytest.mark.parametrize("name", NAMES)
def test_the_documented_algorithm_has_its_defaults(name: str) -> None:
    (line,) = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    defaults = dumped(made(name))
    assert all(f"`{function}`" in line for function in [*functions_of(name), defaults["aggregation"]])
    low, high = (f"{defaults[key]:f}".rstrip("0") if key in defaults else "-" for key in ("clip_low", "clip_high"))
    assert f"{low} / {high} |" in line


def test_the_example_is_linked() -> None:
    assert "](../examples/own/my_algorithm.py)" in DOCS.read_text()


@pytest.mark.parametrize(
    ("name", "words", "refills"),
    [
        ("grpo", {}, None),
        ("grpo", {"dead_groups": "keep"}, None),
        ("grpo", {"dead_groups": "drop"}, 0),
        ("grpo", {"dead_groups": "refill", "max_refills": 2}, 2),
        ("dapo", {}, 3),
        ("dapo", {"dead_groups": "keep"}, None),
        ("ppo", {"dead_groups": "refill"}, None),  # it learns from them
    ],
)
def test_what_becomes_of_groups_with_equal_rewards(name: str, words: dict[str, object], refills: int | None) -> None:
    assert RolloutSettings(**words).refills(algorithm(name).algorithm) == refills
