"""`rlvr train --config-name two_hop`: a model learns to search twice, and what training on tool tokens does to it."""

import runpy
from pathlib import Path

import pytest

from rlvr.app.tasks import open_tasks
from rlvr.cli.main import main
from rlvr.config.compose import load_config
from rlvr.tracking.rollouts import read_rollouts
from tests.system.harness import metrics, pretrained, run_train
from tests.system.test_data_settings import DataCase
from tests.system.two_hop_settings import TWO_HOP_CASES

LEARN = (
    "task.num_persons=12",
    "task.num_organizations=9",
    "task.num_cities=6",
    "model.hidden_size=48",
    "model.intermediate_size=96",
    "warm_start.num_steps=170",
    "warm_start.learning_rate=4e-3",
    "rollout.prompts_per_step=16",
    "trainer.max_steps=8",
    "trainer.warmup_steps=0",
    "trainer.learning_rate=1e-3",
    "trainer.checkpoint_every=null",
    "evaluation.every=8",
    "evaluation.num_examples=100",
    "tracker.console=none",
    "tracker.rollouts_every=1",
    "tracker.rollouts_max_groups=null",
)
"""Worlds with fewer names, which a smaller model learns to search in 5 CPU seconds."""

ROWS_WITH_REPLIES = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/tool_tokens.py"))["rows_with_replies"]


def test_pitfall_18_a_short_run_learns_to_search_twice(two_hop_run: Path) -> None:
    rows = metrics(two_hop_run)
    start, end = rows[0], rows[-1]
    assert start["eval/two_hop/accuracy"] <= 0.5
    assert end["eval/two_hop/accuracy"] >= 0.9
    assert end["eval/two_hop/tool_calls_mean"] == pytest.approx(2.0, abs=0.1)
    rewards = [row["reward/mean"] for row in rows[1:]]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1


def test_pitfall_05_only_sampled_tokens_are_trained_on(two_hop_run: Path) -> None:
    """Counted in what was sampled: the tokens of all episodes whose group has a spread of rewards."""
    for step in (1, 8):
        records = read_rollouts(two_hop_run / "rollouts" / f"step_{step:06}.jsonl.gz")
        groups: dict[int, list[float]] = {}
        for record in records:
            assert record.reward is not None
            groups.setdefault(record.group, []).append(record.reward)
        sampled = sum(
            len(turn.completion_ids)
            for record in records
            if len(set(groups[record.group])) > 1
            for turn in record.turns
        )
        assert metrics(two_hop_run)[step]["policy/trained_tokens"] == sampled > 0


def test_pitfall_05_training_on_what_tools_wrote_is_worse(
    two_hop_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [*LEARN, *pretrained(two_hop_run / "warm_start")]
    changes = [line for line in changes if not line.startswith(("warm_start.num", "warm_start.learning", "model.h"))]
    changes = [line for line in changes if not line.startswith("model.i")]
    right = metrics(two_hop_run)
    monkeypatch.setattr("rlvr.core.batch.episode_rows", ROWS_WITH_REPLIES)
    wrong = run_train(tmp_path / "wrong", *changes, name="two_hop").rows
    # the very same episodes, and more tokens of them
    assert wrong[1]["reward/mean"] == right[1]["reward/mean"]
    assert wrong[1]["policy/trained_tokens"] > 1.3 * right[1]["policy/trained_tokens"]
    last = [sum(row["reward/mean"] for row in rows[-3:]) / 3 for rows in (wrong, right)]
    assert last[0] < last[1] - 0.15


def test_a_run_can_be_evaluated_and_asked(two_hop_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(two_hop_run), "--num-examples", "20"]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert main(["predict", str(two_hop_run), "--prompt", "where p3"]) == 0
    shown = capsys.readouterr().out
    assert "<call> search p3 </call>" in shown
    assert "p3 works-at o" in shown
    assert "right" in shown
    assert main(["predict", str(two_hop_run), "--prompt", "where p99"]) != 0
    assert "ask where p0 (to p11)" in capsys.readouterr().err


@pytest.mark.parametrize("case", TWO_HOP_CASES, ids=[case.key for case in TWO_HOP_CASES])
def test_a_setting_does_what_it_says(case: DataCase) -> None:
    seen = []
    for value in (case.a, case.b):
        with open_tasks(load_config([*case.base, f"{case.key}={value}"]), "llama", {}) as tasks:
            seen.append(case.look(tasks.own))
    assert seen[0] != seen[1]
