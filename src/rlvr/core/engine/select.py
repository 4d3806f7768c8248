"""Choice of the runner: the fastest whose logprobs match a plain forward."""

from collections.abc import Callable

import torch
from transformers import PretrainedConfig, PreTrainedModel

from rlvr.core.attention import FULL, SLIDING, layer_kinds
from rlvr.core.devices import exact_products
from rlvr.core.engine import cache
from rlvr.core.engine.graphs import GraphedRunner
from rlvr.core.engine.runner import CachedRunner, FullForwardRunner, Runner

MakeRunner = Callable[[PreTrainedModel, int], Runner]
"""From a model and the number of slots."""


def choose_runner(model: PreTrainedModel) -> tuple[MakeRunner, str | None]:
    """The fastest correct runner and, if that is the slow one, the reason. Call within `engine_attention`."""
    reason = unfit(model.config)
    if reason is None:
        for kind in [*([GraphedRunner] if model.device.type == "cuda" else []), CachedRunner]:
            with exact_products():
                reason = probe(model, kind)
            if reason is None:
                return kind, None
    return FullForwardRunner, reason


def unfit(config: PretrainedConfig) -> str | None:
    """Why our cache does not fit, from the configuration alone, for cases that `probe`'s short rows may miss."""
    other = layer_kinds(config) - {FULL, SLIDING}
    if other:
        return f"layers of kind {', '.join(sorted(other))}"
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = {rope.get("rope_type")} | {r.get("rope_type") for r in rope.values() if isinstance(r, dict)}
    if kinds & {"dynamic", "longrope"}:
        return "rotary positions that depend on the longest row of the batch"
    return None


def probe(model: PreTrainedModel, kind: MakeRunner, num_slots: int = 4) -> str | None:
    """Compare a few tokens with a plain forward; None if they agree, else the difference.

    Four rows of three prompts; the first two rows share one.
    """
    vocabulary = model.config.get_text_config().vocab_size
    prompts = [[(7 * row + 3 * i + 1) % vocabulary for i in range(4 + row)] for row in (0, 1, 2)]
    owners = [0, 0, 1, 2]
    rows = [[*prompts[owner], (5 * i + 2) % vocabulary, (i + 3) % vocabulary] for i, owner in enumerate(owners)]
    try:
        runner = kind(model, num_slots)
        runner.prefill(prompts, owners)
        for step in (2, 1):
            ids = torch.tensor([row[-step] for row in rows], device=model.device)
            positions = torch.tensor([len(row) - step for row in rows], device=model.device)
            logits = runner.decode(ids, positions)
    except Exception as error:
        return f"a cache the model cannot use ({type(error).__name__}: {error})"
    if isinstance(runner, GraphedRunner) and runner.graphs.gave_up:
        return "steps that cannot be recorded"
    alone = [model(input_ids=torch.tensor([row], device=model.device), use_cache=False).logits[0, -1] for row in rows]
    plain = torch.log_softmax(torch.stack(alone).float(), -1)
    gap = (torch.log_softmax(logits.float(), -1) - plain).abs()
    is_exact = {model.dtype, cache.KV_DTYPE or model.dtype} == {torch.float32}
    found, bound = (gap.max(), 1e-3) if is_exact else (gap.mean(), 0.1)
    spread = float((plain.amax(-1) - plain.amin(-1)).max())  # flat logits change little with a wrong context
    if float(found) > bound * min(1.0, max(0.01, spread / 10)):
        return f"logprobs that differ by {float(gap.max()):.2g} from a plain forward"
    return None
