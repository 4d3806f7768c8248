"""Checks of what is paid between nothing and a right answer: near misses, silence, and working."""

import re

from rlvr.checks.patient import Patient, skip, verdict
from rlvr.checks.rewards import NUM_EXAMPLES, form_alone, pays, value_of
from rlvr.checks.texts import LONG
from rlvr.tracking.checks import Check

INTEGER = re.compile(r"-?\d+")
SHARE = 0.1  # of the way from a wrong to a right answer: less is shaping


def near_miss_scores_less(patient: Patient) -> Check:
    """A number that begins or ends as the right one is another number."""
    if skipped := form_alone(patient):
        return skipped
    texts = dict[int, tuple[str, ...]]()
    for index, (example, _) in enumerate(patient.task.solutions(NUM_EXAMPLES)):
        if INTEGER.fullmatch(gold := str(example.answer)):
            found = patient.task.answered(f"{gold}1")
            texts[index] = (found,) if isinstance(found, str) and patient.reads(found) else ()
    if not any(texts.values()):
        return skip("the task's answers are no integers, or it has no words for other ones")
    return pays(
        patient,
        "numbers that begin as the right one",
        {index: texts.get(index, ()) for index in range(NUM_EXAMPLES)},
        "compare whole answers: a part of the text, such as its beginning, is another answer",
    )


def silence_scores_less(patient: Patient) -> Check:
    """Who answers wrong must not earn less than who says nothing: a model learns to say nothing."""
    if skipped := form_alone(patient):
        return skipped
    golds, tried, silent = patient.task.solutions(NUM_EXAMPLES), 0, []
    for (example, turns), (other, wrong) in zip(golds, [*golds[1:], *golds[:1]], strict=True):
        if other.answer == example.answer or not isinstance(wrong[-1], str):
            continue
        tried += 1
        right, missed, empty = (value_of(patient, example, said) for said in (turns, [wrong[-1]], [""]))
        if right > missed and empty - missed > SHARE * (right - missed):
            silent.append({"example": example.id, "wrong": missed, "empty": empty, "right": right})
    if not tried:
        return skip("the task knows no two right completions with different answers")
    return verdict(
        2 * len(silent) > tried,
        f"an empty completion earns more than a wrong answer ({len(silent)} of {tried} examples)",
        f"an empty completion earns no more than a wrong answer ({tried} examples)",
        "pay what cannot be read no more than what is wrong: return None for it, or the same",
        examples=silent[:3],
    )


def working_is_worth_it(patient: Patient) -> Check:
    """A right answer at the end of the longest completion, beside an empty one."""
    golds = patient.task.solutions(NUM_EXAMPLES)
    if not golds or not patient.reads(LONG):
        return skip("the task knows no right completion, or no words to put before it")
    limit, ids, bad = patient.config.rollout.max_completion_tokens, patient.coder.encode(LONG), []
    for example, turns in golds:
        if not isinstance(turns[-1], str):
            continue
        room = limit - len(patient.coder.encode(f"\n{turns[-1]}")) - 1  # its end
        worked = [*turns[:-1], f"{patient.chat.decode(ids[: max(0, room)])}\n{turns[-1]}"]
        right, empty, behind = (value_of(patient, example, said) for said in (turns, [*turns[:-1], ""], worked))
        if right > empty and empty - behind > SHARE * (right - empty):
            bad.append({"example": example.id, "bare": right, "behind_working": behind, "empty": empty})
    return verdict(
        2 * len(bad) > len(golds),
        f"a right answer at the end of {limit} tokens earns less than an empty completion ({len(bad)} of {len(golds)} "
        "examples): the reward teaches to say nothing",
        f"right answers at the end of {limit} tokens earn no less than empty completions",
        "take less for length: at rollout.max_completion_tokens a right answer must still earn more than no answer",
        examples=bad[:3],
    )


CHECKS = (near_miss_scores_less, silence_scores_less, working_is_worth_it)
