"""The model's forward for rows of different lengths: with a slot cache, or in full where that cannot serve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlvr.core.attention import attention_mask
from rlvr.core.engine.cache import Append, SlotCache, Stored
from rlvr.core.engine.shared_prefix import Grouping

MIN_COLUMNS = 16  # a float32 vector register; softmax over fewer is not vectorized, and five times slower

Tokens = Sequence[int]
Mask = Tensor | dict[str, Tensor]


class CachedRunner:
    """Next-token logits `[R, V]` for rows in slots, without gradients; every token goes through the model once.

    Each prompt is kept once for all rows that started from it together: their prefix. To be called within
    `engine_attention`.
    """

    def __init__(self, model: PreTrainedModel, max_slots: int, *, keeps: bool = False):
        self._model, self._device, self._max_slots = model, model.device, max_slots
        # on a GPU there are no page faults to save by a second set of buffers
        self._cache = SlotCache(max_slots, keeps=keeps or model.device.type == "cuda")
        self._owners: list[int] = []  # a row's prefix, -1: none, all its tokens are in the row
        self._prefix_lengths: list[int] = []
        self._starts = torch.zeros(max_slots, dtype=torch.int64, device=self._device)  # a row's prefix length
        self._grouped = False  # _grouping and _longest are up to date
        self._grouping = Grouping(prefixes=self._cache.prefixes, num_prefixes=0, num_columns=0)
        self._longest = 0  # suffix columns in use, an upper bound

    def reset(self, *, reuse: bool = True) -> None:
        """All rows have left: go back to the state of a new runner; without `reuse` nothing written before survives."""
        self._drop_rows(0)
        self._cache.rows.clear(reuse=reuse)
        self._cache.prefixes.clear(reuse=reuse)

    def prefill(self, first_row: int, prompts: Sequence[Tokens], copies: Sequence[int]) -> Tensor:
        """Start R = len(copies) rows: the slot `first_row + i` gets `prompts[copies[i]]`.

        One right-padded forward; what is to the right of a token cannot reach it.
        """
        self._drop_rows(first_row)
        ids, lengths = right_padded(prompts, self._device)
        first, index = len(self._prefix_lengths), torch.tensor(copies, device=self._device)
        self._cache.prefixes.reserve(first + len(prompts), ids.shape[1])
        self._cache.rows.reserve(first_row + len(copies), 1)
        positions = torch.arange(ids.shape[1], device=self._device)[None]
        # On a CPU the model is causal by itself. Float32 on a GPU gets a mask: without one, grouped-query attention
        # takes a kernel without float32, and torch falls back to one that holds all scores.
        exact = self._device.type != "cpu" and self._model.dtype == torch.float32
        mask = self._mask(positions, ids.shape[1]) if exact else None
        logits = self._forward(first, ids, positions, mask, last=lengths - 1)
        self._prefix_lengths += [len(prompt) for prompt in prompts]
        self._owners += [first + copy for copy in copies]
        self._starts[first_row : first_row + len(copies)] = lengths[index]
        self._grouped = False
        return logits[index]

    def extend(
        self, first_row: int, prompts: Sequence[Tokens], stored: Sequence[Stored], known: Sequence[int]
    ) -> Tensor:
        """Start rows whose first `known[i]` tokens are stored; only the rest goes through the model."""
        self._drop_rows(first_row)
        ids, lengths = right_padded([p[k:] for p, k in zip(prompts, known, strict=True)], self._device)
        positions = torch.tensor(known, device=self._device)[:, None] + torch.arange(ids.shape[1], device=self._device)
        num_columns = max(known) + ids.shape[1]
        self._cache.rows.reserve(first_row + len(prompts), num_columns)
        self._cache.rows.load(first_row, stored, known)
        self._owners += [-1] * len(prompts)
        self._starts[first_row : first_row + len(prompts)] = 0
        self._longest = max(self._longest, *(len(prompt) for prompt in prompts))
        self._grouped = False
        plan = Append(first_row=first_row, positions=positions, num_columns=num_columns)
        return self._forward(plan, ids, positions, self._mask(positions, num_columns), last=lengths - 1)

    def decode(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Add one token `ids` `[R]` to the first R slots, at the positions `lengths` `[R]`: into their suffixes."""
        starts = self._starts[: len(ids)]
        if self._changed(len(ids), lengths - starts):
            members, places, _ = self._members()
            regular = members == list(range(len(ids)))  # also where there is no prefix at all
            self._grouping = Grouping(
                prefixes=self._cache.prefixes,
                num_prefixes=len(self._prefix_lengths),
                num_columns=max(self._prefix_lengths, default=0),
                members=None if regular else torch.tensor(members, device=self._device),
                places=None if regular else torch.tensor(places, device=self._device),
            )
        num_columns = max(self._longest, MIN_COLUMNS - self._grouping.num_columns)
        self._cache.rows.reserve(len(ids), num_columns)
        return self._step(ids, lengths, starts, self._grouping, num_columns)

    def _step(self, ids: Tensor, lengths: Tensor, starts: Tensor, grouping: Grouping, num_columns: int) -> Tensor:
        """Logits `[N, V]` of ids `[N]` at the positions `lengths` `[N]`, in suffixes that begin at `starts` `[N]`."""
        columns = lengths - starts
        prefix, suffix = (torch.arange(n, device=self._device)[None] for n in (grouping.num_columns, num_columns))
        # [N, P + L]: which prefix columns and which suffix columns a row sees
        allowed, key_positions = suffix <= columns[:, None], starts[:, None] + suffix
        if grouping.num_prefixes:
            allowed = torch.cat([prefix < starts[:, None], allowed], 1)
            key_positions = torch.cat([prefix.expand(len(columns), -1), key_positions], 1)
        positions = lengths[:, None].clone()
        mask = attention_mask(
            self._model.config, allowed[:, None, None, :], positions, key_positions, self._model.dtype
        )
        plan = Append(first_row=0, positions=columns[:, None], num_columns=num_columns)
        return self._forward(plan, ids[:, None], positions, mask, grouping=grouping)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole slots; prefixes stay where they are."""
        self._cache.rows.move(sources, targets, min(self._longest, self._cache.rows.capacity))
        self._starts[targets] = self._starts[sources]
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self._owners[target] = self._owners[source]
        self._grouped = False

    def save(self, rows: Sequence[int], lengths: Sequence[int]) -> list[Stored]:
        """Copies of these slots' first keys and values, of prefix and suffix in one."""
        starts = [self._prefix_lengths[self._owners[row]] if self._owners[row] >= 0 else 0 for row in rows]
        num_sampled = [length - start for length, start in zip(lengths, starts, strict=True)]
        owners = [max(0, self._owners[row]) for row in rows]
        parts = [
            (counts, *slots.gather(chosen, max(counts)))
            for slots, chosen, counts in (
                (self._cache.prefixes, owners, starts),
                (self._cache.rows, rows, num_sampled),
            )
            if any(counts)  # else there may be no buffers yet
        ]
        planes = parts[0][1]
        return [
            Stored(
                planes=planes,
                tensors=[
                    torch.cat([gathered[shape][i, : counts[i]] for counts, _, gathered in parts])
                    for shape in range(len(planes))
                ],
            )
            for i in range(len(rows))
        ]

    def _mask(self, positions: Tensor, num_columns: int) -> Mask:
        columns = torch.arange(num_columns, device=self._device)[None]
        allowed = columns[:, None, None] <= positions[:, None, :, None]
        return attention_mask(self._model.config, allowed, positions, columns, self._model.dtype)

    def _forward(
        self,
        plan: Append | int,
        ids: Tensor,
        positions: Tensor,
        mask: Mask | None,
        *,
        last: Tensor | None = None,
        grouping: Grouping | None = None,
    ) -> Tensor:
        self._cache.start(plan)
        with _only_last(self._model, last):
            output = self._model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=self._cache,
                use_cache=True,
                grouping=grouping,
            )
        return output.logits[:, -1]

    # ------------------------------------------------------------------------------------------------ rows and prefixes

    def _changed(self, num_rows: int, columns: Tensor) -> bool:
        """Whether rows have come, gone or moved; counts the column that is written next, the last of `columns`."""
        self._drop_rows(num_rows)
        changed, self._grouped = not self._grouped, True
        if changed:
            self._longest = int(columns.max())
        self._longest += 1
        return changed

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
            self._cache.prefixes.move(source, target, columns)
            to = dict(zip(sources, targets, strict=True))
            for old, new in to.items():
                self._prefix_lengths[new] = self._prefix_lengths[old]
            self._owners = [to.get(owner, owner) for owner in self._owners]
        del self._prefix_lengths[len(used) :]

    def _members(self) -> tuple[list[int], list[int], int]:
        """`members` and `places` of the grouping, and G."""
        if not self._prefix_lengths:
            return list(range(len(self._owners))), [], 0
        rows: list[list[int]] = [[] for _ in self._prefix_lengths]
        for row, owner in sorted(enumerate(self._owners), key=lambda item: item[1] < 0):
            rows[owner if owner >= 0 else row % len(rows)].append(row)
        size = max(len(members) for members in rows)
        members = [row for group in rows for row in [*group, *[0] * (size - len(group))]]
        places = [0] * len(self._owners)
        for owner, group in enumerate(rows):
            for i, row in enumerate(group):
                places[row] = owner * size + i
        return members, places, size


class FullForwardRunner:
    """As `CachedRunner` without a cache: every token costs a forward of its whole sequence. Serves any causal model."""

    def __init__(self, model: PreTrainedModel, max_slots: int):
        self._model, self._max_slots = model, max_slots
        self.reset()

    def reset(self, *, reuse: bool = True) -> None:
        """A narrow table of ids."""
        self._ids = torch.zeros(self._max_slots, 16, dtype=torch.int64, device=self._model.device)

    def prefill(self, first_row: int, prompts: Sequence[Tokens], copies: Sequence[int]) -> Tensor:
        """Store the prompts and score them."""
        ids, lengths = right_padded(prompts, self._model.device)
        index = torch.tensor(copies, device=self._model.device)
        self._reserve(ids.shape[1])
        self._ids[first_row : first_row + len(copies), : ids.shape[1]] = ids[index]
        return self._forward(ids, lengths)[index]

    def extend(
        self, first_row: int, prompts: Sequence[Tokens], stored: Sequence[Stored], known: Sequence[int]
    ) -> Tensor:
        """Never called: `save` gives nothing to extend."""
        raise NotImplementedError

    def decode(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Store one token a row and score the sequences."""
        num_columns = int(lengths.max()) + 1
        self._reserve(num_columns)
        self._ids[torch.arange(len(ids), device=ids.device), lengths] = ids
        return self._forward(self._ids[: len(ids), :num_columns], lengths + 1)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole slots."""
        self._ids[targets] = self._ids[sources]

    def save(self, rows: Sequence[int], lengths: Sequence[int]) -> list[Stored]:
        """Nothing to keep."""
        return []

    def _reserve(self, num_tokens: int) -> None:
        width = self._ids.shape[1]
        if num_tokens > width:
            self._ids = torch.nn.functional.pad(self._ids, (0, max(num_tokens, 2 * width) - width))

    def _forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        mask = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
        with _only_last(self._model, lengths - 1):
            output = self._model(input_ids=ids, attention_mask=mask, use_cache=False)
        return output.logits[:, -1]


Runner = CachedRunner | FullForwardRunner


def right_padded(prompts: Sequence[Tokens], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids `[R, longest]`, padded with 0 on the right, and lengths `[R]`."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
    return ids, torch.tensor([len(prompt) for prompt in prompts], device=device)


@contextmanager
def _only_last(model: PreTrainedModel, last: Tensor | None) -> Iterator[None]:
    """Let only the hidden state at `last` `[R]` of each row through the head: its logits become `[R, 1, V]`.

    A hook on the head, because it works for every architecture, scaled logits and adapters included.
    """
    head = model.get_output_embeddings()
    if last is None or head is None:
        yield
        return
    rows = torch.arange(len(last), device=last.device)
    handle = head.register_forward_pre_hook(lambda module, args: (args[0][rows, last].unsqueeze(1), *args[1:]))
    try:
        yield
    finally:
        handle.remove()
