"""The six special judges that beat their link on planted faults (benchmarks/results/diagnose.md).

The bounds of a number stand beside it: from the first on it counts, at the second it counts fully.
"""

import math
from collections.abc import Iterator
from itertools import combinations, permutations
from statistics import correlation, fmean

from rlvr.records.rollouts import EpisodeRecord
from rlvr.tracking.signals import SIGNALS, between
from rlvr.trust.record import QUOTED, Evaluation, Group, Place, Record, plain, quotes, sampled, words

MIN_CALLS = 6  # pairs of calls
MIN_DOCUMENTS = 8
MIN_FOUND = 8  # episodes that found what they needed
MIN_PAID = 8  # completions that are equally right
NO_SPANS = {"yes", "no", "true", "false"}  # answers that stand in no document


def tools_fail(record: Record) -> Iterator[Place]:
    """Calls that fail, that get one reply whatever they ask, or whose reply does not reach the model."""
    for kind in ("malformed_call", "unknown_tool", "invalid_argument", "tool_timeout"):
        signal = SIGNALS[f"rollout/{kind}_share"]
        yield Place(
            passes=1 - signal.weight(record.early(signal.name)),
            seen=[record.span(signal.name)],
            says=f"{signal.says}: {signal.leads}.",
            remedy=signal.remedy,
        )
    calls = [combinations(sorted(_calls(group)), 2) for _, group in record.groups]
    pairs = [(a, b) for some in calls for a, b in some if a[0] == b[0] and not set(words(a[1])) & set(words(b[1]))]
    deaf = [(a, b) for a, b in pairs if a[2] == b[2]]
    share = len(deaf) / len(pairs) if len(pairs) >= MIN_CALLS else None
    yield Place(
        passes=1 - between(share, 0.5, 0.9),
        seen=[f"{len(deaf)} of {len(pairs)} pairs of calls with nothing in common got the same reply"]
        + [f"{name} {text}: {reply[:QUOTED]!r}" for name, text, reply in (deaf[0] if deaf else ())],
        says="A tool says the same whatever it is asked.",
        remedy="Call the tool with two different arguments: it may fail, ignore them, or search an empty index.",
    )
    read = [
        (step.text, one.turns[step.turn + 1].prompt)
        for one in record.episodes
        for step in one.trace
        if step.kind == "document" and step.turn + 1 < len(one.turns) and not step.text.endswith("…")
    ]
    lost = [(text, prompt) for text, prompt in read if not set(plain(text).split()) <= set(plain(prompt).split())]
    yield Place(
        passes=1 - between(len(lost) / len(read) if len(read) >= MIN_DOCUMENTS else None, 0.3, 0.8),
        seen=[f"{len(lost)} of {len(read)} documents that were found do not stand in the prompt that follows"]
        + [f"found {text!r}, the prompt ends in {prompt[-QUOTED:]!r}" for text, prompt in lost[:1]],
        says="What a tool finds does not reach the model: its replies are cut, or lack it.",
        remedy="Compare a reply in rollouts/ with what the tool returns: a limit of length, or the template, cuts it.",
    )


def _calls(group: Group) -> set[tuple[str, str, str]]:
    """Name, arguments and reply of the calls that were made alone in their turn."""
    return {
        (turn.calls[0].name, " ".join(map(str, turn.calls[0].arguments.values())), turn.reply)
        for one in group
        for turn in one.turns
        if len(turn.calls) == 1 and turn.calls[0].problem is None and turn.reply is not None
    }


def other_gold(record: Record) -> Iterator[Place]:
    """What should lead to the gold answer is complete, and leads elsewhere: derivations without a wrong step, and
    episodes that found all documents and took their answer from what they read."""
    steps = [
        ([step.ok for step in one.trace if step.kind == "step" and step.ok is not None], one) for one in record.episodes
    ]
    derived = [one for flags, one in steps if flags and all(flags) and any(s.kind == "answer" for s in one.trace)]
    counts = [(len({s.text for s in one.trace if s.kind == "document" and s.ok}), one) for one in record.episodes]
    most = max((count for count, _ in counts), default=0)
    looked = [
        one for count, one in counts if count == most > 1 and _took(one) and one.answer.casefold() not in NO_SPANS
    ]
    for complete, led, what in (
        (derived, [record.right(one) for one in derived], "derivations have no wrong step"),
        (looked, [_holds(_read(one), one.answer) for one in looked], f"episodes found {most} documents"),
    ):
        enough = len(complete) >= MIN_FOUND
        yield Place(
            passes=1 - between(fmean(led) if enough else None, 0.5, 0.15),
            seen=[
                f"{len(complete)} recorded {what}; {sum(led)} of them lead to the gold answer",
                *quotes(record, [one for one, right in zip(complete, led, strict=True) if not right][:2]),
            ],
            says="Gold answers do not belong to their questions: what leads to them ends elsewhere.",
            remedy="Compare some training rows by hand: a column may be shifted, or joined to other rows.",
        )


def _took(episode: EpisodeRecord) -> bool:
    """Whether the answer that was given stands in what was read."""
    given = [step.text for step in episode.trace if step.kind == "answer"]
    return bool(given) and _holds(_read(episode), given[-1])


def _read(episode: EpisodeRecord) -> str:
    return " ".join([episode.turns[0].prompt, *(turn.reply or "" for turn in episode.turns)])


def _holds(text: str, answer: str) -> bool:
    return f" {plain(answer)} " in f" {plain(text)} "


def paid_for_length(record: Record) -> Iterator[Place]:
    """Among equally right completions of a question, length decides the reward."""
    rewards, lengths, apart = list[float](), list[float](), list[bool]()
    for _, group in record.groups:
        for flag in (True, False):
            members = [one for one in group if record.right(one) is flag]
            apart += [a.reward != b.reward for a, b in combinations(members, 2)]
            if len(members) > 1:
                mean = fmean(one.reward or 0.0 for one in members), fmean(len(sampled(one)) for one in members)
                rewards += [(one.reward or 0.0) - mean[0] for one in members]
                lengths += [len(sampled(one)) - mean[1] for one in members]
    if len(rewards) < MIN_PAID or not any(rewards) or not any(lengths):
        return
    by_length = correlation(rewards, lengths)
    yield Place(
        passes=1 - between(abs(by_length), 0.6, 0.85) * between(fmean(apart), 0.02, 0.1),
        seen=[
            f"correlation of reward and length among equally right completions: {by_length:+.2f}",
            record.span("rollout/completion_tokens_mean"),
        ],
        says="The reward is for length, not for right answers.",
        remedy="Take length out of the reward, or give that part less weight than a right answer can earn.",
    )


def untrained(record: Record) -> Iterator[Place]:
    """Training changes every norm and bias at least a little; a new model has them all equal."""
    fresh = record.weights.fresh if record.weights else None
    yield Place(
        passes=1 - between(fresh, 0.4, 0.75),
        seen=[f"{fresh or 0:.0%} of the norms and biases of the first weights are one number throughout"],
        says="The model was never trained: the layers that the run began with are as a new model has them.",
        remedy="Look at what loading the checkpoint says of missing keys, and ask the model with `rlvr predict`.",
    )


def never_paid(record: Record) -> Iterator[Place]:
    """One reward for everything, though some completions are right and others wrong, sampled or held out."""
    values = {round(row["reward/mean"], 9) for row in record.updates}
    if len(values) > 1 or record.always("reward/std") != 0:
        return
    pairs = [pair for _, group in record.groups for pair in permutations(group, 2)]
    unlike = [(a, b) for a, b in pairs if record.right(a) > record.right(b)]
    last = record.evaluations[-1].value if record.evaluations else 0.0
    yield Place(
        passes=1 - max(between(len(unlike), 0, 6), between(min(last, 1 - last), 0.0, 0.1)),
        seen=[
            f"every reward of {len(record.updates)} steps was {values.pop():g}",
            f"held-out {record.headline} {last:.3f} in the last evaluation",
            *quotes(record, unlike[0] if unlike else ()),
        ],
        says="Right answers earn what wrong ones do: the reward is the same whatever the model writes.",
        remedy="Score a right answer by hand (`rlvr score`), and check the reward function with `rlvr audit`.",
    )


def unlike_held_out(record: Record) -> Iterator[Place]:
    """The same weights are right far more often, or less, in training than on held-out questions, beyond chance."""
    if not record.evaluations or not record.groups:
        return
    begin, end = record.evaluations[0], record.evaluations[-1]
    first, last = record.first_groups, [group for step, group in record.groups if step == record.groups[-1][0]]
    early, late = record.right_share(first) or 0.0, record.right_share(last) or 0.0
    below = between(1 - early / begin.value if begin.value else None, 0.45, 0.75)
    above = between(late - end.value, 0.2, 0.5)
    example = last[0][0]
    yield Place(
        passes=1 - max(below * _certain(begin, early, len(first)), above * _certain(end, late, len(last))),
        seen=[
            f"right in training: {early:.0%} at first, {late:.0%} at last",
            f"right of what is held out: {begin.value:.0%}, {end.value:.0%}",
            f"a training prompt: {example.turns[0].prompt[-QUOTED:]!r}, gold {example.answer}",
        ],
        says="Training questions are not like held-out ones.",
        remedy="Compare training rows with held-out ones (`rlvr predict RUN`): prompts, gold answers, difficulty.",
    )


def _certain(held_out: Evaluation, share: float, groups: int) -> float:
    """Whether the two shares differ by more than chance; completions of one question count as one."""
    count = groups + 4
    share_of_more = (share * groups + 2) / count  # Agresti and Coull: few that agree are not sure
    error = math.sqrt(share_of_more * (1 - share_of_more) / count)
    return between(abs(held_out.value - share) / math.hypot(held_out.error, error), 2.5, 5.0)


JUDGES = {
    "differs": (untrained, never_paid, other_gold),
    "ends": (tools_fail,),
    "paid": (paid_for_length,),
    "step": (unlike_held_out,),
}
"""By the link before which they stand: what they find explains it."""
