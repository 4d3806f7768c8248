"""Checks of the data: are there questions with different answers, which a completion can hold?"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rlvr.checks.patient import Patient, skip, solved, verdict
from rlvr.checks.rewards import played
from rlvr.checks.speech import completions_of
from rlvr.records.checks import Check
from rlvr.tasks.base import text_of
from rlvr.tasks.golds import UNREAD
from rlvr.types import Example, Message

NUM_EXAMPLES, NUM_SOLVED, NUM_GRADED, FEWEST = 200, 64, 8, 20
FLOAT = re.compile(r"(-?\d+)\.0+")
MOST_LEFT_OUT, MOST_TOO_LONG = 0.1, 0.05
MOST_ALIKE = 0.9  # of the answers
MOST_PASSES = 500  # over the training rows
LEFT_OUT = re.compile(r"([\d,]+) (?:of [\d,]+ )?training (?:rows|examples) ([^:]*): left out")


def rows_are_used(patient: Patient) -> Check:
    """Of rows that ask the same only the first is read."""
    task = patient.task
    if task.sizes is None:
        return skip("the task makes its examples")
    lost = [(int(found[1].replace(",", "")), found[2]) for note in task.notes if (found := LEFT_OUT.search(note))]
    unread = task.unread_golds()  # loading looked at some of the rows
    lost += [(len(unread), f"{UNREAD} ({unread[0]})")] if unread else []
    total = task.sizes[0] + sum(number for number, _ in lost) - len(unread)
    worst, why = max(lost, default=(0, ""))
    return verdict(
        worst > MOST_LEFT_OUT * total,
        f"{worst:,} of {total:,} training rows {why}: left out",
        f"{task.sizes[0]:,} of {total:,} training rows are used",
        "see whether these rows say what you meant: each question once, with its answer",
        left_out=[f"{number:,} {reason}" for number, reason in lost],
    )


def _examples(patient: Patient) -> list[Example]:
    sizes = patient.task.sizes
    return [patient.task.train_example(index) for index in range(min(NUM_EXAMPLES, sizes[0] if sizes else 10**9))]


def task_informs(patient: Patient) -> Check:
    """The answer is a function of the question, which must be read to know it."""
    examples = _examples(patient)
    asked = {text_of(example.messages): example for example in examples}
    known = [(example.messages[-1].content, str(example.answer)) for example in asked.values() if example.answer]
    alike, count = Counter(answer for _, answer in known).most_common(1)[0] if known else ("", 0)
    tools = patient.task.env(examples[0]).tools
    answers: dict[str, set[str]] = {}
    for example in examples:
        answers.setdefault(text_of(example.messages), set()).add(str(example.answer))
    torn = [] if tools else [question for question, found in answers.items() if len(found) > 1]
    place = _place_of_answers(known)
    says = next(
        (
            text
            for wrong, text in (
                (len(asked) < 2, f"{len(examples)} examples ask one question"),
                (
                    len(known) >= FEWEST and count > MOST_ALIKE * len(known),
                    f"{count} of {len(known)} answers are {alike[:40]!r}",
                ),
                (len(torn) > MOST_LEFT_OUT * len(asked), f"{len(torn)} of {len(asked)} questions have several answers"),
                (place is not None, f"the question tells its answer, {place}"),
            )
            if wrong
        ),
        "",
    )
    return verdict(
        bool(says),
        f"{says}: nothing about the question has to be learnt",
        f"{len(asked)} different questions have {len(set(answer for _, answer in known))} different answers",
        "correct the data: a reward that does not depend on reading the question teaches nothing about it",
        questions=[question[-200:] for question in torn[:2]] or [question[-200:] for question, _ in known[:2]],
        answers=[answer[:100] for _, answer in known[:5]],
    )


def _place_of_answers(known: Sequence[tuple[str, str]]) -> str | None:
    """Where questions tell their answers, if nearly all do it at one place: `behind 'solution: '`."""
    if len(known) < FEWEST:
        return None
    for before in dict.fromkeys(place for question, answer in known[:3] for place in _before(question, answer)):
        right = sum(_reads(question, before) == answer for question, answer in known)
        if right > MOST_ALIKE * len(known):
            return f"behind {before!r}" if before else "at its beginning"
    if sum(_ends(question, answer) for question, answer in known) > MOST_ALIKE * len(known):
        return "at its end"
    return None


def _before(question: str, answer: str) -> Iterator[str]:
    """Up to 12 letters before each place of the answer."""
    for found in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", question):
        start = found.start()
        yield from (question[max(0, start - size) : start] for size in (12, 8, 4, 2, 1))


def _reads(question: str, before: str) -> str:
    """What follows the first `before`, as far as it is one answer."""
    place = question.find(before)
    rest = question[place + len(before) :] if place >= 0 else ""
    found = re.match(r"[^\n,;()\[\]{}]*?(?=[.!?]?(?:\s|$|[,;()\[\]{}]))", rest)
    return found[0] if found else ""


def _ends(question: str, answer: str) -> bool:
    rest = question.rstrip(".!?)]}\"' \n") if answer[-1:].isalnum() else question.rstrip()
    return rest.endswith(answer) and not rest.removesuffix(answer)[-1:].isalnum()


def answers_fit(patient: Patient) -> Check:
    """A completion has room for a right answer and its end."""
    limit, golds = patient.config.rollout.max_completion_tokens, solved(patient, NUM_SOLVED)
    if not golds:
        return skip("the task knows no right completion to measure")
    lengths = [max(map(len, completions_of(patient, example, turns))) for example, turns in golds]
    bare = [_answer_alone(patient, example) for example, _ in golds]
    needed = [whole if alone is None else min(alone, whole) for alone, whole in zip(bare, lengths, strict=True)]
    long, longer = ([length for length in found if length > limit] for found in (needed, lengths))
    return verdict(
        len(long) > MOST_TOO_LONG * len(golds) or 2 * len(longer) > len(golds),
        f"{len(long or longer)} of {len(golds)} right completions have more than {limit} tokens "
        f"(rollout.max_completion_tokens), the longest {max(long or longer, default=0)}: they are cut",
        f"{len(golds)} right completions have at most {max(lengths)} tokens, and {limit} are allowed",
        f"set rollout.max_completion_tokens to {max(lengths)} or more"
        + (f"; the answers alone need {max(needed)}" if max(needed) < max(lengths) else ""),
        limit=limit,
        longest=max(lengths),
        longest_answer=max(needed),
    )


def _answer_alone(patient: Patient, example: Example) -> int | None:
    """The tokens of a completion that answers and nothing else."""
    said = patient.task.answered(example.answer) if example.answer else None
    return max(map(len, completions_of(patient, example, [said]))) if isinstance(said, str) else None


def messages_are_plain(patient: Patient) -> Check:
    """The data's texts hold none of the tokens that the template puts around them: it would be rendered twice."""
    template = patient.chat.template
    if template is None or patient.task.vocabulary is not None:
        return skip("there is no template that could be in the messages, too")
    tokenizer: Any = patient.policy.tokenizer
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    marks = {*patient.coder.encode(template.marks.open), *patient.coder.encode(template.marks.close)}
    frame = special & set(patient.coder.encode(template.render([Message(role="user", content="x")]))) - marks
    texts = [text_of(example.messages) for example in _examples(patient)]
    bad = [(text, inside) for text in texts if (inside := frame & set(patient.coder.encode(text)))]
    names = sorted(patient.chat.decode([token]) for token in set().union(*(inside for _, inside in bad)))
    return verdict(
        len(bad) > MOST_LEFT_OUT * len(texts),
        f"{len(bad)} of {len(texts)} prompts hold tokens of the chat template ({', '.join(names)}): they are rendered "
        "already, and would be a second time",
        f"{len(texts)} prompts hold no token of the chat template",
        "give the data's messages, or their plain texts: rlvr renders them by the model's own template",
        prompts=[text[:200] for text, _ in bad[:2]],
    )


def golds_are_plain(patient: Patient) -> Check:
    """A table's 5.0 is 5: the metric must take it so."""
    written = dict[str, tuple[Example, str]]()
    for index in range(NUM_EXAMPLES):
        example = patient.task.train_example(index)
        whole = FLOAT.fullmatch(str(example.answer))
        answer = patient.task.answered(whole[1]) if whole else None
        if isinstance(answer, str) and len(written) < NUM_GRADED:
            written[example.id] = example, answer
    if not written:
        return skip("no gold is a whole number that is written with a point")
    refused = [
        str(example.answer)
        for example, answer in written.values()
        if not asyncio.run(patient.task.grade(example, (episode := played(patient, example, [answer])).texts)).correct
        or episode.score.value <= 0
    ]
    return verdict(
        2 * len(refused) > len(written),
        f"golds are written as {next(iter(refused), '')!r}, and metric or reward refuse the number without its point",
        f"{len(written)} golds that are written as 5.0 are read as 5",
        "set task.metric=numeric and reward=numeric, or write the golds as whole numbers: models do",
        golds=refused[:5],
    )


def rows_suffice(patient: Patient) -> Check:
    """How often the run goes over its rows."""
    config, sizes = patient.config, patient.task.sizes
    if sizes is None or len(config.trained) > 1:
        return skip("the task makes its examples, or is a part of several")
    passes = config.trainer.max_steps * config.rollout.prompts_per_step / max(1, sizes[0])
    return verdict(
        passes > MOST_PASSES,
        f"{config.trainer.max_steps} steps of {config.rollout.prompts_per_step} prompts go {passes:,.0f} times over "
        f"{sizes[0]:,} training rows: the answers are learnt by heart",
        f"the run goes {passes:.2g} times over {sizes[0]:,} training rows",
        "take more rows (task.max_train_examples limits them), or set trainer.max_steps to fewer",
        rows=sizes[0],
        passes=passes,
    )


CHECKS = (rows_are_used, messages_are_plain, task_informs, golds_are_plain, rows_suffice)
