"""Checks of what is paid beside right and wrong answers: for silence, working, form and length."""

import re

from rlvr.checks.patient import Patient, skip, solved, verdict
from rlvr.checks.rewards import NUM_EXAMPLES, form_alone, played, value_of
from rlvr.checks.texts import LONG
from rlvr.records.checks import Check
from rlvr.samplers.thinned import Rated, Unsolved
from rlvr.tasks.base import text_of
from rlvr.types import Example

THOUGHT = "<think>\nWe count.\nNow it is known.\n</think>"
FORMS = {
    "\\boxed": "We count.\n\\boxed{{{}}}",
    "####": "We count.\n#### {}",
    "<answer>": "We count.\n<answer>{}</answer>",
}
"""Marks that a prompt may ask for, and an obedient completion."""
WORKING = re.compile(
    r"step[- ]by[- ]step|show your (?:work|reasoning)|explain your|think (?:carefully|it through|first)", re.IGNORECASE
)
STEPS = "First we look at what is given. Then we count."
NUM_ROWS, MOST_GIVEN = 32, 0.05  # rows, and those that may be paid for anything
NO_ANSWER = "I do not know."
SHARE = 0.1  # of the way from a wrong to a right answer: less is shaping
APART = 0.1  # of a reward of 1


def silence_scores_less(patient: Patient) -> Check:
    """Who answers wrong must not earn less than who says nothing: a model learns to say nothing."""
    if skipped := form_alone(patient):
        return skipped
    golds, tried, silent = solved(patient, NUM_EXAMPLES), 0, []
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
    golds = solved(patient, NUM_EXAMPLES)
    if not golds or not patient.reads(LONG):
        return skip("the task knows no right completion, or no words to put before it")
    limit, ids, bad = patient.config.rollout.max_completion_tokens, patient.coder.encode(LONG), []
    for (example, turns), (_, other) in zip(golds, [*golds[1:], *golds[:1]], strict=True):
        if not isinstance(turns[-1], str):
            continue
        room = limit - len(patient.coder.encode(f"\n{turns[-1]}")) - 1  # its end
        working = patient.chat.decode(ids[: max(0, room)])
        right, empty, behind, wrong = (
            value_of(patient, example, [*turns[:-1], said])
            for said in (turns[-1], "", f"{working}\n{turns[-1]}", f"{working}\n{other[-1]}")
        )
        is_read = other[-1] == turns[-1] or behind > wrong  # else the answer has to stand alone
        if is_read and right > empty and empty - behind > SHARE * (right - empty):
            bad.append({"example": example.id, "bare": right, "behind_working": behind, "empty": empty})
    return verdict(
        2 * len(bad) > len(golds),
        f"a right answer at the end of {limit} tokens earns less than an empty completion ({len(bad)} of {len(golds)} "
        "examples): the reward teaches to say nothing",
        f"right answers at the end of {limit} tokens earn no less than empty completions",
        "take less for length: at rollout.max_completion_tokens a right answer must still earn more than no answer",
        examples=bad[:3],
    )


def each_gold_counts(patient: Patient) -> Check:
    """No row pays whatever is said: a gold that the reward cannot read may be given away."""
    if skipped := form_alone(patient):
        return skipped
    golds, given, tried = solved(patient, NUM_ROWS), list[dict[str, object]](), 0
    if not patient.reads(NO_ANSWER):
        return skip("the tokenizer knows no other words than the task's")
    for (example, turns), (other, wrong) in zip(golds, [*golds[1:], *golds[:1]], strict=True):
        full = value_of(patient, example, turns)
        if other.answer == example.answer or not isinstance(wrong[-1], str) or not full > 0:
            continue
        tried += 1
        if all(value_of(patient, example, [said]) >= full for said in (NO_ANSWER, wrong[-1])):
            given.append({"example": example.id, "answer": str(example.answer)[:100], "value": full})
    if not tried:
        return skip("the task knows no two right completions with different answers")
    return verdict(
        len(given) > max(1, MOST_GIVEN * tried),
        f"{len(given)} of {tried} rows pay whatever is said, a wrong answer and none",
        f"of {tried} rows none pays a wrong answer as much as the right one"
        if not given
        else f"{len(given)} of {tried} rows pay whatever is said",
        "return None for a gold that the reward cannot read, or leave these rows out: they pay for anything",
        examples=given[:3],
    )


def answer_outweighs_form(patient: Patient) -> Check:
    """What the right answer adds, beside what a wrong one in the same form earns."""
    if skipped := form_alone(patient):
        return skipped
    golds, answer, form = solved(patient, NUM_EXAMPLES), list[float](), list[float]()
    for (example, turns), (other, wrong) in zip(golds, [*golds[1:], *golds[:1]], strict=True):
        if other.answer == example.answer or len(turns) > 1 or not isinstance(wrong[-1], str):
            continue
        right, missed, empty = (value_of(patient, example, said) for said in (turns, [wrong[-1]], [""]))
        answer.append(right - missed)
        form.append(missed - empty)
    if not answer:
        return skip("the task knows no two right completions of one turn with different answers")
    gain, shape = sum(answer) / len(answer), sum(form) / len(form)
    return verdict(
        0 < gain < SHARE * shape,
        f"a wrong answer in the right form earns {shape:.2g} more than nothing, and the right one {gain:.2g} more than "
        "that: the form is learnt, and the answer hardly",
        f"the right answer earns {gain:.2g} more than a wrong one in the same form",
        "pay more for the right answer than for its form: 1 beside 0.1 to 0.5 is usual",
        answer=gain,
        form=shape,
    )


def asked_form_is_paid(patient: Patient) -> Check:
    """A prompt that asks for working, or for a mark around the answer, is obeyed: this must be paid."""
    unpaid, tried, on_one_line = list[dict[str, object]](), 0, 0
    for example, turns in solved(patient, NUM_EXAMPLES):
        form = _asked_form(patient, example)
        if form is None or not isinstance(turns[-1], str) or not patient.reads(form):
            continue
        tried += 1
        full, value, line = (
            value_of(patient, example, [*turns[:-1], said]) for said in (turns[-1], form, " ".join(form.split("\n")))
        )
        if full > 0 and not value > full / 4:
            unpaid.append({"example": example.id, "completion": form, "value": value, "right_answer": full})
            on_one_line += line > full / 4
    places = f" ({patient.task.places})" if patient.task.places else ""
    if not tried:
        return skip(f"the prompts ask for no working and no mark around the answer{places}")
    return verdict(
        2 * len(unpaid) > tried,
        f"{len(unpaid)} of {tried} right answers in the form that their prompt asks for earn next to nothing"
        + (", and on one line they are paid" if 2 * on_one_line > len(unpaid) else ""),
        f"{tried} right answers in the form that their prompt asks for are paid{places}",
        "let the reward read what the prompt asks for (prompt.answer_in), or ask for what it reads; in a pattern "
        "of your own a point is a line break with re.DOTALL alone",
        examples=unpaid[:3],
    )


def _asked_form(patient: Patient, example: Example) -> str | None:
    """A right answer as the prompt asks for it: as the question itself does, where it names one form."""
    prompt, gold = text_of(example.messages), str(example.answer)
    own = [form for mark, form in FORMS.items() if mark in example.messages[-1].content]
    forms = own if len(own) == 1 else [form for mark, form in FORMS.items() if mark in prompt]
    if forms:
        return forms[0].format(gold).replace("We count.", THOUGHT if "<think>" in prompt else "We count.")
    said = patient.task.answered(gold) if WORKING.search(prompt) else None
    return f"{STEPS}\n{said}" if isinstance(said, str) else None


def penalties_bite(patient: Patient) -> Check:
    """A part that punishes a completion must do so for some completion."""
    parts = getattr(patient.tasks.verifiers.get(patient.task.name), "parts", {})
    names = [name for name, part in parts.items() if part.weight and part.is_penalty]
    if not names or not patient.reads("a a a"):
        return skip("no part of the reward is a penalty")
    limit, example = patient.config.rollout.max_completion_tokens, patient.task.train_example(0)
    ids = patient.coder.encode("a " * limit)[: limit - 1]
    values = played(patient, example, [patient.chat.decode(ids)]).score.parts
    idle = [name for name in names if values.get(name, 0.0) == 0]
    return verdict(
        bool(idle),
        f"reward.parts.{next(iter(idle), '')} is 0 even for one word again and again up to {limit} tokens: it has no "
        "effect",
        f"{', '.join(names)} cost something at {limit} tokens of one word",
        "set its limits below rollout.max_completion_tokens, or leave it out",
        parts=idle,
    )


def sampler_sees_right(patient: Patient) -> Check:
    """A sampler that drops or prefers prompts by their answers must see which are right."""
    sampler, golds = patient.config.sampler, solved(patient, NUM_EXAMPLES)
    if not isinstance(sampler, Rated):
        return skip("the sampler does not look at rewards")
    pairs, rated = list(zip(golds, [*golds[1:], *golds[:1]], strict=True)), list[tuple[float, float]]()
    for (example, turns), (other, wrong) in pairs:
        if other.answer != example.answer and isinstance(wrong[-1], str):
            scores = [played(patient, example, said).score for said in (turns, [*turns[:-1], wrong[-1]])]
            one, two = (s.value if sampler.part is None else s.parts.get(sampler.part, 0.0) for s in scores)
            if not any(score.late or score.status == "error" for score in scores):
                rated.append((min(max(one, 0.0), 1.0), min(max(two, 0.0), 1.0)))
    if not rated:
        return skip("the task knows no two right completions with different answers")
    right, wrong = (sum(values) / len(rated) for values in zip(*rated, strict=True))
    needed = sampler.solved_at if isinstance(sampler, Unsolved) else wrong + APART
    what = f"sampler.part={sampler.part}" if sampler.part else "the whole reward"
    return verdict(
        right < needed or right - wrong < APART,
        f"sampler={sampler.name} reads {what} as right or wrong, and a right answer earns {right:.2g} of 1, a wrong "
        f"one {wrong:.2g}" + (f", where {needed:g} is solved" if isinstance(sampler, Unsolved) else ""),
        f"sampler={sampler.name} tells right answers ({right:.2g}) from wrong ones ({wrong:.2g})",
        "name the part of the reward that is 1 for a right answer: sampler.part=correct",
        earned={"right": right, "wrong": wrong},
    )


CHECKS = (
    silence_scores_less,
    working_is_worth_it,
    each_gold_counts,
    answer_outweighs_form,
    asked_form_is_paid,
    penalties_bite,
    sampler_sees_right,
)
