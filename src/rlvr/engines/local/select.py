"""Choice of the runner: the fastest one that gives the logprobs of a plain forward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from rlvr.engines.local.graphed import GraphedRunner
from rlvr.engines.local.runner import CachedRunner, FullForwardRunner, Runner
from rlvr.engines.local.shared_prefix import SharedPrefixRunner
from rlvr.models.attention import unsupported_attention
from rlvr.models.devices import exact_products

MakeRunner = Callable[[PreTrainedModel, int], Runner]
"""From a model and the number of slots."""


def choose_runner(model: PreTrainedModel) -> tuple[MakeRunner, str | None]:
    """The fastest correct runner and, if that is the slow one, the reason."""
    reason = unsupported_attention(model.config)
    if reason is None:
        for kind in cached_runners(model.device):
            with exact_products():
                reason = _probe(model, kind)
            if reason is None:
                return kind, None
    return FullForwardRunner, reason


def cached_runners(device: torch.device) -> list[type[CachedRunner]]:
    """Runners that keep keys and values, the fastest one on this device first."""
    return [*([GraphedRunner] if device.type == "cuda" else []), SharedPrefixRunner, CachedRunner]


def _probe(model: PreTrainedModel, kind: MakeRunner, num_slots: int = 4) -> str | None:
    """Compare a few tokens with a plain forward; None if they agree, else the difference.

    Four rows of three prompts: the first two share one.
    """
    vocabulary = model.config.get_text_config().vocab_size
    prompts = [[(7 * row + 3 * i + 1) % vocabulary for i in range(4 + row)] for row in (0, 1, 2)]
    copies = [0, 0, 1, 2]
    rows = [[*prompts[copy], (5 * i + 2) % vocabulary, (i + 3) % vocabulary] for i, copy in enumerate(copies)]
    try:
        runner = kind(model, num_slots)
        runner.prefill(0, prompts, copies)
        for step in (2, 1):
            ids = torch.tensor([row[-step] for row in rows], device=model.device)
            lengths = torch.tensor([len(row) - step for row in rows], device=model.device)
            logits = runner.decode(ids, lengths, int(lengths.max()))
    except Exception as error:
        return f"a cache the model cannot use ({type(error).__name__}: {error})"
    if isinstance(runner, GraphedRunner) and runner.graphs.gave_up:
        return "steps that cannot be recorded"
    plain = [model(input_ids=torch.tensor([row], device=model.device), use_cache=False).logits[0, -1] for row in rows]
    gap = (torch.log_softmax(logits.float(), -1) - torch.log_softmax(torch.stack(plain).float(), -1)).abs()
    single = model.dtype == torch.float32
    if float(gap.max() if single else gap.mean()) > (1e-3 if single else 0.1):
        return f"logprobs that differ by {float(gap.max()):.2g} from a plain forward"
    return None
