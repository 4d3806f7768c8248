"""Solved examples of a task, and the verifiers that grade their texts: the reward as in training, the metric as in
evaluation."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from rlvr.config import Config
from rlvr.errors import ConfigError, UserError
from rlvr.imports import described
from rlvr.rewards.completion import NAME, read_completion
from rlvr.rewards.extract import END
from rlvr.rewards.text import golds_of
from rlvr.seeding import derive_seed
from rlvr.tasks.base import Task
from rlvr.tasks.settings import TaskBundle
from rlvr.trust.probes.exploits import BEHIND_THOUGHTS, TRIED_FORMATS
from rlvr.trust.probes.judge import Judge, Rule, Verdict, Verifier
from rlvr.trust.probes.rewrites import Case, kind_of, same
from rlvr.types import Example, StopReason, ToolCall, TurnText

NUM_OTHERS = 6
NUM_TRIED = 8  # examples to find out the format that a function reads


class TellsNothingError(ConfigError):
    """No right answer earned more than a wrong one."""


Wraps = Callable[[Case], Callable[[str], str]]


def judges(
    task: Task, settings: Config | TaskBundle, cases: Sequence[Case], template: str | None = None
) -> tuple[list[Judge], list[str]]:
    """Those of the task's reward and metric, or of the reward alone where the user's own function grades, whose format
    is found out, or given as `template`; and notes.

    TellsNothingError if no right answer is paid.
    """
    graders = verifiers(task, settings)
    if any(part.user_function for part in settings.reward.parts.values()):
        rule = rule_of(graders["metric"], cases)
        formatted, form = asyncio.run(with_format(graders["reward"], cases, template))
        return [Judge("reward", graders["reward"], formatted, rule)], [f"answers are written as {form}"]
    if template is not None:
        raise ConfigError("--answer-template: is for a function; a task's answers are written as its prompt says.")
    asyncio.run(check_pays(graders, cases))
    return [Judge(name, graders[name], cases) for name in graders], []


def verifiers(task: Task, settings: Config | TaskBundle) -> Mapping[str, Verifier]:
    """The reward as in training, and the metric as in evaluation, of a completion's text."""

    def said(text: str) -> list[TurnText]:
        calls = ()
        if settings.prompt.answer_in == "complete":
            arguments = {"reasoning": "Let me see.", "final_answer": text, "cited_doc_ids": []}
            problem = None if read_completion(arguments) else "not accepted by the tool"
            calls = (ToolCall(id="call_0", name=NAME, arguments=arguments, problem=problem),)
        completion = f"{text} {END}" if task.vocabulary else text
        num_tokens = max(1, len(text.split()))
        turn = {"prompt": "", "completion": completion, "text": text, "calls": calls}
        return [TurnText(**turn, stop_reason=StopReason.STOP, num_tokens=num_tokens)]

    async def reward(example: Example, text: str) -> Verdict:
        try:
            score = await task.env(example).score(said(text))
        except Exception as error:
            return Verdict(value=math.nan, message=described(error))
        return Verdict(value=score.value, message=str(score.diagnostics.get("error", "")))

    async def metric(example: Example, text: str) -> Verdict:
        try:
            found = await task.grade(example, said(text))
        except Exception as error:
            return Verdict(value=math.nan, message=described(error))
        return Verdict(value=float(found.correct) if found.failure is None else math.nan, message=found.failure or "")

    return {"reward": reward, "metric": metric}


def collect(task: Task, settings: Config | TaskBundle, num: int, seed: int) -> list[Case]:
    """Different training examples, each with answers of others."""
    found = {example.id: (example, wrap) for example, wrap in islice(_worked(task, 4 * num), 4 * num)}
    pairs = list(found.values())[:num]
    kinds = Counter(kind_of(example.answer) for example, _ in pairs)
    if len({example.answer for example, _ in pairs}) < 2:
        raise UserError(
            f"task={settings.task.name} has no examples with different answers of one text to rewrite; audit a task of "
            "questions and answers, or a function with --data FILE."
        )
    is_text = kinds.most_common(1)[0][0] == "text"
    cases = []
    for example, wrap in pairs:
        golds, rng = golds_of(example), random.Random(derive_seed(seed, "audit", example.id))
        others = {one.answer for one, _ in pairs if not any(same(one.answer, gold) for gold in golds)}
        cases.append(
            Case(
                example=example,
                question=example.messages[-1].content,
                golds=golds,
                wrap=wrap,
                others=tuple(rng.sample(sorted(others), min(NUM_OTHERS, len(others)))),
                kind="text" if is_text else kind_of(example.answer),
                strict=settings.task.made_of_words,
                rng=rng,
            )
        )
    return cases


def _worked(task: Task, num: int) -> Iterator[tuple[Example, Callable[[str], str]]]:
    return (found for index in range(num) if (found := task.worked(index)) is not None)


def rule_of(metric: Verifier, cases: Sequence[Case]) -> Rule:
    """The task's metric, of answers in the prompt's format."""
    wraps = {case.example.id: case.wrap for case in cases}

    async def is_right(case: Case, answer: str) -> bool:
        found = await metric(case.example, wraps[case.example.id](answer))
        return found.value == 1.0

    return is_right


async def with_format(verifier: Verifier, cases: Sequence[Case], template: str | None = None) -> tuple[list[Case], str]:
    """The cases in the format in which a function best tells golds from other answers, and its name; the prompt's, if
    no other is better.

    TellsNothingError if it pays no right answer in any format.
    """
    wraps = [{"the prompt says": lambda case: case.wrap} | _formats(TRIED_FORMATS), _formats(BEHIND_THOUGHTS)]
    if template is not None:
        if "{answer}" not in template:
            raise ConfigError(f"--answer-template {template!r}: has no {{answer}}.")
        wraps = [{template: lambda case: lambda answer: template.replace("{answer}", answer)}]
    for formats in wraps:
        margins, paid = await _margins(verifier, cases[:NUM_TRIED], formats)
        best = max(margins, key=margins.__getitem__)
        if margins[best] > 0 or _pays_everything(paid):
            return [replace(case, wrap=formats[best](case)) for case in cases], best
    tried = "in this template" if template is not None else f"in any of {sum(map(len, wraps))} formats"
    raise TellsNothingError(
        f"no right answer earned more than a wrong one {tried}: this verifier reads another format, or nothing; "
        "say how an answer is written, as in --answer-template '<result>{answer}</result>'."
    )


async def check_pays(graders: Mapping[str, Verifier], cases: Sequence[Case]) -> None:
    """TellsNothingError if a task's reward or metric pays no right answer: of a wrong one it says nothing."""
    for name, verifier in graders.items():
        margins, paid = await _margins(verifier, cases, {"": lambda case: case.wrap})
        if margins[""] <= 0 and not _pays_everything(paid):
            first = cases[0]
            found = await verifier(first.example, first.wrap(first.gold))
            why = found.message or f"{found.value:g} for {first.wrap(first.gold)[-80:]!r}"
            raise TellsNothingError(
                f"no right answer earned more than a wrong one by the {name} ({why}), of {len(cases)}: it reads no "
                "such golds, or at another place; choose the reward and the task.metric that do, or correct the data."
            )


def _formats(forms: Iterable[str]) -> dict[str, Wraps]:
    return {form.format("ANSWER"): lambda case, form=form: form.format for form in forms}


async def _margins(
    verifier: Verifier, cases: Sequence[Case], formats: Mapping[str, Wraps]
) -> tuple[dict[str, float], list[float]]:
    """By how much golds earn more than other answers in each format; all that golds and empty texts earn."""
    margins, paid = dict[str, float](), list[float]()
    for name, make in formats.items():
        gaps = list[float]()
        for case in cases:
            gold, other, nothing = [
                await verifier(case.example, text)
                for text in (make(case)(case.gold), make(case)((case.others or ("",))[0]), "")
            ]
            gaps += [] if gold.failed else [gold.value - (0.0 if other.failed else other.value)]
            paid += [] if gold.failed else [gold.value, *([] if nothing.failed else [nothing.value])]
        margins[name] = sum(gaps) / max(1, len(gaps))
    return margins, paid


def _pays_everything(values: Sequence[float]) -> bool:
    """Whether right answers and an empty text earn one and the same, and not nothing."""
    return len(set(values)) == 1 and values[0] > 0
