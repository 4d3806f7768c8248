"""The model's forward for rows of different lengths: with a slot cache, or without any cache."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlvr.core.attention import attention_mask, rows_depend
from rlvr.core.engine.cache import Append, SlotCache, Stored
from rlvr.core.engine.shared_prefix import Grouping, has_engine_attention

MIN_COLUMNS = 16  # a float32 vector register; softmax over fewer columns is not vectorized and five times slower

Tokens = Sequence[int]
Mask = Tensor | dict[str, Tensor]


class CachedRunner:
    """Next-token logits `[R, V]` for rows in slots, without gradients; every token is processed once.

    Rows that start from the same prompt share one copy of it, their prefix. Call within `engine_attention`.
    """

    def __init__(self, model: PreTrainedModel, max_slots: int, *, fixed: bool = False):
        self._model, self._device, self._max_slots = model, model.device, max_slots
        # on a GPU a second set of buffers saves no page faults
        self._cache = SlotCache(max_slots, fixed=fixed or model.device.type != "cpu")
        # transformers 5.24 renames the argument; older releases, and custom code on the Hub, have only the old name
        self._cache_name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        self._owners: list[int] = []  # a row's prefix; -1: none
        self._prefix_lengths: list[int] = []
        self._grouping: Grouping | None = None  # of the current rows; None after a change
        self._longest = 0  # suffix columns in use, an upper bound

    def reset(self, *, reuse: bool = True) -> None:
        """Drop all rows, back to the state of a new runner; without `reuse` the buffers are freed too."""
        self.select([])
        self._cache.rows.clear(reuse=reuse)
        self._cache.prefixes.clear(reuse=reuse)

    def prefill(self, prompts: Sequence[Tokens], owners: Sequence[int]) -> Tensor:
        """Start R = len(owners) rows in the next slots; the i-th has the prefix `prompts[owners[i]]`.

        One right-padded forward; padding on the right cannot affect earlier tokens.
        """
        ids, lengths = right_padded(prompts, self._device)
        first = len(self._prefix_lengths)
        self._prefix_lengths += [len(prompt) for prompt in prompts]
        self._owners += [first + owner for owner in owners]
        self._grouping = None
        self._cache.prefixes.reserve(len(self._prefix_lengths), ids.shape[1])
        self._cache.rows.reserve(len(self._owners), 1)
        positions = torch.arange(ids.shape[1], device=self._device)[None]
        # On a CPU the model is causal by itself. Float32 on a GPU gets a mask: without one, grouped-query attention has
        # no fused float32 kernel, and torch falls back to one that materializes all scores.
        exact = self._device.type != "cpu" and self._model.dtype == torch.float32
        mask = self._causal_mask(positions, ids.shape[1]) if exact else None
        self._cache.start_prompts(first)
        with _only_last(self._model, lengths - 1):
            logits = self._forward(ids, positions, mask)
        return logits[torch.tensor(owners, device=self._device)]

    def extend(self, prompts: Sequence[Tokens], stored: Sequence[Stored]) -> Tensor:
        """Start a row for each prompt, whose first tokens are in `stored`; only the rest is processed."""
        known = [len(kept[0][1]) for kept in stored]
        ids, lengths = right_padded([p[k:] for p, k in zip(prompts, known, strict=True)], self._device)
        positions = torch.tensor(known, device=self._device)[:, None] + torch.arange(ids.shape[1], device=self._device)
        first, num_columns = len(self._owners), max(known) + ids.shape[1]
        self._owners += [-1] * len(prompts)
        self._longest = max(self._longest, *(len(prompt) for prompt in prompts))
        self._grouping = None
        self._cache.rows.reserve(len(self._owners), num_columns)
        self._cache.rows.load(first, stored)
        self._cache.start_rows(Append(first_row=first, positions=positions, num_columns=num_columns))
        with _only_last(self._model, lengths - 1):
            return self._forward(ids, positions, self._causal_mask(positions, num_columns))

    def decode(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Append one token `ids` `[R]` to each row, at `positions` `[R]`: into its suffix."""
        grouping = self._group(positions)
        num_columns = max(self._longest, MIN_COLUMNS - grouping.num_columns)
        self._cache.rows.reserve(len(ids), num_columns)
        return self._step(ids, positions, grouping, num_columns)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only `rows`; slot i gets the contents of slot `rows[i]`."""
        moved = [(source, target) for target, source in enumerate(rows) if source != target]
        if moved:
            sources, targets = torch.tensor(moved, device=self._device).T
            self._cache.rows.move(sources, targets, min(self._longest, self._cache.rows.capacity))
        self._owners = [self._owners[row] for row in rows]
        self._grouping = None
        self._close_gaps()

    def save(self, rows: Sequence[int], lengths: Sequence[int]) -> list[Stored]:
        """Copies of the first `lengths[i]` keys and values of each row, prefix and suffix joined."""
        starts = [self._start(row) for row in rows]
        num_sampled = [length - start for length, start in zip(lengths, starts, strict=True)]
        owners = [max(0, self._owners[row]) for row in rows]
        parts = []
        if any(starts):  # otherwise there may be no buffers yet
            parts.append(self._cache.prefixes.save(owners, starts))
        if any(num_sampled):
            parts.append(self._cache.rows.save(rows, num_sampled))
        return [
            [(same[0][0], torch.cat([states for _, states in same])) for same in zip(*saved, strict=True)]
            for saved in zip(*parts, strict=True)
        ]

    def _step(self, ids: Tensor, positions: Tensor, grouping: Grouping, num_columns: int) -> Tensor:
        """Logits `[N, V]` of ids `[N]` at `positions` `[N]`, with `num_columns` suffix columns."""
        starts = grouping.starts
        columns = positions - starts
        prefix, suffix = (torch.arange(n, device=self._device)[None] for n in (grouping.num_columns, num_columns))
        # [N, P + L]: prefix and suffix columns visible to a row
        allowed, key_positions = suffix <= columns[:, None], starts[:, None] + suffix
        if grouping.num_prefixes:
            allowed = torch.cat([prefix < starts[:, None], allowed], 1)
            key_positions = torch.cat([prefix.expand(len(columns), -1), key_positions], 1)
        queries = positions[:, None].clone()
        mask = self._mask(allowed[:, None, None, :], queries, key_positions)
        self._cache.start_rows(Append(first_row=0, positions=columns[:, None], num_columns=num_columns))
        return self._forward(ids[:, None], queries, mask, grouping)

    def _causal_mask(self, positions: Tensor, num_columns: int) -> Mask:
        columns = torch.arange(num_columns, device=self._device)[None]
        return self._mask(columns[:, None, None] <= positions[:, None, :, None], positions, columns)

    def _mask(self, allowed: Tensor, positions: Tensor, key_positions: Tensor) -> Mask:
        return attention_mask(self._model.config, allowed, positions, key_positions, self._model.dtype)

    def _forward(self, ids: Tensor, positions: Tensor, mask: Mask | None, grouping: Grouping | None = None) -> Tensor:
        if not has_engine_attention(self._model):
            raise RuntimeError("its attention cannot share prefixes")
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            grouping=grouping,
            **{self._cache_name: self._cache},
        )
        return output.logits[:, -1]

    # ------------------------------------------------------------------------------------------------ rows and prefixes

    def _start(self, row: int) -> int:
        """Length of a row's prefix."""
        return self._prefix_lengths[self._owners[row]] if self._owners[row] >= 0 else 0

    def _rounded(self, count: int) -> int:
        """Hook of `GraphedRunner`, which rounds sizes up."""
        return count

    def _group(self, positions: Tensor) -> Grouping:
        """The grouping of the next step, sizes rounded; counts the column that the step writes."""
        if self._grouping is None:
            self._grouping = self._make_grouping()
            self._longest = int((positions - self._grouping.starts[: len(positions)]).max())
        self._longest += 1
        return self._grouping

    def _make_grouping(self) -> Grouping:
        num_prefixes, num_rows = len(self._prefix_lengths), len(self._owners)
        groups: list[list[int]] = [[] for _ in range(num_prefixes)]
        if groups:
            for row, owner in sorted(enumerate(self._owners), key=lambda item: item[1] < 0):
                groups[owner if owner >= 0 else row % num_prefixes].append(row)
        size = self._rounded(max(map(len, groups), default=0))
        padded = min(self._max_slots, self._rounded(num_rows))
        count = min(self._max_slots, self._rounded(num_prefixes))
        members, places = [0] * (count * size), [0] * (padded if groups else 0)
        for owner, group in enumerate(groups):
            for place, row in enumerate(group, owner * size):
                members[place], places[row] = row, place
        starts = [self._start(row) for row in range(num_rows)] + [0] * (padded - num_rows)
        regular = not groups or members == list(range(padded))
        return Grouping(
            prefixes=self._cache.prefixes,
            num_prefixes=count,
            num_columns=self._rounded(max(self._prefix_lengths, default=0)),
            starts=torch.tensor(starts, device=self._device),
            members=None if regular else torch.tensor(members, device=self._device),
            places=None if regular else torch.tensor(places, device=self._device),
        )

    def _close_gaps(self) -> None:
        """Move the last prefixes into the slots of unused ones."""
        used = {owner for owner in self._owners if owner >= 0}
        sources = [owner for owner in sorted(used) if owner >= len(used)]
        targets = [prefix for prefix in range(len(used)) if prefix not in used]
        if sources:
            columns = max(self._prefix_lengths[source] for source in sources)
            source, target = (torch.tensor(slots, device=self._device) for slots in (sources, targets))
            self._cache.prefixes.move(source, target, columns)
            to = dict(zip(sources, targets, strict=True))
            for old, new in to.items():
                self._prefix_lengths[new] = self._prefix_lengths[old]
            self._owners = [to.get(owner, owner) for owner in self._owners]
        del self._prefix_lengths[len(used) :]


class FullForwardRunner:
    """`CachedRunner` without a cache: each token costs a forward of its whole sequence. Works for any causal model."""

    def __init__(self, model: PreTrainedModel, max_slots: int):
        self._model = model
        self._rows: list[list[int]] = []

    def reset(self, *, reuse: bool = True) -> None:
        self._rows = []

    def prefill(self, prompts: Sequence[Tokens], owners: Sequence[int]) -> Tensor:
        self._rows += [list(prompts[owner]) for owner in owners]
        return self._forward(prompts)[torch.tensor(owners, device=self._model.device)]

    def extend(self, prompts: Sequence[Tokens], stored: Sequence[Stored]) -> Tensor:
        """Process the whole prompts: `stored` is empty."""
        return self.prefill(prompts, range(len(prompts)))

    def decode(self, ids: Tensor, positions: Tensor) -> Tensor:
        for row, token in zip(self._rows, ids.tolist(), strict=True):
            row.append(token)
        return self._forward(self._rows)

    def select(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]

    def save(self, rows: Sequence[int], lengths: Sequence[int]) -> list[Stored]:
        return []

    def _forward(self, rows: Sequence[Tokens]) -> Tensor:
        if len(rows) > 1 and rows_depend(self._model.config):
            return torch.cat([self._forward([row]) for row in rows])
        ids, lengths = right_padded(rows, self._model.device)
        mask = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
        with _only_last(self._model, lengths - 1):
            return self._model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, -1]


Runner = CachedRunner | FullForwardRunner


def right_padded(prompts: Sequence[Tokens], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids `[R, longest]`, padded with 0 on the right, and lengths `[R]`."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
    return ids, torch.tensor([len(prompt) for prompt in prompts], device=device)


@contextmanager
def _only_last(model: PreTrainedModel, last: Tensor) -> Iterator[None]:
    """Apply the head only to the hidden state at `last` `[R]` of each row: logits become `[R, 1, V]`.

    A hook on the head works for every architecture, including scaled logits and adapters.
    """
    head = model.get_output_embeddings()
    if head is None:
        yield
        return
    rows = torch.arange(len(last), device=last.device)
    handle = head.register_forward_pre_hook(lambda module, args: (args[0][rows, last].unsqueeze(1), *args[1:]))
    try:
        yield
    finally:
        handle.remove()
