"""Checks of what is paid, each at the edge of its threshold; tests/unit/commands/test_doctor.py plants faults."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.checks import margins, rewards
from rlvr.checks.texts import LONG
from rlvr.rewards.base import Part
from rlvr.rewards.custom import Custom
from rlvr.rewards.format import FormatExact, RepetitionPenalty
from rlvr.types import Attempt, Example, GradedAnswer, Score
from tests.unit.checks.paid import Grade, Task, exact, patient

Monkey = pytest.MonkeyPatch


def first(count: int, than: float, otherwise: float, *texts: str) -> Grade:
    """Pays `than` for one of these texts (all others than the right one) on the first `count` examples."""

    def grade(example: Example, text: str) -> float:
        if text == f"so {example.answer}":
            return 1.0
        return than if int(example.id[1:]) < count and (not texts or text in texts) else otherwise

    return grade


class Answer(Part):
    """A user's own part."""

    def grade(self, attempt: Attempt) -> float:
        return 0.0


class OwnForm(Answer):
    grades = "form"


PARTS: dict[str, Any] = {"form": FormatExact(), "mine": OwnForm()}


@pytest.mark.parametrize(
    "check", [margins.silence_scores_less, margins.each_gold_counts, margins.answer_outweighs_form]
)
def test_a_reward_of_the_form_alone_is_not_asked_for_answers(check: Any, monkeypatch: Monkey) -> None:
    def of(**parts: Any) -> Any:
        verifiers = {"sums": SimpleNamespace(parts=parts)}
        return patient(exact, monkeypatch, tasks=SimpleNamespace(verifiers=verifiers))

    other, penalty, unused = Answer(), RepetitionPenalty(ngram_size=2), Answer(weight=0.0)
    found = check(of(**PARTS, long=penalty, unused=unused))
    assert found.status == "skipped"
    assert "(reward.parts: form, mine, long), not its answer" in found.says
    for parts in ({**PARTS, "other": other}, {"unused": unused}, {}):
        assert check(of(**parts)).status == "ok"


@pytest.mark.parametrize(("largest", "fails"), [(1e6, False), (-1e6, False), (1.01e6, True), (-1.01e6, True)])
def test_a_reward_of_a_million_is_still_one(largest: float, fails: bool, monkeypatch: Monkey) -> None:
    for text in ("x", "so 103"):
        found = rewards.reward_is_scaled(patient(lambda e, said, text=text: largest * (said == text), monkeypatch))
        assert (found.status == "fail", found.evidence["largest"]) == (fails, abs(largest))
    bare = patient(lambda e, said: largest * (said == "x"), monkeypatch, reads=lambda text: False)
    assert rewards.reward_is_scaled(bare).evidence["largest"] == 0.0
    assert rewards.reward_is_scaled(patient(exact, monkeypatch, Task(num=0))).evidence["largest"] == 0.0


def timed(monkeypatch: Monkey, *seconds: float) -> None:
    """The clock of calls: the first takes the first number of seconds, later ones the last."""
    now, left = [0.0], list(seconds)

    def clock() -> float:
        timed.calls += 1  # type: ignore[attr-defined]
        if timed.calls % 2 == 0:  # type: ignore[attr-defined]
            now[0] += left.pop(0) if len(left) > 1 else left[0]
        return now[0]

    timed.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(rewards.time, "perf_counter", clock)


@pytest.mark.parametrize(
    ("call", "fails"),
    [(0.3125, False), (0.32, True), (0.04, False)],  # 32 completions on 2 processes: 5 seconds are 16 calls
)
def test_a_step_of_completions_is_scored_in_five_seconds(call: float, fails: bool, monkeypatch: Monkey) -> None:
    one = patient(exact, monkeypatch)
    timed(monkeypatch, call)
    found = rewards.reward_is_fast(one)
    assert (found.status == "fail", found.evidence["seconds"]) == (fails, pytest.approx(call))
    assert found.evidence["seconds_per_step"] == pytest.approx(16 * call)
    assert timed.calls == 2 * 3 * 2  # type: ignore[attr-defined]  # three calls each of a right and a long completion


def test_the_first_call_of_each_process_does_not_count(monkeypatch: Monkey) -> None:
    timed(monkeypatch, 3.0, 2.0, 0.01)
    assert rewards.reward_is_fast(patient(exact, monkeypatch)).evidence["seconds"] == pytest.approx(0.01)


def test_fewer_long_calls_are_slow_by_themselves(monkeypatch: Monkey) -> None:
    """A call must take a twentieth of a second, whatever a step needs."""
    many = patient(exact, monkeypatch)
    many.config.rollout.prompts_per_step = 1000
    timed(monkeypatch, 0.05)
    assert rewards.reward_is_fast(many).status == "ok"
    timed(monkeypatch, 0.0501)
    assert rewards.reward_is_fast(many).status == "fail"


@pytest.mark.parametrize(
    ("spreads", "fails"),
    [
        ((0.0, 0.0, 0.0), False),
        ((0.0, 0.5, 0.0), True),
        ((0.05, 0.5, 0.05), False),  # ten times as much
        ((0.04, 0.5, 0.9), True),  # the quieter of the two
        ((0.9, 0.5, 0.04), True),
        ((0.0, 1e-9, 0.0), False),
        ((0.0, 2e-9, 0.0), True),
    ],
)
def test_a_pause_changes_no_reward(spreads: tuple[float, ...], fails: bool, monkeypatch: Monkey) -> None:
    """Eight calls without a pause, with one, and without one again."""
    calls, pauses = [0], list[float]()

    def grade(example: Example, text: str) -> float:
        calls[0] += 1
        return spreads[(calls[0] - 1) // 8] * (calls[0] % 8 == 3)

    monkeypatch.setattr(rewards.time, "sleep", pauses.append)
    own = Custom(function="tests.unit.rewards.user_rewards:exact")
    verifiers = {"sums": SimpleNamespace(parts={"own": own})}
    found = rewards.reward_is_timeless(patient(grade, monkeypatch, tasks=SimpleNamespace(verifiers=verifiers)))
    assert (found.status == "fail") == fails
    assert pauses == [0.0] * 8 + [0.15] * 8 + [0.0] * 8
    assert found.evidence["over_a_second"] == spreads[1]
    assert rewards.reward_is_timeless(patient(grade, monkeypatch)).status == "skipped"


def remembering(monkeypatch: Monkey, grade: Grade, **more: Any) -> Any:
    """Whatever the clock says, a call takes a microsecond, and ten are made between the first ones and the last."""
    monkeypatch.setattr(rewards, "TIME_FOR_CALLS", 1e-5)
    monkeypatch.setattr(rewards, "_seconds", lambda *_: 1e-6)
    return rewards.reward_forgets(patient(grade, monkeypatch, Task(num=12), **more))


def test_a_reward_without_a_memory_forgets(monkeypatch: Monkey) -> None:
    found = remembering(monkeypatch, lambda example, text: int(example.id[1:]) / 10 + exact(example, text))
    assert found.status == "ok"
    assert found.says == "12 right answers earn the same first, behind a wrong one, again, and later"
    assert found.evidence["first"] == [1 + n / 10 for n in range(0, 12, 2)]
    assert found.evidence["behind_a_wrong_one"] == [1 + n / 10 for n in range(1, 12, 2)]
    assert found.evidence["later"] == found.evidence["first"]


def test_a_right_answer_behind_a_wrong_one_earns_the_same(monkeypatch: Monkey) -> None:
    for odd_ones, fails in ((3, True), (2, False)):  # half of the six, where the others are equal

        def grade(example: Example, text: str, odd_ones: int = odd_ones) -> float:
            number = int(example.id[1:])
            return 1.0 - 0.25 * (number % 2 == 1 and number // 2 < odd_ones)

        found = remembering(monkeypatch, grade)
        assert (found.status == "fail") == fails
        assert not fails or found.says.endswith("a right answer earns another reward behind a wrong one")


@pytest.mark.parametrize(("count", "fails"), [(5, True), (4, False)])
def test_a_completion_earns_the_same_the_second_time(count: int, fails: bool, monkeypatch: Monkey) -> None:
    """Two processes may remember: the third call is compared with the first. Four of twelve may be chance."""
    seen = dict[str, int]()

    def grade(example: Example, text: str) -> float:
        if text != f"so {example.answer}":
            return 0.0
        seen[example.id] = seen.get(example.id, 0) + 1
        return 1.0 - 0.5 * (seen[example.id] == 3 and int(example.id[1:]) in range(1, 2 * count, 2))

    found = remembering(monkeypatch, grade)
    assert (found.status == "fail") == fails
    assert not fails or found.says.endswith("a completion earns another reward the second time")


def test_the_first_reward_of_each_answer_is_kept(monkeypatch: Monkey) -> None:
    seen = dict[str, int]()

    def grade(example: Example, text: str) -> float:
        if text != f"so {example.answer}":
            return 0.0
        seen[example.id] = seen.get(example.id, 0) + 1
        return 1.5 if seen[example.id] == 1 else 1.0

    found = remembering(monkeypatch, grade)
    assert found.evidence["first"] == found.evidence["behind_a_wrong_one"] == [1.5] * 6
    assert found.evidence["later"] == [1.0] * 6
    assert found.says.endswith("a completion earns another reward the second time")


def test_rewards_that_go_up_and_down_are_chance(monkeypatch: Monkey) -> None:
    seen = dict[str, int]()

    def grade(example: Example, text: str) -> float:
        seen[example.id] = seen.get(example.id, 0) + 1
        return 1.0 + (0.5 if int(example.id[1:]) % 4 < 2 else -0.5) * (seen[example.id] > 2)

    assert remembering(monkeypatch, grade).status == "ok"


@pytest.mark.parametrize(("count", "fails"), [(5, True), (4, False)])
def test_completions_earn_the_same_later(count: int, fails: bool, monkeypatch: Monkey) -> None:
    """The first calls of all twelve, then those in between, then the six that came first once more."""
    calls = [0]

    def grade(example: Example, text: str) -> float:
        calls[0] += 1
        number = int(example.id[1:])
        return 1.0 - 0.5 * (number % 2 == 0 and number < 2 * count and calls[0] > 6 * 3 + 6 * 5 + 10)

    found = remembering(monkeypatch, grade)
    assert (found.status == "fail") == fails
    assert not fails or found.says.endswith("completions earn other rewards later")


def test_what_cannot_be_tried_in_another_order_is_skipped(monkeypatch: Monkey) -> None:
    found = rewards.reward_forgets(patient(exact, monkeypatch, Task(num=11)))
    assert found.says == "the task knows no 12 right completions of which some could be scored first"
    unread = patient(exact, monkeypatch, Task(num=12), reads=lambda text: False)
    assert rewards.reward_forgets(unread).status == "skipped"
    timed(monkeypatch, 0.051)
    slow = rewards.reward_forgets(patient(exact, monkeypatch, Task(num=12)))
    assert slow.says == "a completion is scored in 0.051 s: too slow to be tried in another order"


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        ([1.0, 1.0], [1.0, 1.0], False),
        ([1.0, 1.0], [0.9, 1.0], True),  # half of them, where the first are equal
        ([1.0, 1.0], [0.9, 1.0, 1.0], False),
        ([1.0, 1.0], [1.1, 1.1, 1.0], True),
        ([1.0, 1.0], [1.1, 0.9, 1.0, 1.0], False),  # on both sides
        ([1.0, 0.5], [0.4, 0.4], True),
        ([1.0, 0.5], [0.4, 0.5], False),  # else all of them
        ([1.0, 0.5], [1.1, 1.2], True),
        ([1.0, 1.0], [1.0 - 1e-10, 1.0 - 1e-10], False),
    ],
)
def test_rewards_lie_apart(first: list[float], second: list[float], apart: bool) -> None:
    assert rewards._apart(first, second) == apart


def test_the_same_text_is_scored_four_times(monkeypatch: Monkey) -> None:
    calls = dict[tuple[str, str], int]()

    def grade(example: Example, text: str) -> float:
        calls[example.id, text] = calls.get((example.id, text), 0) + 1
        return 2.0 if example.id == "e2" and text == "x y z" and calls[example.id, text] == 4 else 1.0

    found = rewards.reward_repeats(patient(grade, monkeypatch))
    assert found.says == "the same completion earns different rewards (1 of 8 that were scored four times)"
    assert found.evidence["examples"] == [{"example": "e2", "completion": "x y z", "values": ["1.0", "2.0"]}]
    assert {*calls.values()} == {4}
    assert {text for _, text in calls} == {*(f"so {100 + n}" for n in range(4)), "x y z"}
    failing = patient(lambda example, text: math.nan, monkeypatch, reads=lambda text: False)
    assert rewards.reward_repeats(failing).status == "ok"  # it fails each time


def parts_of(**parts: Any) -> Any:
    return SimpleNamespace(verifiers={"sums": SimpleNamespace(parts=parts)}, fit=lambda *_: None)


@pytest.mark.parametrize(
    ("score", "wrong"),
    [
        (Score(value=1.0, parts={"own": 1.0, "other": 0.0, "long": 0.0}), False),
        (Score(value=0.001, parts={"own": 1.0}), False),
        (Score(value=1.0, parts={"own": 0.99}), True),
        (Score(value=0.0, parts={"own": 1.0}), True),
        (Score(value=0.0, late=("x",)), False),  # what is graded later may pay yet
        (Score(value=1.0, status="invalid"), True),
        (Score(value=1.0, status="error", diagnostics={"error": "it failed"}), True),
    ],
)
def test_a_right_answer_earns_full_marks(score: Score, wrong: bool, monkeypatch: Monkey) -> None:
    """In the parts that are ours, count and are no penalty."""
    parts = {"own": Answer(), "other": Answer(weight=0.0), "long": RepetitionPenalty(ngram_size=2)}
    one = patient(lambda e, text: score, monkeypatch, tasks=parts_of(**parts))
    found = rewards.gold_scores_full(one)
    assert (found.status == "fail") == wrong
    if wrong:
        shown = found.evidence["examples"]
        assert len(shown) == 3
        assert shown[0]["completion"] == "so 100"
        assert shown[0]["value"] == (None if score.status == "error" else score.value)
    none = patient(lambda e, text: score, monkeypatch, Task(num=0))
    assert rewards.gold_scores_full(none).says == "the task knows no right completion to try"


def test_answers_that_the_data_contradict_are_told(monkeypatch: Monkey) -> None:
    class Worked(Task):
        def said(self, index: int, example: Example) -> str:
            return "worked out otherwise"

    found = rewards.gold_scores_full(patient(exact, monkeypatch, Worked()))
    assert found.says.endswith(", but their answer column alone does: the solutions end in other answers")
    found = rewards.gold_scores_full(patient(lambda e, text: 0.0, monkeypatch, Worked()))
    assert found.says == "8 of 8 right answers do not earn full marks"
    some = Score(value=math.nan, status="error", diagnostics={"error": f"{rewards.OF_GOLD} 'x' is none"})
    found = rewards.gold_scores_full(patient(lambda e, text: some, monkeypatch))
    assert found.says.endswith("full marks: the gold answer 'x' is none")


@pytest.mark.parametrize(("behind", "wrong"), [(1.0, False), (1.5, False), (0.9, True), (math.nan, True)])
def test_an_answer_behind_thoughts_earns_as_much(behind: float, wrong: bool, monkeypatch: Monkey) -> None:
    template = SimpleNamespace(can=SimpleNamespace(opened=True), marks=SimpleNamespace(open="<think>\n"))
    chat = SimpleNamespace(template=template)
    one = patient(lambda e, text: behind if "<think>" in text else 1.0, monkeypatch, chat=chat)
    found = rewards.thoughts_are_passed_over(one)
    assert (found.status == "fail") == wrong
    template.can.opened = False
    assert rewards.thoughts_are_passed_over(one).status == "skipped"
    assert rewards.thoughts_are_passed_over(patient(exact, monkeypatch)).status == "skipped"


def test_the_metric_calls_right_answers_right(monkeypatch: Monkey) -> None:
    class Strict(Task):
        async def grade(self, example: Example, turns: Any) -> GradedAnswer:
            right = example.id != "e3"
            return GradedAnswer(answer="read", correct=right, failure=None if right else "no number")

    found = rewards.metric_agrees(patient(exact, monkeypatch, Strict()))
    assert found.says == "the metric calls 1 of 8 right answers wrong"
    shown = [{"example": "e3", "expected": "103", "read": "read", "why": "no number"}]
    assert found.evidence["examples"] == shown
    assert rewards.metric_agrees(patient(exact, monkeypatch)).status == "ok"
    assert rewards.metric_agrees(patient(exact, monkeypatch, Task(num=0))).status == "skipped"


@pytest.mark.parametrize(
    ("context", "longest", "too_long", "fails"),
    [(40, 20, 0, False), (40, 21, 6, False), (40, 21, 7, True), (20, 1, 0, True), (21, 1, 0, False)],
)
def test_a_tenth_of_the_prompts_may_leave_no_room(
    context: int, longest: int, too_long: int, fails: bool, monkeypatch: Monkey
) -> None:
    """A completion of 20 tokens and a prompt fill the context."""
    fitted = list[Any]()
    monkeypatch.setattr(rewards, "context_tokens", lambda policy: context)
    one = patient(
        exact, monkeypatch, policy="policy", prompt=lambda index: (None, (0,) * (longest if index < too_long else 1))
    )
    one.tasks.fit = lambda *given: fitted.append(given)
    found = rewards.prompts_fit(one)
    assert (found.status == "fail") == fails
    assert fitted == [(one.config, "policy")]
    assert found.evidence["longest"] == (longest if too_long else 1)
    if fails:
        assert found.says.startswith(
            f"{64 if context == 20 else too_long} of 64 prompts have more than the {context - 20} t"
        )


# ------------------------------------------------------------------------------------------------------------ margins


@pytest.mark.parametrize(
    ("empty", "count", "fails"), [(0.1, 8, False), (0.11, 8, True), (0.11, 5, True), (0.11, 4, False), (-0.5, 8, False)]
)
def test_silence_earns_a_tenth_of_the_way_more_than_a_wrong_answer(
    empty: float, count: int, fails: bool, monkeypatch: Monkey
) -> None:
    found = margins.silence_scores_less(patient(first(count, empty, 0.0, ""), monkeypatch))
    assert (found.status == "fail") == fails
    assert "8 examples" in found.says
    if fails:
        shown = [{"example": f"e{n}", "wrong": 0.0, "empty": empty, "right": 1.0} for n in range(3)]
        assert found.evidence["examples"] == shown


def test_silence_is_compared_where_the_next_answer_is_another(monkeypatch: Monkey) -> None:
    found = margins.silence_scores_less(patient(exact, monkeypatch, Task(answers=["7", "7", "8"])))
    assert "(4 examples)" in found.says  # of eight, 7 7 8 7 7 8 7 7 and the first again
    assert margins.silence_scores_less(patient(exact, monkeypatch, Task(answers=["7"]))).status == "skipped"
    paid = patient(lambda e, text: 1.0, monkeypatch)  # right and wrong earn the same: nothing to compare with
    assert margins.silence_scores_less(paid).status == "ok"


@pytest.mark.parametrize(
    ("behind", "count", "fails"),
    [(-0.1, 8, False), (-0.11, 8, True), (-0.11, 5, True), (-0.11, 4, False), (0.5, 8, False)],
)
def test_a_right_answer_behind_long_working_earns_no_less_than_silence(
    behind: float, count: int, fails: bool, monkeypatch: Monkey
) -> None:
    """Of 20 tokens, here letters, 7 are the answer on its line, and one the end: 12 are left for the working."""
    asked = list[str]()

    def grade(example: Example, text: str) -> float:
        asked.append(text)
        if text in ("", f"so {example.answer}"):
            return float(text != "")
        if not text.endswith(str(example.answer)):  # another answer there is no better
            return -1.0
        return behind if int(example.id[1:]) < count else 0.0

    found = margins.working_is_worth_it(patient(grade, monkeypatch))
    assert (found.status == "fail") == fails
    assert f"{LONG[:12]}\nso 100" in asked
    if fails:
        assert found.says.startswith(
            f"a right answer at the end of 20 tokens earns less than an empty completion ({count} of 8"
        )
        shown = [{"example": f"e{n}", "bare": 1.0, "behind_working": behind, "empty": 0.0} for n in range(3)]
        assert found.evidence["examples"] == shown
    short = patient(grade, monkeypatch)
    short.config.rollout.max_completion_tokens = 3
    margins.working_is_worth_it(short)
    assert "\nso 100" in asked  # no room for working
    for other in (patient(exact, monkeypatch, Task(num=0)), patient(exact, monkeypatch, reads=lambda text: False)):
        assert margins.working_is_worth_it(other).status == "skipped"


def test_a_row_that_pays_whatever_is_said_is_counted(monkeypatch: Monkey) -> None:
    def given(count: int) -> Any:
        def grade(example: Example, text: str) -> float:
            return 1.0 if int(example.id[1:]) < count else exact(example, text)

        return margins.each_gold_counts(patient(grade, monkeypatch, Task(num=32)))

    assert (given(0).status, given(0).says) == ("ok", "of 32 rows none pays a wrong answer as much as the right one")
    assert (given(1).status, given(1).says) == ("ok", "1 of 32 rows pay whatever is said")
    assert given(2).says == "2 of 32 rows pay whatever is said, a wrong answer and none"
    assert given(2).status == "fail"
    near = patient(lambda e, text: float(text != margins.NO_ANSWER), monkeypatch, Task(num=32))
    assert margins.each_gold_counts(near).status == "ok"  # any number is paid: another check's
    for task in (Task(answers=["7"]), Task(num=0)):
        assert margins.each_gold_counts(patient(exact, monkeypatch, task)).status == "skipped"


@pytest.mark.parametrize(("right", "fails"), [(1.09, True), (1.1, False), (2.0, False), (1.0, False)])
def test_the_right_answer_adds_a_tenth_of_its_form(right: float, fails: bool, monkeypatch: Monkey) -> None:
    def grade(example: Example, text: str) -> float:
        return right if text == f"so {example.answer}" else float(text.startswith("so"))

    found = margins.answer_outweighs_form(patient(grade, monkeypatch))
    assert (found.status == "fail") is fails
    assert found.evidence["form"] == 1.0
    assert margins.answer_outweighs_form(patient(exact, monkeypatch)).status == "ok"
    assert margins.answer_outweighs_form(patient(exact, monkeypatch, Task(answers=["7"]))).status == "skipped"
