"""`rlvr train --config-name keep_one`: parts that the policy grades, in a whole run."""

from pathlib import Path

import pytest

import rlvr
from rlvr.core.value import State
from rlvr.records.rollouts import read_rollouts
from tests.system.harness import check_equal, metrics, outcome, run_train

# barely warmed up: some calls are valid, few facts are right
SHORT = (
    "warm_start.num_steps=40",
    "warm_start.final_phase_steps=0",
    "warm_start.batch_size=32",
    "task.num_facts=4",
    "task.easy_examples=0",
    "rollout.prompts_per_step=4",
    "rollout.group_size=4",
    "trainer.max_steps=2",
    "trainer.checkpoint_every=1",
    "evaluation.every=1",
    "evaluation.num_examples=8",
    "tracker.rollouts_every=1",
)


def test_evidence_is_part_of_every_score_and_a_resumed_run_is_equal(tmp_path: Path) -> None:
    whole = run_train(tmp_path / "whole", *SHORT, name="keep_one")
    stops = iter([False, True])
    parts = run_train(tmp_path / "parts", *SHORT, name="keep_one", stopped=lambda: next(stops))
    assert parts.result.num_steps == 1
    resumed = run_train(tmp_path / "parts", *SHORT, "resume=true", name="keep_one")
    check_equal(outcome(whole.folder), outcome(resumed.folder))

    start, first, _ = metrics(whole.folder)
    assert (
        start["eval/keep_one/evidence_low"] <= start["eval/keep_one/evidence"] <= start["eval/keep_one/evidence_high"]
    )
    assert start["eval/keep_one/part_evidence"] == pytest.approx(start["eval/keep_one/evidence"])
    assert first["rollout/error_share"] == 0
    records = read_rollouts(whole.folder / "rollouts" / "step_000001.jsonl.gz")
    assert len(records) == 16
    values = [record.reward_parts["evidence"] for record in records]
    assert all(value is not None and 0 <= value <= 1 for value in values)
    assert first["reward/evidence"] == pytest.approx(sum(value or 0.0 for value in values) / 16)
    assert [record.reward for record in records] == pytest.approx(
        [sum(value or 0.0 for value in record.reward_parts.values()) for record in records]
    )

    with rlvr.open(whole.folder) as run:  # an opened run pays what training paid
        (group,) = run.sample([run.task.train_example(0)], 4)
        (on,) = run.resample([(group.example, group.episodes[0], State(turn=0))], 4)
        for score in (episode.score for episode in (*group.episodes, *on)):
            assert set(score.parts) == {"correct", "evidence"}
            assert score.value == pytest.approx(sum(score.parts.values()))
