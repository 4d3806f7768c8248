"""Checks of the data and the reward: what is paid for right, wrong, empty and odd answers."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.checks.patient import Patient, Scripted, skip, solved, verdict
from rlvr.checks.speech import completions_of
from rlvr.checks.texts import LONG
from rlvr.core.episode import ChatModel, run_episode
from rlvr.records.checks import Check
from rlvr.run.tasks import context_tokens
from rlvr.types import Episode, Example

NUM_EXAMPLES, NUM_PROMPTS = 8, 64
OF_GOLD = "the gold answer"  # in errors of our own parts that the data cause
MOST_LEFT_OUT = 0.1  # of the prompts
NUM_ORDERED, FEWEST, ROUNDING = 12, 5, 1e-9
NUM_TIMED, PAUSE, SLOWER = 8, 0.15, 10  # calls without and with a pause; how much more must change with one
MOST_CALLS, TIME_FOR_CALLS = 50, 1.0  # of each process, and in seconds
SLOW_CALL, SLOW_STEP = 0.05, 5.0  # seconds
LARGEST = 1e6  # reward
LETTERS = 4  # of a token
THOUGHTS = "<think>\nWe count.\n</think>\n"


def played(patient: Patient, example: Example, turns: Sequence[Any], *, thinks: bool = False) -> Episode:
    """An episode with these completions, played and scored as in training."""
    env, completions = patient.task.env(example), completions_of(patient, example, turns, thinks=thinks)
    model = ChatModel(engine=Scripted(completions), chat=patient.chat, max_context_tokens=10**9)
    params = patient.params(0, 1.0, 10**6)
    return asyncio.run(run_episode(example, env, model, lambda turn: params, sample_index=0, seed=0))


def value_of(patient: Patient, example: Example, turns: Sequence[Any]) -> float:
    score = played(patient, example, turns).score
    return score.value if score.status != "error" else float("nan")


def prompts_fit(patient: Patient) -> Check:
    room = context_tokens(patient.policy) - patient.config.rollout.max_completion_tokens
    lengths = [len(patient.prompt(index)[1]) for index in range(NUM_PROMPTS)]
    long = [length for length in lengths if length > room]
    patient.tasks.fit(patient.config, patient.policy)  # as the run does, for the checks that follow
    return verdict(
        room <= 0 or len(long) > MOST_LEFT_OUT * NUM_PROMPTS,
        f"{len(long)} of {NUM_PROMPTS} prompts have more than the {max(0, room)} tokens that a whole completion leaves",
        f"the longest of {NUM_PROMPTS} prompts has {max(lengths)} tokens, and a whole completion leaves {room}",
        "lower rollout.max_completion_tokens, shorten the prompt, or use a model with more context; prompts that do "
        "not fit are left out of training",
        context=context_tokens(patient.policy),
        max_completion_tokens=patient.config.rollout.max_completion_tokens,
        longest=max(lengths),
    )


def gold_scores_full(patient: Patient) -> Check:
    golds = solved(patient, NUM_EXAMPLES)
    if not golds:
        return skip("the task knows no right completion to try")
    parts = getattr(patient.tasks.verifiers.get(patient.task.name), "parts", {})
    ours = {
        name
        for name, part in parts.items()
        if part.weight and not part.is_penalty and part.grades != "documents" and not part.user_function
    }
    bad = []
    for example, turns in golds:
        score = played(patient, example, turns).score
        low = {name: value for name, value in score.parts.items() if name in ours and value < 1}
        if score.status != "scored" or (score.value <= 0 and not score.late) or low:
            why = score.diagnostics.get("error") or low or score.status
            bad.append(
                {
                    "example": example.id,
                    "answer": example.answer,
                    "completion": turns[-1],
                    "value": None if score.status == "error" else score.value,
                    "why": why,
                }
            )
    return verdict(
        bool(bad),
        f"{len(bad)} of {len(golds)} right answers do not earn full marks{_why(patient, golds, bad)}",
        f"{len(golds)} right answers earn full marks",
        "correct the reward, or the prompt's answer_in: training would punish right answers",
        examples=bad[:3],
    )


def _why(patient: Patient, golds: Sequence[tuple[Example, Sequence[Any]]], bad: Sequence[Mapping[str, Any]]) -> str:
    """What the data have to do with it."""
    if bad and all(OF_GOLD in str(one["why"]) for one in bad):
        return f": {bad[0]['why']}"
    said = [(example, patient.task.answered(example.answer)) for example, _ in golds if example.answer]
    paid = [isinstance(text, str) and value_of(patient, example, [text]) > 0 for example, text in said]
    if paid and all(paid):
        return ", but their answer column alone does: the solutions end in other answers"
    behind = [value_of(patient, example, [*turns[:-1], f"{THOUGHTS}{turns[-1]}"]) > 0 for example, turns in golds]
    template = patient.chat.template
    opened = template is not None and template.can.opened
    where = f", and the template opens {template.marks.open.strip()} in the prompt" if template and opened else ""
    return f", but they do behind <think>...</think>, which no prompt asks for{where}" if all(behind) else ""


def thoughts_are_passed_over(patient: Patient) -> Check:
    """A template may open the reasoning of each completion: the answer stands behind it."""
    template = patient.chat.template
    if template is None or not template.can.opened:
        return skip("the template opens no reasoning")
    golds, lost = solved(patient, NUM_EXAMPLES), []
    for example, turns in golds:
        bare, behind = (played(patient, example, turns, thinks=thinks).score for thinks in (False, True))
        if behind.status == "error" or behind.value < bare.value:
            lost.append({"example": example.id, "bare": bare.value, "behind_thoughts": behind.value})
    return verdict(
        bool(lost),
        f"{len(lost)} of {len(golds)} right answers earn less behind the reasoning that the template opens "
        f"({template.marks.open.strip()})",
        f"{len(golds)} right answers earn the same behind the reasoning that the template opens",
        "let the reward read the answer at its own place (prompt=boxed), not the whole completion, or use a template "
        "whose generation prompt opens no reasoning",
        examples=lost[:3],
    )


def metric_agrees(patient: Patient) -> Check:
    """The evaluation's metric, which shares no code with the reward."""
    golds = solved(patient, NUM_EXAMPLES)
    if not golds:
        return skip("the task knows no right completion to try")
    found = [(e, asyncio.run(patient.task.grade(e, played(patient, e, turns).texts))) for e, turns in golds]
    bad = [
        {"example": e.id, "expected": e.answer, "read": g.answer, "why": g.failure} for e, g in found if not g.correct
    ]
    return verdict(
        bool(bad),
        f"the metric calls {len(bad)} of {len(golds)} right answers wrong",
        f"the metric calls {len(golds)} right answers right",
        "choose the task.metric that reads these answers: accuracy would look flat while the reward rises",
        examples=bad[:3],
    )


def form_alone(patient: Patient) -> Check | None:
    """Skipped, if no part of the run's own reward reads the answer."""
    parts = getattr(patient.tasks.verifiers.get(patient.task.name), "parts", {})
    paid = {name: part for name, part in parts.items() if part.weight}
    if not paid or not all(part.is_penalty or part.grades == "form" for part in paid.values()):
        return None
    names = ", ".join(paid)
    return skip(f"the reward pays the form of a completion alone (reward.parts: {names}), not its answer")


def reward_is_scaled(patient: Patient) -> Check:
    golds = solved(patient, NUM_EXAMPLES)
    tried = [*golds, *((example, ("x",)) for example, _ in golds if patient.reads("x"))]
    largest = max((abs(value_of(patient, *one)) for one in tried), default=0.0)
    return verdict(
        largest > LARGEST,
        f"a completion earns {largest:.3g}: sums of squares of such rewards are infinite, and advantages wrong",
        f"right and wrong completions earn at most {largest:.3g} in size",
        "divide the reward, so that a right answer earns about 1: advantages need no larger ones",
        largest=largest,
    )


def reward_is_fast(patient: Patient) -> Check:
    """The time of one call, projected on a step."""
    example, turns = next(iter(solved(patient, 1)), (patient.task.train_example(0), [""]))
    seconds, long = _seconds(patient, example, turns), LONG[: LETTERS * patient.config.rollout.max_completion_tokens]
    if patient.reads(long):
        seconds = max(seconds, _seconds(patient, example, [long]))
    rollout, workers = patient.config.rollout, patient.config.reward.num_workers
    calls = rollout.prompts_per_step * rollout.group_size
    step = seconds * calls / workers
    return verdict(
        seconds > SLOW_CALL and step > SLOW_STEP,
        f"a completion is scored in {seconds:.2g} s: {calls} completions of a step need {step:.2g} s with "
        f"{workers} processes, while the model waits",
        f"a completion is scored in {seconds:.1g} s, and {calls} completions of a step in about {step:.1g} s",
        "make the reward faster, or raise reward.num_workers",
        seconds=seconds,
        seconds_per_step=step,
    )


def _seconds(patient: Patient, example: Example, turns: Sequence[Any]) -> float:
    """Of the fastest call: each process imports the reward at its first."""
    times = []
    for _ in range(patient.config.reward.num_workers + 1):
        begin = time.perf_counter()
        value_of(patient, example, turns)
        times.append(time.perf_counter() - begin)
    return min(times)


def reward_is_timeless(patient: Patient) -> Check:
    """Pauses between calls change nothing. What calls change by themselves, `reward_forgets` finds."""
    parts = getattr(patient.tasks.verifiers.get(patient.task.name), "parts", {})
    golds = solved(patient, 1)
    if not golds or not any(part.user_function for part in parts.values()):
        return skip("the reward has no function of your own")

    def spread(pause: float) -> float:
        values = list[float]()
        for _ in range(NUM_TIMED):
            time.sleep(pause)
            values.append(value_of(patient, *golds[0]))
        return max(values) - min(values)

    first, slow, again = map(spread, (0.0, PAUSE, 0.0))
    quick = min(first, again)  # one of them may lie across the clock's turn
    return verdict(
        slow > ROUNDING + SLOWER * quick,
        f"the reward looks at the clock: one completion's rewards differ by {slow:.2g} over a second, and by "
        f"{quick:.2g} without pauses",
        "the time between calls changes no reward",
        "take the clock out of the reward: score the completion alone",
        over_a_second=slow,
        without_pauses=quick,
    )


def reward_forgets(patient: Patient) -> Check:
    """What was scored before changes nothing: neither the order of completions, nor a second call."""
    golds = solved(patient, NUM_ORDERED)
    if len(golds) < NUM_ORDERED or not patient.reads("x"):
        return skip(f"the task knows no {NUM_ORDERED} right completions of which some could be scored first")
    calls = patient.config.reward.num_workers  # each process may remember
    if (seconds := _seconds(patient, *golds[0])) > SLOW_CALL:
        return skip(f"a completion is scored in {seconds:.2g} s: too slow to be tried in another order")
    firsts, after, again = list[float](), list[float](), list[float]()
    alike = True  # calls of right answers that were asked first
    for number, (example, turns) in enumerate(golds):
        for _ in range(calls if number % 2 else 0):
            value_of(patient, example, ["x"])
        paid = [value_of(patient, example, turns) for _ in range(calls + 1)]
        (after if number % 2 else firsts).append(paid[0])
        again.append(paid[-1] - paid[0])
        alike = alike and (number % 2 == 1 or max(paid) - min(paid) <= ROUNDING)
    for _ in range(int(min(MOST_CALLS * calls, TIME_FOR_CALLS / max(seconds, 1e-6)))):  # it may pay a number of times
        value_of(patient, *golds[1])
    later = [value_of(patient, example, turns) for example, turns in golds[::2]]
    changed = [gap for gap in again if abs(gap) > ROUNDING]
    lost = [gap for a, b in zip(firsts, later, strict=True) if abs(gap := b - a) > ROUNDING]
    steady = len(changed) <= 1  # else it may be chance: see reward_repeats
    signs = {
        "a right answer earns another reward behind a wrong one": alike and _apart(firsts, after),
        "a completion earns another reward the second time": len(changed) >= FEWEST
        and len({gap > 0 for gap in changed}) == 1,
        "completions earn other rewards later": steady and len(lost) >= FEWEST,
    }
    says = next((what for what, is_so in signs.items() if is_so), "")
    return verdict(
        bool(says),
        f"the reward remembers what it scored before: {says}",
        f"{len(golds)} right answers earn the same first, behind a wrong one, again, and later",
        "take the state out of the reward (a cache by question, a set of texts, counters, running means): in training "
        "several processes score in any order",
        first=firsts,
        behind_a_wrong_one=after,
        later=later,
    )


def _apart(first: Sequence[float], second: Sequence[float]) -> bool:
    """All of the second are above or below all of the first; half of them, where the first are equal."""
    low, high = min(first) - ROUNDING, max(first) + ROUNDING
    below, above = sum(value < low for value in second), sum(value > high for value in second)
    needed = len(second) / 2 if high - low <= 2.1 * ROUNDING else len(second)
    return max(below, above) >= needed


def reward_repeats(patient: Patient) -> Check:
    tried = [(example, turns) for example, turns in solved(patient, 4)]
    tried += [(patient.task.train_example(index), ["x y z" if patient.reads("x y z") else ""]) for index in range(4)]
    odd = []
    for example, turns in tried:
        values = {repr(value_of(patient, example, turns)) for _ in range(4)}
        if len(values) > 1:
            odd.append({"example": example.id, "completion": str(turns[-1])[:200], "values": sorted(values)})
    return verdict(
        bool(odd),
        f"the same completion earns different rewards ({len(odd)} of {len(tried)} that were scored four times)",
        f"the same completion earns the same reward ({len(tried)} scored four times)",
        "take clocks, random numbers and state out of the reward, or give it a seed from the example",
        examples=odd[:3],
    )


CHECKS = (
    reward_is_fast,
    reward_is_timeless,
    reward_forgets,
    reward_repeats,
    gold_scores_full,
    thoughts_are_passed_over,
    metric_agrees,
    reward_is_scaled,
)
