"""What the reward is for, beside what the metric calls right."""

import math
from collections import Counter, defaultdict
from statistics import correlation, fmean

import numpy as np

from rlvr.report.diagnosis.evidence import NOTHING, about_dead_groups, about_the_metric, quotes, starved
from rlvr.report.diagnosis.judge import Found, rise_of_reward, weight
from rlvr.report.diagnosis.record import Record, length, sampled, words
from rlvr.tracking.rollouts import EpisodeRecord

UNEXPLAINED = "The reward says nothing about what is right, and nothing that is seen of a completion explains it."
UNRELATED = (
    "Print what the reward reads and compares for one completion: it pays for something that is not the answer. "
    "`rlvr audit` tries wrong answers."
)
"""For a reward that says the same about one text each time, but nothing about what is right."""
CORRECT_IT = "Correct what the reward compares with the gold answer; `rlvr audit` shows what it pays for."
MIN_PAID = 8  # completions of a step
MIN_EPISODES = 32  # fewer explain themselves


def never_paid(record: Record) -> Found:
    value = _constant(record)
    if value is None or value > 0:
        return NOTHING
    return Found(
        strength=_mixed(record, "never_paid"),
        evidence=[
            f"every reward of {len(record.updates)} steps was {value:g}",
            *about_the_metric(record),
            *_pair(record),
        ],
    )


def always_paid(record: Record) -> Found:
    value = _constant(record)
    if value is None or value <= 0:
        return NOTHING
    groups = [group for _, group in record.groups]
    share = record.right_share(groups)
    wrong = weight("always_paid", "wrong_share", None if share is None else 1 - share)
    return Found(
        strength=max(_mixed(record, "always_paid"), wrong),
        evidence=[
            f"every reward of {len(record.updates)} steps was {value:g}",
            *about_the_metric(record),
            *_pair(record),
        ],
    )


def _mixed(record: Record, cause: str) -> float:
    """How sure it is that right and wrong completions of one question are paid the same."""
    pairs = weight(cause, "pairs", record.agreement.paid_equal)
    last = record.evaluations[-1].value if record.evaluations else 0.0
    return max(pairs, weight("common", "mixed", min(last, 1 - last)))


def paid_by_question(record: Record) -> Found:
    """Rewards differ from question to question, and never between right and wrong completions of one."""
    found = record.agreement
    if not record.is_graded or _constant(record) is not None or found.paid_equal < found.unlike:
        return NOTHING
    dead = weight("paid_by_question", "dead", record.dead_share(record.updates))
    return Found(
        strength=dead * weight("paid_by_question", "pairs", found.unlike),
        evidence=[
            f"in none of {found.unlike} pairs of a right and a wrong completion of one question do they earn different "
            "rewards",
            f"{record.dead_share(record.updates):.0%} of the groups had equal rewards; {record.span('reward/mean')}",
            *_pair(record),
        ],
    )


def too_hard(record: Record) -> Found:
    share = record.right_share(record.first_groups) if record.groups else record.early("reward/mean")
    strength = weight("too_hard", "right_share", share) * starved(record)
    shown = [one for _, group in record.groups for one in group]
    return Found(
        strength=strength, evidence=[about_dead_groups(record), *about_the_metric(record), *quotes(record, shown)]
    )


def too_easy(record: Record) -> Found:
    share = record.right_share(record.first_groups) if record.groups else None
    strength = weight("too_easy", "right_share", share) * starved(record)
    return Found(strength=strength, evidence=[about_dead_groups(record), *about_the_metric(record)])


def _by_length(record: Record) -> float | None:
    """Correlation of reward and length over completions of one question that are equally right."""
    rewards, lengths = list[float](), list[float]()
    for _, group in record.groups:
        for flag in (True, False):
            members = [one for one in group if record.right(one) is flag]
            if len(members) > 1:
                mean = fmean(one.reward or 0.0 for one in members), fmean(map(length, members))
                rewards += [(one.reward or 0.0) - mean[0] for one in members]
                lengths += [length(one) - mean[1] for one in members]
    if len(rewards) < 8 or not any(rewards) or not any(lengths):
        return None
    return correlation(rewards, lengths)


def paid_for_length(record: Record) -> Found:
    found, by_length = record.agreement, _by_length(record)
    apart = found.paid_apart / found.alike if found.alike else None
    strength = weight("paid_for_length", "correlation", None if by_length is None else abs(by_length))
    evidence = [record.span("rollout/completion_tokens_mean"), *about_the_metric(record)]
    if by_length is not None:
        evidence.insert(0, f"correlation of reward and length among equally right completions: {by_length:+.2f}")
    return Found(strength=strength * weight("paid_for_length", "paid_apart", apart), evidence=evidence)


def noisy_reward(record: Record) -> Found:
    """Equal completions are paid differently, or nothing about a completion says what it earns."""
    found = record.agreement
    share = found.same_apart / found.same if found.same else None
    twice = weight("noisy_reward", "same_apart", share) * weight("noisy_reward", "pairs", found.same_apart)
    explained, (by_token, _) = _explained(record), _by_token(record)
    if explained is not None:
        explained = max(explained, by_token)
    varied = weight("noisy_reward", "varied", found.paid_apart / found.alike if found.alike else None)
    random = 0.8 * varied * weight("noisy_reward", "explained", explained) * _undecided(record)
    evidence = [f"{found.same_apart} of {found.same} pairs of one and the same completion were paid differently"]
    if not found.same:
        evidence = [
            f"{found.paid_apart} of {found.alike} pairs that are both right or both wrong were paid differently"
        ]
    for one, other in record.pairs():
        if sampled(one) == sampled(other) and one.reward != other.reward:
            evidence += quotes(record, [one, other])
            break
    if explained is not None:
        evidence.append(
            f"length, end, turns, answer, being right, or a token explain {explained:.0%} of what rewards in a group "
            "differ by"
        )
    says, remedy = (UNEXPLAINED, UNRELATED) if random > twice else (None, None)
    return Found(strength=1 - (1 - twice) * (1 - random), evidence=evidence, remedy=remedy, says=says)


def _undecided(record: Record) -> float:
    """Whether being right may say nothing about the reward: 1 if it is not known to."""
    found = record.agreement
    if found.auc is None:
        return 1.0
    return weight("noisy_reward", "auc", abs(found.auc - 0.5) * 2 * math.sqrt(found.mixed))


def _explained(record: Record) -> float | None:
    """Share of the variance of rewards inside groups that simple facts explain; None without variance."""
    rows, rewards = list[list[float]](), list[float]()
    for _, group in record.groups:
        facts = np.array([_facts(record, one) for one in group], dtype=float)
        earned = np.array([one.reward for one in group], dtype=float)
        rows += (facts - facts.mean(axis=0)).tolist()
        rewards += (earned - earned.mean()).tolist()
    total = float(np.square(rewards).sum())
    if len(rewards) < MIN_EPISODES or total == 0:
        return None
    found, *_ = np.linalg.lstsq(np.array(rows), np.array(rewards), rcond=None)
    return 1 - float(np.square(np.array(rewards) - np.array(rows) @ found).sum()) / total


def _facts(record: Record, episode: EpisodeRecord) -> list[float]:
    gold, said = words(episode.answer), words(episode.turns[-1].completion)
    overlap = sum(word in said for word in gold) / max(len(gold), 1)
    ends = episode.stop_reason == "length", episode.score_status == "invalid", len(episode.turns)
    return [float(length(episode)), *map(float, ends), float(record.right(episode)), overlap]


def _by_token(record: Record) -> tuple[float, int | None]:
    """The token whose presence explains most of what equally right completions of a question earn, and the share.

    With rewards y around their means and presence x, the share is (x . y)^2 / (x . x - sum of (x of a set)^2 / size)
    / (y . y).
    """
    centered, where = list[float](), defaultdict[int, list[tuple[int, int]]](list)  # token: places (row, set)
    sizes = list[int]()
    for _, group in record.groups:
        for flag in (True, False):
            members = [one for one in group if record.right(one) is flag]
            mean = fmean([one.reward or 0.0 for one in members]) if members else 0.0
            for one in members:
                for token in set(sampled(one)):
                    where[token].append((len(centered), len(sizes)))
                centered.append((one.reward or 0.0) - mean)
            sizes.append(len(members))
    total, best = math.fsum(value**2 for value in centered), (0.0, None)
    if len(centered) < MIN_EPISODES or total == 0:
        return best
    for token, places in where.items():
        if MIN_EPISODES / 4 <= len(places) <= len(centered) - MIN_EPISODES / 4:  # a rare one fits by chance
            in_set = Counter(number for _, number in places).items()
            spread = len(places) - math.fsum(count**2 / sizes[number] for number, count in in_set)
            share = math.fsum(centered[row] for row, _ in places) ** 2 / (spread * total) if spread > 1e-9 else 0.0
            best = max(best, (share, token), key=lambda one: one[0])
    return best


def other_reward(record: Record) -> Found:
    """Being right pays less, something else decides between those that are equally right, or what is wrong is paid in
    full ever more often."""
    return max(_gamed(record), _pays_else(record), key=lambda found: found.strength)


def _gamed(record: Record) -> Found:
    earned = [one.reward or 0.0 for one in record.episodes]
    best = max(earned, default=0.0)
    last = record.groups[-1][0] if record.groups else 0
    paid = [one for step, group in record.groups if step == last for one in group if one.reward == best]
    wrong = [one for one in paid if not record.right(one)]
    is_full = best > min(earned, default=best) and best >= (record.late("reward/mean") or 0.0)  # a few may all be wrong
    if not is_full or len(paid) < MIN_PAID or not record.is_graded or record.is_strict or _constant(record) is not None:
        return NOTHING
    return Found(
        strength=weight("other_reward", "gamed", len(wrong) / len(paid)) * rise_of_reward(record),
        says="The reward is gamed: more and more completions earn it in full that the metric calls wrong.",
        evidence=[
            f"{len(wrong)} of {len(paid)} completions of step {last} that earned {best:g} are wrong",
            record.span("reward/mean"),
            *about_the_metric(record)[-1:],
            *quotes(record, wrong),
        ],
        remedy=CORRECT_IT,
    )


def _pays_else(record: Record) -> Found:
    found, (by_token, token) = record.agreement, _by_token(record)
    auc = weight("other_reward", "auc", found.auc) * weight("other_reward", "mixed", found.mixed)
    varied = weight("noisy_reward", "varied", found.paid_apart / found.alike if found.alike else None)
    told = weight("other_reward", "by_token", by_token) * varied
    said = f"of a right and a wrong completion the right one earns more in {found.auc or 0:.0%} of {found.unlike} pairs"
    evidence = [said, record.span("reward/mean"), *about_the_metric(record), *_pair(record)]
    if told:
        holders = [one for one in record.episodes if token in sampled(one) and one.reward]
        evidence.insert(0, f"token {token} explains {by_token:.0%} of what equally right completions earn")
        evidence += quotes(record, holders)
    strength = 0.0 if _constant(record) is not None else max(auc, told)
    return Found(strength=strength, evidence=evidence, remedy=None if _has_parts(record) else CORRECT_IT)


def _has_parts(record: Record) -> bool:
    """Whether several parts of the reward are trained on, so that one can weigh less."""
    parts = record.history.setting("reward.parts") or {}
    return sum(bool(part.get("weight", 1)) for part in parts.values()) > 1


def _constant(record: Record) -> float | None:
    """The one reward of every episode; None if rewards differ."""
    values = {round(row["reward/mean"], 9) for row in record.updates}
    return values.pop() if len(values) == 1 and record.always("reward/std") == 0 else None


def _unpaid(record: Record) -> list[EpisodeRecord]:
    """A right and a wrong completion of one group."""
    for _, group in record.groups:
        flags = {record.right(one): one for one in group}
        if len(flags) == 2:
            return [flags[True], flags[False]]
    return []


def _pair(record: Record) -> list[str]:
    return [f"{said}, {text}" for said, text in zip(("right", "wrong"), quotes(record, _unpaid(record)), strict=False)]
