"""Logprobs of the tokens of prompts, for `echo` with `logprobs`: how evaluators score multiple-choice tasks."""

from collections.abc import Sequence

import torch

from rlvr.core.policy import Policy, logits_per_chunk

MAX_TOKENS = 4096
"""Tokens of a pass."""

Likely = tuple[tuple[int, ...], tuple[float, ...]]
"""Ids and logprobs of the likeliest tokens at a position, likeliest first."""


@torch.inference_mode()
def prompt_logprobs(
    policy: Policy, prompts: Sequence[tuple[int, ...]], count: int
) -> list[tuple[list[float], list[Likely]]]:
    """For each prompt the logprobs of its tokens but the first, at temperature 1, and the `count` likeliest ones
    there."""
    found: dict[int, tuple[list[float], list[Likely]]] = {}
    longest = max(map(len, prompts))
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    rows = max(1, MAX_TOKENS // longest)
    for part in (order[first : first + rows] for first in range(0, len(order), rows)):
        ids = torch.zeros(len(part), max(len(prompts[number]) for number in part), dtype=torch.long)
        for row, number in enumerate(part):
            ids[row, : len(prompts[number])] = torch.tensor(prompts[number])
        hidden = policy.hidden(ids.to(policy.model.device))
        for row, number in enumerate(part):
            size = len(prompts[number]) - 1
            found[number] = _read(policy, hidden[row, :size], ids[row, 1 : size + 1], count)
    return [found[number] for number in range(len(prompts))]


def _read(policy: Policy, hidden: torch.Tensor, targets: torch.Tensor, count: int) -> tuple[list[float], list[Likely]]:
    """Logprobs of targets [N] after hidden [N, D], and the likeliest tokens there."""
    values, likely = list[float](), list[Likely]()
    vocabulary = int(policy.model.config.get_text_config().vocab_size)
    size = max(1, logits_per_chunk(hidden.device) // vocabulary)
    for states, wanted in zip(hidden.split(size), targets.to(hidden.device).split(size), strict=True):
        logprobs = torch.log_softmax(policy.logits(states), dim=-1)
        values += logprobs.gather(1, wanted[:, None])[:, 0].tolist()
        top, ids = logprobs.topk(min(count, vocabulary), dim=-1)
        likely += [(tuple(i), tuple(v)) for i, v in zip(ids.tolist(), top.tolist(), strict=True)]
    return values, likely
