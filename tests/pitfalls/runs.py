"""Pitfalls 26 to 29, 37 and 38: rewards and verifiers, resume, evaluation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from rlvr.evaluation.intervals import Interval
from rlvr.rewards.numbers import Answer, Number
from rlvr.rewards.sandbox import CallResult
from rlvr.types import Score, StopReason
from tests.pitfalls.planting import Planted, around, edit, without_filter

REWARDS, TASKS = "tests/unit/rewards/", "tests/unit/tasks/"
SCHEDULE = "tests/unit/core/test_rollout.py::test_pitfall_"
SANDBOX, EXTRACT = REWARDS + "test_sandbox.py::test_pitfall_", REWARDS + "test_extract.py::test_pitfall_"
STATE = "tests/unit/training/test_state.py::test_pitfall_"
EVALUATE = "tests/unit/evaluation/test_evaluate.py::test_pitfall_"


async def error_is_zero(original: Callable[..., Awaitable[Score]], *arguments: Any) -> Score:
    score = await original(*arguments)
    return Score(value=0.0) if score.status == "error" else score


async def timeout_is_zero(original: Callable[..., Awaitable[CallResult]], *arguments: Any) -> CallResult:
    result = await original(*arguments)
    return CallResult(status="ok", value=0.0) if result.status == "timeout" else result


def unsigned(original: Callable[..., Answer | None], text: str) -> Answer | None:
    answer = original(text)
    return replace(answer, value=abs(answer.value)) if isinstance(answer, Number) else answer


def last_box(original: Callable[..., str | None], answer_format: Any, text: str) -> str | None:
    last = text[text.rfind("\\boxed") :] if answer_format.answer_in == "boxed" else ""
    return original(answer_format, text) or original(answer_format, last)


async def right_if_rewarded(original: Callable[..., Awaitable[Any]], *arguments: Any, **more: Any) -> Any:
    record = await original(*arguments, **more)
    return replace(record, correct=record.reward > 0)


def without_width(original: Callable[..., Interval], *arguments: Any, **more: Any) -> Interval:
    value = original(*arguments, **more).value
    return Interval(value=value, low=value, high=value)


BUGS = [
    Planted(
        pitfall=26,
        name="a verifier that raises scores 0",
        plant=around("rlvr.rewards.base:run_verifier", error_is_zero),
        caught_by=REWARDS + "test_base.py::test_pitfall_26_an_exception_is_no_wrong_answer",
    ),
    Planted(
        pitfall=26,
        name="verifier errors have no limit",
        plant=around("rlvr.core.rollout:check_errors", lambda original, *arguments: None),
        caught_by=SCHEDULE + "26_errors_above_the_limit_stop_the_run",
    ),
    Planted(
        pitfall=27,
        name="a verifier that hangs scores 0",
        plant=around("rlvr.rewards.sandbox:Sandbox.call", timeout_is_zero),
        caught_by=SANDBOX + "27_what_hangs_is_killed_at_its_deadline",
    ),
    Planted(
        pitfall=27,
        name="a call that hangs stalls the others",
        plant=around(
            "rlvr.rewards.sandbox:Sandbox.__init__",
            lambda original, self, **more: original(self, **{**more, "num_workers": 1}),
        ),
        caught_by=SANDBOX + "27_deadlines_of_hanging_calls_run_in_parallel",
    ),
    Planted(
        pitfall=28,
        name="the sign of a number is dropped",
        plant=around("rlvr.rewards.numbers:parse_answer", unsigned),
        caught_by=REWARDS + "test_numbers.py::test_pitfall_28_every_spelling_of_a_minus_is_a_minus",
    ),
    Planted(
        pitfall=28,
        name="of two boxes the last one counts",
        plant=around("rlvr.rewards.extract:AnswerFormat.extract", last_box),
        caught_by=EXTRACT + "28_the_answer_in_the_box",
    ),
    Planted(
        pitfall=28,
        name="an answer that was cut off counts",
        plant=around(
            "rlvr.rewards.extract:AnswerFormat.answer_of",
            lambda original, self, attempt: original(self, replace(attempt, stop_reason=StopReason.STOP)),
        ),
        caught_by=EXTRACT + "28_a_completion_that_was_cut_off_has_no_answer",
    ),
    Planted(
        pitfall=28,
        name="GSM8K's official scorer accepts a trailing point",
        plant=around("rlvr.rewards.official.gsm8k:extract", lambda original, text: original(text).rstrip(".")),
        caught_by=REWARDS + "official/test_rows.py::test_pitfall_28_every_oddity_of_the_official_scorers_is_kept",
    ),
    Planted(
        pitfall=29,
        name="NaN and lists are accepted as a score",
        plant=around("rlvr.rewards.base:checked", lambda original, name, score: score),
        caught_by=REWARDS + "test_base.py::test_pitfall_29_only_one_finite_score_is_accepted",
    ),
    Planted(
        pitfall=37,
        name="the optimizer state is not restored",
        plant=around("rlvr.training.state:CheckpointSchedule._load_optimizer", lambda original, *arguments: None),
        caught_by=STATE + "37_a_restored_trainer_goes_on_bit_for_bit",
    ),
    Planted(
        pitfall=37,
        name="batches in flight are lost",
        plant=around(
            "rlvr.core.rollout:RolloutSchedule.restore",
            lambda original, self, state: original(self, {**state, "indices": []}),
        ),
        caught_by="tests/unit/core/test_staleness.py::test_pitfall_37_a_resume_loses_and_doubles_no_prompt",
    ),
    Planted(
        pitfall=37,
        name="the random generators are not restored",
        plant=around("rlvr.training.state:set_random_state", lambda original, state: None),
        caught_by=STATE + "37_the_random_generators_are_restored",
    ),
    Planted(
        pitfall=37,
        name="a checkpoint is renamed before it is on disk",
        plant=around("rlvr.records.files:sync_file", lambda original, path: None),
        caught_by="tests/unit/training/test_checkpoint.py::test_pitfall_37_files_are_synced_before_the_rename",
    ),
    Planted(
        pitfall=38,
        name="the reward is the metric",
        plant=around("rlvr.evaluation.evaluate:grade", right_if_rewarded),
        caught_by=EVALUATE + "38_the_reward_is_not_the_metric",
    ),
    Planted(
        pitfall=38,
        name="the greedy answer is sampled",
        plant=around("rlvr.evaluation.evaluate:greedy", lambda original, params: params),
        caught_by=EVALUATE + "38_greedy_and_sampled_are_told_apart",
    ),
    Planted(
        pitfall=38,
        name="held-out examples are trained on",
        plant=edit("rlvr.tasks.loading:make_data", without_filter),
        caught_by=TASKS + "test_gsm8k.py::test_pitfall_38_held_out_training_examples_are_left_out",
    ),
    Planted(
        pitfall=38,
        name="an interval without width",
        plant=around("rlvr.evaluation.intervals:bootstrap", without_width),
        caught_by="tests/unit/evaluation/test_intervals.py::test_pitfall_38_bootstrap_of_a_perfect_score_has_a_width",
    ),
]
