"""The seven links of the chain from a prompt to the held-out score; each measures the places where a signal is lost.

A share of what was recorded counts as the upper end of its 95 % interval: no more is said to be lost than is certain.
What was not recorded is whole.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from operator import mul
from statistics import fmean

from rlvr.records.rollouts import EpisodeRecord
from rlvr.tracking.health import solved
from rlvr.tracking.signals import SIGNALS, Signal
from rlvr.trust.record import QUOTED, Group, Place, Record, end_tokens, quotes, sampled, stop_words

CERTAIN = 1.96  # standard errors: a 95 % interval
WHOLE = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}  # sampling from the whole distribution
STEPS = 10  # in which a remedy should promise a standard deviation, as `rlvr diagnose --try` makes them
EARLY = ("differs", "ends", "read", "paid")
"""Links that are judged by the first steps, so that the damage of training is not blamed on prompt, limit or reward."""


def upper(share: float, count: int) -> float:
    """The upper end of Wilson's 95 % interval (JASA 1927) of a share of `count`; 1 for none."""
    if count == 0:
        return 1.0
    z = CERTAIN**2 / count
    return min(1.0, (share + z / 2 + math.sqrt(z * share * (1 - share) + z**2 / 4)) / (1 + z))


def agreement(groups: Iterable[Group], lower: Callable[[EpisodeRecord, EpisodeRecord], bool], value: str) -> float:
    """How sure the better one of two completions of a question has more of `value`: 2 P(more) - 1, ties halved, 0 to 1.

    `lower(a, b)`: a should have less. Completions of one question count as one.
    """
    shares = list[float]()
    for group in groups:
        pairs = [(a, b) for a, b in permutations(group, 2) if lower(a, b)]
        gaps = [(getattr(b, value) or 0.0) - (getattr(a, value) or 0.0) for a, b in pairs]
        if gaps:
            shares.append(fmean((gap > 0) + (gap == 0) / 2 for gap in gaps))
    return max(0.0, 2 * upper(fmean(shares), len(shares)) - 1) if shares else 1.0


def differs(record: Record) -> Iterator[Place]:
    """The smaller of two shares: of the examples, those whose prompt belongs to no other answer; and in the first step,
    of the questions with two answers or more that were read, those with a right and a wrong one.

    Tools may find what tells equal prompts apart, so there only one prompt for everything counts.
    """
    asked = {(tuple(one.turns[0].prompt_ids), one.answer) for one in record.episodes}
    prompts = [prompt for prompt, _ in asked]
    tooled = any("tool_calls" in one.diagnostics for one in record.episodes)
    if not tooled or len(set(prompts)) == 1:
        own = sum(prompts.count(prompt) == 1 for prompt in prompts)
        yield Place(
            passes=upper(own / max(len(asked), 1), len(asked)),
            seen=[f"{own} of {len(asked)} examples have a prompt that no other answer has"],
            says="Different questions look the same to the model.",
            remedy="Look at a prompt in rollouts/: prompt.user must hold {question}, and the chat template show it.",
        )
    groups = [[one for one in group if record.is_read(one)] for group in record.first_comparable]
    groups = [group for group in groups if len(group) > 1]
    mixed = [group for group in groups if len({record.right(one) for one in group}) > 1]
    alike = [group for group in groups if len({sampled(one) for one in group}) == 1]
    right = fmean([record.right(one) for group in groups for one in group]) if groups else 0.0
    shown = [one for group in groups if group not in mixed for one in group][:2]
    overrides = [
        f"rollout.{key}={usual:g}" for key, usual in WHOLE.items() if record.setting(f"rollout.{key}", usual) != usual
    ]
    hard = "Mix in easier questions, warm-start longer, or sample more completions of each (rollout.group_size)."
    yield Place(
        passes=upper(len(mixed) / max(len(groups), 1), len(groups)),
        seen=[
            f"in the first step {len(mixed)} of {len(groups)} questions have right and wrong completions, {len(alike)} "
            f"the same one each time; {right:.0%} are right",
            record.span("rollout/entropy"),
            *quotes(record, shown),
        ],
        says="Completions of a question do not differ in being right, so that there is nothing to compare.",
        remedy="Sample from the whole distribution." if 2 * len(alike) > len(groups) else hard,
        overrides=overrides if 2 * len(alike) > len(groups) else [],
        signals=["rollout/zero_advantage_share"],
    )


def ends(record: Record) -> Iterator[Place]:
    """Of the turns of the first step, the share that end by themselves, at a token that is an end of model or task."""
    allowed, stops = end_tokens(record.history), stop_words(record.history)
    turns = [turn for group in record.first_groups for one in group for turn in one.turns if turn.completion_ids]
    if not turns:
        return
    cut = [turn for turn in turns if turn.stop_reason == "length"]
    odd = [
        turn
        for turn in turns
        if turn.stop_reason == "stop" and allowed and turn.completion_ids[-1] not in allowed
        if not turn.completion.rstrip().endswith(stops)
    ]
    inside = [turn for turn in cut if allowed.intersection(turn.completion_ids[:-1])]
    limit = int(record.setting("rollout.max_completion_tokens"))
    room = int(record.setting("model.max_context_tokens")) or 10**9
    longer = min(4 * limit, room - max(len(turn.prompt_ids) for turn in turns))
    goes_on = 2 * len(inside) > len(cut)
    text = "go on behind an end token" if goes_on else f"are cut off (at most {limit} tokens)"
    settles = len(cut) > len(odd) and not goes_on
    stop = "Compare stop tokens and strings of the engine with generation_config.json; `rlvr doctor` shows them."
    yield Place(
        passes=upper(1 - (len(cut) + len(odd)) / len(turns), len(turns)),
        seen=[
            f"of {len(turns)} turns of the first step {len(cut)} {text}, {len(odd)} stop at a token that is no end",
            *(f"{turn.stop_reason}: {turn.completion[-QUOTED:]!r}" for turn in [*odd, *cut][:2]),
        ],
        says="Completions do not end by themselves where an answer ends.",
        remedy="Raise rollout.max_completion_tokens." if settles else stop,
        overrides=[f"rollout.max_completion_tokens={longer}"] if settles and longer > limit > 0 else [],
    )


def read(record: Record) -> Iterator[Place]:
    """1 - the completions of the first step that neither reward nor metric could read, on the scale of
    rollout/invalid_share, x the questions whose completions all earn the same: others teach what can be read."""
    ended = [one for group in record.first_groups for one in group if one.stop_reason != "length"]
    unread = [one for one in ended if not record.is_read(one)]
    dead = record.dead_share(record.early_rows)
    if ended:
        yield Place(
            passes=1 - SIGNALS["rollout/invalid_share"].weight(len(unread) / len(ended)) * dead,
            seen=[
                f"{len(unread)} of {len(ended)} completions of the first step could not be read",
                *quotes(record, unread[:2]),
            ]
            + [f"a prompt ends in {one.turns[0].prompt[-QUOTED:]!r}" for one in unread[:1]],
            says="The model does not answer in the form that is read.",
            remedy="Compare a prompt in rollouts/ with what the model was trained on: template, markers, prompt.*.",
            signals=["rollout/invalid_share"],
        )


def paid(record: Record) -> Iterator[Place]:
    """The smaller of: how sure the right one of two completions earns more, 2 P(more) - 1; and the share of right
    completions whose verifier did not fail."""
    shown = next(
        (
            (right, wrong)
            for group in record.comparable
            for right in group
            for wrong in group
            if record.right(right) > record.right(wrong) and (right.reward or 0.0) <= (wrong.reward or 0.0)
        ),
        (),
    )
    passes = agreement(record.comparable, lambda a, b: record.right(b) > record.right(a), "reward")
    yield Place(
        passes=passes,
        seen=[
            f"being right decides {passes:.0%} at most of what two completions of a question earn",
            record.span("reward/mean"),
            *quotes(record, shown),
        ],
        says="The reward does not pay what is right: it is the same for everything, chance, or for something else.",
        remedy="Score a right and a wrong answer by hand (`rlvr score`), twice, and try the reward with `rlvr audit`.",
    )
    right = [one for one in record.episodes if record.right(one)]
    failed = [one for one in right if one.score_status == "error"]
    yield Place(
        passes=upper(1 - len(failed) / max(len(right), 1), len(right)),
        seen=[f"the verifier failed on {len(failed)} of {len(right)} completions that the metric calls right"]
        + [f"it said: {one.diagnostics.get('error')}" for one in failed[:1]],
        says="The verifier itself fails on what is right, so that it is left out of training.",
        remedy="Read what it said (score_status: error in rollouts/), and correct it or raise reward.timeout_s.",
    )


def trained(record: Record) -> Iterator[Place]:
    """The smallest of: of the tokens of questions whose rewards differ, those with an advantage and a weight; how sure
    the better paid one of two completions has the larger advantage, 2 P(larger) - 1; exp(-surprise), by how many nats
    sampled tokens are less likely than the policy's entropy says; and the share of matrices that change."""
    teaches = 1 - record.dead_share(record.updates)
    share = record.always("policy/trained_token_share")
    if share is not None and teaches * len(record.updates) >= 1:
        masks = record.history.setting("algorithm.truncated") == "mask"
        share *= _weighted(record)
        yield Place(
            passes=min(1.0, share / teaches),
            seen=[
                f"{share:.0%} of the sampled tokens have an advantage and a weight, though rewards differ for "
                f"{teaches:.0%} of the questions"
            ],
            says="Most of what was sampled is not trained on, although its rewards differ.",
            remedy="Look at loss_mask and advantages in rollouts/: a mask, or an algorithm, leaves tokens out.",
            overrides=["algorithm.truncated=keep"] if masks else [],
            signals=["policy/trained_token_share"],
        )
    groups = record.comparable if record.compares_groups else []
    passes = agreement(groups, lambda a, b: (a.reward or 0.0) < (b.reward or 0.0), "advantage")
    yield Place(
        passes=passes,
        seen=[f"the reward decides {passes:.0%} at most of which completion has the larger advantage"],
        says="What earns more does not become more likely: advantages do not follow rewards.",
        remedy="Look at the advantages in rollouts/ and at your algorithm; `rlvr doctor` has update_follows_reward.",
    )
    surprise = _surprise(record)
    setting = record.history.setting
    half = {"bf16": "bfloat16", "fp16": "float16"}.get(str(setting("trainer.precision")))  # what `auto` may become
    usual = {"rollout.max_staleness": (0,), "engine.dtype": ("auto", "float32", half)}
    yield Place(
        passes=math.exp(-surprise),
        seen=[
            f"sampled tokens are {surprise:.2f} nats off what the policy's entropy says, in the first step",
            record.span("policy/mismatch_kl"),
        ],
        says="What is sampled is not what the policy finds likely.",
        remedy="Look for what the engine adds by itself: other prompts or temperatures, penalties, barred tokens.",
        overrides=[f"{key}={fine[0]}" for key, fine in usual.items() if setting(key) not in (*fine, None)],
    )
    still = record.weights.still if record.weights else None
    yield Place(
        passes=1 - (still or 0.0),
        seen=[f"in {still or 0:.0%} of the matrices no number changed, though other weights did"],
        says="Most weights are not trained.",
        remedy="See which weights have requires_grad and are given to the optimizer: a filter may miss the rest.",
    )


def step(record: Record) -> Iterator[Place]:
    """The smallest of: what the steps promise to first order, in standard deviations of the reward; 1 - how far the
    matrices moved, beside their size; what is left of the held-out metric; and 1 - what training ruined.

    AdamW moves each of N weights by about the learning rate, along the gradient's sign, so a step promises
    rate x |g|_1, and |g|_1 = |g|_2 sqrt(2 N / pi) for entries that are normally distributed.
    """
    weights, rates = record.weights, [row.get("policy/learning_rate", 0.0) for row in record.updates]
    peak = max(rates, default=0.0)
    slope = record.always("policy/grad_norm")
    if weights and slope:
        scale = math.sqrt(2 * weights.count / math.pi)
        slopes = [row.get("policy/grad_norm", 0.0) for row in record.updates]
        promised = scale * sum(map(mul, rates, slopes))
        wanted = 1 / (STEPS * slope * scale)
        yield Place(
            passes=min(1.0, promised),
            seen=[
                f"{len(rates)} steps at a learning rate of at most {peak:.2g} promise {promised:.2g} standard "
                "deviations of the reward",
                record.span("policy/learning_rate"),
            ],
            says="Steps are too small, or too few, for the policy to change.",
            remedy="Raise trainer.learning_rate, or see that trainer.schedule and warmup_steps fit the run.",
            overrides=_steady(record) or [f"trainer.learning_rate={min(wanted, 1e3 * peak):.0e}"],
        )
    smaller = [f"trainer.learning_rate={peak / 10:.0e}"]
    moved = (weights.moved if weights else None) or 0.0
    fallen = _fallen(record)
    ruined, name = max(
        (_ruined(record, signal), signal.name) for signal in SIGNALS.values() if signal.link in EARLY[:3]
    )
    harm = "Steps are too large: they undo what the model could do."
    lower = "Lower trainer.learning_rate, and go on from weights that were still good."
    for passes, seen in (
        (max(0.0, 1 - moved), f"the matrices changed by {moved:.0%} of their size in {len(rates)} steps"),
        (1 - fallen, f"at least {fallen:.0%} of what was right on held-out questions is lost"),
        (1 - ruined, f"it got worse in the run: {record.span(name)}"),
    ):
        yield Place(
            passes=passes, seen=[seen, record.span("policy/entropy")], says=harm, remedy=lower, overrides=smaller
        )


def held(record: Record) -> Iterator[Place]:
    """1 - the rise of the reward x what does not hold: the groups that ask again what was asked before, or everything,
    where evaluations agree to the last digit."""
    asked = [(tuple(group[0].turns[0].prompt_ids), group[0].answer) for _, group in record.groups]
    yield Place(
        passes=1 - record.rise_of_reward * (1 - upper(len(set(asked)) / max(len(asked), 1), len(asked))),
        seen=[f"{len(asked)} recorded groups ask {len(set(asked))} different questions", record.span("reward/mean")],
        says="A few questions are asked again and again: the answers are memorized.",
        remedy="Train on more questions; see with `rlvr doctor` (rows_are_used) whether rows are left out.",
    )
    rows = [{k: v for k, v in row.items() if k.startswith("eval/")} for row in record.history.rows]
    rows = [row for row in rows if row]
    if len(rows) > 1 and all(row == rows[0] for row in rows):
        yield Place(
            passes=1 - record.rise_of_reward,
            seen=[f"all {len(rows[0])} numbers of {len(rows)} evaluations are the same", record.span("reward/mean")],
            says="The evaluation does not see what is trained: none of its numbers changes.",
            remedy="Compare `rlvr eval RUN` with the run's last evaluation: if they differ, it uses other weights.",
        )


def _weighted(record: Record) -> float:
    """Of the sampled tokens of episodes that teach something, those with an advantage."""
    flags = [
        advantage != 0
        for one in record.episodes
        for row in one.rows
        if row.advantages is not None and any(row.advantages)
        for advantage, mask in zip(row.advantages, row.loss_mask, strict=True)
        if mask
    ]
    return fmean(flags) if flags else 1.0


def _surprise(record: Record) -> float:
    """By how many nats, beyond chance, the mean logprob of the first step's trained tokens is off the policy's entropy.

    Both agree on average if tokens are drawn from the policy as it is: one update a step, the whole distribution.
    """
    narrow = any(record.setting(f"rollout.{key}", usual) != usual for key, usual in list(WHOLE.items())[1:])
    updates = record.setting("algorithm.num_epochs", 1) * record.setting("algorithm.num_minibatches", 1)
    entropy = record.updates[0].get("policy/entropy", math.nan)
    drawn = [
        [
            logprob
            for row in one.rows
            for logprob, own, mask in zip(
                row.behavior_logprobs, row.trainer_logprobs or (), row.loss_mask, strict=False
            )
            if mask and logprob is not None and own is not None
        ]
        for one in record.rollouts.get(int(record.updates[0]["step"]), [])
    ]
    count = sum(map(len, drawn))
    if narrow or updates > 1 or not count or math.isnan(entropy):
        return 0.0
    mean = math.fsum(map(sum, drawn)) / count
    error = math.sqrt(math.fsum((sum(some) - mean * len(some)) ** 2 for some in drawn)) / count
    return max(0.0, abs(mean + entropy) - CERTAIN * error)


def _fallen(record: Record) -> float:
    """The share of the held-out metric that is lost for certain."""
    if not record.evaluations or not record.evaluations[0].low > 0:
        return 0.0
    return max(0.0, 1 - record.evaluations[-1].high / record.evaluations[0].low)


def _ruined(record: Record, signal: Signal) -> float:
    """By how much the signal's weight rises from the beginning to the end."""
    if not signal.is_judged or (signal.unless_solved and solved(record.history.rows)):
        return 0.0
    return max(0.0, signal.weight(record.late(signal.name)) - signal.weight(record.early(signal.name)))


def _steady(record: Record) -> list[str]:
    """Settings of a schedule that left most steps without a learning rate."""
    rates = [row.get("policy/learning_rate", 0.0) for row in record.updates]
    usual = {"schedule": "constant", "warmup_steps": 0}
    if fmean(rates) > max(rates) / 10 and max(rates) > record.setting("trainer.learning_rate") / 10:
        return []
    return [f"trainer.{k}={v}" for k, v in usual.items() if record.history.setting(f"trainer.{k}") not in (v, None)]


MEASURES = {
    "differs": differs,
    "ends": ends,
    "read": read,
    "paid": paid,
    "trained": trained,
    "step": step,
    "held": held,
}
