"""Logprobs of the tokens of prompts, for `echo` with `logprobs`: how evaluators score multiple-choice tasks."""

from collections.abc import Iterator, Sequence

import torch

from rlvr.core.policy import Policy, logits_per_chunk

MAX_TOKENS = 4096
"""Tokens of a pass."""

Likely = tuple[tuple[int, ...], tuple[float, ...]]
"""Ids and logprobs of the likeliest tokens at a position, likeliest first."""
Seen = tuple[list[float], list[Likely]]
"""Of a prompt the logprobs of its tokens but the first, at temperature 1, and the likeliest ones there."""


def prompt_logprobs(policy: Policy, prompts: Sequence[tuple[int, ...]], count: int) -> Iterator[dict[int, Seen]]:
    """What is seen of prompts, by number, with the `count` likeliest tokens: one pass of the model at a time.

    Prompts of like lengths share a pass: the padded tokens of several are at most `MAX_TOKENS`.
    """
    part: list[int] = []
    for number in sorted(range(len(prompts)), key=lambda number: len(prompts[number])):
        if part and (len(part) + 1) * len(prompts[number]) > MAX_TOKENS:
            yield _pass(policy, prompts, part, count)
            part = []
        part.append(number)
    yield _pass(policy, prompts, part, count)


@torch.inference_mode()
def _pass(policy: Policy, prompts: Sequence[tuple[int, ...]], part: Sequence[int], count: int) -> dict[int, Seen]:
    ids = torch.zeros(len(part), max(len(prompts[number]) for number in part), dtype=torch.long)
    for row, number in enumerate(part):
        ids[row, : len(prompts[number])] = torch.tensor(prompts[number])
    hidden = policy.hidden(ids.to(policy.model.device))
    found = {}
    for row, number in enumerate(part):
        size = len(prompts[number]) - 1
        found[number] = _read(policy, hidden[row, :size], ids[row, 1 : size + 1], count)
    return found


def _read(policy: Policy, hidden: torch.Tensor, targets: torch.Tensor, count: int) -> Seen:
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
