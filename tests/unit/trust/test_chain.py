"""Each link: a made run in which it alone is broken names it, and a sound one names none."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from rlvr.records.rollouts import CallRecord, EpisodeRecord
from rlvr.tracking.signals import LINKS, SIGNALS
from rlvr.trust.chain import NAMED, of_record
from rlvr.trust.judges import JUDGES
from rlvr.trust.links import MEASURES, agreement, upper
from rlvr.trust.record import Record
from rlvr.types import TraceStep
from tests.unit.trust.made import ANSWERS, STEP, WEIGHTS, episode, record, sound

RISING = {"reward/mean": [0.1 * step for step in range(10)]}
FALLEN = ((0.4, 0.35, 0.45), (0.0, 0.0, 0.02))


def groups(make: Callable[[int, int, str], EpisodeRecord]) -> list[EpisodeRecord]:
    return [make(group, number, answer) for group in range(8) for number, answer in enumerate(ANSWERS)]


def cut(group: int, number: int, answer: str) -> EpisodeRecord:
    if number % 2:
        return episode(group, number, answer, 0.0, ids=(20, 9, 30), stop="length", stop_reason="length")
    return episode(group, number, answer, float(answer == "7"))


def unread(group: int, number: int, answer: str) -> EpisodeRecord:
    return episode(group, number, answer, 0.0, trace=[], score_status="invalid")


def called(group: int, number: int, answer: str) -> EpisodeRecord:
    call = CallRecord(name="search", arguments={"name": f"p{number}"}, problem=None)
    one = episode(group, number, answer, float(answer == "7"), diagnostics={"tool_calls": 1.0})
    return replace(one, turns=[replace(one.turns[0], calls=(call,), reply="nothing"), *one.turns])


def derived(group: int, number: int, answer: str) -> EpisodeRecord:
    steps = [TraceStep(kind="step", text="1 + 2 = 3", ok=True), TraceStep(kind="answer", text="3", ok=False)]
    return episode(group, number, "3", 0.0, trace=steps)


def by_length(group: int, number: int, answer: str) -> EpisodeRecord:
    return episode(group, number, answer, (number + 1) / 4, ids=(*range(20, 22 + 2 * number), 1))


def coin() -> list[EpisodeRecord]:
    draw = random.Random(0)
    return groups(lambda g, n, a: episode(g, n, a, float(draw.random() < 0.5)))


DEAD = {"rollout/zero_advantage_share": 1.0, "policy/trained_token_share": 0.0}
CONSTANT = {"reward/mean": 0.0, "reward/std": 0.0, **DEAD}
BROKEN: dict[str, list[Callable[[], Record]]] = {
    "differs": [
        lambda: record(DEAD, episodes=groups(lambda g, n, a: episode(g, n, "7" if g % 2 else "3", float(g % 2)))),
        lambda: record(episodes=[replace(episode(g, 0, "7", 1.0, prompt=(10, 40)), answer=str(g)) for g in range(8)]),
        lambda: record({"rollout/entropy": 0.01}),
        lambda: record(settings={"rollout": {"temperature": 5.0}}),
    ],
    "ends": [lambda: record({"rollout/truncated_share": 0.5}), lambda: record(episodes=groups(cut))],
    "read": [lambda: record({**DEAD, "rollout/invalid_share": 0.98}, episodes=groups(unread))],
    "paid": [
        lambda: record(episodes=coin()),
        lambda: record(episodes=groups(lambda g, n, a: episode(g, n, a, float(a != "7")))),
        lambda: record({"rollout/error_share": 0.6}),
    ],
    "trained": [
        lambda: record({"policy/trained_token_share": 0.1}),
        lambda: record({"policy/grad_norm": 0.0}),
        lambda: record({"policy/mismatch_kl": [1e-5 * 4**step for step in range(10)]}),
        lambda: record(weights=replace(WEIGHTS, still=1.0)),
        lambda: record(
            episodes=[replace(one, advantage=0.5 - (one.reward or 0.0)) for g in range(8) for one in sound(g)]
        ),
        lambda: record(settings={"algorithm": {"name": "ppo", "gamma": 0.1}}),
    ],
    "step": [
        lambda: record({"policy/learning_rate": 1e-7}),
        lambda: record(weights=replace(WEIGHTS, moved=0.9)),
        lambda: record(accuracy=FALLEN),
        lambda: record({"rollout/invalid_share": [0.02] * 5 + [0.9] * 5}),
        lambda: record(settings={"algorithm": {"kl_coef": 20.0}}),
    ],
    "held": [
        lambda: record(RISING, episodes=groups(lambda g, n, a: episode(g, n, a, float(a == "7"), prompt=(10, 40)))),
        lambda: record(RISING),
    ],
    "untrained": [lambda: record(weights=replace(WEIGHTS, fresh=0.8))],
    "never_paid": [lambda: record(CONSTANT, episodes=groups(lambda g, n, a: episode(g, n, a, 0.0)))],
    "other_gold": [lambda: record(episodes=groups(derived))],
    "tools_fail": [lambda: record(episodes=groups(called)), lambda: record({"rollout/malformed_call_share": 0.95})],
    "paid_for_length": [lambda: record(episodes=groups(by_length))],
    "unlike_held_out": [
        lambda: record(
            RISING,
            episodes=[one for g in range(32) for one in [episode(g, 0, "7", 1.0), episode(g, 1, "7", 1.0)]],
            settings={"algorithm": {"name": "ppo"}},
        )
    ],
}


def test_every_link_and_judge_is_broken_once() -> None:
    judges = {judge.__name__ for before in JUDGES.values() for judge in before}
    assert BROKEN.keys() == LINKS.keys() | judges
    assert MEASURES.keys() == LINKS.keys()


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, runs in BROKEN.items() for n in range(len(runs))])
def test_a_broken_link_is_named(name: str, number: int) -> None:
    found = of_record(BROKEN[name][number]())
    assert found.top is not None
    assert found.top.name == name
    assert found.top.score >= NAMED
    assert found.top.evidence
    assert found.top.in_code == (not found.top.overrides)
    assert sum(cause.score for cause in found.causes) <= 1 + 1e-9


def test_a_sound_run_names_none() -> None:
    flat = of_record(record())
    assert flat.top is None
    assert flat.verdict.startswith("I do not know")
    learned = of_record(record(accuracy=((0.1, 0.05, 0.15), (0.9, 0.85, 0.95))))
    assert learned.verdict == "It learns; nothing looks wrong."


def test_a_broken_link_explains_what_comes_after_it() -> None:
    rows = {"rollout/truncated_share": 0.25, "policy/mismatch_kl": 0.2}
    found = {cause.name: cause.score for cause in of_record(record(rows)).causes}
    assert found["ends"] == pytest.approx(0.5)
    assert found["trained"] == pytest.approx(0.5)


MEASURED = ("policy/grad_norm", "policy/trained_token_share")  # by a number of the link itself
JUDGED = [name for name in STEP if name in SIGNALS and SIGNALS[name].is_judged and name not in MEASURED]


@pytest.mark.parametrize("name", JUDGED)
def test_bounds_are_those_of_the_signals(name: str) -> None:
    signal = SIGNALS[name]
    assert of_record(record({name: signal.fine or 0.0})).top is None


def test_a_rising_reward_disproves_all_but_the_reward_and_what_is_held_out() -> None:
    assert of_record(record({**RISING, "rollout/truncated_share": 0.5})).named != "ends"
    assert of_record(record(RISING, episodes=coin())).named in ("paid", "held")


@pytest.mark.parametrize(("share", "count", "most"), [(0.5, 0, 1.0), (0.0, 4, 0.49), (0.0, 400, 0.0095), (1.0, 9, 1.0)])
def test_no_more_is_lost_than_is_certain(share: float, count: int, most: float) -> None:
    assert upper(share, count) == pytest.approx(most, abs=0.001)


def test_agreement_is_0_for_chance_and_1_where_the_better_one_has_more() -> None:
    whole = [tuple(sound(group)) for group in range(1000)]
    assert agreement(whole, lambda a, b: a.sample_index < b.sample_index, "sample_index") == 1.0
    assert agreement(whole, lambda a, b: a.sample_index < b.sample_index, "group") == pytest.approx(0.06, abs=0.01)
    assert agreement([], lambda a, b: True, "reward") == 1.0
