"""What speaks for each cause, in the order of the chain (causes.toml has the words and the levels).

A judge combines what it needs by a product: all of it must hold. What is wrong before the first update is looked for
in the first steps, so that the damage of training is not blamed on prompt, limit or verifier.
"""

import math
from collections.abc import Sequence
from statistics import correlation, fmean

from rlvr.report.diagnosis.judge import Found, Judge, weight
from rlvr.report.diagnosis.record import LATE_STEPS, Group, Record, length, sampled
from rlvr.tracking.rollouts import EpisodeRecord

QUOTED = 160  # characters of a completion
TYPICAL_STEP = 8e-3  # learning rate / size of a weight; of recipes from scratch that learn in tens of steps
ENOUGH_MOVED = 0.03  # change of the weights in a run that learned / their size
LIVELY = 0.3  # nats per token at which a small model explores
NOTHING = Found(strength=0.0)


def quote(episode: EpisodeRecord, step: int) -> str:
    """`step 1, group 3: "4 1 + = 5" earned 0, gold 5`."""
    text = " ".join(episode.turns[-1].completion.split())
    cut = text if len(text) <= QUOTED else f"{text[:QUOTED]} ..."
    return f'step {step}, group {episode.group}: "{cut}" earned {episode.reward:g}, gold {episode.answer}'


def quotes(record: Record, wanted: Sequence[EpisodeRecord], limit: int = 2) -> list[str]:
    steps = {id(one): step for step, episodes in record.rollouts.items() for one in episodes}
    return [quote(one, steps[id(one)]) for one in wanted[:limit] if one.reward is not None]


# ------------------------------------------------------------------------------------- from the question to an answer


def verifier_fails(record: Record) -> Found:
    share = record.always("rollout/error_share")
    return Found(
        strength=weight("verifier_fails", "error_share", share), evidence=[record.span("rollout/error_share")]
    )


def same_prompt(record: Record) -> Found:
    """Examples with different answers and one prompt."""
    answers: dict[tuple[int, ...], set[str]] = {}
    for episode in record.episodes:
        answers.setdefault(tuple(episode.turns[0].prompt_ids), set()).add(episode.answer)
    examples = {(tuple(one.turns[0].prompt_ids), one.answer) for one in record.episodes}
    if len({answer for _, answer in examples}) < 2:
        return NOTHING
    same = [prompt for prompt, found in answers.items() if len(found) > 1]
    share = sum(prompt in same for prompt, _ in examples) / len(examples)
    shown = next((one.turns[0].prompt for one in record.episodes if tuple(one.turns[0].prompt_ids) in same), "")
    evidence = [f"{share:.0%} of the recorded examples share their prompt with another answer: {shown[:QUOTED]!r}"]
    return Found(strength=weight("same_prompt", "same_share", share), evidence=evidence)


def tools_fail(record: Record) -> Found:
    names = [f"rollout/{kind}_share" for kind in ("malformed_call", "unknown_tool", "invalid_argument", "tool_timeout")]
    shares = {name: record.early(name) or 0.0 for name in names}
    worst = max(shares, key=lambda name: shares[name])
    return Found(strength=weight("tools_fail", "failed_share", shares[worst]), evidence=[record.span(worst)])


def never_ends(record: Record) -> Found:
    """Cut-off completions with a token inside that ends others, or that all of them go on after."""
    cut = [turn for one in record.episodes for turn in one.turns[-1:] if turn.stop_reason == "length"]
    if len(cut) < 8:
        return NOTHING
    inside = [turn for turn in cut if any(token in turn.completion_ids[:-1] for token in record.end_ids)]
    share = len(inside) / len(cut)
    strength = weight("never_ends", "ended_inside", share) * _truncation(record)
    shown = f': "{inside[0].completion[:QUOTED]}"' if inside else ""
    return Found(
        strength=strength,
        evidence=[
            f"{len(inside)} of {len(cut)} completions that were cut off have an end token inside{shown}",
            record.span("rollout/truncated_share"),
        ],
    )


def truncated(record: Record) -> Found:
    limit = int(record.setting("rollout.max_completion_tokens", 0))
    cut = [one for one in record.episodes if one.stop_reason == "length"]
    room = int(record.setting("model.max_context_tokens", 0)) or 10**9
    prompt = max((len(one.turns[0].prompt_ids) for one in record.episodes), default=0)
    longer = min(4 * limit, room - prompt)
    return Found(
        strength=_truncation(record),
        evidence=[
            f"{record.span('rollout/truncated_share')}; the limit is {limit} tokens",
            *quotes(record, cut),
        ],
        overrides=[f"rollout.max_completion_tokens={longer}"] if longer > limit > 0 else [],
    )


def _truncation(record: Record) -> float:
    return weight("truncated", "truncated_share", record.early("rollout/truncated_share"))


def foreign_prompt(record: Record) -> Found:
    unread = record.early("rollout/invalid_share")
    strength = weight("foreign_prompt", "unread_share", unread) * _starved(record)
    shown = [one for _, group in record.groups for one in group if one.score_status == "invalid"]
    evidence = [record.span("rollout/invalid_share"), _dead(record), *quotes(record, shown)]
    if shown:
        evidence.append(f"its prompt: {shown[0].turns[0].prompt[-QUOTED:]!r}")
    return Found(strength=strength, evidence=evidence)


def _starved(record: Record) -> float:
    """How few groups of the first steps teach anything: 0 below 3 of 4 dead ones, 1 if nearly all are."""
    return min(1.0, max(0.0, (record.dead_share(record.early_rows) - 0.75) / 0.2))


def _dead(record: Record) -> str:
    share = record.dead_share(record.early_rows)
    return f"{share:.0%} of the groups in the first steps had equal rewards"


# -------------------------------------------------------------------------------------------- what the reward is for


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


def _mixed(record: Record, cause: str) -> float:
    """How sure it is that right and wrong completions of one question are paid the same."""
    pairs = weight(cause, "pairs", record.agreement.paid_equal)
    last = record.evaluations[-1].value if record.evaluations else 0.0
    return max(pairs, min(1.0, min(last, 1 - last) / 0.1))  # greedy answers are right and wrong, too


def never_paid(record: Record) -> Found:
    value = _constant(record)
    if value is None or value > 0:
        return NOTHING
    return Found(
        strength=_mixed(record, "never_paid"),
        evidence=[f"every reward of {len(record.updates)} steps was {value:g}", *_metric(record), *_pair(record)],
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
        evidence=[f"every reward of {len(record.updates)} steps was {value:g}", *_metric(record), *_pair(record)],
    )


def _metric(record: Record) -> list[str]:
    share = record.right_share([group for _, group in record.groups])
    found = [] if share is None else [f"the metric calls {share:.0%} of the recorded completions right"]
    if record.evaluations:
        last = record.evaluations[-1]
        found.append(f"held-out {record.headline.replace('_', ' ')} {last.value:.3f} in step {last.step}")
    return found


def _pair(record: Record) -> list[str]:
    return [f"{said}, {text}" for said, text in zip(("right", "wrong"), quotes(record, _unpaid(record)), strict=False)]


def too_hard(record: Record) -> Found:
    share = record.right_share(record.first_groups) if record.groups else record.early("reward/mean")
    strength = weight("too_hard", "right_share", share) * _starved(record)
    shown = [one for _, group in record.groups for one in group]
    return Found(strength=strength, evidence=[_dead(record), *_metric(record), *quotes(record, shown)])


def too_easy(record: Record) -> Found:
    share = record.right_share(record.first_groups) if record.groups else None
    strength = weight("too_easy", "right_share", share) * _starved(record)
    return Found(strength=strength, evidence=[_dead(record), *_metric(record)])


def _same_share(groups: Sequence[Group]) -> float | None:
    """Pairs of a group that are token for token the same."""
    found = [
        sampled(one) == sampled(other)
        for group in groups
        for number, one in enumerate(group)
        for other in group[:number]
    ]
    return fmean(found) if found else None


def _alike(cause: str, groups: Sequence[Group], dead: float) -> float:
    """Completions are the same, and with them the rewards."""
    return weight(cause, "same_share", _same_share(groups)) * min(1.0, max(0.0, (dead - 0.5) / 0.4))


def alike(record: Record) -> Found:
    """By the settings of sampling."""
    if not record.groups:
        return NOTHING
    temperature, top_k = record.setting("rollout.temperature", 1.0), record.setting("rollout.top_k")
    top_p, min_p = record.setting("rollout.top_p", 1.0), record.setting("rollout.min_p")
    cold = weight("alike", "temperature", temperature)
    narrow = max(cold, float(top_k == 1), float(top_p < 0.2), float(min_p > 0.9))
    same = _same_share(record.first_groups)
    settings = f"rollout.temperature={temperature:g}, top_p={top_p:g}, top_k={top_k:g}, min_p={min_p:g}"
    changes = {"temperature": (temperature, 1.0), "top_p": (top_p, 1.0), "top_k": (top_k, 0), "min_p": (min_p, 0)}
    return Found(
        strength=_alike("alike", record.first_groups, record.dead_share(record.early_rows)) * narrow,
        evidence=[f"{same or 0:.0%} of the pairs in a group are the same completion; {settings}", _dead(record)],
        overrides=[f"rollout.{key}={wanted:g}" for key, (now, wanted) in changes.items() if now != wanted],
    )


def collapsed(record: Record) -> Found:
    """By the policy itself, from the start."""
    entropy = record.early("rollout/entropy")
    if not record.groups or entropy is None:
        return NOTHING
    same = _alike("collapsed", record.first_groups, record.dead_share(record.early_rows))
    sure = weight("collapsed", "entropy", entropy) * _not_solved(record, record.first_groups)
    heat = record.setting("rollout.temperature", 1.0) * min(20.0, max(2.0, LIVELY / max(entropy, 1e-3)))
    return Found(
        strength=sure * same,
        evidence=_sure(record, record.first_groups),
        overrides=[f"rollout.temperature={heat:.2g}"],
    )


def collapses(record: Record) -> Found:
    """By the policy itself, in the run."""
    entropy, before = record.late("rollout/entropy"), record.early("rollout/entropy")
    if not record.groups or entropy is None or before is None:
        return NOTHING
    last = [group for step, group in record.groups if step == record.groups[-1][0]]
    same = _alike("collapses", last, record.dead_share(record.updates[-LATE_STEPS:]))
    fell = weight("collapses", "entropy", entropy) * (1 - weight("collapses", "entropy", before))
    return Found(
        strength=fell * same * _not_solved(record, last),
        evidence=_sure(record, last),
        overrides=["algorithm.entropy_coef=0.01", f"trainer.learning_rate={_rounded(_rate(record) / 3)}"],
    )


def _not_solved(record: Record, groups: Sequence[Group]) -> float:
    return min(1.0, max(0.0, (0.97 - (record.right_share(groups) or 0.0)) / 0.07))


def _sure(record: Record, groups: Sequence[Group]) -> list[str]:
    same = _same_share(groups) or 0.0
    shown = quotes(record, list(groups[0]))
    return [record.span("rollout/entropy"), f"{same:.0%} of the pairs in a group are the same", *shown]


def noisy_reward(record: Record) -> Found:
    """Equal completions are paid differently, or which of two is right says nothing about which earns more."""
    found = record.agreement
    share = found.same_apart / found.same if found.same else None
    twice = weight("noisy_reward", "same_apart", share) * weight("noisy_reward", "pairs", found.same_apart * 3)
    random, auc = 0.0, found.auc
    if auc is not None and found.alike:
        by_chance = weight("noisy_reward", "auc", abs(auc - 0.5))
        varied = min(1.0, 4 * found.paid_apart / found.alike)
        random = by_chance * varied * weight("noisy_reward", "pairs", found.unlike) * 0.5
    evidence = [f"{found.same_apart} of {found.same} pairs of one and the same completion were paid differently"]
    for one, other in record.pairs():
        if sampled(one) == sampled(other) and one.reward != other.reward:
            evidence += quotes(record, [one, other])
            break
    if auc is not None:
        evidence.append(f"of a right and a wrong completion the right one earns more in {auc:.0%} of {found.unlike}")
    return Found(strength=1 - (1 - twice) * (1 - random), evidence=evidence)


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
    evidence = [record.span("rollout/completion_tokens_mean"), *_metric(record)]
    if by_length is not None:
        evidence.insert(0, f"correlation of reward and length among equally right completions: {by_length:+.2f}")
    return Found(strength=strength * weight("paid_for_length", "paid_apart", apart), evidence=evidence)


def other_reward(record: Record) -> Found:
    found = record.agreement
    auc = weight("other_reward", "auc", found.auc) * weight("other_reward", "pairs", found.unlike)
    said = f"of a right and a wrong completion the right one earns more in {found.auc or 0:.0%} of {found.unlike} pairs"
    return Found(
        strength=0.0 if _constant(record) is not None else auc,
        evidence=[said, record.span("reward/mean"), *_metric(record), *_pair(record)],
    )


# ------------------------------------------------------------------------------------------- from rewards to weights


def masked(record: Record) -> Found:
    teaches = 1 - (record.always("rollout/zero_advantage_share") or 0.0) if record.compares_groups else 1.0
    trained = record.always("policy/trained_token_share")
    if trained is None or teaches < 0.1:
        return NOTHING
    trained *= _weighted(record)
    masks = str(record.history.setting("algorithm.truncated")) == "mask"
    return Found(
        strength=weight("masked", "trained_share", trained / teaches),
        evidence=[
            f"{trained:.0%} of the sampled tokens are trained on with an advantage, although {teaches:.0%} of the groups "
            "have different rewards",
            record.span("policy/trained_token_share"),
            f"algorithm {record.history.setting('algorithm.name')}, truncated={'mask' if masks else 'keep'}",
        ],
        overrides=["algorithm.truncated=keep"] if masks else [],
    )


def _weighted(record: Record) -> float:
    """Of the sampled tokens of episodes that teach something, those with an advantage."""
    places = [
        advantage != 0
        for one in record.episodes
        for row in one.rows
        if row.advantages is not None and any(row.advantages)
        for advantage, mask in zip(row.advantages, row.loss_mask, strict=True)
        if mask
    ]
    return fmean(places) if places else 1.0


def no_gradient(record: Record) -> Found:
    teaches = 1 - record.dead_share(record.updates)
    norm = record.always("policy/grad_norm")
    return Found(
        strength=weight("no_gradient", "grad_norm", norm) * float(teaches > 0.1),
        evidence=[record.span("policy/grad_norm"), f"{teaches:.0%} of the groups have different rewards"],
    )


def stale_sampler(record: Record) -> Found:
    usual = {"rollout.max_staleness": 0, "engine.dtype": "auto"}
    changes = [f"{key}={value}" for key, value in usual.items() if record.history.setting(key) not in (value, None)]
    return Found(
        strength=weight("stale_sampler", "mismatch_kl", record.late("policy/mismatch_kl")),
        evidence=[
            record.span("policy/mismatch_kl"),
            f"rollout.max_staleness={record.setting('rollout.max_staleness'):g}, "
            f"engine {record.history.setting('engine.name')}, dtype {record.history.setting('engine.dtype')}",
        ],
        overrides=changes or ["algorithm.mismatch_correction=truncate"],
    )


def _rate(record: Record) -> float:
    """The learning rate's peak."""
    rates = [row["policy/learning_rate"] for row in record.updates if "policy/learning_rate" in row]
    return max(rates, default=record.setting("trainer.learning_rate"))


def _size(record: Record) -> float:
    """Root mean square of a weight; models are initialized near 0.02."""
    return record.weights.size if record.weights else record.setting("model.init_std", 0.02)


def _moved(record: Record) -> float:
    """Change of the weights in the whole run / their size; at most the sum of the learning rates."""
    if record.weights and record.weights.moved is not None:
        return record.weights.moved / record.weights.size
    rates = [row.get("policy/learning_rate", 0.0) for row in record.updates]
    return sum(rates) / _size(record) / 4  # measured: steps point in different directions


def _rounded(value: float) -> str:
    """One digit: `3e-05`."""
    return f"{value:.0e}"


def _fall(record: Record) -> float:
    """What held-out metric or reward lost, in standard errors: the worst against the first."""
    found = [0.0]
    if len(record.evaluations) > 1:
        first, last = record.evaluations[0], record.evaluations[-1]
        found.append((first.value - last.value) / math.hypot(first.error, last.error))
    begin, end = record.early("reward/mean"), record.late("reward/mean")
    spread = record.early("reward/std")
    if begin is not None and end is not None and spread:
        groups = sum(row.get("rollout/episodes", 0.0) for row in record.early_rows)
        groups /= max(record.setting("rollout.group_size", 1.0), 1.0)
        found.append((begin - end) / (spread / math.sqrt(max(groups, 1.0)) * 1.4))
    return max(found)


def step_too_large(record: Record) -> Found:
    """Steps beyond what weights stand, or beyond what the clip allows, with damage."""
    rate, fall = _rate(record), _fall(record)
    by_size = weight("step_too_large", "step", rate / _size(record))
    by_kl = weight("step_too_large", "kl", record.always("policy/approx_kl"))
    damage = weight("step_too_large", "fall", fall)
    return Found(
        strength=max(by_size, by_kl) * (0.5 + 0.5 * damage),
        evidence=[
            f"peak learning rate {rate:.2g}, which is {rate / _size(record):.2g} of the size of a weight",
            f"the weights changed by {_moved(record):.0%} in {len(record.updates)} steps",
            *([record.span("policy/approx_kl")] if by_kl else []),
            *([f"metric or reward fell by {fall:.1f} standard errors"] if damage else []),
            record.span("policy/entropy"),
        ],
        overrides=[f"trainer.learning_rate={_rounded(min(rate / 3, TYPICAL_STEP * _size(record)))}"],
    )


def step_too_small(record: Record) -> Found:
    moved, rate = _moved(record), _rate(record)
    teaches = 1 - record.dead_share(record.updates)
    wanted = rate * (ENOUGH_MOVED / max(moved, 1e-9)) ** 1.25  # measured: 1000 x the rate moves weights 250 x as far
    wanted = min(wanted, TYPICAL_STEP * _size(record))
    return Found(
        strength=weight("step_too_small", "moved", moved) * min(1.0, teaches / 0.2),
        evidence=[
            f"the weights changed by {moved:.2g} of their size in {len(record.updates)} steps, at a learning rate of "
            f"at most {rate:.2g}",
            f"{teaches:.0%} of the groups teach something, {record.span('policy/grad_norm')}",
        ],
        overrides=[f"trainer.learning_rate={_rounded(max(wanted, rate * 3))}"],
    )


def held_back(record: Record) -> Found:
    coef = record.setting("algorithm.kl_coef")
    return Found(
        strength=weight("held_back", "kl_coef", coef),
        evidence=[f"algorithm.kl_coef={coef:g}", record.span("policy/reference_kl")],
        overrides=["algorithm.kl_coef=0"],
    )


CHAIN: dict[str, Judge] = {
    judge.__name__: judge
    for judge in (
        verifier_fails,
        same_prompt,
        tools_fail,
        never_ends,
        truncated,
        alike,
        collapsed,
        foreign_prompt,
        never_paid,
        always_paid,
        too_hard,
        too_easy,
        paid_for_length,
        noisy_reward,
        other_reward,
        masked,
        no_gradient,
        stale_sampler,
        step_too_large,
        collapses,
        step_too_small,
        held_back,
    )
}
