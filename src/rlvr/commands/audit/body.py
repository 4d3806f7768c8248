"""Opens what is audited, and runs judge and adversary."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from rlvr.commands.audit.exploits import BEHIND_THOUGHTS, TRIED_FORMATS
from rlvr.commands.audit.judge import Audit, Judge, Rule, Verdict, Verifier
from rlvr.commands.audit.rewrites import Case, kind_of, same
from rlvr.config import Config
from rlvr.config.compose import load_task_config
from rlvr.data.rows import ENDINGS, read_file
from rlvr.errors import ConfigError, UserError
from rlvr.imports import described
from rlvr.lines import override_lines
from rlvr.progress import progress
from rlvr.rewards.completion import NAME, read_completion
from rlvr.rewards.extract import END
from rlvr.rewards.numbers import parse_answer
from rlvr.rewards.text import golds_of
from rlvr.run.sources import own_config
from rlvr.run.tasks import open_tasks
from rlvr.seeding import derive_seed
from rlvr.tasks.base import Functions, Task
from rlvr.types import Example, StopReason, ToolCall, TurnText

FAMILY = "llama"  # no model is loaded: markers are those of models made from scratch
NUM_OTHERS = 6
NUM_TRIED = 8  # examples to find out the format that a function reads
FUNCTION = "reward.parts.custom.function"

Wraps = Callable[[Case], Callable[[str], str]]


@dataclass(frozen=True, kw_only=True)
class Options:
    num_examples: int = 50
    seconds: float = 60.0  # of the adversary; 0: none
    threshold: float = 0.0
    answer_template: str | None = None  # of a function, `<result>{answer}</result>`


def audit_config(
    target: str,
    lines: Sequence[str] = (),
    *,
    data: str | None = None,
    task: str | None = None,
    config_dir: str | None = None,
) -> Config:
    """The configuration of a task or of a run, or of a function that grades their answers or those of `data`."""
    if data is not None and task is not None:
        raise ConfigError("--data and --task: the questions come from one of them; leave the other out.")
    if data is None and task is None:
        if ":" in target and not target.rpartition(":")[2][:1].isupper():
            raise ConfigError(f"{target}: add the questions that it grades: --data FILE.jsonl or --task T.")
        if target.endswith(ENDINGS):
            target, lines = "jsonl", [*override_lines({"task.path": target}), *lines]
        own = own_config(target, lines, config_dir)
        return own or load_task_config(target, lines, config_dir=config_dir, option="TASK")
    said = {line.lstrip("+").partition("=")[0] for line in lines}
    ours = {"reward": "custom", FUNCTION: target, "prompt": "plain"}
    if data is not None:
        ours |= {"task.path": data, "task.metric": _metric(data)}
    lines = [*override_lines({key: value for key, value in ours.items() if key not in said}), *lines]
    return load_task_config(task or "jsonl", lines, config_dir=config_dir)


def audit(config: Config, *, target: str, options: Options | None = None, functions: Functions | None = None) -> Audit:
    """Grade probes of training examples by the reward, and by the metric unless the reward is a user's function.

    UserError for a task without answers of one turn to rewrite, and for other errors that the user can correct.
    """
    options = options or Options()
    if config.task.bundles:
        raise ConfigError(f"task={config.task.name}: is a mix; audit its parts one by one.")
    with open_tasks(config, FAMILY, functions or {}, reads="all") as tasks:
        cases = collect(tasks.own, config, options.num_examples)
        graders, notes = verifiers(tasks.own, config), [f"{len(cases)} examples", *tasks.notes, *tasks.places]
        if any(part.name == "custom" for part in config.reward.parts.values()):
            rule = _rule(graders["metric"], cases)
            cases, form = asyncio.run(_with_format(graders["reward"], cases, options.answer_template))
            notes.append(f"answers are written as {form}")
            judges = [Judge("reward", graders["reward"], cases, rule)]
        elif options.answer_template is not None:
            raise ConfigError("--answer-template: is for a function; a task's answers are written as its prompt says.")
        else:
            asyncio.run(_check_pays(graders, cases))
            judges = [Judge(name, graders[name], cases) for name in graders]
        for judge in judges:
            with progress(f"grading by the {judge.name}") as on_progress:
                asyncio.run(judge.run(on_progress))
        if options.seconds:
            from rlvr.commands.audit.adversary import attack

            notes.append(attack(config, tasks.own, judges[0], graders, cases, options.seconds))
    return Audit(
        target=target,
        rows=tuple(row for judge in judges for row in judge.rows),
        findings=tuple(finding for judge in judges for finding in judge.findings),
        notes=tuple(notes),
        threshold=options.threshold,
    )


def verifiers(task: Task, config: Config) -> Mapping[str, Verifier]:
    """The reward as in training, and the metric as in evaluation, of a completion's text."""

    def said(text: str) -> list[TurnText]:
        calls = ()
        if config.prompt.answer_in == "complete":
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


def collect(task: Task, config: Config, num: int) -> list[Case]:
    """Different training examples, each with answers of others."""
    found = {example.id: (example, wrap) for example, wrap in islice(_worked(task, 4 * num), 4 * num)}
    pairs = list(found.values())[:num]
    kinds = Counter(kind_of(example.answer) for example, _ in pairs)
    if len({example.answer for example, _ in pairs}) < 2:
        raise UserError(
            f"task={config.task.name} has no examples with different answers of one text to rewrite; audit a task of "
            "questions and answers, or a function with --data FILE."
        )
    is_text = kinds.most_common(1)[0][0] == "text"
    cases = []
    for example, wrap in pairs:
        golds, rng = golds_of(example), random.Random(derive_seed(config.seed, "audit", example.id))
        others = {one.answer for one, _ in pairs if not any(same(one.answer, gold) for gold in golds)}
        cases.append(
            Case(
                example=example,
                question=example.messages[-1].content,
                golds=golds,
                wrap=wrap,
                others=tuple(rng.sample(sorted(others), min(NUM_OTHERS, len(others)))),
                kind="text" if is_text else kind_of(example.answer),
                strict=config.task.made_of_words,
                rng=rng,
            )
        )
    return cases


def _worked(task: Task, num: int) -> Iterator[tuple[Example, Callable[[str], str]]]:
    return (found for index in range(num) if (found := task.worked(index)) is not None)


def _rule(metric: Verifier, cases: Sequence[Case]) -> Rule:
    """The task's metric, of answers in the prompt's format."""
    wraps = {case.example.id: case.wrap for case in cases}

    async def is_right(case: Case, answer: str) -> bool:
        found = await metric(case.example, wraps[case.example.id](answer))
        return found.value == 1.0

    return is_right


async def _with_format(
    verifier: Verifier, cases: Sequence[Case], template: str | None = None
) -> tuple[list[Case], str]:
    """The cases in the format in which a function best tells golds from other answers, and its name; the prompt's, if
    no other is better.

    ConfigError if it pays no right answer in any format.
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
    raise ConfigError(
        f"no right answer earned more than a wrong one {tried}: this verifier reads another format, or nothing; "
        "say how an answer is written, as in --answer-template '<result>{answer}</result>'."
    )


async def _check_pays(graders: Mapping[str, Verifier], cases: Sequence[Case]) -> None:
    """ConfigError if a task's reward or metric pays no right answer: of a wrong one it says nothing."""
    for name, verifier in graders.items():
        margins, paid = await _margins(verifier, cases, {"": lambda case: case.wrap})
        if margins[""] <= 0 and not _pays_everything(paid):
            first = cases[0]
            found = await verifier(first.example, first.wrap(first.gold))
            why = found.message or f"{found.value:g} for {first.wrap(first.gold)[-80:]!r}"
            raise ConfigError(
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


def _metric(data: str) -> str:
    """numeric for a file whose answers are numbers, else text."""
    rows = [row.fields.get("answer") for row in islice(read_file(Path(data)), 100)] if Path(data).is_file() else []
    numbers = [row for row in rows if parse_answer(str(row).rpartition("####")[2]) is not None]
    return "numeric" if 2 * len(numbers) > len(rows) or not rows else "text"
