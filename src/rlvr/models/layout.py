"""Chooses the row layout at start, by comparing logprobs on the user's own model."""

import logging
from functools import cache, partial

import torch
from torch import Tensor

from rlvr.core.attention import rows_depend
from rlvr.core.devices import exact_products, has_flash_attention, is_out_of_memory
from rlvr.core.noise import Noise, confirmed, measure, probe_rows
from rlvr.core.packing import Layout, Packing, microbatches
from rlvr.core.policy import forward
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.types import TokenBatch

LAYOUTS: tuple[Layout, ...] = ("shared", "packed", "rows")
LENGTHS, PROMPTS = (19, 22, 17, 26), (11, 11, 9, 9)
"""Tokens of the probe's rows and of their prompts; two rows share each prompt. Text, so that few are enough."""

log = logging.getLogger(__name__)


@torch.no_grad()
def choose_layout(policy: HubPolicy) -> Layout:
    """The first layout whose logprobs equal those of a plain forward pass over each row alone, but for rounding.

    Raises UserError if none does.
    """
    flash = has_flash_attention(policy.model)
    dtype = torch.bfloat16 if flash and policy.dtype == torch.float32 else policy.dtype
    look, differ = cache(partial(_look, policy, dtype)), list[str]()
    with exact_products(), torch.autocast(policy.model.device.type, torch.bfloat16, enabled=flash):
        _, alone = look(0)
        if not all(row.isfinite().all() for row in alone.plain):
            raise UserError("the model's logits are not finite: its weights hold NaN; use another model")
        for layout in _possible(policy, flash):
            difference = confirmed(lambda number, layout=layout: _difference(policy, layout, *look(number)))
            if difference is None:
                if layout != "shared":
                    log.warning(
                        "this architecture cannot be packed with shared prompts: the slower layout %r is used", layout
                    )
                return layout
            differ.append(difference)
    raise UserError(
        f"{type(policy.model).__name__} cannot be trained: its logprobs as the trainer computes them, from the last "
        f"hidden states, are not those of its own forward pass ({differ[-1]}); use another architecture"
    )


@torch.no_grad()
def computes_logprobs(policy: HubPolicy) -> bool:
    """Whether right-padded rows and the trainer's head give the logprobs of the model's own forward pass."""
    if rows_depend(policy.model.config):
        return False
    with exact_products():
        look = partial(_look, policy, policy.dtype)
        return confirmed(lambda number: _difference(policy, "rows", *look(number))) is None


def _possible(policy: HubPolicy, flash: bool) -> tuple[Layout, ...]:
    if rows_depend(policy.model.config):  # longer rows than the probe's would show it
        return ("alone",)
    return ("rows",) if flash else LAYOUTS


def _look(policy: HubPolicy, dtype: torch.dtype, number: int) -> tuple[TokenBatch, Noise]:
    """A text, and the noise of the plain pass over it."""
    batch = _probe(policy, number)
    return batch, measure(policy.model, dtype, partial(_alone, policy, batch))


def _probe(policy: HubPolicy, look: int) -> TokenBatch:
    rows = probe_rows(policy.prompts, policy.model.config.get_text_config().vocab_size, LENGTHS, look)
    rows[1][: PROMPTS[1]], rows[3][: PROMPTS[3]] = rows[0][: PROMPTS[0]], rows[2][: PROMPTS[2]]
    longest, count = max(LENGTHS), len(rows)
    place = torch.arange(longest)[None]
    lengths, starts = torch.tensor(LENGTHS), torch.tensor(PROMPTS)
    return TokenBatch(
        ids=torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows]),
        lengths=lengths,
        prompt_lengths=starts,
        loss_mask=(place >= starts[:, None]) & (place < lengths[:, None]),
        behavior_logprobs=torch.zeros(count, longest),
        rewards=torch.zeros(count),
        groups=torch.tensor([0, 0, 1, 1]),
        episodes=torch.arange(count),
        valid=torch.ones(count, dtype=torch.bool),
        truncated=torch.zeros(count, dtype=torch.bool),
    )


def _alone(policy: HubPolicy, batch: TokenBatch) -> list[Tensor]:
    """Logprobs of each row's completion by the model's own forward pass."""
    logprobs = []
    for row, length, start in zip(batch.ids, batch.lengths.tolist(), batch.prompt_lengths.tolist(), strict=True):
        ids = row[:length]
        logits = policy.model(input_ids=ids[None].to(policy.model.device), use_cache=False).logits[0].float().cpu()
        logprobs.append(torch.log_softmax(logits[:-1], -1).gather(1, ids[1:, None])[start - 1 :, 0])
    return logprobs


def _difference(policy: HubPolicy, layout: Layout, batch: TokenBatch, alone: Noise) -> str | None:
    """What keeps a layout from being used: its error, or how far its logprobs are off; None if it is right."""
    out = torch.zeros_like(batch.behavior_logprobs)
    for microbatch in microbatches(batch, range(len(batch.ids)), Packing(layout=layout, max_tokens=64)):
        try:
            predicted = forward(policy, microbatch, temperature=1.0)
        except Exception as error:  # each architecture refuses arguments and masks in its own way
            if is_out_of_memory(error):
                raise
            return f"{type(error).__name__}: {error}"
        out[microbatch.rows, microbatch.columns] = predicted.logprobs.float().cpu()
    excess = alone.excess([row[mask] for row, mask in zip(out, batch.loss_mask, strict=True)])
    return None if excess is None else f"they differ by {excess}"
