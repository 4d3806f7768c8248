"""Chooses the row layout at start, by comparing logprobs on the user's own model."""

import logging

import torch
from torch import Tensor

from rlvr.core.devices import exact_products, has_flash_attention
from rlvr.core.packing import Layout, Packing, microbatches
from rlvr.core.policy import forward
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.types import TokenBatch

LAYOUTS: tuple[Layout, ...] = ("shared", "packed", "rows")

log = logging.getLogger(__name__)


@torch.no_grad()
def choose_layout(policy: HubPolicy) -> Layout:
    """The first layout whose logprobs equal those of a plain forward pass over each row alone.

    Raises UserError if none does.
    """
    probe = _probe(int(policy.model.config.vocab_size))
    flash = has_flash_attention(policy.model)
    tolerance = 1e-3 if policy.dtype == torch.float32 and not flash else 0.1
    rows = zip(probe.ids, probe.lengths.tolist(), probe.prompt_lengths.tolist(), strict=True)
    with exact_products(), torch.autocast(policy.model.device.type, torch.bfloat16, enabled=flash):
        alone = torch.cat([_alone(policy, ids[:length], prompt_length) for ids, length, prompt_length in rows])
        if not alone.isfinite().all():
            raise UserError("the model's logits are not finite: its weights hold NaN; use another model")
        for layout in ("rows",) if flash else LAYOUTS:
            together = _together(policy, probe, layout)
            if together is not None and torch.allclose(together, alone, rtol=0, atol=tolerance):
                if layout != "shared":
                    log.warning(
                        "this architecture cannot be packed with shared prompts: the slower layout %r is used", layout
                    )
                return layout
    raise UserError(
        f"{type(policy.model).__name__} cannot be trained: the trainer's logprobs differ from the model's own forward "
        "pass; use another architecture"
    )


def _probe(vocab_size: int) -> TokenBatch:
    lengths, prompts, groups = [9, 12, 7, 16], [5, 5, 3, 3], [0, 0, 1, 1]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (4, 16), generator=generator)
    ids[1, :5], ids[3, :3] = ids[0, :5], ids[2, :3]
    place = torch.arange(16)[None]
    mask = (place >= torch.tensor(prompts)[:, None]) & (place < torch.tensor(lengths)[:, None])
    zeros = torch.zeros(4)
    return TokenBatch(
        ids=ids,
        lengths=torch.tensor(lengths),
        prompt_lengths=torch.tensor(prompts),
        loss_mask=mask,
        behavior_logprobs=torch.zeros(4, 16),
        rewards=zeros,
        groups=torch.tensor(groups),
        episodes=torch.arange(4),
        valid=torch.ones(4, dtype=torch.bool),
        truncated=torch.zeros(4, dtype=torch.bool),
    )


def _alone(policy: HubPolicy, ids: Tensor, prompt_length: int) -> Tensor:
    logits = policy.model(input_ids=ids[None].to(policy.model.device), use_cache=False).logits[0].float().cpu()
    return torch.log_softmax(logits[:-1], -1).gather(1, ids[1:, None])[prompt_length - 1 :, 0]


def _together(policy: HubPolicy, batch: TokenBatch, layout: Layout) -> Tensor | None:
    """The same logprobs from packed lines, in the same order; None if the model does not support them."""
    out = torch.zeros_like(batch.behavior_logprobs)
    for microbatch in microbatches(batch, range(4), Packing(layout=layout, max_tokens=64)):
        try:
            predicted = forward(policy, microbatch, temperature=1.0)
        except torch.OutOfMemoryError:
            raise
        except (TypeError, ValueError, RuntimeError):  # the architecture does not accept our arguments or mask
            return None
        out[microbatch.rows, microbatch.columns] = predicted.logprobs.float().cpu()
    return out[batch.loss_mask]
