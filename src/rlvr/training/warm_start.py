"""Supervised training on demonstrations: a policy that never earns a reward has no gradient to follow.

The demonstrations write their intermediate steps at first, so that the skill gets into the weights, and mostly answer
directly at the end, so that the skill is hidden: what reinforcement learning then finds is that writing the steps pays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from rlvr.config.schema import WarmStart
from rlvr.errors import UserError
from rlvr.models.policy import Policy
from rlvr.training.optimizer import adamw, learning_rate, set_learning_rate

PROGRESS_EVERY = 100
"""Steps between two reports of the loss."""


class Demonstrator(Protocol):
    """What the warm start needs of a task."""

    def demonstration(self, index: int, worked_share: float) -> tuple[str, str]:
        """Prompt and completion `index` of an endless stream; worked_share of them write the steps."""
        ...


def warm_start(
    policy: Policy,
    task: Demonstrator,
    settings: WarmStart,
    *,
    progress: Callable[[int, float], None],
    stopped: Callable[[], bool],
) -> bool:
    """Train in place; `progress(step, loss)` is called now and then. False if `stopped` ended it early."""
    optimizer = adamw(policy.parameters(), beta1=0.9, beta2=0.95, weight_decay=settings.weight_decay)
    for step in range(settings.num_steps):
        if stopped():
            return False
        set_learning_rate(optimizer, _rate(settings, step))
        loss = _loss(policy, list(_demonstrations(task, settings, step)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % PROGRESS_EVERY == 0 or step + 1 == settings.num_steps:
            value = loss.item()
            if not math.isfinite(value):
                raise UserError(
                    f"the warm start's loss is not finite at step {step + 1}; lower warm_start.learning_rate"
                )
            progress(step + 1, value)
    optimizer.zero_grad()
    return True


def _rate(settings: WarmStart, step: int) -> float:
    return learning_rate(
        step,
        peak=settings.learning_rate,
        schedule="linear",
        warmup_steps=settings.warmup_steps,
        max_steps=settings.num_steps,
        final_share=settings.final_learning_rate_share,
    )


def _demonstrations(task: Demonstrator, settings: WarmStart, step: int) -> Iterator[tuple[str, str]]:
    final = step >= settings.num_steps - settings.final_phase_steps
    share = settings.final_worked_share if final else settings.worked_share
    first = step * settings.batch_size
    return (task.demonstration(index, share) for index in range(first, first + settings.batch_size))


def _loss(policy: Policy, texts: Sequence[tuple[str, str]]) -> Tensor:
    """Mean negative logprob of the completions' tokens; right-padded, longest row sets the width."""
    flat = [text for pair in texts for text in pair]
    encoded = policy.tokenizer(flat, add_special_tokens=False, padding=False, return_attention_mask=False)["input_ids"]
    rows = [(prompt, completion) for prompt, completion in zip(encoded[::2], encoded[1::2], strict=True)]
    width = max(len(prompt) + len(completion) for prompt, completion in rows)
    ids = torch.tensor([p + c + [0] * (width - len(p) - len(c)) for p, c in rows])
    places = [i * width + t for i, (p, c) in enumerate(rows) for t in range(len(p), len(p) + len(c))]
    index = torch.tensor(places)
    targets = ids.flatten()[index]
    hidden = policy.hidden(ids).flatten(0, 1)[index - 1]
    return -policy.token_scores(hidden, targets, temperature=1.0)[0].mean()
