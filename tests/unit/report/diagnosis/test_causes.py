"""Each cause: a made run that only it explains."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr.report.diagnosis import of_record
from rlvr.report.diagnosis.causes import CHAIN
from rlvr.report.diagnosis.judge import NAMED, TABLE
from rlvr.report.diagnosis.record import Record
from rlvr.tracking.rollouts import EpisodeRecord
from tests.unit.report.diagnosis.made import ANSWERS, WEIGHTS, episode, record, sound
from tests.unit.report.diagnosis.more_runs import DEAD, MORE, groups

FALLEN = ((0.4, 0.35, 0.45), (0.0, 0.0, 0.02))


def constant(value: float) -> Record:
    rows = {"reward/mean": value, "reward/std": 0.0, **DEAD}
    return record(rows, episodes=groups(lambda g, n, a: episode(g, n, a, value)))


def cut(inside: int) -> list[EpisodeRecord]:
    """Half of the completions end by themselves, the others are cut off with this token inside."""
    return groups(
        lambda g, n, a: episode(g, n, a, 0.0, ids=(20, inside, 30), stop="length") if n % 2 else episode(g, n, a, 1.0)
    )


def coin() -> list[EpisodeRecord]:
    draw = random.Random(0)
    return groups(lambda g, n, a: episode(g, n, a, float(draw.random() < 0.5), ids=(20, 30 + int(a), 1)))


def by_length(group: int, number: int, answer: str) -> EpisodeRecord:
    return episode(group, number, answer, (number + 1) / 4, ids=(*range(20, 22 + 2 * number), 1))


def tooled(one: EpisodeRecord) -> EpisodeRecord:
    return replace(one, diagnostics={"tool_calls": 1.0, "turns": 1.0})


RUNS: dict[str, Callable[[], Record]] = {
    "verifier_fails": lambda: record({"rollout/error_share": 0.6}),
    "same_prompt": lambda: record(
        episodes=[replace(one, answer=str(g)) for g in range(8) for one in [episode(g, 0, "7", 1.0, prompt=(10, 40))]]
    ),
    "learnt_by_heart": lambda: record(
        {"reward/mean": [0.1 * step for step in range(10)]},
        episodes=groups(lambda g, n, a: episode(g, n, a, float(a == "7"), prompt=(10, 40))),
    ),
    "too_hot": lambda: record(
        episodes=groups(lambda g, n, a: episode(g, n, "3" if g % 4 else a, float(g % 4 == 0 and a == "7"))),
        settings={"rollout": {"temperature": 3.0}},
    ),
    "wrong_way": lambda: record({"reward/mean": [0.6 - 0.05 * step + 0.01 * (step % 2) for step in range(10)]}),
    "tools_fail": lambda: record({"rollout/malformed_call_share": 0.95}),
    "never_ends": lambda: record({"rollout/truncated_share": 0.5}, episodes=cut(inside=1)),
    "truncated": lambda: record({"rollout/truncated_share": 0.5}, episodes=cut(inside=9)),
    "foreign_prompt": lambda: record(
        {**DEAD, "rollout/invalid_share": 0.98, "reward/mean": 0.0, "reward/std": [0.1, *[0.0] * 9]},
        episodes=groups(lambda g, n, a: episode(g, n, "3", 0.0, trace=[], score_status="invalid")),
    ),
    "never_paid": lambda: constant(0.0),
    "always_paid": lambda: constant(1.0),
    "too_hard": lambda: record(
        {**DEAD, "reward/mean": 0.0},
        episodes=groups(lambda g, n, a: episode(g, n, "3", 0.0)),
        accuracy=((0.0, 0.0, 0.02), (0.0, 0.0, 0.02)),
    ),
    "too_easy": lambda: record(
        {**DEAD, "reward/mean": [1.0, 0.9, *[1.0] * 8]},
        episodes=groups(lambda g, n, a: episode(g, n, "7", 1.0)),
        accuracy=((0.98, 0.96, 1.0), (0.98, 0.96, 1.0)),
    ),
    "other_sampler": lambda: record({"policy/mismatch_kl": 0.2}),
    "alike": lambda: record(
        {**DEAD, "rollout/entropy": 0.01},
        episodes=groups(lambda g, n, a: episode(g, n, "7" if g % 2 else "3", float(g % 2), ids=(20, 30, 1))),
        settings={"rollout": {"temperature": 0.05}},
    ),
    "collapsed": lambda: record(
        {**DEAD, "rollout/entropy": 0.01},
        episodes=groups(lambda g, n, a: episode(g, n, "7" if g % 2 else "3", float(g % 2), ids=(20, 30, 1))),
    ),
    "collapses": lambda: record(
        {"rollout/entropy": [0.6, 0.4, 0.2, 0.1, *[0.01] * 6]}
        | {"rollout/zero_advantage_share": [0.2] * 4 + [1.0] * 6, "policy/trained_token_share": [0.8] * 4 + [0.0] * 6},
        episodes=groups(lambda g, n, a: episode(g, n, "7" if g % 2 else "3", float(g % 2), ids=(20, 30, 1))),
    ),
    "noisy_reward": lambda: record(episodes=coin()),
    "paid_for_length": lambda: record(episodes=groups(by_length)),
    "other_reward": lambda: record(episodes=groups(lambda g, n, a: episode(g, n, a, float(a != "7")))),
    "masked": lambda: record({"policy/trained_token_share": 0.1}),
    "no_gradient": lambda: record({"policy/grad_norm": 0.0}),
    "stale_sampler": lambda: record({"policy/mismatch_kl": [1e-5 * 4**step for step in range(10)]}),
    "step_too_large": lambda: record({"policy/learning_rate": 0.04}, accuracy=FALLEN),
    "step_too_small": lambda: record({"policy/learning_rate": 1e-7}, weights=replace(WEIGHTS, moved=1e-6)),
    "held_back": lambda: record({"policy/reference_kl": 1.5}, settings={"algorithm": {"kl_coef": 0.1}}),
    **MORE,
}


@pytest.mark.parametrize("name", CHAIN)
def test_a_cause_is_named_where_it_explains_the_curve(name: str) -> None:
    found = of_record(RUNS[name]())
    assert found.top is not None
    assert found.top.name == name
    assert [cause.name for cause in found.causes if cause.score >= NAMED] == [name]
    assert found.top.evidence
    assert found.top.in_code == (not found.top.overrides)


def test_noise_is_seen_in_completions_that_differ() -> None:
    draw = random.Random(0)
    found = of_record(record(episodes=groups(lambda g, n, a: episode(g, n, a, float(draw.random() < 0.5)))))
    assert found.top is not None
    assert found.top.name == "noisy_reward"
    assert re.match(r"\d+ of \d\d pairs that are both right or both wrong were paid differently", found.top.evidence[0])


def test_a_reward_falls_the_wrong_way_by_more_than_chance() -> None:
    few_right = {"reward/mean": [0.03] * 4 + [0.02] * 2 + [0.01] * 4, "reward/std": 0.15}
    assert of_record(record(few_right)).top is None


def test_weights_that_hardly_move_do_not_go_the_wrong_way() -> None:
    falling = {"reward/mean": [0.6 - 0.05 * step + 0.01 * (step % 2) for step in range(10)]}
    found = of_record(record(falling, weights=replace(WEIGHTS, moved=1e-6)))
    assert found.top is not None
    assert found.top.name == "step_too_small"


def test_a_form_that_one_in_fifty_has_is_known() -> None:
    found = of_record(record({"rollout/invalid_share": 0.98, "rollout/zero_advantage_share": 0.94}))
    assert found.top is None


def test_a_flat_run_in_which_nothing_is_wrong_is_not_explained() -> None:
    found = of_record(record())
    assert (found.top, found.learned) == (None, 0.0)
    assert found.causes == []
    assert found.verdict.startswith("I do not know")


@pytest.mark.parametrize("name", [name for name in CHAIN if name not in ("paid_for_length", "other_reward")])
def test_a_run_that_learns_is_silent_whatever_else_it_shows(name: str) -> None:
    made = RUNS[name]()
    made.history.rows[0] |= {"eval/made/accuracy": 0.1, "eval/made/accuracy_low": 0.05, "eval/made/accuracy_high": 0.2}
    made.history.rows[-1] |= {"eval/made/accuracy": 0.9, "eval/made/accuracy_low": 0.85, "eval/made/accuracy_high": 1.0}
    found = of_record(made)
    assert (found.top, found.learned) == (None, 1.0)
    assert found.verdict == "It learns; nothing looks wrong."


def test_a_reward_that_rises_does_not_excuse_what_it_is_for() -> None:
    rising = {"reward/mean": [0.1 * step for step in range(10)]}
    found = of_record(record(rising, episodes=groups(by_length)))
    assert (found.learned, found.rewarded) == (0.0, 1.0)
    assert found.top is not None
    assert found.top.name == "paid_for_length"


def test_a_reward_that_rises_alone_is_said() -> None:
    found = of_record(record({"reward/mean": [0.1 * step for step in range(10)]}))
    assert found.top is None
    assert found.verdict.startswith("The reward rises, the held-out metric not")


def test_words_and_levels_of_each_cause_are_in_the_table() -> None:
    assert [name for name in TABLE if name != "common"] == list(CHAIN)
    assert set(CHAIN) == set(RUNS)
    for name, about in TABLE.items():
        assert name == "common" or (about["says"] and about["remedy"])
        for level in about.get("levels", {}).values():
            assert level["fine"] != level["wrong"]
            assert level["unit"]


# ------------------------------------------------------------------------------------------------------- remedies


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("truncated", ["rollout.max_completion_tokens=62"]),  # the context leaves no more
        ("alike", ["rollout.temperature=1"]),
        ("collapsed", ["rollout.temperature=20"]),
        ("collapses", ["algorithm.entropy_coef=0.01", "trainer.learning_rate=1e-04"]),
        ("stale_sampler", ["algorithm.mismatch_correction=truncate"]),
        ("step_too_large", ["trainer.learning_rate=4e-04"]),
        ("step_too_small", ["trainer.learning_rate=4e-04"]),
        ("held_back", ["algorithm.kl_coef=0"]),
        ("never_paid", []),
    ],
)
def test_a_remedy_is_a_setting_where_one_helps(name: str, overrides: list[str]) -> None:
    top = of_record(RUNS[name]()).top
    assert top is not None
    assert list(top.overrides) == overrides


def test_a_sampler_left_behind_by_settings_is_brought_up() -> None:
    settings = {"rollout": {"max_staleness": 4}, "engine": {"dtype": "bfloat16"}}
    growing = [1e-5 * 4**step for step in range(10)]
    top = of_record(record({"policy/mismatch_kl": growing}, settings=settings)).top
    assert top is not None
    assert list(top.overrides) == ["rollout.max_staleness=0", "engine.dtype=auto"]


def test_a_mask_of_truncated_completions_is_taken_off() -> None:
    settings = {"algorithm": {"truncated": "mask"}}
    top = of_record(record({"policy/trained_token_share": 0.1}, settings=settings)).top
    assert top is not None
    assert list(top.overrides) == ["algorithm.truncated=keep"]


# ------------------------------------------------------------------------------------------------- what is close by


def test_tokens_without_an_advantage_in_an_episode_that_has_one_are_masked() -> None:
    only_last = groups(lambda g, n, a: episode(g, n, a, float(a == "7"), advantages=[0.0] * 4 + [0.5]))
    top = of_record(record(episodes=only_last)).top
    assert top is not None
    assert top.name == "masked"


def test_one_prompt_for_several_answers_is_no_fault_where_tools_find_them() -> None:
    said = [episode(g, 0, "7" if g % 2 else "3", float(g % 2), prompt=(10, 40 + g // 4)) for g in range(8)]
    shown = [replace(one, answer=str(number)) for number, one in enumerate(said)]
    assert of_record(record(episodes=list(map(tooled, shown)))).top is None


def test_a_task_that_is_solved_is_not_blamed_on_equal_completions() -> None:
    solved = groups(lambda g, n, a: episode(g, n, "7", 1.0, ids=(20, 30, 1)))
    rows = {**DEAD, "rollout/entropy": [0.6, *[0.001] * 9], "reward/mean": [0.9, *[1.0] * 9]}
    names = [cause.name for cause in of_record(record(rows, episodes=solved)).causes]
    assert "collapses" not in names


def test_without_recorded_episodes_metrics_still_speak() -> None:
    found = of_record(record({"rollout/truncated_share": 0.9}, episodes=[]))
    assert found.top is not None
    assert found.top.name == "truncated"
    assert of_record(record(episodes=[])).top is None


def test_without_weights_the_learning_rate_is_compared_with_a_usual_size() -> None:
    low = {"policy/learning_rate": 1e-9}
    assert [one.name for one in of_record(record(low, weights=None)).causes] == ["step_too_small"]
    assert of_record(record(weights=None)).top is None


def test_answers_that_lose_their_form_while_the_metric_falls_are_a_step_too_large_at_any_rate() -> None:
    broken = {"rollout/invalid_share": [0.02, 0.02, *[0.9] * 8], "policy/learning_rate": 1e-5}
    top = of_record(record(broken, accuracy=FALLEN)).top
    assert top is not None
    assert (top.name, list(top.overrides)) == ("step_too_large", ["trainer.learning_rate=3e-06"])
    assert of_record(record(broken)).top is None  # the metric stands


def test_a_verifier_that_fails_only_on_what_is_right_is_found() -> None:
    failed = {"score_status": "error", "diagnostics": {"error": "ValueError: cannot compare"}}
    few = groups(
        lambda g, n, a: replace(episode(g, n, a, 0.0), reward=None, **failed) if a == "7" else episode(g, n, a, 0)
    )
    top = of_record(record({"rollout/error_share": 0.04}, episodes=few)).top
    assert top is not None
    assert top.name == "verifier_fails"
    assert "it said: ValueError: cannot compare" in top.evidence


def test_equal_completions_of_an_unsure_policy_are_blamed_on_sampling() -> None:
    same = groups(lambda g, n, a: episode(g, n, "7" if g % 2 else "3", float(g % 2), ids=(20, 30, 1)))
    top = of_record(record(DEAD, episodes=same)).top
    assert top is not None
    assert (top.name, top.in_code) == ("alike", True)
    assert "drawn independently" in top.remedy


def test_end_tokens_are_known_by_their_names(tmp_path: Path) -> None:
    made, tokens = (
        record(episodes=cut(inside=9)),
        [{"id": 9, "content": "<|im_end|>"}, {"id": 20, "content": "<end_of_x>"}],
    )
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    assert made.end_ids == {1}
    assert Record(replace(made.history, folder=tmp_path), made.rollouts, None).end_ids == {1, 9}


def test_weights_that_move_far_are_a_step_too_large() -> None:
    far = replace(WEIGHTS, moved=0.05)
    top = of_record(record(weights=far)).top
    assert top is not None
    assert (top.name, list(top.overrides)) == ("step_too_large", ["trainer.learning_rate=1e-04"])
    decayed = of_record(record(weights=far, settings={"trainer": {"weight_decay": 100.0}})).top
    assert decayed is not None
    assert list(decayed.overrides) == ["trainer.weight_decay=0"]


def test_a_token_that_earns_is_named() -> None:
    draw = random.Random(0)

    def worded(group: int, number: int, answer: str) -> EpisodeRecord:
        has_it = draw.random() < 0.5
        return episode(group, number, answer, float(has_it), ids=(50 if has_it else 51 + number, 30 + int(answer), 1))

    top = of_record(record(episodes=groups(worded, ANSWERS * 2))).top
    assert top is not None
    assert top.name == "other_reward"
    assert top.evidence[0] == "token 50 explains 100% of what equally right completions earn"


def test_wider_models_stand_smaller_steps() -> None:
    rows = {"policy/learning_rate": 1e-3}
    assert of_record(record(rows)).top is None
    top = of_record(record(rows, weights=replace(WEIGHTS, width=1024.0), accuracy=FALLEN)).top
    assert top is not None
    assert (top.name, list(top.overrides)) == ("step_too_large", ["trainer.learning_rate=5e-05"])


def test_ppo_without_groups_is_not_called_dead() -> None:
    settings = {"algorithm": {"name": "ppo"}, "rollout": {"group_size": 1}}
    made = record({"rollout/zero_advantage_share": 1.0, "policy/trained_token_share": 1.0}, settings=settings)
    assert of_record(made).causes == []


def test_replaced_groups_count_as_dead() -> None:
    made = record({"rollout/refilled_groups": 48.0, "rollout/zero_advantage_share": 0.0})
    assert made.dead_share(made.updates) == 0.75


def test_sound_is_sound() -> None:
    assert record(episodes=sound(0), weights=WEIGHTS).agreement.auc == 1.0


def test_a_run_that_asks_each_question_in_two_epochs_learns_nothing_by_heart() -> None:
    assert CHAIN["learnt_by_heart"](record()).strength == 0.0


def test_a_hot_sampler_that_is_right_as_often_is_not_too_hot() -> None:
    assert CHAIN["too_hot"](record(settings={"rollout": {"temperature": 3.0}})).strength == 0.0


@pytest.mark.parametrize("rates", [{"policy/learning_rate": 4e-2}, {"policy/approx_kl": 1.0}])
def test_a_reward_that_falls_by_large_steps_goes_no_wrong_way(rates: dict[str, float]) -> None:
    falls = {"reward/mean": [0.6 - 0.05 * step for step in range(10)]}
    assert CHAIN["wrong_way"](record(falls | rates)).strength == 0.0
    assert of_record(record(falls | rates)).named == "step_too_large"


def by_hash(group: int, number: int, answer: str) -> EpisodeRecord:
    """The same for the same text, and unrelated to what it says."""
    return episode(group, number, answer, float((7 * group + 5 * number) % 11 % 2), ids=(50 + 4 * group + number, 1))


def test_the_remedy_of_noise_suits_its_evidence() -> None:
    hashed, drawn = record(episodes=groups(by_hash)), record(episodes=coin())
    assert "what the reward reads" in of_record(hashed).causes[0].remedy
    assert of_record(hashed).causes[0].says.startswith("The reward says nothing about what is right")
    assert "twice" not in of_record(hashed).causes[0].remedy
    assert "twice" in of_record(drawn).causes[0].remedy


@pytest.mark.parametrize(("weights", "said"), [((1, 0), "Correct what"), ((1, 1), "less weight")])
def test_the_remedy_of_another_reward_suits_its_parts(weights: tuple[float, float], said: str) -> None:
    parts = {name: {"type": "own", "weight": weight} for name, weight in zip("ab", weights, strict=True)}
    settings = {"reward": {"parts": parts}}
    wrong = groups(lambda g, n, a: episode(g, n, a, float(a != "7")))
    top = of_record(record(episodes=wrong, settings=settings)).causes[0]
    assert top.name == "other_reward"
    assert said in top.remedy
