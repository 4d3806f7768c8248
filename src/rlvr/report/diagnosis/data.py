"""What a run began with and is judged by: weights, gold answers, held-out questions, evaluations."""

import math
from collections.abc import Sequence
from statistics import fmean

from rlvr.report.diagnosis.evidence import NOTHING, QUOTED, about_the_metric, quotes
from rlvr.report.diagnosis.judge import Found, rise_of_reward, weight
from rlvr.report.diagnosis.record import Evaluation, Group, Metrics, Record, plain
from rlvr.tracking.rollouts import EpisodeRecord

MIN_QUESTIONS = 6  # of a step
MIN_FOUND = 8  # episodes that found what they needed
SIZES = ("/num_examples", "/samples_per_example")
NO_SPANS = {"yes", "no", "true", "false"}  # answers that stand in no document
OFTENER = "Training questions are not like held-out ones: the same weights are right far more often in training."
EASIER = (
    "Compare a training prompt in rollouts/ with a held-out one (`rlvr predict RUN --num-examples 3`): it may hold its "
    "answer, or be of an easier kind."
)
HARDER = (
    "Check the gold answers of some training rows by hand: they may belong to other questions. Or these are harder "
    "than the held-out ones."
)


def untrained(record: Record) -> Found:
    """Training changes every norm and bias at least a little; a new model has them all equal."""
    fresh = None if record.weights is None else record.weights.fresh
    model = record.history.setting("model.name_or_path")
    return Found(
        strength=weight("untrained", "fresh", fresh),
        evidence=[
            f"{fresh or 0:.0%} of the norms and biases of the first weights ({model}) are one number throughout, as in "
            "a new model",
            record.span("rollout/entropy"),
            *about_the_metric(record),
        ],
    )


def other_gold(record: Record) -> Found:
    """What should lead to the gold answer is complete, and leads elsewhere."""
    return max(_not_in_documents(record), _not_by_steps(record), key=lambda found: found.strength)


def _not_by_steps(record: Record) -> Found:
    """Derivations of which each step is right, and the answer is called wrong."""
    steps = [
        ([step.ok for step in one.trace if step.kind == "step" and step.ok is not None], one) for one in record.episodes
    ]
    complete = [
        one for flags, one in steps if flags and all(flags) and any(step.kind == "answer" for step in one.trace)
    ]
    if len(complete) < MIN_FOUND:
        return NOTHING
    held = [one for one in complete if record.right(one)]
    return Found(
        strength=weight("other_gold", "held", len(held) / len(complete)),
        evidence=[
            f"{len(complete)} recorded derivations have no wrong step; {len(held)} of them end at the gold answer",
            *quotes(record, [one for one in complete if not record.right(one)]),
            *about_the_metric(record),
        ],
    )


def _not_in_documents(record: Record) -> Found:
    """Episodes that found all documents that support the answer (as many as any did, from two on), and took their own
    from what they read: the gold answer does not stand there."""
    counts = [
        (len({step.text for step in one.trace if step.kind == "document" and step.ok}), one) for one in record.episodes
    ]
    most = max((count for count, _ in counts), default=0)
    complete = [one for count, one in counts if count == most and _took(one) and one.answer.casefold() not in NO_SPANS]
    if most < 2 or len(complete) < MIN_FOUND:
        return NOTHING
    holds = [_holds(_read(one), one.answer) for one in complete]
    shown = [one for one, held in zip(complete, holds, strict=True) if not held][:1]
    return Found(
        strength=weight("other_gold", "held", fmean(holds)),
        evidence=[
            f"{len(complete)} recorded episodes found {most} documents that support the answer, and took theirs from "
            f"what they read; the gold answer stands in what {sum(holds)} of them read",
            *(f"gold {one.answer}, read: {_read(one)[-QUOTED:]!r}" for one in shown),
            *about_the_metric(record),
        ],
    )


def _took(episode: EpisodeRecord) -> bool:
    """Whether the answer that was given stands in what was read."""
    said = [step.text for step in episode.trace if step.kind == "answer"]
    return bool(said) and _holds(_read(episode), said[-1])


def _read(episode: EpisodeRecord) -> str:
    return " ".join([episode.turns[0].prompt, *(turn.reply or "" for turn in episode.turns)])


def _holds(text: str, answer: str) -> bool:
    """Whether the words of the answer stand in the text, whatever is between them."""
    return f" {plain(answer)} " in f" {plain(text)} "


def unlike_held_out(record: Record) -> Found:
    """The same weights are right far more often, or far less, in training than on held-out questions."""
    if not record.is_graded or not record.groups or not record.evaluations:
        return NOTHING
    begin, end = record.evaluations[0], record.evaluations[-1]
    near = min((step for step, _ in record.groups), key=lambda step: abs(step - end.step))  # the run may have gone on
    last = [group for step, group in record.groups if step == near]
    if min(len(last), len(record.first_groups)) < MIN_QUESTIONS:
        return NOTHING
    at_first, at_last = record.right_share(record.first_groups) or 0.0, record.right_share(last) or 0.0
    lost = 1 - at_first / begin.value if begin.value else 0.0
    below = 0.0 if record.is_strict else weight("unlike_held_out", "lost", lost)
    below *= _certain(begin, at_first, record.first_groups)
    above = weight("unlike_held_out", "gap", at_last - end.value) * _certain(end, at_last, last)
    said, step = ((at_last, near), end) if above >= below else ((at_first, record.groups[0][0]), begin)
    return Found(
        strength=max(above, below),
        evidence=[
            f"{said[0]:.0%} of the recorded completions of step {said[1]} are right, and {step.value:.0%} of the "
            f"held-out answers in step {step.step}",
            f"a training prompt: {last[0][0].turns[0].prompt[-QUOTED:]!r}, gold {last[0][0].answer}",
            record.span("reward/mean"),
        ],
        says=OFTENER if above >= below else None,
        remedy=EASIER if above >= below else HARDER,
    )


def _certain(held_out: Evaluation, share: float, groups: Sequence[Group]) -> float:
    """Whether the two shares differ by more than chance; completions of one question count as one."""
    count = len(groups) + 4
    share_of_more = (share * len(groups) + 2) / count  # Agresti and Coull: few that agree are not sure
    error = math.sqrt(share_of_more * (1 - share_of_more) / count)
    return weight("unlike_held_out", "errors", abs(held_out.value - share) / math.hypot(held_out.error, error))


def _answers(row: Metrics) -> float:
    """Those of one evaluation."""
    most = {end: max((v for k, v in row.items() if k.endswith(end)), default=1.0) for end in SIZES}
    return math.prod(most.values())


def evaluation_stands_still(record: Record) -> Found:
    """Not one answer of an evaluation changes, though the policy does."""
    rows = [{k: v for k, v in row.items() if k.startswith("eval/")} for row in record.history.rows]
    rows = [row for row in rows if row]
    answers = sum(_answers(row) for row in rows[1:])
    is_varied = any(value != round(value) for value in rows[0].values() if math.isfinite(value)) if rows else False
    if not is_varied or any(row != rows[0] for row in rows[1:]):
        return NOTHING
    return Found(
        strength=weight("evaluation_stands_still", "answers", answers) * rise_of_reward(record),
        evidence=[
            f"all {len(rows[0])} numbers of {len(rows)} evaluations are the same to the last digit",
            record.span("reward/mean"),
            record.span("policy/entropy"),
            *about_the_metric(record),
        ],
    )
