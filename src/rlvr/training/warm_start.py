"""Supervised warm start on demonstrations: without any reward, a policy has no gradient to follow.

At first demonstrations write their intermediate steps, so that the model learns the skill; at the end most answer
directly, so that the skill is hidden. RL then discovers that writing the steps pays.

A demonstration of several turns is one row, as in training; tool replies are part of it but not trained on:

    <q> where p3 | <call> search p3 </call> | <tool> p3 works-at o7 . </tool> | <ans> c4 </ans> <eoe>
                   trained                                                      trained

With `loss_on=all` all tokens are trained on, as in pretraining: the model must learn the language somewhere.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rlvr.core.muon import muon
from rlvr.core.optimizer import adamw, learning_rate
from rlvr.core.settings import known
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.settings import dumped
from rlvr.tasks.base import Task
from rlvr.training.settings import WarmStartSettings

BETA2 = 0.95  # of AdamW
PROGRESS_EVERY = 100  # steps between reports of the loss
Parts = tuple[list[int], ...]
"""Token ids of prompt, completion, reply, completion, ...: every second part is a completion, end token included."""


def warm_start(
    policy: HubPolicy,
    task: Task,
    settings: WarmStartSettings,
    *,
    microbatch_tokens: int,
    progress: Callable[[int, float], None],
    stopped: Callable[[], bool],
) -> bool:
    """Train in place; `progress(step, loss)` is called regularly. Returns False if `stopped` ended it early.

    `microbatch_tokens` (with padding) per forward and backward pass affect speed and memory, not the result.
    """
    optimizers = _optimizers(policy, settings)
    rate_of = partial(
        learning_rate,
        peak=known(settings.learning_rate),
        warmup_steps=settings.warmup_of(settings.num_steps),
        final_share=settings.final_learning_rate_share,
        schedule="linear",
        max_steps=settings.num_steps,
    )
    for step in range(settings.num_steps):
        if stopped():
            return False
        rate = rate_of(step)
        rows = _encode(policy, task, demonstrations(task, settings, step))
        policy.model.zero_grad()
        loss = _backward(policy, rows, settings.loss_on, microbatch_tokens)
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        if (step + 1) % PROGRESS_EVERY == 0 or step + 1 == settings.num_steps:
            if not math.isfinite(loss):
                raise UserError(
                    f"the warm start's loss is not finite at step {step + 1}; lower warm_start.learning_rate"
                )
            progress(step + 1, loss)
    policy.model.zero_grad()
    return True


def content(task: Task, settings: WarmStartSettings, microbatch_tokens: int) -> tuple[dict[str, Any], Iterator[bytes]]:
    """What determines the weights beside the model: settings, and every demonstration (`models.weight_cache`)."""
    kept = {key: value for key, value in dumped(settings).items() if key != "cache"}
    texts = ("\0".join(one).encode() for n in range(settings.num_steps) for one in demonstrations(task, settings, n))
    return {**kept, "microbatch_tokens": microbatch_tokens, "stop_words": list(task.stop_words)}, texts


def _optimizers(policy: HubPolicy, settings: WarmStartSettings) -> list[Optimizer]:
    if settings.optimizer == "muon":
        return muon(policy.model, beta2=BETA2, weight_decay=settings.weight_decay)
    return [adamw(policy.parameters(), beta1=0.9, beta2=BETA2, weight_decay=settings.weight_decay)]


def demonstrations(task: Task, settings: WarmStartSettings, step: int) -> list[tuple[str, ...]]:
    """The demonstrations of a step, as texts: prompt, completion, reply, completion, ..."""
    final = step >= settings.num_steps - settings.final_phase_steps
    share = settings.final_worked_share if final else settings.worked_share
    size = settings.examples_per_step
    return [task.demonstration(index, share) for index in range(step * size, (step + 1) * size)]


def _encode(policy: HubPolicy, task: Task, texts: Sequence[tuple[str, ...]]) -> list[Parts]:
    """Token ids of each part; a completion without a stop word gets the tokenizer's end token."""
    tokenizer: Any = policy.tokenizer
    if not task.stop_words and tokenizer.eos_token_id is None:
        raise UserError("the tokenizer names no end token, and the task has no stop word: set warm_start.enabled=false")
    end = [] if task.stop_words else [tokenizer.eos_token_id]
    flat = [text for parts in texts for text in parts]
    ids = iter(tokenizer(flat, add_special_tokens=False, padding=False, return_attention_mask=False)["input_ids"])
    return [tuple(next(ids) + (end if i % 2 else []) for i in range(len(parts))) for parts in texts]


def _backward(policy: HubPolicy, rows: Sequence[Parts], loss_on: str, microbatch_tokens: int) -> float:
    """Add the gradient of the mean negative logprob of all trained tokens, and return that mean."""
    num_tokens = sum(len(_trained(row, loss_on)) for row in rows)
    total = 0.0
    for part in _microbatches(rows, microbatch_tokens):
        loss = _loss_sum(policy, part, loss_on) / num_tokens
        loss.backward()
        total += loss.item()
    return total


def _microbatches(rows: Sequence[Parts], max_tokens: int) -> list[list[Parts]]:
    """Groups rows of similar length into padded microbatches of at most `max_tokens`.

    A single one in the given order if all rows fit.
    """
    if len(rows) * max(map(_length, rows)) <= max_tokens:
        return [list(rows)]
    parts: list[list[Parts]] = [[]]
    for row in sorted(rows, key=_length, reverse=True):  # the first row of a part is its longest
        if parts[-1] and (len(parts[-1]) + 1) * _length(parts[-1][0]) > max_tokens:
            parts.append([])
        parts[-1].append(row)
    return parts


def _length(row: Parts) -> int:
    return sum(map(len, row))


def _trained(row: Parts, loss_on: str) -> list[int]:
    """Positions of the trained tokens; the first token has no prediction."""
    if loss_on == "all":
        return list(range(1, _length(row)))
    ends = list(accumulate(map(len, row)))
    return [place for i in range(1, len(row), 2) for place in range(ends[i - 1], ends[i])]


def _loss_sum(policy: HubPolicy, rows: Sequence[Parts], loss_on: str) -> Tensor:
    width = max(map(_length, rows))
    ids = torch.tensor([[*chain(*row), *[0] * (width - _length(row))] for row in rows])
    places = [i * width + place for i, row in enumerate(rows) for place in _trained(row, loss_on)]
    ids, index = ids.to(policy.model.device), torch.tensor(places, device=policy.model.device)
    targets = ids.flatten()[index]
    hidden = policy.hidden(ids).flatten(0, 1)[index - 1]
    return -policy.predict(hidden, targets, temperature=1.0).logprobs.sum()
