"""Tasksets of verifiers 0.4 are trained and evaluated with our engine."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr.core.engine.engine import LocalEngine
from rlvr.errors import UserError
from rlvr.records.rollouts import read_rollouts
from rlvr.types import Completion, SamplingParams
from small import RUN, TINY, model_of_ten_words
from tests.system.harness import once, pretrained, run_train

TASKSETS = Path(__file__).parent / "tasksets"


@pytest.fixture(autouse=True)
def _tasksets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TASKSETS))


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, ...], Completion]]:
    """Prompt and completion of every request of the engine."""
    seen: list[tuple[tuple[int, ...], Completion]] = []
    generate = LocalEngine.generate

    async def noted(
        self: LocalEngine,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        **more: Any,
    ) -> Completion:
        found = await generate(self, prompt_ids, sampling, session=session, **more)
        seen.append((tuple(prompt_ids), found))
        return found

    monkeypatch.setattr(LocalEngine, "generate", noted)
    return seen


def lines(kind: str, *more: str) -> tuple[str, ...]:
    return once(*RUN, "task.env_id=rlvr-test-taskset", f"task.env_args.kind={kind}", *more)


def test_a_single_turn_taskset_is_trained_and_evaluated(tmp_path: Path) -> None:
    ran = run_train(tmp_path / "run", *lines("letters", *TINY, "trainer.max_steps=2", "evaluation.every=2"))
    last = ran.rows[-1]
    assert 0 < last["reward/share_of_e"] == last["reward/mean"]
    assert last["policy/grad_norm"] > 0
    assert last["eval/verifiers/part_length"] > 0


def test_a_taskset_with_tools_is_learnt_from_the_sampled_tokens(tmp_path: Path, sampled: Any) -> None:
    start = pretrained(model_of_ten_words(tmp_path / "model"))
    more = ("prompt.tool_format=words", "task.metric=looked", "trainer.learning_rate=0.005")
    ran = run_train(tmp_path / "run", *lines("words", *start, *more))
    first, last = ran.rows[1], ran.rows[-1]
    assert 0.2 < first["reward/looked"] < 0.8
    assert last["reward/looked"] > 0.95
    assert last["reward/mean"] > first["reward/mean"] + 0.2
    assert last["eval/verifiers/sampled_accuracy"] > 0.9
    assert first["rollout/tool_calls_mean"] > 0
    by_engine = {(prompt, found.token_ids): found.behavior_logprobs for prompt, found in sampled}
    records = read_rollouts(ran.folder / "rollouts" / "step_000001.jsonl.gz")
    assert len(records) == 64
    assert any(len(record.turns) > 1 for record in records)
    for record in records:
        for turn in record.turns:
            assert (tuple(turn.prompt_ids), tuple(turn.completion_ids)) in by_engine
        trained = [token for row in record.rows for token, kept in zip(row.ids, row.loss_mask, strict=True) if kept]
        assert trained == [token for turn in record.turns for token in turn.completion_ids]


def test_a_task_that_fails_too_often_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"failed on .*TaskError: task Breaks scoring: KeyError"):
        run_train(tmp_path / "run", *lines("breaks", *TINY, "reward.max_error_share=0.0", "trainer.max_steps=1"))
