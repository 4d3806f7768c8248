"""Key/value cache of prompts and of the rows that continue them; each row has its own length.

Per layer two buffers `[slots, kv_heads, capacity, head_dim]`. The key of position p is in column p, so "key column <=
query position" is the whole causal mask: columns beyond a row's length (stale or padding) are overwritten before they
are read. The running rows are the first n slots, so a step reads a slice without a gather.

transformers' own caches do not fit: DynamicCache has one length for all rows and keeps only the window of sliding
layers, so its rows cannot be refilled or cropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache

KV_DTYPE: torch.dtype | None = None
"""Storage dtype of keys and values; None: the dtype the layer computes them in. `Slots` converts on write,
`Slots.read` on read."""

Plane = tuple[int, int]
"""The keys of a layer, `(layer, 0)`, or its values, `(layer, 1)`."""

Stored = list[tuple[list[Plane], Tensor]]
"""Keys and values of one row: per shape (nearly always one) its planes and `[tokens, planes, kv_heads, head_dim]`. One
tensor per layer would cost more to copy than the tokens of a short turn to compute."""


class Slots:
    """The buffers of all layers. With `fixed` they keep their addresses across batches, as recorded steps need."""

    def __init__(self, max_slots: int, *, fixed: bool = False):
        self.max_slots, self.num_slots, self.capacity = max_slots, 0, 0
        self.buffers: dict[Plane, Tensor] = {}
        self.generation = 0  # increases when a buffer changes
        self._fixed = fixed
        # buffers of this and the previous batch by plane and size, reused: new memory costs page faults
        self._made: dict[tuple[Plane, int, int], Tensor] = {}
        self._aside: dict[tuple[Plane, int, int], Tensor] = {}

    def reserve(self, num_slots: int, num_tokens: int) -> None:
        """Grow by doubling; keeps the contents."""
        if num_slots <= self.num_slots and num_tokens <= self.capacity:
            return
        if num_slots > self.num_slots:
            self.num_slots = min(self.max_slots, max(num_slots, 2 * self.num_slots))
        if num_tokens > self.capacity:
            self.capacity = max(num_tokens + 15 & ~15, 2 * self.capacity)
        for plane, old in self.buffers.items():
            self.buffers[plane] = new = self._make(plane, old)
            new[: old.shape[0], :, : old.shape[2]] = old

    def clear(self, *, reuse: bool) -> None:
        """Set the buffers aside for the next batch, or free them without `reuse`.

        The next buffers get the shape they would have in a new process: the shape decides how a matrix product is split
        and thereby the last bit of a logprob, which must not depend on earlier batches.
        """
        if self._fixed and reuse:
            return
        self._aside, self._made = self._made if reuse else {}, {}
        self.generation += 1
        self.num_slots = self.capacity = 0
        self.buffers = {}

    def buffer(self, plane: Plane, like: Tensor) -> Tensor:
        """The buffer of a plane; a new one gets heads and width of `like` `[R, kv_heads, Q, head_dim]`."""
        if plane not in self.buffers:
            self.buffers[plane] = self._make(plane, like)
        return self.buffers[plane]

    def _make(self, plane: Plane, like: Tensor) -> Tensor:
        self.generation += 1
        size = (plane, self.num_slots, self.capacity)
        made = self._aside.pop(size, None)
        if made is None:
            # zeros: masked columns have weight 0, but 0 x NaN of uninitialized memory is NaN
            made = like.new_zeros(self.num_slots, like.shape[1], self.capacity, like.shape[3], dtype=KV_DTYPE)
        if not self._fixed:
            self._made[size] = made
        return made

    def read(self, plane: Plane, rows: slice, num_columns: int, dtype: torch.dtype) -> Tensor:
        """Keys or values for a layer that computes in `dtype`: `[rows, kv_heads, num_columns, head_dim]`."""
        return self.buffers[plane][rows, :, :num_columns].to(dtype)

    def move(self, sources: Tensor, targets: Tensor, num_tokens: int) -> None:
        """Copy whole rows, the first `num_tokens` columns."""
        for buffer in self.buffers.values():
            buffer[targets, :, :num_tokens] = buffer[sources, :, :num_tokens]

    def save(self, rows: Sequence[int], counts: Sequence[int]) -> list[Stored]:
        """Copies of the first `counts[i]` columns of each row."""
        by_shape: dict[tuple[int, int], list[Plane]] = {}
        for plane, buffer in sorted(self.buffers.items()):
            by_shape.setdefault((buffer.shape[1], buffer.shape[3]), []).append(plane)
        saved: list[Stored] = [[] for _ in rows]
        for planes in by_shape.values():
            buffers = [self.buffers[plane] for plane in planes]
            index, longest = torch.tensor(rows, device=buffers[0].device), max(counts)
            gathered = torch.stack([buffer[:, :, :longest].transpose(1, 2)[index] for buffer in buffers], 2)
            for stored, states, count in zip(saved, gathered, counts, strict=True):
                stored.append((planes, states[:count]))
        return saved

    def load(self, first_row: int, saved: Sequence[Stored]) -> None:
        """Write saved rows back, into the slots `first_row ..`."""
        for parts in zip(*saved, strict=True):  # per shape
            batch = pad_sequence([states for _, states in parts], batch_first=True)  # padding is masked
            for plane, states in zip(parts[0][0], batch.permute(2, 0, 3, 1, 4), strict=True):
                self.buffer(plane, states)[first_row : first_row + len(saved), :, : states.shape[2]] = states


@dataclass(frozen=True, kw_only=True)
class Append:
    """The next forward adds tokens to the rows `first_row .. first_row + R`."""

    first_row: int
    positions: Tensor  # [R, Q] columns to write
    num_columns: int  # columns to attend to, at least the largest position + 1


class SlotCache(Cache):
    """transformers' cache interface over `Slots`: `start_prompts` and `start_rows` select what the next forward
    fills."""

    def __init__(self, max_slots: int, *, fixed: bool = False):
        super().__init__(layers=[])
        self.prefixes, self.rows = Slots(max_slots, fixed=fixed), Slots(max_slots, fixed=fixed)
        self._plan: Append | int = 0
        self._columns: dict[int, Tensor] = {}  # kv_heads -> flat index of the columns to write, for one plan

    def start_prompts(self, first: int) -> None:
        """The next forward reads prompts into the slots `first ..` of `prefixes`."""
        self._plan = first

    def start_rows(self, plan: Append) -> None:
        """The next forward adds tokens to rows."""
        self._plan, self._columns = plan, {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """Store `[R, kv_heads, Q, head_dim]` and return what the layer attends to."""
        plan, num_rows = self._plan, len(key_states)
        seen = []
        for which, states in enumerate((key_states, value_states)):
            plane = (layer_idx, which)
            if isinstance(plan, int):
                self.prefixes.buffer(plane, states)[plan : plan + num_rows, :, : states.shape[2]] = states
                seen.append(states)
                continue
            buffer = self.rows.buffer(plane, states)
            columns = self._flat_columns(states.shape[1], plan)
            flat = states.reshape(-1, states.shape[3]).to(buffer.dtype)
            buffer.view(-1, buffer.shape[3]).index_copy_(0, columns, flat)
            rows = slice(plan.first_row, plan.first_row + num_rows)
            seen.append(self.rows.read(plane, rows, plan.num_columns, states.dtype))
        return seen[0], seen[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: transformers asks only at a prompt's start, where the model makes its own causal mask."""
        return 0

    def _flat_columns(self, num_heads: int, plan: Append) -> Tensor:
        """Row numbers in a buffer viewed as `[slots * kv_heads * capacity, head_dim]`, in the order of the states."""
        if num_heads not in self._columns:
            device = plan.positions.device
            rows = torch.arange(plan.first_row, plan.first_row + len(plan.positions), device=device)
            heads = torch.arange(num_heads, device=device)
            starts = (rows[:, None] * num_heads + heads) * self.rows.capacity  # [R, H]
            self._columns[num_heads] = (starts[:, :, None] + plan.positions[:, None, :]).flatten()  # [R, H, Q]
        return self._columns[num_heads]
