"""Decode attention with one copy of a prompt's keys and values for its whole group.

Reading keys and values bounds the decoding speed of small models. A prompt is kept once for its G completions, and the
group's queries use it in one matrix product; only sampled tokens are kept per row. This follows Hydragen (Juravsky et
al. 2024, arXiv:2402.05099), with one softmax over both parts.

    rows    prompt (prefix)      sampled (suffix, columns start again at 0)
    0  1    p0 p1 p2 p3          a0 a1  |  b0 b1 b2
    2       q0 q1                c0

    scores of row 2:  q0 q1 -- -- | c0 -- --        -- masked

Keys of a row are ordered prefix first, then suffix; the mask orders them by position.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlvr.core.devices import has_flash_attention
from rlvr.core.engine.cache import Slots

MIN_PRODUCT = 400  # torch's batched matrix product uses BLAS from this many multiplications on


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Which of N rows share which of U prefixes, at most G rows each; U may be 0.

    Rows 0 1 of prefix 0 and row 2 of prefix 1: members `0 1 2 0` (padded with row 0), places `0 1 2`. A row without a
    prefix joins any group with all prefix columns masked, so their contribution is exactly 0.
    """

    prefixes: Slots
    num_prefixes: int
    num_columns: int  # the longest prefix
    starts: Tensor  # [N] length of a row's prefix, 0: none
    members: Tensor | None = None  # [U * G] rows; None for 0 1 2 .., and then places is None
    places: Tensor | None = None  # [N] index of a row in members

    def spread(self, rows: Tensor) -> Tensor:
        """`[N, H, r, X]` -> `[U, H, G * r, X]`: the rows of a prefix side by side."""
        if self.members is not None:
            rows = rows[self.members]
        _, heads, repeats, width = rows.shape
        return rows.view(self.num_prefixes, -1, heads, repeats, width).transpose(1, 2).flatten(2, 3)

    def collect(self, groups: Tensor, repeats: int) -> Tensor:
        """The inverse: `[U, H, G * r, X]` -> `[N, H, r, X]`."""
        rows = groups.unflatten(2, (-1, repeats)).transpose(1, 2).flatten(0, 1)
        return rows if self.places is None else rows[self.places]

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, **how) -> Tensor:
        """Attention `[N, 1, heads, D]` of one query a row `[N, heads, 1, D]` over the prefixes and `keys`
        `[N, kv_heads, L, D]`. `how` may hold `scaling`, Gemma 2's `softcap` and gpt-oss' sinks `s_aux` `[heads]`."""
        num_rows, num_heads, _, head_dim = query.shape
        repeats, columns = num_heads // keys.shape[1], self.num_columns
        scaling, softcap, sinks = (how.get(name) for name in ("scaling", "softcap", "s_aux"))
        query = query * (float(head_dim) ** -0.5 if scaling is None else scaling)
        query = query.reshape(num_rows, -1, repeats, head_dim)
        scores = torch.matmul(query, keys.transpose(2, 3))
        used = slice(self.num_prefixes)
        shared = [self.prefixes.read((layer, which), used, columns, keys.dtype) for which in (0, 1) if used.stop]
        if shared:
            prefix_scores = torch.matmul(self.spread(query), shared[0].transpose(2, 3))
            scores = torch.cat([self.collect(prefix_scores, repeats), scores], -1)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores.add_(mask)
        if sinks is not None:
            scores = torch.cat([scores, sinks.view(1, -1, repeats, 1).expand(num_rows, -1, -1, -1)], -1)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(values.dtype)
        output = _weighted_sum(weights[..., columns : columns + keys.shape[2]], values)
        if shared:
            output.add_(self.collect(torch.matmul(self.spread(weights[..., :columns]), shared[1]), repeats))
        return output.view(num_rows, 1, num_heads, -1)


def _weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """`[N, H, r, L] @ [N, H, L, D]`. torch's CPU kernel for tiny products is slow: 106 us against 53 us."""
    if values.device.type != "cpu" or values.shape[2] * values.shape[3] >= MIN_PRODUCT:
        return torch.matmul(weights, values)
    return (weights.unsqueeze(-1) * values.unsqueeze(2)).sum(3)


@dataclass(frozen=True)
class EngineAttention:
    """transformers' attention interface: `usual` attention, or over `grouping`, a keyword of the model's forward."""

    usual: str

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **how
    ) -> tuple[Tensor, Tensor | None]:
        """`[R, Q, heads, D]` from queries `[R, heads, Q, D]`; weights only where the usual one returns them."""
        grouping: Grouping | None = how.pop("grouping", None)
        if grouping is None:
            attend = ALL_ATTENTION_FUNCTIONS.get(self.usual) or sys.modules[module.__module__].eager_attention_forward
            return attend(module, query, key, value, attention_mask, **how)
        if attention_mask is None or how.get("position_bias") is not None:
            raise ValueError("attention with a position_bias cannot share prefixes")
        layer: int = module.layer_idx  # pyright: ignore[reportAssignmentType]
        return grouping.attend(layer, query, key, value, attention_mask, **how), None


for _usual in ("sdpa", "eager"):
    AttentionInterface.register(f"rlvr_{_usual}", EngineAttention(_usual))
    AttentionMaskInterface.register(f"rlvr_{_usual}", ALL_MASK_ATTENTION_FUNCTIONS[_usual])


_serving: dict[int, tuple[int, str | None]] = {}
"""For each configuration id: number of engines serving its model, and its usual attention."""


def has_engine_attention(model: PreTrainedModel) -> bool:
    """True if the model is inside `engine_attention` with an attention that supports groupings."""
    return str(model.config.get_text_config()._attn_implementation).startswith("rlvr_")


@contextmanager
def engine_attention(model: PreTrainedModel) -> Iterator[None]:
    """Switch the model to the engine's attention while serving; unsupported kinds are left unchanged.

    torch's sdpa replaces flash-attn, which takes no masks. The usual attention returns when the last engine over the
    model leaves the block.
    """
    config = model.config.get_text_config()
    num_before, before = _serving.get(id(config), (0, config._attn_implementation))
    _serving[id(config)] = num_before + 1, before
    if not num_before:
        usual = "sdpa" if has_flash_attention(model) else before
        config._attn_implementation = f"rlvr_{usual}" if usual in ("sdpa", "eager") else usual
    try:
        yield
    finally:
        num_now, _ = _serving.pop(id(config))
        if num_now > 1:
            _serving[id(config)] = num_now - 1, before
        else:
            config._attn_implementation = before
