"""The readable oracle, examples/grpo_in_one_file.py, arrives where the product arrives: 5 updates, grpo and ppo."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.system.harness import SMALL, pretrained, run_train

SCRIPT = Path(__file__).parents[2] / "examples" / "grpo_in_one_file.py"

RECORDED = (
    *SMALL,
    "trainer.max_steps=5",
    "trainer.warmup_steps=3",
    "trainer.checkpoint_every=1",
    "trainer.keep_last=5",
    "tracker.rollouts_max_groups=null",
    "rollout.prompts_per_step=8",
    "trainer.microbatch_tokens=64",  # the product cuts what the oracle takes at once
)


@pytest.fixture(scope="module")
def oracle() -> Iterator[ModuleType]:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("grpo_in_one_file", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=grpo"],
        [
            "algorithm=grpo",
            "algorithm.aggregation=sequence_mean",
            "rollout.temperature=0.7",
            "trainer.max_grad_norm=0.1",
        ],
        ["algorithm=grpo", "algorithm.std_normalization=none", "algorithm.num_epochs=2", "algorithm.num_minibatches=2"],
        ["algorithm=ppo"],
        ["algorithm=ppo", "algorithm.gamma=0.9", "algorithm.gae_lambda=0.8", "algorithm.whiten_advantages=false"],
        ["algorithm=ppo", "algorithm.num_epochs=3", "algorithm.value_coef=2", "algorithm.value_clip=0.01"],
        ["algorithm=ppo", "algorithm.num_epochs=4", "algorithm.target_kl=1e-5", "algorithm.aggregation=sequence_sum"],
    ],
    ids=lambda overrides: " ".join(overrides).replace("algorithm.", ""),
)
def test_pitfall_17_loss_gradient_norm_and_weights_agree_after_each_of_5_updates(
    overrides: list[str], oracle: ModuleType, model: Path, tmp_path: Path
) -> None:
    run = run_train(tmp_path / "run", *RECORDED, *pretrained(model), *overrides)
    comparisons = list(oracle.replay(run.folder))
    assert [c.step for c in comparisons] == [1, 2, 3, 4, 5]
    for c in comparisons:
        assert c.loss == pytest.approx(c.run_loss, abs=1e-5)
        assert c.grad_norm == pytest.approx(c.run_grad_norm, abs=1e-5)
        assert c.weight_difference < 1e-5
        assert c.agrees
    assert any(c.run_grad_norm > 0.01 for c in comparisons)  # something was learned from


def test_a_wrong_update_is_noticed(oracle: ModuleType, model: Path, tmp_path: Path) -> None:
    """The comparison is not blind: with another discount, or another reward, it differs."""
    run = run_train(tmp_path / "run", *RECORDED, *pretrained(model), "algorithm=ppo", "algorithm.gamma=0.9")
    config = run.folder / "config.yaml"
    config.write_text(config.read_text().replace("gamma: 0.9", "gamma: 0.95"))
    comparisons = list(oracle.replay(run.folder))
    assert not any(c.agrees for c in comparisons)


def test_a_run_that_was_not_fully_recorded_is_refused(oracle: ModuleType, first_run: Path) -> None:
    with pytest.raises(SystemExit, match="only fully recorded runs"):
        list(oracle.replay(first_run))


def test_the_oracle_shares_no_code_with_the_product() -> None:
    tree = ast.parse(SCRIPT.read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not any(module and module.startswith("rlvr") for module in modules)


@pytest.mark.parametrize(("algorithm", "times"), [("grpo", 1), ("ppo", 2)])
def test_the_demonstration_learns(
    algorithm: str, times: int, oracle: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = oracle.Settings(algorithm=algorithm, num_epochs=times, num_minibatches=times)
    assert oracle.demonstrate(settings, num_steps=60, group_size=12) > 0.6  # 0.2 is chance
    assert "accuracy" in capsys.readouterr().out
