"""The model's forward for rows of different lengths: with a slot cache, or in full where that cannot serve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlvr.engines.local.cache import Append, Fresh, SlotCache, Stored
from rlvr.models.attention import attention_mask

Tokens = Sequence[int]


class CachedRunner:
    """Next-token logits `[R, V]` for rows in slots, without gradients; every token goes through the model once."""

    def __init__(self, model: PreTrainedModel, max_slots: int, cache: SlotCache | None = None):
        self._model = model
        self._cache = SlotCache(max_slots, keeps=model.device.type == "cuda") if cache is None else cache
        self._device = model.device
        self._columns = torch.arange(0, device=model.device)

    def reset(self, *, reuse: bool = True) -> None:
        """All rows have left: go back to the state of a new runner; without `reuse` nothing written before survives."""
        self._cache.clear(reuse=reuse)

    def prefill(self, first_row: int, prompts: Sequence[Tokens], copies: Sequence[int]) -> Tensor:
        """Start R = len(copies) rows: the slot `first_row + i` gets `prompts[copies[i]]`.

        One right-padded forward; what is to the right of a token cannot reach it.
        """
        ids, lengths = right_padded(prompts, self._device)
        self._cache.reserve(first_row + len(copies), ids.shape[1] + 1)
        size = len(copies) // len(prompts)
        regular = [u for u in range(len(prompts)) for _ in range(size)] == list(copies)
        index = torch.tensor(copies, device=self._device)
        self._cache.start(Fresh(first_row=first_row, copies=index, group_size=size if regular else None))
        positions = torch.arange(ids.shape[1], device=self._device)[None]
        return self._forward(ids, positions, self._prompt_mask(positions), lengths - 1)[index]

    def extend(
        self, first_row: int, prompts: Sequence[Tokens], stored: Sequence[Stored], known: Sequence[int]
    ) -> Tensor:
        """Start rows whose first `known[i]` tokens are stored; only the rest goes through the model."""
        ids, lengths = right_padded([p[k:] for p, k in zip(prompts, known, strict=True)], self._device)
        starts = torch.tensor(known, device=self._device)
        positions = starts[:, None] + torch.arange(ids.shape[1], device=self._device)
        num_columns = max(known) + ids.shape[1]
        self._cache.reserve(first_row + len(prompts), num_columns)
        self._cache.load(first_row, stored, known)
        self._cache.start(Append(first_row=first_row, positions=positions, num_columns=num_columns))
        return self._forward(ids, positions, self._mask(positions, num_columns), lengths - 1)

    def decode(self, ids: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """Add one token `ids` `[R]` to the first R slots, at the positions `lengths` `[R]` (at most `longest`)."""
        num_columns = longest + 1
        self._cache.reserve(len(ids), num_columns)
        positions = lengths[:, None].clone()
        self._cache.start(Append(first_row=0, positions=positions, num_columns=num_columns))
        return self._forward(ids[:, None], positions, self._mask(positions, num_columns), None)

    def move(self, sources: Tensor, targets: Tensor, num_tokens: int) -> None:
        """Copy whole slots."""
        self._cache.move(sources, targets, num_tokens)

    def save(self, rows: Sequence[int], lengths: Sequence[int]) -> list[Stored]:
        """Copies of these slots' first keys and values."""
        return self._cache.save(rows, lengths)

    def _prompt_mask(self, positions: Tensor) -> Tensor | dict[str, Tensor] | None:
        """None: the model is causal by itself. Float32 on a GPU gets a mask: without one, grouped-query attention takes
        a kernel without float32, and torch falls back to one that holds all scores."""
        if self._device.type == "cpu" or self._model.dtype != torch.float32:
            return None
        return self._mask(positions, positions.shape[1])

    def _mask(self, positions: Tensor, num_columns: int) -> Tensor | dict[str, Tensor]:
        columns = self._column_range(num_columns)
        allowed = columns[:, None, None] <= positions[:, None, :, None]
        return attention_mask(self._model.config, allowed, positions, columns, self._model.dtype)

    def _column_range(self, num_columns: int) -> Tensor:
        """`[1, num_columns]`: 0 1 2 .."""
        if len(self._columns) < num_columns:
            self._columns = torch.arange(2 * num_columns, device=self._device)
        return self._columns[None, :num_columns]

    def _forward(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor | dict[str, Tensor] | None,
        last: Tensor | None,
        *,
        past_key_values: SlotCache | None = None,
        **kwargs: object,
    ) -> Tensor:
        with _only_last(self._model, last):
            output = self._model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=self._cache if past_key_values is None else past_key_values,
                use_cache=True,
                **kwargs,
            )
        return output.logits[:, -1]


class FullForwardRunner:
    """As `CachedRunner` without a cache: every token costs a forward of its whole sequence. Serves any causal model."""

    def __init__(self, model: PreTrainedModel, max_slots: int):
        self._model = model
        self._max_slots = max_slots
        self.reset()

    def reset(self, *, reuse: bool = True) -> None:
        """A narrow table of ids."""
        self._ids = torch.zeros(self._max_slots, 16, dtype=torch.int64, device=self._model.device)

    def prefill(self, first_row: int, prompts: Sequence[Tokens], copies: Sequence[int]) -> Tensor:
        """Store the prompts and score them."""
        ids, lengths = right_padded(prompts, self._model.device)
        self._reserve(ids.shape[1] + 1)
        index = torch.tensor(copies, device=self._model.device)
        self._ids[first_row : first_row + len(copies), : ids.shape[1]] = ids[index]
        return self._forward(ids, lengths)[index]

    def extend(
        self, first_row: int, prompts: Sequence[Tokens], stored: Sequence[Stored], known: Sequence[int]
    ) -> Tensor:
        """Never called: `save` gives nothing to extend."""
        raise NotImplementedError

    def decode(self, ids: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """Store one token a row and score the sequences."""
        self._reserve(longest + 1)
        self._ids[torch.arange(len(ids), device=ids.device), lengths] = ids
        return self._forward(self._ids[: len(ids), : longest + 1], lengths + 1)

    def move(self, sources: Tensor, targets: Tensor, num_tokens: int) -> None:
        """Copy whole slots."""
        self._ids[targets] = self._ids[sources]

    def save(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Nothing to keep."""

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
