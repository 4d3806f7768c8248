"""Checks of a task's tools: do right episodes have turns, replies and room?"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from rlvr.checks.patient import Patient, first_fault, skip, solved, verdict
from rlvr.checks.rewards import played
from rlvr.checks.speech import completions_of
from rlvr.records.checks import Check
from rlvr.run.tasks import context_tokens
from rlvr.tasks.base import text_of
from rlvr.types import Example, StopReason

NUM_PLAYED, NUM_COUNTED = 4, 16
NUM_TOLD, FEWEST_TOLD, MOST_TOLD = 8, 4, 0.75
NOTHING, SHORT = "qqxx", 200  # a word; letters of a reply
SORRY = re.compile(
    r"^\W*$|\b(?:error|fail(?:ed|ure)?|exception|denied|unauthori[sz]ed|forbidden|invalid|missing|unavailable|unable|"
    r"timed? ?out|not found|no results?|nothing|null|none|traceback|rate limit|quota)\b",
    re.IGNORECASE,
)
NAMED_TOOL = re.compile(
    r"\b(?:tools?|functions?)\s+(?:called\s+|named\s+)?[`'\"](\w+)(?:\(\))?[`'\"]|"
    r"[`'\"](\w+)(?:\(\))?[`'\"]\s+(?:tool|function)\b",
    re.IGNORECASE,
)
CORRECT = "correct the tool, or start the service behind it: rlvr predict shows what it says"
SHORTEN = "shorten what the tool returns: an episode ends where its prompt does not fit"
FORGET = "keep what a tool remembers in the state of the episode, a copy for each, and not in its module"
NO_CALLS = "the task knows no right episode that calls a tool"


def turns_suffice(patient: Patient) -> Check:
    allowed = patient.config.task.num_turns
    golds = solved(patient, NUM_COUNTED)
    longest = max((len(turns) for _, turns in golds), default=0)
    if longest < 2:
        return skip(NO_CALLS)
    many = sum(len(turns) > allowed for _, turns in golds)
    return verdict(
        2 * many > len(golds),
        f"{many} of {len(golds)} right episodes take up to {longest} turns, and an episode has {allowed}",
        f"{len(golds)} right episodes take up to {longest} turns, and an episode has {allowed}",
        f"set task.max_turns to {longest} or more: a turn for each call, and one for the answer",
        longest=longest,
        allowed=allowed,
    )


def tools_answer(patient: Patient) -> Check:
    """The calls of right episodes succeed, give the same replies again, and leave room for the next turn."""
    golds = [gold for gold in solved(patient, NUM_PLAYED) if not all(isinstance(turn, str) for turn in gold[1])]
    if not golds:
        return skip(NO_CALLS)
    room = context_tokens(patient.policy) - patient.config.rollout.max_completion_tokens
    calls, failures, changed, longest = 0, 0, 0, 0
    for example, turns in golds:
        first, again = (played(patient, example, turns) for _ in range(2))
        calls += int(first.score.diagnostics.get("tool_calls", 0))
        failures += int(first.score.diagnostics.get("tool_errors", 0))
        prompts, others = ([turn.prompt_ids for turn in episode.turns] for episode in (first, again))
        changed += prompts != others
        longest = max(longest, *map(len, prompts))
    found = (
        (2 * failures > calls, f"{failures} of {calls} calls of right episodes fail", CORRECT),
        (longest > room, f"with a tool's reply a prompt has {longest:,} tokens; a completion leaves {room:,}", SHORTEN),
        (2 * changed >= len(golds), "the same calls get other replies in another episode", FORGET),
    )
    return first_fault(
        found,
        f"{calls} calls of right episodes succeed, get the same replies again, and leave room for the next turn",
        calls=calls,
        failures=failures,
        longest_prompt=longest,
        room=room,
    )


def named_tools_are_there(patient: Patient) -> Check:
    """The tools that a prompt tells the model to use are among those that it is offered."""
    example = patient.task.train_example(0)
    there = {schema["function"]["name"] for schema in patient.task.env(example).tools}
    if not there:
        return skip("the task has no tools")
    said = text_of(example.messages)
    missing = sorted({next(filter(None, found.groups())) for found in NAMED_TOOL.finditer(said)} - there)
    return verdict(
        bool(missing),
        f"the prompt names the tool {', '.join(map(repr, missing))}, and there are: {', '.join(sorted(there))}",
        f"the prompt names no other tools than there are: {', '.join(sorted(there))}",
        "name the tools in prompt.system and in the data as they are called: a call of another name fails",
        missing=missing,
    )


def tools_inform(patient: Patient) -> Check:
    """A tool answers what it is asked: not every call with one error, nor any call with the gold."""
    golds = [gold for gold in solved(patient, NUM_TOLD) if not all(isinstance(turn, str) for turn in gold[1])]
    if len(golds) < FEWEST_TOLD:
        return skip(NO_CALLS)
    if not patient.reads(NOTHING):
        return skip("the tokenizer knows no other words than the task's")
    said = [_replies(patient, example, turns) for example, turns in golds]
    kinds = {" ".join(replies) for replies in said if replies}
    always = next(iter(kinds)) if len(kinds) == 1 and len({example.answer for example, _ in golds}) > 1 else None
    leaked = [
        example.answer
        for example, turns in golds
        if (answer := str(example.answer))
        and (asked := _asked_for_nothing(turns)) != list(turns)
        and any(_names(reply, answer) for reply in _replies(patient, example, asked))
    ]
    leaks = len(leaked) > MOST_TOLD * len(golds)
    return verdict(
        leaks or (always is not None and bool(SORRY.search(always))),
        f"a tool tells the right answer whatever it is asked ({len(leaked)} of {len(golds)} calls that ask for nothing)"
        if leaks
        else f"the calls of {len(golds)} right episodes all get the reply {(always or '')[:100]!r}",
        f"the calls of {len(golds)} right episodes get {len(kinds)} different replies, and not the answer for nothing",
        "let the tool answer its arguments alone: a model learns to call it with any"
        if leaks
        else "let the tool raise ToolError where it fails, and start the service behind it",
        reply=(always or "")[:300],
    )


def _replies(patient: Patient, example: Example, turns: Sequence[Any]) -> list[str]:
    """What tools say to these calls."""
    env, replies = patient.task.env(example), list[str]()

    async def play() -> None:
        await env.start()
        for text in completions_of(patient, example, turns):
            reply = await env.step(patient.chat.parse(text, StopReason.STOP, env.tools))
            replies.extend(message.content for message in reply.messages if message.role == "tool")
            if reply.done:
                return

    asyncio.run(play())
    return replies


def _asked_for_nothing(turns: Sequence[Any]) -> list[Any]:
    """The calls with words that mean nothing in place of their texts."""
    return [
        turn
        if isinstance(turn, str)
        else {**turn, "arguments": {n: NOTHING if isinstance(v, str) else v for n, v in turn["arguments"].items()}}
        for turn in turns
    ]


def _names(reply: str, answer: str) -> bool:
    """Whether a short reply holds the answer as a word."""
    return len(reply) < SHORT and bool(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", reply))


CHECKS = (turns_suffice, named_tools_are_there, tools_answer, tools_inform)
