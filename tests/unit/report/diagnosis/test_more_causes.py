"""What is close to the causes of `more_runs`, and what they say where they have several kinds of evidence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr.report.diagnosis import of_record
from rlvr.report.diagnosis.causes import CHAIN
from rlvr.report.diagnosis.data import EASIER, HARDER
from rlvr.report.diagnosis.record import Record, end_tokens
from rlvr.tracking.rollouts import EpisodeRecord
from rlvr.types import TraceStep
from tests.unit.report.diagnosis.made import WEIGHTS, episode, record
from tests.unit.report.diagnosis.more_runs import (
    DEAD,
    MORE,
    RISING,
    called,
    evaluated,
    groups,
    in_folder,
    searched,
    stopped_inside,
    surprised,
)


def strength(name: str, made: Record) -> float:
    return CHAIN[name](made).strength


# ------------------------------------------------------------------------------------------------- data and evaluation


def test_a_model_whose_norms_were_trained_is_trained() -> None:
    assert strength("untrained", record(weights=replace(WEIGHTS, fresh=0.25))) == 0.0
    assert strength("untrained", record(weights=None)) == 0.0


def test_an_evaluation_of_few_answers_may_stand_still() -> None:
    assert strength("evaluation_stands_still", evaluated(record(RISING), 20.0)) == 0.0


def test_an_evaluation_may_stand_still_beside_a_flat_reward() -> None:
    assert strength("evaluation_stands_still", evaluated(record())) == 0.0


def test_an_evaluation_of_which_one_number_moves_does_not_stand_still() -> None:
    made = evaluated(record(RISING))
    made.history.rows[-1]["eval/made/completion_tokens_mean"] = 3.25
    assert strength("evaluation_stands_still", made) == 0.0


@pytest.mark.parametrize(("answer", "reply"), [("7", "Room 7."), ("no", "o7 is in 3.")])
def test_a_gold_answer_that_was_read_or_stands_nowhere_is_its_questions(answer: str, reply: str) -> None:
    shown = groups(lambda g, n, a: replace(searched(g, n, "3", reply), answer=answer))
    assert strength("other_gold", record(episodes=shown)) == 0.0


@pytest.mark.parametrize(("num_documents", "reply"), [(2, "o7 is in 5."), (1, "o7 is in 3.")])
def test_episodes_that_did_not_get_there_say_nothing_about_gold_answers(num_documents: int, reply: str) -> None:
    shown = groups(lambda g, n, a: searched(g, n, "3", reply))
    fewer = [replace(one, trace=one.trace[2 - num_documents :]) for one in shown]
    assert strength("other_gold", record(episodes=fewer)) == 0.0


def test_derivations_without_a_wrong_step_that_are_called_wrong_have_another_gold() -> None:
    steps = [TraceStep(kind="step", text="3 4 +"), TraceStep(kind="step", text="3", ok=True)]
    wrong = [*steps, TraceStep(kind="answer", text="3", ok=False)]
    found = of_record(record(episodes=groups(lambda g, n, a: episode(g, n, "3", 0.0, trace=wrong))))
    assert found.named == "other_gold"
    assert found.causes[0].evidence[0].startswith("64 recorded derivations have no wrong step; 0 of them")
    broken = [replace(steps[1], ok=False), *wrong]
    assert strength("other_gold", record(episodes=groups(lambda g, n, a: episode(g, n, "3", 0.0, trace=broken)))) == 0.0


def test_rows_that_are_right_more_often_than_held_out_ones_are_easier_and_others_harder() -> None:
    easier = CHAIN["unlike_held_out"](MORE["unlike_held_out"]())
    wrong, known = groups(lambda g, n, a: episode(g, n, "3", 0.0)), (0.8, 0.75, 0.85)
    harder = CHAIN["unlike_held_out"](record(episodes=wrong, accuracy=(known, known)))
    assert (easier.remedy, harder.remedy) == (EASIER, HARDER)
    assert "100% of the recorded completions of step 10 are right, and 40%" in easier.evidence[0]
    assert "0% of the recorded completions of step 1 are right, and 80%" in harder.evidence[0]
    assert min(easier.strength, harder.strength) > 0.9


def test_without_a_grade_training_is_not_compared_with_held_out_answers() -> None:
    ungraded = groups(lambda g, n, a: episode(g, n, "7", 1.0, trace=[]))
    assert strength("unlike_held_out", record(RISING, episodes=ungraded)) == 0.0


def test_answers_that_are_compared_word_by_word_are_not_less_often_right_in_training() -> None:
    read = [TraceStep(kind="answer", text="7.0")]
    known = (0.8, 0.75, 0.85)
    made = record(episodes=groups(lambda g, n, a: episode(g, n, a, 1.0, trace=read)), accuracy=(known, known))
    assert strength("unlike_held_out", made) == 0.0


def test_held_out_answers_are_compared_with_those_of_training_at_that_time() -> None:
    made = MORE["unlike_held_out"]()
    first = groups(lambda g, n, a: episode(g, n, a, float(a == "7")))
    made.history.rows[-1] = {k: v for k, v in made.history.rows[-1].items() if not k.startswith("eval/")}
    assert strength("unlike_held_out", Record(made.history, {1: first, 10: made.rollouts[10]}, made.weights)) == 0.0


def test_one_question_too_few_says_nothing_about_all() -> None:
    few = [episode(0, number, "7", 1.0) for number in range(4)]
    assert strength("unlike_held_out", record(RISING, episodes=few)) < 0.25


# ------------------------------------------------------------------------------------------------------------ sampling


def test_a_stop_string_after_right_answers_is_none_inside() -> None:
    assert strength("ends_early", MORE["ends_early"]()) == 1.0
    assert strength("ends_early", stopped_inside(right_too=True)) == 0.0


def test_without_a_tokenizer_no_token_is_called_odd() -> None:
    assert strength("ends_early", in_folder(MORE["ends_early"](), Path("made"))) == 0.0


def test_end_tokens_are_those_of_the_models_files_too(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final/tokenizer.json").write_text(json.dumps({"added_tokens": []}))
    made = replace(record().history, folder=tmp_path)
    assert end_tokens(made) == set()
    (tmp_path / "final/generation_config.json").write_text(json.dumps({"eos_token_id": [9, 12]}))
    assert end_tokens(made) == {9, 12}


def test_a_tool_that_says_the_same_to_different_calls_fails() -> None:
    deaf = groups(lambda g, n, a: called(g, n, f"p{n}", "p0 works-at o1"))
    found = of_record(record(episodes=deaf))
    assert found.named == "tools_fail"
    assert found.causes[0].says == "A tool says the same whatever it is asked."
    assert found.causes[0].evidence[0] == "96 of 96 pairs of calls with nothing in common got the same reply"
    assert strength("tools_fail", record(episodes=groups(lambda g, n, a: called(g, n, f"p{n}", f"p{n} x")))) == 0.0
    alike = groups(lambda g, n, a: called(g, n, f"city of p{n}", "p0 works-at o1"))
    assert strength("tools_fail", record(episodes=alike)) == 0.0


def found_then_read(read: str) -> Record:
    """A document was found in the first turn; the prompt of the second says what was read of it."""

    def one(group: int, number: int, answer: str) -> EpisodeRecord:
        made = episode(group, number, answer, float(answer == "7"))
        steps = [TraceStep(kind="document", text="p3 works-at o7", ok=True), *made.trace]
        return replace(made, trace=steps, turns=[made.turns[0], replace(made.turns[0], prompt=f"where p3 {read}")])

    return record(episodes=groups(one))


def test_what_a_tool_finds_and_the_next_prompt_lacks_does_not_reach_the_model() -> None:
    found = of_record(found_then_read("p3 works-at"))
    assert found.named == "tools_fail"
    assert "does not reach the model" in found.causes[0].says
    assert found.causes[0].evidence[0].startswith("64 of 64 documents")
    assert strength("tools_fail", found_then_read("<tool> P3 works-at o7. </tool>")) == 0.0


def test_tokens_less_likely_than_the_policys_entropy_are_drawn_by_another_sampler() -> None:
    found = of_record(surprised(0.5))
    assert found.named == "other_sampler"
    assert found.causes[0].overrides == []
    assert "less likely than the policy's entropy says, by 0.50 nats" in found.causes[0].evidence[0]
    assert strength("other_sampler", surprised(0.0)) == 0.0


@pytest.mark.parametrize("settings", [{"rollout": {"top_p": 0.9}}, {"algorithm": {"num_minibatches": 4}}])
def test_surprise_says_nothing_where_sampling_is_narrowed_or_the_policy_moves(settings: dict[str, dict]) -> None:
    assert strength("other_sampler", surprised(0.5, **settings)) == 0.0


def test_one_prompt_for_everything_is_suspected_where_tools_could_tell() -> None:
    tooled = {"diagnostics": {"tool_calls": 1.0}}
    same = [episode(g, 0, "7" if g % 2 else "3", float(g % 2), prompt=(10, 40), **tooled) for g in range(8)]
    shown = [replace(one, answer=str(number)) for number, one in enumerate(same)]
    assert of_record(record(episodes=shown)).named == "same_prompt"
    surer = of_record(record({"rollout/truncated_share": 0.9}, episodes=shown))
    assert surer.named == "truncated"


# -------------------------------------------------------------------------------------------------- rewards and updates


def test_groups_of_one_reward_are_no_fault_of_the_verifier_where_all_are_equally_right() -> None:
    assert strength("paid_by_question", record(DEAD, episodes=groups(lambda g, n, a: episode(g, n, "7", g % 2)))) == 0.0


def test_an_answer_that_only_stands_in_the_text_is_not_one_the_verifier_leaves_unpaid() -> None:
    shown = groups(lambda g, n, a: episode(g, n, a, float(g % 2), trace=[]))
    assert strength("paid_by_question", record(DEAD, episodes=shown)) == 0.0


def test_adapters_leave_most_matrices_as_they_are() -> None:
    made = record(weights=replace(WEIGHTS, still=0.9), settings={"model": {"lora": {"enabled": True}}})
    assert strength("frozen", made) == 0.0


def gamed(**changes: Any) -> Record:
    """In the last step wrong completions are paid in full."""
    first = groups(lambda g, n, a: episode(g, n, a, float(a == "7"), **changes))
    last = groups(lambda g, n, a: episode(g, n, "3", 1.0, **changes))
    made = record(RISING, episodes=first)
    return Record(made.history, {1: first, 10: last}, made.weights)


def test_a_reward_that_rises_with_wrong_completions_is_gamed() -> None:
    found = of_record(gamed())
    assert found.named == "other_reward"
    assert found.causes[0].says.startswith("The reward is gamed")
    assert found.causes[0].evidence[0] == "32 of 32 completions of step 10 that earned 1 are wrong"
    milder = gamed(trace=[TraceStep(kind="answer", text="7.0")])
    assert "gamed" not in of_record(milder).causes[0].says


def test_what_earns_nothing_is_not_gamed() -> None:
    made = record(RISING, episodes=groups(lambda g, n, a: episode(g, n, "3", 0.0)))
    assert strength("other_reward", made) == 0.0


def test_unread_completions_say_nothing_about_the_reward() -> None:
    unread = groups(lambda g, n, a: episode(g, n, a, 0.0, trace=[], score_status="invalid"))
    made = record({**DEAD, "rollout/invalid_share": 0.98, "reward/mean": [0.1, *[0.0] * 9]}, episodes=unread)
    assert made.agreement.unlike == 0
    assert of_record(made).named == "foreign_prompt"


@pytest.mark.parametrize(
    ("algorithm", "setting"),
    [
        ({"name": "ppo", "gamma": 0.1}, "algorithm.gamma=1"),
        ({"name": "ppo", "gamma": 0.99}, None),
        ({"entropy_coef": 1.0}, "algorithm.entropy_coef=0"),
        ({"kl_coef": 5.0}, "algorithm.kl_coef=0"),
        ({"name": "of another version", "kl_coef": 5.0}, None),
    ],
)
def test_a_setting_outside_of_its_usual_range_is_set_back(algorithm: dict[str, Any], setting: str | None) -> None:
    top = of_record(record(settings={"algorithm": algorithm})).top
    assert (None if top is None else (top.name, list(top.overrides), top.in_code)) == (
        None if setting is None else ("unusual_setting", [setting], False)
    )


@pytest.mark.parametrize(
    ("schedule", "overrides"),
    [("linear", ["trainer.schedule=constant"]), ("constant", [])],
)
def test_a_schedule_that_ends_early_is_named(schedule: str, overrides: list[str]) -> None:
    rates = {"policy/learning_rate": [4e-4, 2e-4, *[0.0] * 8]}
    top = of_record(record(rates, settings={"trainer": {"schedule": schedule}})).top
    assert top is not None
    assert (top.name, list(top.overrides)) == ("step_too_small", overrides)
    assert "in 8 of 10 steps, first in step 3" in top.evidence[0]
    assert "schedule" in top.says


def test_a_reference_that_is_not_the_start_is_named_at_a_usual_coefficient() -> None:
    settings = {"algorithm": {"kl_coef": 0.1}}
    found = of_record(record({"policy/reference_kl": 1.5}, settings=settings))
    assert found.named == "held_back"
    assert "not the policy of the start" in found.causes[0].says
    assert of_record(record({"policy/reference_kl": [0.0] * 5 + [1.5] * 5}, settings=settings)).named is None
