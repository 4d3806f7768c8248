"""`rlvr train --config-name two_hop`: a model learns to search twice, and what training on tool tokens does to it."""

import runpy
from pathlib import Path

import pytest

from rlvr.records.rollouts import read_rollouts
from tests.system.harness import Cli, metrics, pretrained, run_train, split

LEARN = split("""
    task.num_persons=12 task.num_organizations=9 task.num_cities=6 model.hidden_size=48 model.intermediate_size=96
    warm_start.num_steps=170 warm_start.learning_rate=4e-3 warm_start.worked_share=0.3 rollout.prompts_per_step=16
    trainer.max_steps=8 trainer.warmup_steps=0 trainer.learning_rate=1e-3 trainer.checkpoint_every=null
    evaluation.every=8 evaluation.num_examples=100
    tracker.console=none tracker.rollouts_every=1 tracker.rollouts_max_groups=null
""")
"""Worlds with fewer names, which a smaller model learns to search in 5 CPU seconds."""

ROWS_WITH_REPLIES = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/tool_tokens.py"))["rows_with_replies"]


def again(run: Path) -> tuple[str, ...]:
    """The same training, from the warm-started model of that run."""
    kept = [word for word in LEARN if not word.startswith(("warm_start.", "model."))]
    return (*kept, *pretrained(run / "warm_start"))


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
        rewards: dict[int, set[float | None]] = {}
        for record in records:
            rewards.setdefault(record.group, set()).add(record.reward)
        learned = [record for record in records if len(rewards[record.group]) > 1]
        sampled = sum(len(turn.completion_ids) for record in learned for turn in record.turns)
        assert not any(None in found for found in rewards.values())
        assert metrics(two_hop_run)[step]["policy/trained_tokens"] == sampled > 0


def test_pitfall_05_training_on_what_tools_wrote_is_worse(
    two_hop_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = metrics(two_hop_run)
    monkeypatch.setattr("rlvr.core.batch.episode_rows", ROWS_WITH_REPLIES)
    wrong = run_train(tmp_path / "wrong", *again(two_hop_run), name="two_hop").rows
    # the very same episodes, and more tokens of them
    assert wrong[1]["reward/mean"] == right[1]["reward/mean"]
    assert wrong[1]["policy/trained_tokens"] > 1.3 * right[1]["policy/trained_tokens"]
    last = [sum(row["reward/mean"] for row in rows[-3:]) / 3 for rows in (wrong, right)]
    assert last[0] < last[1] - 0.15


def test_a_run_can_be_evaluated_and_asked(two_hop_run: Path, cli: Cli) -> None:
    assert "accuracy" in cli.ok("eval", two_hop_run, "--num-examples", "20").out
    shown = cli.ok("predict", two_hop_run, "--prompt", "where p3").out
    assert all(part in shown for part in ("<call> search p3 </call>", "p3 works-at o", "right"))
    cli.refuses(1, ["predict", two_hop_run, "--prompt", "where p99"], "ask where p0 (to p11)")
