"""The readable oracle, examples/grpo_in_one_file.py, arrives where the product arrives: 5 updates, grpo and ppo."""

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest

from tests.system.harness import SMALL, pretrained, run_train, split
from tests.variants import variants

EXAMPLES = Path(__file__).parents[2] / "examples"

RECORDED = SMALL + split("""
    trainer.max_steps=5 trainer.warmup_steps=3 trainer.checkpoint_every=1 trainer.keep_last=5
    tracker.rollouts_max_groups=null rollout.prompts_per_step=8 trainer.microbatch_tokens=64
""")
"""In smaller microbatches than the oracle takes."""


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """grpo_in_one_file.py"""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("grpo_in_one_file")


@pytest.fixture
def replay(oracle: ModuleType) -> ModuleType:
    """replay.py, which repeats a run with it"""
    return importlib.import_module("replay")


@pytest.mark.parametrize(
    "settings",
    variants(
        [
            "algorithm=grpo algorithm.aggregation=sequence_mean rollout.temperature=0.7 trainer.max_grad_norm=0.1",
            "algorithm=ppo algorithm.gamma=0.9 algorithm.gae_lambda=0.8 algorithm.whiten_advantages=false",
            "algorithm=ppo algorithm.num_epochs=4 algorithm.target_kl=1e-5 algorithm.aggregation=sequence_sum",
            "algorithm=grpo",
            "algorithm=grpo algorithm.std_normalization=none algorithm.num_epochs=2 algorithm.num_minibatches=2",
            "algorithm=ppo",
            "algorithm=ppo algorithm.num_epochs=3 algorithm.value_coef=2 algorithm.value_clip=0.01",
        ],
        always=3,
    ),
)
def test_pitfall_17_five_updates_agree_with_the_oracle(
    settings: str, replay: ModuleType, model: Path, tmp_path: Path
) -> None:
    run = run_train(tmp_path / "run", *RECORDED, *pretrained(model), *settings.split())
    comparisons = list(replay.replay(run.folder))
    assert [c.step for c in comparisons] == [1, 2, 3, 4, 5]
    for c in comparisons:
        assert c.loss == pytest.approx(c.run_loss, abs=1e-5)
        assert c.grad_norm == pytest.approx(c.run_grad_norm, abs=1e-5)
        assert c.weight_difference < 1e-5
        assert c.agrees
    assert any(c.run_grad_norm > 0.01 for c in comparisons)  # something was learned from


def test_a_wrong_update_is_noticed(replay: ModuleType, model: Path, tmp_path: Path) -> None:
    """The comparison is not blind: with another discount, or another reward, it differs."""
    run = run_train(tmp_path / "run", *RECORDED, *pretrained(model), "algorithm=ppo", "algorithm.gamma=0.9")
    config = run.folder / "config.yaml"
    config.write_text(config.read_text().replace("gamma: 0.9", "gamma: 0.95"))
    comparisons = list(replay.replay(run.folder))
    assert not any(c.agrees for c in comparisons)


def test_a_run_that_was_not_fully_recorded_is_refused(replay: ModuleType, first_run: Path) -> None:
    with pytest.raises(SystemExit, match="only fully recorded runs"):
        list(replay.replay(first_run))


def test_the_oracle_is_short_and_shares_no_code_with_the_product() -> None:
    text = (EXAMPLES / "grpo_in_one_file.py").read_text()
    assert len(text.splitlines()) <= 250
    tree = ast.parse(text)
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not any(module and module.startswith("rlvr") for module in modules)


@pytest.mark.long
@pytest.mark.parametrize(("algorithm", "times"), [("grpo", 1), ("ppo", 2)])
def test_the_demonstration_learns(
    algorithm: str, times: int, oracle: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = oracle.Settings(algorithm=algorithm, num_epochs=times, num_minibatches=times)
    assert oracle.demonstrate(settings, num_steps=60, group_size=12) > 0.6  # 0.2 is chance
    assert "accuracy" in capsys.readouterr().out
