"""How `rlvr audit` judges: scales, counts and what becomes of them, by hand (rlvr.commands.audit)."""

import argparse
import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.commands.audit import plain, report, share
from rlvr.commands.audit.body import AuditOptions, audit, audit_config
from rlvr.config.compose import load_config, load_task_config
from rlvr.errors import ConfigError, UserError
from rlvr.research import adversary
from rlvr.research.adversary import Gap
from rlvr.trust.probes.cases import NUM_OTHERS, collect, rule_of, verifiers, with_format
from rlvr.trust.probes.causes import checks
from rlvr.trust.probes.judge import Audit, Finding, Judge, Misjudged, Scale, Verdict
from rlvr.trust.probes.rewrites import Case
from rlvr.types import Example, GradedAnswer, Message, Score
from tests.unit.trust.probes.test_probes import case

CASES = tuple(case(gold, wrap="{}", others=("17", "5", "4.5", "8", "9")) for gold in ("18", "1080", "0.25"))


def judged(grade: Callable[[str, str], float], cases: Sequence[Case] = CASES, **more: Any) -> Judge:
    async def verifier(example: Example, text: str) -> Verdict:
        value = float(grade(text, example.answer))
        return Verdict(value=value, message="timed out after 5 s" if math.isnan(value) else "")

    judge = Judge("reward", verifier, cases, **more)
    asyncio.run(judge.run())
    return judge


def counts(judge: Judge) -> dict[str, tuple[int, int, int]]:
    return {row.kind: (row.num_failed, row.num_errors, row.num_examples) for row in judge.rows}


@pytest.mark.parametrize(
    ("low", "full", "value", "share"),
    [
        *((0.0, 1.0, 0.25, 0.25), (-1.0, 3.0, 1.2, 0.55), (2.0, 4.0, 5.0, 1.5)),
        *((1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 0.9, 0.0), (2.0, 1.0, 1.5, 1.0), (2.0, 1.0, 0.5, 0.0)),
    ],
)
def test_a_share_is_that_of_the_way_from_wrong_to_right(low: float, full: float, value: float, share: float) -> None:
    assert Scale(low=low, full=full).share(value) == pytest.approx(share)


@pytest.mark.parametrize(
    ("value", "message", "out"),
    [(math.nan, "timed out after 5 s", True), (math.nan, "x", False), (1.0, "timed out after", False)],
)
def test_only_a_failure_can_be_a_timeout(value: float, message: str, out: bool) -> None:
    assert Verdict(value=value, message=message).timed_out == out


def test_progress_is_told_for_each_example() -> None:
    seen = list[tuple[int, int]]()

    async def verifier(example: Example, text: str) -> Verdict:
        return Verdict(value=float(text == example.answer))

    asyncio.run(Judge("reward", verifier, CASES).run(lambda done, total: seen.append((done, total))))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_scale_is_that_of_the_lowest_of_three_other_answers() -> None:
    """The fourth other answer, which would earn less, is not looked at; an example whose own answer earns no more than
    others has the median of the rest."""
    earned = {"17": 0.5, "5": 0.25, "4.5": 0.75, "8": -9.0}
    full = {"18": 3.0, "1080": 0.25, "0.25": 2.0}  # and an empty or unreadable gold nothing
    judge = judged(lambda text, gold: full.get(gold, 0.0) if text == gold else earned.get(text, 0.0))
    assert judge.scales == [Scale(low=0.25, full=3.0), Scale(low=0.25, full=2.5), Scale(low=0.25, full=2.0)]
    nothing = judged(lambda text, gold: 0.5 if text == gold else {"17": 2.0, "5": 0.5}.get(text, 1.0))
    assert nothing.scales == [Scale(low=0.5, full=2.0)] * 3  # of all that it paid


def test_a_scale_of_a_verifier_that_always_fails_is_of_nothing() -> None:
    judge = judged(lambda text, gold: math.nan)
    assert judge.scales == [Scale(low=0.0, full=0.0)] * 3
    errors = {row.num_errors for row in judge.rows if row.group in ("rewrite", "edit")}
    assert errors <= {0, 1, 2}
    assert counts(judge)["gold itself"] == (0, 2, 2)  # after two it is not asked any more
    assert counts(judge)["backtracking (ReDoS)"] == (1, 0, 1)  # a time limit is a failure there
    assert counts(judge)["same text twice"] == (0, 0, 3)
    assert "empty gold" in counts(judge)
    assert counts(judge)["empty gold"] == (0, 0, 2)  # to refuse those is right


def test_exactly_half_of_the_way_is_not_paid() -> None:
    for value, failed in ((0.5, 0), (0.51, 3)):
        judge = judged(lambda text, gold, value=value: 1.0 if text == gold else value if "not" in text else 0.0)
        assert counts(judge)["negation"] == (failed, 0, 3)


def test_what_a_rule_allows_is_no_edit() -> None:
    """A function that pays for `more than 18` is asked only where the task's metric refuses it."""

    async def rule(case: Case, answer: str) -> bool:
        return answer == "more than 18"

    judge = judged(lambda text, gold: float(text in (gold, f"more than {gold}")), rule=rule)
    assert counts(judge)["comparison"] == (2, 0, 2)
    assert counts(judge)["negation"] == (0, 0, 3)
    assert counts(judged(lambda text, gold: float(text == gold)))["comparison"] == (0, 0, 3)


def test_a_text_that_earns_another_reward_the_second_time_contradicts() -> None:
    """Wrong and right ones are asked twice; a failure in between is none."""
    seen: dict[tuple[str, str], int] = {}

    def changing(text: str, gold: str) -> float:
        seen[text, gold] = seen.get((text, gold), 0) + 1
        return seen[text, gold] if text == gold == "18" else float(text == gold)

    judge = judged(changing)
    assert counts(judge)["same text twice"] == (1, 0, 3)
    (finding,) = [one for one in judge.findings if one.group == "stability"]
    assert (finding.text, finding.message) == ("18", f"then {finding.score + 1:g}" if finding.score else "")


def test_the_right_answer_and_one_other_are_asked_twice_in_a_row() -> None:
    """Another one is also asked before the right answer and twice behind it, as another answer and off by one; the
    second other one only before and as another answer."""
    asked = list[str]()
    judged(lambda text, gold: asked.append(text) or float(text == gold), CASES[:1])
    assert (asked.count("17"), asked.count("5")) == (1 + 2 + 1 + 1 + 2, 1 + 1)


def test_a_form_is_paid_where_an_empty_text_fails() -> None:
    """What fails earns nothing: the form alone earns 0.8 of what a right answer earns."""
    judge = judged(lambda text, gold: math.nan if text == "" else 1.0 if text == gold else 0.8)
    assert counts(judge)["form"] == (3, 0, 3)


def test_failures_found_elsewhere_are_counted_among_the_examples() -> None:
    judge = judged(lambda text, gold: float(text == gold))
    before = len(judge.findings)
    judge.note_failures("adversary", "adversary", iter([finding(), finding()]), 5)
    assert counts(judge)["adversary"] == (2, 0, 5)
    assert len(judge.findings) == before + 2


def finding(**values: Any) -> Finding:
    plain = {"verifier": "reward", "group": "edit", "kind": "sign", "question": "?", "gold": "1", "text": "-1"}
    return Finding(**{**plain, "score": 1.0, "full": 1.0, **values})


def row(group: Any, kind: str, failed: int, *, errors: int = 0) -> Misjudged:
    return Misjudged(verifier="reward", group=group, kind=kind, num_examples=10, num_failed=failed, num_errors=errors)


ROWS = (
    *(row("rewrite", "commas", 1), row("rewrite", "unit", 0), row("format", "equation", 9)),
    *(row("edit", "sign", 3), row("edit", "digit", 2), row("exploit", "empty", 1), row("exploit", "code", 0, errors=2)),
    *(row("gold", "empty gold", 2), row("stability", "same text twice", 0), row("adversary", "adversary", 1)),
)


def test_what_is_paid_alarms_and_what_is_refused_is_noted() -> None:
    texts = [finding(text=f"-{n}") for n in range(5)]
    found = Audit(target="f", rows=ROWS, findings=(*texts, finding(verifier="metric")), notes=(), threshold=0.2)
    assert [one.kind for one in found.alarms] == ["sign", "empty", "adversary"]  # of two tenths no edit is one
    assert [one.kind for one in found.refused] == ["commas"]
    assert [one.kind for one in found.noted] == ["empty gold"]
    assert found.flagged == ["commas", "sign", "empty", "adversary"]
    named = {check.name: check for check in checks(found)}
    assert {name: check.status for name, check in named.items()} == {
        **{"commas": "notice", "unit": "ok", "equation": "ok", "sign": "fail", "digit": "ok", "empty": "fail"},
        **{"code": "ok", "empty gold": "notice", "same text twice": "ok", "adversary": "fail"},
    }
    assert named["sign"].says == "reward: 3 of 10 paid (11% to 60%), 0 errors"
    assert named["commas"].says.startswith("reward: 1 of 10 refused (")
    assert named["equation"].says.startswith("reward: 9 of 10 refused (")
    assert named["code"].says.endswith("2 errors")
    assert [one["text"] for one in named["sign"].evidence["texts"]] == ["-0", "-1", "-2"]
    assert named["commas"].evidence == {}


class Task:
    """A task of sums with a reward, a metric, and every fifth example without an answer that can be rewritten."""

    vocabulary: tuple[str, ...] = ()
    name = "sums"

    def __init__(self, answers: Sequence[str]) -> None:
        self.answers, self.asked = answers, list[int]()

    def worked(self, index: int) -> tuple[Example, Callable[[str], str]] | None:
        self.asked.append(index)
        if index % 5 == 4:
            return None
        answer = self.answers[index % len(self.answers)]
        messages = (Message(role="user", content="hello"), Message(role="user", content=f"{index}?"))
        return Example(id=f"e{index}", messages=messages, answer=answer), "<{}>".format

    def env(self, example: Example) -> "Task":
        return self

    async def score(self, turns: Sequence[Any]) -> Score:
        if turns[0].text == "bad":
            raise ValueError("no number")
        return Score(value=float(turns[0].num_tokens), diagnostics={"error": "slow"} if turns[0].text == "x" else {})

    async def grade(self, example: Example, turns: Sequence[Any]) -> GradedAnswer:
        if turns[0].text == "bad":
            raise ValueError("no number")
        failure = "timed out" if turns[0].text == "slow" else None
        return GradedAnswer(answer=None, correct=turns[0].completion == example.answer, failure=failure)


def graded(grader: str, text: str, answer: str = "7", **task: Any) -> Verdict:
    own: Any = Task(["1"])
    vars(own).update(task)
    example = Example(id="e", messages=(), answer=answer)
    return asyncio.run(verifiers(own, load_task_config("gsm8k", []))[grader](example, text))  # type: ignore[arg-type]


def test_a_reward_and_a_metric_are_asked_as_in_training() -> None:
    assert graded("reward", "a b c").value == 3.0
    assert graded("reward", "") == Verdict(value=1.0)  # of no text a token is counted
    assert graded("reward", "x").message == "slow"
    assert graded("metric", "7") == Verdict(value=1.0)
    assert graded("metric", "8") == Verdict(value=0.0)
    assert graded("metric", "7", "7 <eoe>", vocabulary=("7",)).value == 1.0  # such a task's completions have an end
    for grader in ("reward", "metric"):
        failed = graded(grader, "bad")
        assert failed.failed
        assert failed.message.startswith("ValueError: no number")
    slow = graded("metric", "slow")
    assert (slow.failed, slow.message) == (True, "timed out")


def cases_of(answers: Sequence[str], num: int) -> tuple[list[Case], Task]:
    task: Any = Task(answers)
    return collect(task, load_task_config("gsm8k", []), num, seed=0), task


def test_examples_have_answers_of_others() -> None:
    found, task = cases_of([str(n) for n in range(1, 9)], 10)
    assert len(found) == 10
    assert len(task.asked) == 40  # four times as many, of which those are left out that cannot be rewritten
    assert all(one.question == f"{one.example.id[1:]}?" for one in found)  # the last message
    for one in found:
        assert len(one.others) == len(set(one.others)) == NUM_OTHERS == 6
        assert one.gold not in one.others
        assert (one.kind, one.wrap("7")) == ("number", "<7>")
    assert found[0].others == cases_of([str(n) for n in range(1, 9)], 10)[0][0].others
    assert {len(one.others) for one in cases_of(["1", "2"], 10)[0]} == {1}


def test_a_few_numbers_among_words_are_words() -> None:
    """Answers of a set are of one kind where most are text; other kinds are each its own."""
    assert {one.kind for one in cases_of(["Oslo", "7", "Bergen"], 9)[0]} == {"text"}
    assert {one.kind for one in cases_of(["7", "8", "Bergen"], 9)[0]} == {"number", "text"}


def test_a_task_needs_two_different_answers() -> None:
    with pytest.raises(UserError, match="has no examples with different answers of one text to rewrite"):
        cases_of(["7"], 10)
    with pytest.raises(UserError, match="has no examples with different answers"):
        cases_of(["7", "8"], 0)


@pytest.mark.parametrize(
    ("target", "more", "message"),
    [
        ("mine:grade", {}, "add the questions that it grades: --data FILE.jsonl or --task T"),
        ("mine:grade", {"data": "x.jsonl", "task": "rpn"}, "--data and --task: the questions come from one of them"),
    ],
)
def test_a_function_needs_questions_from_one_place(target: str, more: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        audit_config(target, **more)


def test_a_functions_configuration_is_that_of_its_questions(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "?", "answer": "Oslo"}\n')
    found = audit_config("tests.unit.rewards.user_rewards:exact", data=str(path))
    assert (found.task.name, found.task.metric) == ("jsonl", "text")
    assert [part.name for part in found.reward.parts.values()] == ["custom"]
    changed = audit_config("tests.unit.rewards.user_rewards:exact", ["task.metric=numeric"], data=str(path))
    assert changed.task.metric == "numeric"  # what was said counts
    assert audit_config("tests.unit.rewards.user_rewards:exact", task="gsm8k").task.name == "gsm8k"
    assert audit_config("gsm8k").task.name == "gsm8k"


def test_a_template_is_for_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_task_config("rpn", [])
    with pytest.raises(ConfigError, match="--answer-template: is for a function"):
        audit(config, target="rpn", options=AuditOptions(num_examples=2, seconds=0, answer_template="<{answer}>"))
    found = audit(config, target="rpn", options=AuditOptions(num_examples=3, seconds=0, threshold=0.5))
    assert {one.verifier for one in found.rows} == {"reward", "metric"}
    assert (found.notes, found.threshold, found.target) == (("3 examples",), 0.5, "rpn")


def test_a_function_is_asked_in_its_template_alone() -> None:
    asked = list[str]()

    async def verifier(example: Example, text: str) -> Verdict:
        asked.append(text)
        return Verdict(value=float(text == f"[{example.answer}]"))

    cases, form = asyncio.run(with_format(verifier, CASES, "[{answer}]"))
    assert (form, cases[1].wrap("x")) == ("[{answer}]", "[x]")
    assert {*asked} == {*(f"[{one.gold}]" for one in CASES), "[17]", ""}
    with pytest.raises(ConfigError, match=r"--answer-template '\[\]': has no \{answer\}"):
        asyncio.run(with_format(verifier, CASES, "[]"))
    with pytest.raises(ConfigError, match="no right answer earned more than a wrong one in this template"):
        asyncio.run(with_format(verifier, CASES, "<{answer}>"))


def test_eight_examples_are_enough_to_find_out_a_format() -> None:
    asked = set[str]()

    async def verifier(example: Example, text: str) -> Verdict:
        asked.add(example.id)
        return Verdict(value=float(text == example.answer))

    many = [case(f"{number}", wrap="{}") for number in range(20, 32)]
    cases, form = asyncio.run(with_format(verifier, many))
    assert (form, len(cases)) == ("the prompt says", 12)
    assert asked == {f"{number}" for number in range(20, 28)}


def test_a_function_that_pays_everything_alike_is_audited_as_the_prompt_says() -> None:
    async def verifier(example: Example, text: str) -> Verdict:
        return Verdict(value=2.0)

    cases, form = asyncio.run(with_format(verifier, [replace(one, others=()) for one in CASES]))
    assert (form, cases[0].wrap("7")) == ("the prompt says", "7")


def test_the_rule_is_the_metric_in_the_prompts_format() -> None:
    async def metric(example: Example, text: str) -> Verdict:
        return Verdict(value=1.0 if text == f"#### {example.answer}" else 0.5 if "half" in text else math.nan)

    cases = [case("18"), case("Oslo")]
    rule = rule_of(metric, cases)
    bare = replace(cases[0], wrap=lambda answer: answer)
    assert [asyncio.run(rule(bare, answer)) for answer in ("18", "half", "x")] == [True, False, False]


# ------------------------------------------------------------------------------------------------- what is printed


def test_a_report_has_a_line_for_each_group_and_a_sentence_for_each_fault() -> None:
    texts = [finding(text="-1\n" + "x" * 200), finding(text="-2", score=None, message="slow"), finding(text="-3")]
    rows = (*ROWS[:3], row("edit", "sign", 3, errors=1), row("exploit", "backtracking (ReDoS)", 1))
    found = Audit(target="f", rows=rows, findings=tuple(texts), notes=(), threshold=0.0)
    lines = [*report(found, 2)]
    assert [line for line in lines if line.endswith("kinds")] == [
        *(
            "right answers refused: 1 of 2 kinds",
            "refused by the format alone: 1 of 1 kinds",
            "wrong answers paid: 1 of 1 kinds",
        ),
        *(
            "exploits paid: 1 of 1 kinds",
            "paid by a row without an answer (such rows are left out when the data load): 0 of 0 kinds",
        ),
        *("contradicts itself: 0 of 0 kinds", "found by the adversary: 0 of 0 kinds"),
    ]
    assert "  reward  sign                         3 of 10 (11% to 60%), 1 errors" in lines
    shown = [line for line in lines if line.startswith("    gold")]
    assert shown == [f"    gold 1   text ...{'x' * 160}   score 1 of 1", "    gold 1   text -2   score failed slow"]
    assert [line for line in lines if line.startswith("- ")] == [
        "- f: the reward refuses 'commas': remove commas between groups of three digits, in answer and gold.",
        "- f: the reward pays 'sign': keep the sign: it reads digits only.",
        "- f: the reward does not end on 'backtracking (ReDoS)': a pattern such as (a+)+ takes exponential time: "
        "repeat nothing that repeats, or split the text instead.",
    ]
    assert not [line for line in report(found, 0) if line.startswith("    gold")]
    sound = Audit(target="f", rows=(row("edit", "sign", 0),), findings=(), notes=(), threshold=0.0)
    assert [*report(sound, 1)][-1] == "f: nothing wrong was paid, and nothing right refused."


def test_json_has_the_rows_and_then_the_findings() -> None:
    found = Audit(target="f", rows=ROWS[3:5], findings=(finding(), finding(kind="digit")), notes=(), threshold=0.2)
    lines = [json.loads(line) for line in plain(found)]
    assert [(line["kind"], line.get("alarm")) for line in lines] == [
        *(("sign", True), ("digit", False), ("sign", None), ("digit", None)),
    ]
    assert (lines[0]["share"], lines[0]["num_failed"]) == (0.3, 3)
    assert lines[0]["share_low"] < 0.3 < lines[0]["share_high"]


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0.0), ("1", 1.0), ("0.25", 0.25), ("1.1", None), ("-0.1", None), ("x", None)]
)
def test_a_threshold_is_a_share(text: str, value: float | None) -> None:
    if value is None:
        with pytest.raises(argparse.ArgumentTypeError, match=rf"{text} is no share, 0 to 1"):
            share(text)
    else:
        assert share(text) == value


# ---------------------------------------------------------------------------------------------------- the adversary


def gap(vocabulary: Any = None, *, reward: float = 1.0, metric: float = 0.0) -> Gap:
    async def paid(example: Example, text: str) -> Verdict:
        return Verdict(value=reward, message="slow" if math.isnan(reward) else "")

    async def right(example: Example, text: str) -> Verdict:
        return Verdict(value=metric, message="no metric" if math.isnan(metric) else "")

    task: Any = SimpleNamespace(name="sums", vocabulary=vocabulary, other=7)
    return Gap(task, CASES, Scale(low=0.0, full=2.0), {"reward": paid, "metric": right})


@pytest.mark.parametrize(
    ("reward", "metric", "value", "paid"),
    [
        (1.0, 0.0, 0.5, False),  # exactly half of the way
        (1.02, 0.0, 0.51, True),
        (1.02, 1.0, -0.49, False),  # it is right
        (9.0, 0.0, 2.0, True),
        (-9.0, 0.0, -1.0, False),
        (-9.0, 1.0, -2.0, False),
        (math.nan, 0.0, None, False),
        (1.0, math.nan, None, False),
    ],
)
def test_the_adversary_earns_the_reward_without_the_metric(
    reward: float, metric: float, value: float | None, paid: bool
) -> None:
    one = gap(reward=reward, metric=metric)
    attempt: Any = SimpleNamespace(example=CASES[0].example, text="x")
    found = asyncio.run(one.verify(attempt))
    if value is None:
        assert (found.status, found.diagnostics["error"]) == ("error", "slow" if math.isnan(reward) else "no metric")
        assert one.num_wrong == 0
    else:
        assert found.value == pytest.approx(value)
        assert one.num_wrong == (not metric)
    assert {**one.paid} == ({"18": [("x", Verdict(value=reward))]} if paid else {})


def test_the_adversary_is_asked_the_ends_of_the_questions() -> None:
    one = gap()
    assert one.other == 7  # everything else is the task's
    long = replace(CASES[1], example=Example(id="1080", messages=(Message(role="user", content="ab" * 60),), answer=""))
    one._order[1] = long
    assert one.train_example(1).messages[0].content == "ab" * 40
    assert [one.train_example(index).id for index in range(4)] == ["18", "1080", "0.25", "18"]
    prompt, text = one.demonstration(4, 0.5)
    assert (prompt, text) == one.demonstration(4, 1.0)
    assert prompt == "ab" * 40
    assert len(one.envs(CASES[0].example, 3)) == 3
    texts = [*one.texts()]
    assert texts[:2] == ["What?", "18"]
    assert max(map(len, one._texts[0])) <= len("18") + 40


def test_an_adversary_of_words_writes_words_and_their_end() -> None:
    one = gap(("18", "17", "or"))
    assert {word for text in one._texts[0] for word in text.split()} <= {"18", "17", "or"}
    assert one._texts[0][0] == "18"
    assert one.demonstration(0, 1.0)[1].endswith(" <eoe>")


def attacked(monkeypatch: pytest.MonkeyPatch, scales: Sequence[Scale], paid: Any, *, error: str = "") -> Any:
    """The note of an adversary that found these texts, and the judge with its findings."""

    def train(config: Any, found: Gap, seconds: float) -> int:
        if error:
            raise UserError(error)
        assert (config, seconds) == ("its configuration", 7.0)
        scale.append(found._scale)
        found.num_wrong = 1234
        found.paid.update(paid)
        return 56

    async def right(example: Example, text: str) -> Verdict:
        return Verdict(value=0.0)

    scale = list[Scale]()
    monkeypatch.setattr(adversary, "_train", train)
    monkeypatch.setattr(adversary, "_config", lambda config: "its configuration")
    judge = Judge("reward", right, CASES)
    judge.scales = list(scales)
    task: Any = SimpleNamespace(name="sums", vocabulary=None)
    anything: Any = None
    note = adversary.attack(anything, task, judge, {"reward": right, "metric": right}, 7.0)
    return note, judge, scale


def test_the_best_paid_text_of_each_example_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    paid = {
        "18": [("low", Verdict(value=0.5)), ("high", Verdict(value=2.0)), ("same", Verdict(value=2.0))],
        "0.25": [("x", Verdict(value=1.0))],
    }
    scales = [Scale(low=0.0, full=1.0), Scale(low=1.0, full=1.0), Scale(low=0.5, full=3.0), Scale(low=0.25, full=2.0)]
    note, judge, scale = attacked(monkeypatch, scales, paid)
    assert note == "adversary: 56 steps, 1,234 wrong texts"
    assert scale == [Scale(low=0.25, full=2.0)]  # the medians of those that tell right from wrong
    assert [(one.text, one.score, one.full, one.kind, one.group) for one in judge.findings] == [
        ("high", 2.0, 2.0, "adversary", "adversary"),
        ("x", 1.0, 2.0, "adversary", "adversary"),
    ]
    (row,) = judge.rows
    assert (row.group, row.kind, row.num_examples, row.num_failed) == ("adversary", "adversary", len(CASES), 2)


def test_an_adversary_that_is_not_trained_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = [Scale(low=1.0, full=1.0), Scale(low=1.0, full=0.0)]
    note, judge, _ = attacked(monkeypatch, flat, {})
    assert note == "adversary: not trained, because the reward does not tell right from wrong"
    note, judge, _ = attacked(monkeypatch, [Scale(low=0.0, full=1.0)], {}, error="no prompt fits")
    assert (note, judge.rows) == ("adversary: not trained: no prompt fits", [])


@pytest.mark.parametrize(("task", "kind"), [("rpn", "scratch"), ("gsm8k", "scratch_bpe")])
def test_the_adversary_is_a_tiny_model_of_the_same_task(task: str, kind: str) -> None:
    model = [] if task == "rpn" else ["model=hf", "model.name_or_path=m"]
    asked = load_config([f"task={task}", "seed=7", *model])
    found = adversary._config(asked)
    assert (found.task, found.prompt, found.seed) == (asked.task, asked.prompt, 7)
    assert (found.reward.parts, found.reward.max_error_share) == (asked.reward.parts, 1.0)
    sizes = ("hidden_size", "num_layers", "intermediate_size", "max_context_tokens")
    assert [getattr(found.model, name) for name in sizes] == [64, 2, 172, 192]
    assert found.model.name == kind
    assert (found.tracker.console, found.tracker.report_to) == ("none", ())
    assert (found.evaluation.every, found.trainer.checkpoint_every, found.trainer.max_steps) == (None, None, 2000)
