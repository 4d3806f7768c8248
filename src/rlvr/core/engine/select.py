"""Choice of the runner: the fastest whose logprobs match a plain forward."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from rlvr.core.attention import FULL, SLIDING, layer_kinds, rows_depend
from rlvr.core.devices import exact_products, is_out_of_memory
from rlvr.core.engine import cache
from rlvr.core.engine.graphs import GraphedRunner
from rlvr.core.engine.runner import CachedRunner, FullForwardRunner, Runner
from rlvr.core.noise import NUM_COMPARED, Prompts, confirmed, measure, probe_rows

MakeRunner = Callable[[PreTrainedModel, int], Runner]
"""From a model and the number of slots."""


def choose_runner(model: PreTrainedModel, prompts: Prompts = ()) -> tuple[MakeRunner, str | None]:
    """The fastest correct runner and, if that is the slow one, the reason. Call within `engine_attention`.

    `prompts` are what the model will be asked, or some of it: their text is what runners are compared on.
    """
    reason = unfit(model.config)
    if reason is None:
        for kind in [*([GraphedRunner] if model.device.type == "cuda" else []), CachedRunner]:
            reason = probe(model, kind, prompts)
            if reason is None:
                return kind, None
    return FullForwardRunner, reason


def unfit(config: PretrainedConfig) -> str | None:
    """Why our cache does not fit, from the configuration alone, for cases that `probe`'s short rows may miss."""
    unknown = layer_kinds(config) - {FULL, SLIDING}
    if unknown:
        return f"layers of kind {', '.join(sorted(unknown))}"
    if rows_depend(config):
        return "rotary positions that depend on the longest row of the batch"
    return None


LENGTHS = (12, 12, 30, 3)
"""Tokens of the prompts of the probe's rows. A pretrained model is least noisy on long ones; in one with nearly flat
attention a lost token shows on short ones only. The first two are the same."""


def probe(model: PreTrainedModel, kind: MakeRunner, prompts: Prompts = ()) -> str | None:
    """Compare the decoded tokens of a few rows with a plain forward; None if they agree, else the difference.

    Four rows of three prompts, and `NUM_COMPARED` decoded tokens for each.
    """
    return confirmed(partial(_difference, model, kind, prompts))


def _difference(model: PreTrainedModel, kind: MakeRunner, prompts: Prompts, look: int) -> str | None:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or max(LENGTHS)
    lengths = [max(2, min(length, limit - NUM_COMPARED)) + NUM_COMPARED for length in LENGTHS]
    rows = probe_rows(prompts, model.config.get_text_config().vocab_size, lengths, look)
    rows[1][:-NUM_COMPARED] = rows[0][:-NUM_COMPARED]
    with exact_products():
        noise = measure(model, _coarser(model.dtype, cache.KV_DTYPE), partial(_ends_alone, model, rows))
        if not all(row.isfinite().all() for row in noise.plain):
            return None  # the weights hold NaN, which the first step of a run says
        try:
            runner = kind(model, len(rows))
            logits = _decoded(runner, rows, model.device)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return f"a cache the model cannot use ({type(error).__name__}: {error})"
    if isinstance(runner, GraphedRunner) and runner.graphs.gave_up:
        return "steps that cannot be recorded"
    excess = noise.excess(torch.log_softmax(logits.float(), -1).unbind())
    return None if excess is None else f"logprobs that differ from a plain forward by {excess}"


def _ends_alone(model: PreTrainedModel, rows: Prompts) -> list[Tensor]:
    """Logprobs [N, V] after each of a row's last tokens, by a plain forward pass of each row alone."""
    ids = (torch.tensor([row], device=model.device) for row in rows)
    logits = (model(input_ids=row, use_cache=False).logits[0, -NUM_COMPARED:] for row in ids)
    return [torch.log_softmax(of_row.float(), -1) for of_row in logits]


def _decoded(runner: Runner, rows: Prompts, device: torch.device) -> Tensor:
    """Logits [R, N, V] after each of a row's last tokens, which are decoded one at a time."""
    runner.prefill([rows[i][:-NUM_COMPARED] for i in (0, 2, 3)], [0, 0, 1, 2])
    steps = []
    for step in range(NUM_COMPARED, 0, -1):
        ids = torch.tensor([row[-step] for row in rows], device=device)
        steps.append(runner.decode(ids, torch.tensor([len(row) - step for row in rows], device=device)).clone())
    return torch.stack(steps, 1)


def _coarser(dtype: torch.dtype, other: torch.dtype | None) -> torch.dtype:
    return dtype if other is None or torch.finfo(other).eps <= torch.finfo(dtype).eps else other
