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


def prompt_logprobs(
    policy: Policy, prompts: Sequence[tuple[int, ...]], count: int, *, batched: bool
) -> Iterator[dict[int, Seen]]:
    """What is seen of prompts, by number, with the `count` likeliest tokens: one pass of the model at a time.

    `batched`: prompts of like lengths share a pass, the padded tokens of several being at most `MAX_TOKENS`, and the
    head sees a part of them at a time. Else each has the model's own forward pass, where the trainer's is not that.
    """
    if not batched:
        for number, prompt in enumerate(prompts):
            yield {number: _plain(policy, prompt, count)}
        return
    part: list[int] = []
    for number in sorted(range(len(prompts)), key=lambda number: len(prompts[number])):
        if part and (len(part) + 1) * len(prompts[number]) > MAX_TOKENS:
            yield _pass(policy, prompts, part, count)
            part = []
        part.append(number)
    yield _pass(policy, prompts, part, count)


@torch.inference_mode()
def _plain(policy: Policy, prompt: tuple[int, ...], count: int) -> Seen:
    ids = torch.tensor([prompt], device=policy.model.device)
    logits = policy.model(input_ids=ids, use_cache=False).logits[0, :-1]
    return _seen(torch.log_softmax(logits.float(), -1), ids[0, 1:], count)


@torch.inference_mode()
def _pass(policy: Policy, prompts: Sequence[tuple[int, ...]], part: Sequence[int], count: int) -> dict[int, Seen]:
    ids = torch.zeros(len(part), max(len(prompts[number]) for number in part), dtype=torch.long)
    for row, number in enumerate(part):
        ids[row, : len(prompts[number])] = torch.tensor(prompts[number])
    hidden = policy.hidden(ids.to(policy.model.device))
    logprobs = {}
    for row, number in enumerate(part):
        size = len(prompts[number]) - 1
        logprobs[number] = _read(policy, hidden[row, :size], ids[row, 1 : size + 1], count)
    return logprobs


def _read(policy: Policy, hidden: torch.Tensor, targets: torch.Tensor, count: int) -> Seen:
    """What is seen of targets [N] after hidden [N, D]."""
    values, likely = list[float](), list[Likely]()
    size = max(1, logits_per_chunk(hidden.device) // policy.model.config.get_text_config().vocab_size)
    for states, wanted in zip(hidden.split(size), targets.to(hidden.device).split(size), strict=True):
        more = _seen(torch.log_softmax(policy.logits(states), dim=-1), wanted, count)
        values += more[0]
        likely += more[1]
    return values, likely


def _seen(logprobs: torch.Tensor, targets: torch.Tensor, count: int) -> Seen:
    """Of logprobs [N, V] those of targets [N], and the likeliest tokens."""
    top, ids = logprobs.topk(min(count, logprobs.shape[-1]), dim=-1)
    likely = [(tuple(i), tuple(v)) for i, v in zip(ids.tolist(), top.tolist(), strict=True)]
    return logprobs.gather(1, targets[:, None])[:, 0].tolist(), likely
