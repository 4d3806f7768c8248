"""From the question to the answers that are sampled: prompts, tools, ends, choice.

They are judged by the first steps, so that the damage of training is not blamed on prompt, limit or temperature.
"""

import math
from statistics import fmean

from rlvr.report.diagnosis.evidence import (
    NOTHING,
    QUOTED,
    about_dead_groups,
    about_engine,
    about_sameness,
    about_the_metric,
    alike_share,
    back_to_usual,
    not_solved,
    quotes,
    same_share,
    starved,
)
from rlvr.report.diagnosis.judge import Found, weight
from rlvr.report.diagnosis.record import Record, end_tokens, stop_words
from rlvr.tracking.rollouts import EpisodeRecord
from rlvr.tracking.signals import SIGNALS

WHOLE = {"temperature": 1.0, "top_p": 1.0, "top_k": 0.0, "min_p": 0.0}  # sampling from the whole distribution
MIN_RIGHT = 2  # completions
MIN_ASKED = 8  # groups
MIN_TOKENS = 60
UNTOLD = 0.45  # strength of one prompt for everything where tools may find the question
DRAWN_APART = (
    "Look at the seeds of a group in rollouts/, and for a cache of completions in the engine: those of one question "
    "must be drawn independently."
)
LIVELY = 0.3  # nats per token at which a small model explores


def verifier_fails(record: Record) -> Found:
    """In many episodes, or just in those that are right."""
    share = record.always("rollout/error_share")
    right = [one for one in record.episodes if record.right(one)]
    failed = [one for one in right if one.score_status == "error"]
    of_right = len(failed) / len(right) if len(right) >= MIN_RIGHT else None
    strengths = SIGNALS["rollout/error_share"].weight(share), weight("verifier_fails", "right_failed", of_right)
    evidence = [record.span("rollout/error_share")]
    if failed:
        evidence.append(f"it failed on {len(failed)} of {len(right)} completions that the metric calls right")
        evidence += [
            f"it said: {text}" for text in sorted({str(one.diagnostics.get("error", "nothing")) for one in failed})[:2]
        ]
    return Found(strength=max(strengths), evidence=evidence)


def same_prompt(record: Record) -> Found:
    """Examples with different answers and one prompt. Tools may find what tells them apart, so there all must have it,
    and anything that is sure explains more."""
    tooled = any("tool_calls" in one.diagnostics for one in record.episodes)
    answers: dict[tuple[int, ...], set[str]] = {}
    for episode in record.episodes:
        answers.setdefault(tuple(episode.turns[0].prompt_ids), set()).add(episode.answer)
    examples = {(tuple(one.turns[0].prompt_ids), one.answer) for one in record.episodes}
    if len({answer for _, answer in examples}) < 2:
        return NOTHING
    same = [prompt for prompt, found in answers.items() if len(found) > 1]
    share = sum(prompt in same for prompt, _ in examples) / len(examples)
    strength = weight("same_prompt", "same_share", share)
    if tooled and (len(answers) > 1 or len(examples) < MIN_ASKED):
        return NOTHING  # what tools find may tell them apart
    shown = next((one.turns[0].prompt for one in record.episodes if tuple(one.turns[0].prompt_ids) in same), "")
    evidence = [f"{share:.0%} of the recorded examples share their prompt with another answer: {shown[:QUOTED]!r}"]
    if not tooled:
        return Found(strength=strength, evidence=evidence)
    says = "All questions look the same to the model, unless its tools tell it what is asked."
    return Found(strength=strength * UNTOLD, evidence=evidence, says=says)


def learnt_by_heart(record: Record) -> Found:
    """Few questions are asked, again and again: the reward can rise without the metric."""
    asked = [(tuple(group[0].turns[0].prompt_ids), group[0].answer) for _, group in record.groups]
    if len(asked) < MIN_ASKED:
        return NOTHING
    different = len(set(asked))
    often = weight("learnt_by_heart", "own_share", different / len(asked))
    return Found(
        strength=often * weight("learnt_by_heart", "questions", different),
        evidence=[
            f"{len(asked)} recorded groups ask {different} different questions, such as "
            f"{record.groups[0][1][0].turns[0].prompt[-QUOTED:]!r}",
            record.span("reward/mean"),
            *about_the_metric(record)[-1:],
        ],
    )


def ends_early(record: Record) -> Found:
    """Completions that end by themselves, at a token that is no end of the model or the task, and are not right."""
    ends, allowed = end_tokens(record.history), stop_words(record.history)
    if not ends or not record.groups:
        return NOTHING
    episodes = [one for group in record.first_groups for one in group]
    turns = [turn for one in episodes for turn in one.turns if turn.stop_reason == "stop" and turn.completion_ids]
    odd = {id(turn): turn for turn in turns if turn.completion_ids[-1] not in ends}
    odd = {key: turn for key, turn in odd.items() if not turn.completion.rstrip().endswith(allowed)}
    cut = [one for one in episodes if any(id(turn) in odd for turn in one.turns)]
    kept = [one for one in episodes if not any(id(turn) in odd for turn in one.turns)]
    right, others = (fmean(map(record.right, some)) if some else 0.0 for some in (cut, kept))
    shown = [f'token {turn.completion_ids[-1]} ends "{turn.completion[-QUOTED:].strip()}"' for turn in odd.values()]
    return Found(
        strength=weight("ends_early", "odd_share", len(odd) / len(turns) if turns else 0.0)
        * max(0.0, 1 - right / max(others, 0.05)),
        evidence=[
            f"{len(odd)} of {len(turns)} turns in the first step end at a token that is no end of model or task",
            *list(dict.fromkeys(shown))[:2],
            record.span("rollout/completion_tokens_mean"),
        ],
    )


def never_ends(record: Record) -> Found:
    """Cut-off completions with a token inside that ends others, or that all of them go on after."""
    cut = [turn for one in record.episodes for turn in one.turns[-1:] if turn.stop_reason == "length"]
    if len(cut) < 8:
        return NOTHING
    inside = [turn for turn in cut if record.end_ids.intersection(turn.completion_ids[:-1])]
    share = len(inside) / len(cut)
    strength = weight("never_ends", "ended_inside", share) * _early(record, "rollout/truncated_share")
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
        strength=_early(record, "rollout/truncated_share"),
        evidence=[
            f"{record.span('rollout/truncated_share')}; the limit is {limit} tokens",
            *quotes(record, cut),
        ],
        overrides=[f"rollout.max_completion_tokens={longer}"] if longer > limit > 0 else [],
    )


def _early(record: Record, name: str) -> float:
    """How much a metric speaks in the first steps."""
    return SIGNALS[name].weight(record.early(name))


def other_sampler(record: Record) -> Found:
    surprise, errors = _surprise(record)
    drawn = weight("other_sampler", "surprise", abs(surprise)) * weight("other_sampler", "errors", errors)
    by_kl = _early(record, "policy/mismatch_kl")
    if drawn > by_kl:
        return Found(
            strength=drawn,
            says="What is sampled is not what the policy finds likely, though the engine reports its logprobs.",
            evidence=[
                f"sampled tokens are {'less' if surprise > 0 else 'more'} likely than the policy's entropy says, "
                f"by {abs(surprise):.2f} nats, {errors:.0f} standard errors, in the first step",
                record.span("rollout/entropy"),
                record.span("policy/entropy"),
            ],
            remedy="Look for what the engine adds by itself: penalties for repetition, barred tokens, a server's "
            "defaults from generation_config.json.",
        )
    return Found(
        strength=by_kl,
        evidence=[record.span("policy/mismatch_kl"), record.span("policy/ratio"), *about_engine(record)],
        overrides=back_to_usual(record),
    )


def _surprise(record: Record) -> tuple[float, float]:
    """Minus the mean logprob of the trained tokens of the first step, minus the policy's entropy there, which it is on
    average if they are drawn from the policy; and this in standard errors, by episodes."""
    narrow = any(
        record.setting(f"rollout.{key}", usual) != usual for key, usual in WHOLE.items() if key != "temperature"
    )
    updates = record.setting("algorithm.num_epochs", 1) * record.setting("algorithm.num_minibatches", 1)
    if narrow or updates > 1 or not record.groups:
        return 0.0, 0.0
    step = record.groups[0][0]
    entropy = next((row.get("policy/entropy", math.nan) for row in record.updates if row["step"] == step), math.nan)
    told = [found for one in record.rollouts[step] if (found := _trained(one))]
    count = sum(map(len, told))
    if count < MIN_TOKENS or math.isnan(entropy):
        return 0.0, 0.0
    surprise = -math.fsum(map(sum, told)) / count - entropy
    error = math.sqrt(math.fsum((sum(one) + (entropy + surprise) * len(one)) ** 2 for one in told)) / count
    return surprise, abs(surprise) / max(error, 1e-3)


def _trained(episode: EpisodeRecord) -> list[float]:
    """The engine's logprobs of the sampled tokens that the trainer looked at."""
    return [
        drawn
        for row in episode.rows
        for drawn, own, mask in zip(row.behavior_logprobs, row.trainer_logprobs or (), row.loss_mask, strict=False)
        if mask and drawn is not None and own is not None
    ]


def alike(record: Record) -> Found:
    """By sampling: its settings, or its seeds where the policy is not as sure as its samples are alike."""
    if not record.groups:
        return NOTHING
    now = {key: record.setting(f"rollout.{key}", usual) for key, usual in WHOLE.items()}
    narrow = max(*(weight("alike", key, now[key]) for key in ("temperature", "top_p", "min_p")), now["top_k"] == 1)
    unsure = 1 - SIGNALS["rollout/entropy"].weight(record.early("rollout/entropy") or 0.0)
    same = same_share(record.first_groups)
    settings = ", ".join(f"{key}={value:g}" for key, value in now.items())
    overrides = [f"rollout.{key}={usual:g}" for key, usual in WHOLE.items() if now[key] != usual]
    said = f"completions of a question share {same or 0:.0%} of their tokens from the start on; {settings}"
    return Found(
        strength=alike_share(record.first_groups, record.dead_share(record.early_rows)) * max(narrow, unsure),
        evidence=[said, about_dead_groups(record), record.span("rollout/entropy")],
        overrides=overrides,
        remedy=None if overrides else DRAWN_APART,
    )


def too_hot(record: Record) -> Found:
    """Samples are worse than the policy is: at temperature 1 it would often be right, or end."""
    heat = record.setting("rollout.temperature", 1.0)
    share = record.right_share(record.first_groups) if record.groups else None
    first = record.evaluations[0].value if record.evaluations else None
    lost = 1.0 if share is None or not first else 1 - share / first
    return Found(
        strength=weight("too_hot", "temperature", heat) * weight("too_hot", "lost", lost),
        evidence=[
            f"rollout.temperature={heat:g}",
            *([] if share is None else [f"{share:.0%} of the first sampled completions are right"]),
            *([] if first is None else [f"of held-out answers {first:.0%} were, in the first evaluation"]),
            record.span("rollout/entropy"),
        ],
        overrides=["rollout.temperature=1"],
    )


def collapsed(record: Record) -> Found:
    """By the policy itself, from the start."""
    entropy = record.early("rollout/entropy")
    if not record.groups or entropy is None:
        return NOTHING
    same = alike_share(record.first_groups, record.dead_share(record.early_rows))
    sure = SIGNALS["rollout/entropy"].weight(entropy) * not_solved(record, record.first_groups)
    heat = record.setting("rollout.temperature", 1.0) * min(20.0, max(2.0, LIVELY / max(entropy, 1e-3)))
    return Found(
        strength=sure * same,
        evidence=about_sameness(record, record.first_groups),
        overrides=[f"rollout.temperature={heat:.2g}"],
    )


def foreign_prompt(record: Record) -> Found:
    strength = _early(record, "rollout/invalid_share") * starved(record)
    shown = [one for _, group in record.groups for one in group if one.score_status == "invalid"]
    evidence = [record.span("rollout/invalid_share"), about_dead_groups(record), *quotes(record, shown)]
    if shown:
        evidence.append(f"its prompt: {shown[0].turns[0].prompt[-QUOTED:]!r}")
    return Found(strength=strength, evidence=evidence)
