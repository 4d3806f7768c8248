"""Decoding with one copy of a prompt's keys and values for its whole group.

Decoding of small models is bound by reading keys and values. Here a prompt is kept once for its G completions and the
queries of the group meet it in one matrix product; only sampled tokens are kept per row (the idea of Hydragen,
Juravsky et al. 2024, arXiv:2402.05099, with one softmax over both parts, as the scores of one query are few):

    rows    prompt (prefix)      sampled (suffix, columns start again at 0)
    0  1    p0 p1 p2 p3          a0 a1  |  b0 b1 b2
    2       q0 q1                c0

    scores of row 2:  q0 q1 -- -- | c0 -- --        -- masked

The order of a row's keys is prefix columns, then suffix columns; both go into the mask by position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from rlvr.engines.local.cache import Append, Fresh, SlotCache, Stored
from rlvr.engines.local.runner import CachedRunner, Tokens, right_padded
from rlvr.models.attention import attention_mask

ATTENTION = "rlvr_shared_prefix"
MIN_PRODUCT = 400  # multiplications from which torch's batched matrix product uses a BLAS
MIN_COLUMNS = 16  # a float32 vector register; softmax over fewer is not vectorized, and five times slower


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Which of N rows share which of U prefixes, at most G rows each.

    Rows 0 1 of prefix 0 and row 2 of prefix 1: members `0 1 2 0` (padded with row 0), places `0 1 2`. A row without a
    prefix joins any group: all its prefix columns are masked, so it gets exactly 0 from there.
    """

    num_prefixes: int
    num_columns: int  # the longest prefix
    members: Tensor | None  # [U * G] rows; None where it would be 0 1 2 .., in which case places is None too
    places: Tensor | None  # [N] index of a row in members

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


class SharedPrefixCache(SlotCache):
    """The sampled tokens of each row; the prompts are in `prefixes`, one a slot."""

    def __init__(self, max_slots: int, *, keeps: bool = False):
        super().__init__(max_slots, keeps=keeps)
        self.prefixes = SlotCache(max_slots, keeps=keeps)
        self.grouping: Grouping | None = None
        self._layer_idx = -1

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """As `SlotCache.update`; the layer's attention comes next."""
        self._layer_idx = layer_idx
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
        """Attention of one query a row `[N, heads, 1, D]` over the prefixes and `keys` `[N, kv_heads, L, D]`."""
        num_rows, num_heads, _, head_dim = query.shape
        repeats = num_heads // keys.shape[1]
        query = (query * scaling).reshape(num_rows, -1, repeats, head_dim)
        scores = torch.matmul(query, keys.transpose(2, 3))
        grouping = self.grouping
        if grouping is None:
            weights = torch.softmax(scores + mask, -1, dtype=torch.float32).to(values.dtype)
            return _weighted_sum(weights, values).view(num_rows, 1, num_heads, -1)
        count, columns = grouping.num_prefixes, grouping.num_columns
        prefix_keys, prefix_values = self.prefixes.buffers[self._layer_idx]
        prefix_keys, prefix_values = prefix_keys[:count, :, :columns], prefix_values[:count, :, :columns]
        shared = torch.matmul(grouping.spread(query), prefix_keys.transpose(2, 3))
        scores = torch.cat([grouping.collect(shared, repeats), scores], -1)
        weights = torch.softmax(scores.add_(mask), -1, dtype=torch.float32).to(values.dtype)
        own = _weighted_sum(weights[..., columns:], values)
        shared = torch.matmul(grouping.spread(weights[..., :columns]), prefix_values)
        return own.add_(grouping.collect(shared, repeats)).view(num_rows, 1, num_heads, -1)


def _weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """`[N, H, r, L] @ [N, H, L, D]`. torch's kernel for tiny products is slow on the CPU: 106 us against 53 us."""
    if values.device.type != "cpu" or values.shape[2] * values.shape[3] >= MIN_PRODUCT:
        return torch.matmul(weights, values)
    return (weights.unsqueeze(-1) * values.unsqueeze(2)).sum(3)


def shared_prefix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    slot_cache: SharedPrefixCache | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """transformers' attention interface; the cache comes along as a keyword of the model's forward."""
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if unknown or slot_cache is None:
        raise ValueError(f"attention with {', '.join(unknown) or 'no slot_cache'} cannot share prefixes")
    scale = float(query.shape[-1]) ** -0.5 if scaling is None else scaling
    return slot_cache.attend(query, key, value, attention_mask, scale), None


AttentionInterface.register(ATTENTION, shared_prefix_attention)


class SharedPrefixRunner(CachedRunner):
    """A `CachedRunner` that keeps each prompt once for all rows that started from it together."""

    def __init__(self, model: PreTrainedModel, max_slots: int, *, keeps: bool | None = None):
        """`keeps`: as of `SlotCache`; None: on a GPU."""
        cache = SharedPrefixCache(max_slots, keeps=model.device.type == "cuda" if keeps is None else keeps)
        super().__init__(model, max_slots, cache)
        self._shared = cache
        self._config = model.config.get_text_config()
        self._owners: list[int] = []  # a row's prefix, -1: none, all its tokens are in the row
        self._prefix_lengths: list[int] = []
        self._starts = torch.zeros(max_slots, dtype=torch.int64, device=self._device)  # [slots] a row's prefix length
        self._grouped = False  # grouping and _longest are up to date
        self._longest = 0  # suffix columns in use, an upper bound

    def reset(self, *, reuse: bool = True) -> None:
        """Empty buffers, for suffixes and prefixes."""
        self._drop_rows(0)
        self._shared.clear(reuse=reuse)
        self._shared.prefixes.clear(reuse=reuse)

    def prefill(self, first_row: int, prompts: Sequence[Tokens], copies: Sequence[int]) -> Tensor:
        """Store each prompt once."""
        self._drop_rows(first_row)
        ids, lengths = right_padded(prompts, self._device)
        first, index = len(self._prefix_lengths), torch.tensor(copies, device=self._device)
        self._shared.prefixes.reserve(first + len(prompts), ids.shape[1])
        self._shared.reserve(first_row + len(copies), 1)
        each = torch.arange(len(prompts), device=self._device)
        self._shared.prefixes.start(Fresh(first_row=first, copies=each, group_size=1))
        positions = torch.arange(ids.shape[1], device=self._device)[None]
        mask = self._prompt_mask(positions)
        logits = self._forward(ids, positions, mask, lengths - 1, past_key_values=self._shared.prefixes)
        self._prefix_lengths += [len(prompt) for prompt in prompts]
        self._owners += [first + copy for copy in copies]
        self._starts[first_row : first_row + len(copies)] = lengths[index]
        self._grouped = False
        return logits[index]

    def extend(
        self, first_row: int, prompts: Sequence[Tokens], stored: Sequence[Stored], known: Sequence[int]
    ) -> Tensor:
        """All tokens go into the row."""
        self._drop_rows(first_row)
        self._owners += [-1] * len(prompts)
        self._starts[first_row : first_row + len(prompts)] = 0
        self._grouped = False
        self._longest = max(self._longest, *(len(prompt) for prompt in prompts))
        return super().extend(first_row, prompts, stored, known)

    def decode(self, ids: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """One token a row, into its suffix."""
        starts = self._starts[: len(ids)]
        self._prepare(len(ids), lengths - starts)
        grouping = self._shared.grouping
        num_columns = max(self._longest, MIN_COLUMNS - (grouping.num_columns if grouping else 0))
        self._shared.reserve(len(ids), num_columns)
        return self._step(ids, lengths, starts, num_columns)

    def _prepare(self, num_rows: int, columns: Tensor) -> None:
        """Bring the grouping up to date with the rows that are left; count the column that is written next."""
        self._drop_rows(num_rows)
        if not self._grouped:
            self._group()
            self._longest = int(columns.max())
        self._longest += 1

    def _step(self, ids: Tensor, lengths: Tensor, starts: Tensor, num_columns: int) -> Tensor:
        """Logits `[N, V]` of ids `[N]` at the positions `lengths` `[N]`, in suffixes that begin at `starts` `[N]`."""
        columns = lengths - starts
        self._shared.start(Append(first_row=0, positions=columns[:, None], num_columns=num_columns))
        positions = lengths[:, None].clone()
        mask = self._split_mask(positions, columns, starts, num_columns)
        before = self._config._attn_implementation
        self._config._attn_implementation = ATTENTION
        try:
            return self._forward(
                ids[:, None], positions, mask, None, past_key_values=self._shared, slot_cache=self._shared
            )
        finally:
            self._config._attn_implementation = before

    def move(self, sources: Tensor, targets: Tensor, num_tokens: int) -> None:
        """Copy whole slots; prefixes stay where they are."""
        self._shared.move(sources, targets, min(self._longest, self._shared.capacity))
        self._starts[targets] = self._starts[sources]
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self._owners[target] = self._owners[source]
        self._grouped = False

    def save(self, rows: Sequence[int], lengths: Sequence[int]) -> list[Stored]:
        """Each row's prefix and suffix in one."""
        starts = [self._prefix_lengths[self._owners[row]] if self._owners[row] >= 0 else 0 for row in rows]
        if not any(starts):
            return self._shared.save(rows, lengths)
        owners = [max(0, self._owners[row]) for row in rows]
        planes, prefixes = self._shared.prefixes.gather(owners, max(starts))
        num_sampled = [length - start for length, start in zip(lengths, starts, strict=True)]
        # where nothing is taken of suffixes there may be none yet
        suffixes = self._shared.gather(rows, max(num_sampled))[1] if any(num_sampled) else prefixes
        return [
            Stored(
                planes=planes,
                tensors=tuple(
                    torch.cat([prefix[i, :start], suffix[i, :count]])
                    for prefix, suffix in zip(prefixes, suffixes, strict=True)
                ),
            )
            for i, (start, count) in enumerate(zip(starts, num_sampled, strict=True))
        ]

    def _split_mask(
        self, positions: Tensor, columns: Tensor, starts: Tensor, num_columns: int
    ) -> Tensor | dict[str, Tensor]:
        """`[N, 1, 1, P + L]`: which prefix columns and which suffix columns a row sees."""
        suffix = self._column_range(num_columns)
        allowed, key_positions = suffix <= columns[:, None], starts[:, None] + suffix
        grouping = self._shared.grouping
        if grouping is not None:
            prefix = self._column_range(grouping.num_columns)
            allowed = torch.cat([prefix < starts[:, None], allowed], 1)
            key_positions = torch.cat([prefix.expand(len(columns), -1), key_positions], 1)
        return attention_mask(
            self._model.config, allowed[:, None, None, :], positions, key_positions, self._model.dtype
        )

    def _drop_rows(self, count: int) -> None:
        """Rows from `count` on have left; close the gaps of prefixes without rows, with the last prefixes."""
        if len(self._owners) > count:
            del self._owners[count:]
            self._grouped = False
        used = {owner for owner in self._owners if owner >= 0}
        if self._grouped or len(used) == len(self._prefix_lengths):
            return
        sources = [owner for owner in sorted(used) if owner >= len(used)]
        targets = [i for i in range(len(used)) if i not in used]
        if sources:
            columns = max(self._prefix_lengths[source] for source in sources)
            source, target = (torch.tensor(slots, device=self._device) for slots in (sources, targets))
            self._shared.prefixes.move(source, target, columns)
            to = dict(zip(sources, targets, strict=True))
            for old, new in to.items():
                self._prefix_lengths[new] = self._prefix_lengths[old]
            self._owners = [to.get(owner, owner) for owner in self._owners]
        del self._prefix_lengths[len(used) :]

    def _group(self) -> None:
        """Derive the grouping from the owners."""
        self._grouped = True
        if not self._prefix_lengths:
            self._shared.grouping = None
            return
        members, places, _ = self._members()
        regular = members == list(range(len(self._owners)))
        self._shared.grouping = Grouping(
            num_prefixes=len(self._prefix_lengths),
            num_columns=max(self._prefix_lengths),
            members=None if regular else torch.tensor(members, device=self._device),
            places=None if regular else torch.tensor(places, device=self._device),
        )

    def _members(self) -> tuple[list[int], list[int], int]:
        """`members` and `places` of the grouping, and G."""
        rows: list[list[int]] = [[] for _ in self._prefix_lengths]
        for row, owner in enumerate(self._owners):
            if owner >= 0:
                rows[owner].append(row)
        for row, owner in enumerate(self._owners):
            if owner < 0:
                rows[row % len(rows)].append(row)
        size = max(len(members) for members in rows)
        members = [row for group in rows for row in [*group, *[0] * (size - len(group))]]
        places = [0] * len(self._owners)
        for owner, group in enumerate(rows):
            for i, row in enumerate(group):
                places[row] = owner * size + i
        return members, places, size
