"""What is read from a run folder, and what damaged parts do to it."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlvr.records.history import History, read_history
from rlvr.records.jsonl import MetricsFile
from rlvr.records.rollouts import rollouts_path, write_rollouts
from rlvr.trust.record import MAX_FILES, contains, read_record
from rlvr.trust.weights import WeightChange, read_weights
from tests.unit.trust.made import STEP, episode, record, sound


def folder_with(root: Path, steps: int) -> Path:
    (root / "config.yaml").write_text("evaluation: {headline: accuracy}\nalgorithm: {name: grpo}\n")
    file = MetricsFile(root / "metrics.jsonl")
    for step in range(1, steps + 1):
        file.append(step, STEP)
        write_rollouts(rollouts_path(root / "rollouts", step), sound(0))
    return root


def test_some_rollout_files_are_read_the_ends_always(tmp_path: Path) -> None:
    found = read_record(read_history(folder_with(tmp_path, 20)))
    assert len(found.rollouts) == MAX_FILES
    assert {1, 20} <= set(found.rollouts)
    assert found.weights is None


def test_damage_is_a_note(tmp_path: Path) -> None:
    folder_with(tmp_path, 5)
    rollouts_path(tmp_path / "rollouts", 3).write_bytes(b"no gzip")
    notes: list[str] = []
    found = read_record(read_history(tmp_path), on_note=notes.append)
    assert sorted(found.rollouts) == [1, 2, 4, 5]
    assert len(notes) == 1
    assert "damaged" in notes[0]


def test_the_first_steps_have_enough_episodes() -> None:
    assert len(record().early_rows) == 1
    assert len(record({"rollout/episodes": 8.0}).early_rows) == 8


@pytest.mark.parametrize("name", ["made", "my_task:Made"])
def test_evaluations_are_those_of_the_runs_own_task(name: str) -> None:
    made = record(settings={"task": {"name": name}})
    for row in made.history.rows:
        row["eval/another/accuracy"] = 0.9
    assert [(one.step, one.value) for one in made.evaluations] == [(0, 0.4), (10, 0.4)]


def test_a_part_of_the_reward_can_be_the_metric() -> None:
    made = record(settings={"evaluation": {"headline": "sampled_part_format"}})
    assert made.right(episode(0, 0, "3", 0.0, reward_parts={"format": 1.0}))
    assert not made.right(episode(0, 0, "7", 1.0, reward_parts={"format": 0.0}))


def test_without_a_grade_the_answer_that_was_read_counts_then_the_text() -> None:
    unread = episode(0, 0, "7", 1.0, trace=[])
    assert not record().right(unread)  # the other episodes have an answer
    assert record(episodes=[unread]).right(unread)


@pytest.mark.parametrize(
    ("text", "answer", "is_there"),
    [("so it is 12 .", "12", True), ("112", "12", False), ("New  york", "new York", True)],
)
def test_an_answer_is_whole_words(text: str, answer: str, is_there: bool) -> None:
    assert contains(text, answer) == is_there


def history(folder: Path) -> History:
    return History(folder=folder, rows=[], settings={}, text="", notes=[])


def save(folder: Path, matrix: float, vector: float) -> None:
    folder.mkdir(parents=True)
    tensors = {"a": np.full((2, 3), matrix, np.float32), "b": np.full(4, vector, np.float32)}
    save_file(tensors, folder / "model.safetensors")


def test_change_of_matrices_and_count_of_weights(tmp_path: Path) -> None:
    save(tmp_path / "warm_start", 0.5, 9.0)
    assert read_weights(tmp_path, history(tmp_path)) == WeightChange(count=10, fresh=1.0)
    save(tmp_path / "checkpoints/step_000010/model", 0.75, -9.0)
    assert read_weights(tmp_path, history(tmp_path)) == WeightChange(count=10, moved=0.5, still=0.0, fresh=1.0)
    save(tmp_path / "final", 1.0, 9.0)
    assert read_weights(tmp_path, history(tmp_path)) == WeightChange(count=10, moved=1.0, still=0.0, fresh=1.0)


def test_matrices_that_stand_still_beside_norms_that_move(tmp_path: Path) -> None:
    save(tmp_path / "warm_start", 0.5, 9.0)
    save(tmp_path / "checkpoints/step_000010/model", 0.5, 9.0)
    unmoved = read_weights(tmp_path, history(tmp_path))
    assert unmoved is not None
    assert unmoved.still is None  # nothing moves: a learning rate of 0, or no gradient
    save(tmp_path / "final", 0.5, 8.0)
    moved = read_weights(tmp_path, history(tmp_path))
    assert moved is not None
    assert (moved.still, moved.moved) == (1.0, 0.0)


def test_weights_that_cannot_be_read_are_none_and_those_of_adapters_are_counted(tmp_path: Path) -> None:
    assert read_weights(tmp_path, history(tmp_path)) is None
    (tmp_path / "final").mkdir()
    (tmp_path / "final/model.safetensors").write_bytes(b"broken")
    assert read_weights(tmp_path, history(tmp_path)) is None
    (tmp_path / "final/model.safetensors").unlink()
    save_file({"a": np.zeros((2, 3), np.float32)}, tmp_path / "final/adapter_model.safetensors")
    assert read_weights(tmp_path, history(tmp_path)) == WeightChange(count=6)
