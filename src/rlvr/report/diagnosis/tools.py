"""Tool calls: whether they are understood, answered, and whether what is found reaches the model."""

import json
from itertools import combinations

from rlvr.report.diagnosis.evidence import QUOTED
from rlvr.report.diagnosis.judge import Found, weight
from rlvr.report.diagnosis.record import Record, plain, words
from rlvr.tracking.signals import SIGNALS

MIN_CALLS = 6  # pairs of calls
MIN_DOCUMENTS = 8


def tools_fail(record: Record) -> Found:
    return max(_failed(record), _deaf(record), _unseen(record), key=lambda found: found.strength)


def _failed(record: Record) -> Found:
    names = [f"rollout/{kind}_share" for kind in ("malformed_call", "unknown_tool", "invalid_argument", "tool_timeout")]
    strengths = {name: SIGNALS[name].weight(record.early(name)) for name in names}
    worst = max(strengths, key=lambda name: strengths[name])
    return Found(strength=strengths[worst], evidence=[record.span(worst)])


def _deaf(record: Record) -> Found:
    """Pairs of calls of one example whose arguments share no word, and that got one reply."""
    same, pairs, shown = 0, 0, list[str]()
    for _, group in record.groups:
        calls = {
            (call.name, json.dumps(call.arguments), turn.reply)
            for one in group
            for turn in one.turns
            for call in turn.calls
            if len(turn.calls) == 1 and call.problem is None and turn.reply is not None
        }
        for one, other in combinations(sorted(calls), 2):
            asked = [set(words(" ".join(map(str, json.loads(text).values())))) for text in (one[1], other[1])]
            if one[0] == other[0] and not asked[0] & asked[1]:
                pairs += 1
                same += one[2] == other[2]
                if one[2] == other[2] and not shown:
                    shown = [f"{name} {text}: {(reply or '')[:QUOTED]!r}" for name, text, reply in (one, other)]
    return Found(
        strength=weight("tools_fail", "deaf", same / pairs if pairs >= MIN_CALLS else None),
        says="A tool says the same whatever it is asked.",
        evidence=[f"{same} of {pairs} pairs of calls with nothing in common got the same reply", *shown],
        remedy="Call the tool yourself with two different arguments: it may ignore them, or search an empty index.",
    )


def _unseen(record: Record) -> Found:
    """Documents that the task says were found, and that do not stand in the next prompt."""
    found = [
        (step.text, one.turns[step.turn + 1].prompt)
        for one in record.episodes
        for step in one.trace
        if step.kind == "document" and step.turn + 1 < len(one.turns) and not step.text.endswith("…")
    ]
    lost = [(text, prompt) for text, prompt in found if not set(plain(text).split()) <= set(plain(prompt).split())]
    return Found(
        strength=weight("tools_fail", "unseen", len(lost) / len(found) if len(found) >= MIN_DOCUMENTS else None),
        says="What a tool finds does not reach the model: its replies are cut, or lack it.",
        evidence=[
            f"{len(lost)} of {len(found)} documents that were found do not stand in the prompt that follows",
            *(f"found {text!r}, the prompt ends in {prompt[-QUOTED:]!r}" for text, prompt in lost[:1]),
        ],
        remedy="Compare the reply to a call in rollouts/ with what the tool returns: a limit of its length, or the "
        "chat template, may cut it.",
    )
