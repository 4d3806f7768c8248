"""Checks of a task's tools: do right episodes have turns, replies and room?"""

from rlvr.checks.patient import Patient, skip, verdict
from rlvr.checks.rewards import played
from rlvr.run.tasks import context_tokens
from rlvr.tracking.checks import Check

NUM_PLAYED, NUM_COUNTED = 4, 16
CORRECT = "correct the tool, or start the service behind it: rlvr predict shows what it says"
SHORTEN = "shorten what the tool returns: an episode ends where its prompt does not fit"
FORGET = "keep what a tool remembers in the state of the episode, a copy for each, and not in its module"
NO_CALLS = "the task knows no right episode that calls a tool"


def turns_suffice(patient: Patient) -> Check:
    allowed = patient.config.task.num_turns
    golds = patient.task.solutions(NUM_COUNTED)
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
    golds = [gold for gold in patient.task.solutions(NUM_PLAYED) if not all(isinstance(turn, str) for turn in gold[1])]
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
    says, remedy = next(((says, remedy) for wrong, says, remedy in found if wrong), ("", ""))
    return verdict(
        bool(says),
        says,
        f"{calls} calls of right episodes succeed, get the same replies again, and leave room for the next turn",
        remedy,
        calls=calls,
        failures=failures,
        longest_prompt=longest,
        room=room,
    )


CHECKS = (turns_suffice, tools_answer)
