"""Keys and values of the running rows, each row with its own length.

Per layer one buffer `[slots, kv_heads, capacity, head_dim]`. A row's key of position p is in column p, so "key column
<= query position" is the whole causal mask: what is beyond a row's length (stale or padding) is overwritten before it
is seen. The running rows are the first n slots, so a step reads a slice and gathers nothing.

transformers' own caches do not fit: DynamicCache has one length for all rows and keeps only the window of sliding
layers, so it can be neither refilled row by row nor cut back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache

KEYS, VALUES = 0, 1
Planes = dict[tuple[int, int], list[tuple[int, int]]]
"""(kv_heads, head_dim) -> the (layer, KEYS or VALUES) of that shape; nearly every model has one shape."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Keys and values of one row, tokens first: one tensor for all layers of a shape.

    Copying a tensor a layer would cost more than computing the tokens of a short turn.
    """

    planes: Planes
    tensors: tuple[Tensor, ...]  # for each shape of planes [tokens, planes of that shape, kv_heads, head_dim]


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """The next forward starts `U` sequences; sequence u goes to the slots `first_row + i` with `copies[i] == u`."""

    first_row: int
    copies: Tensor  # [R] int64, values 0..U-1
    group_size: int | None  # copies == 0 0 .. 1 1 .., each this often; None: anything else


@dataclass(frozen=True, kw_only=True)
class Append:
    """The next forward adds tokens to the slots `first_row .. first_row + R`."""

    first_row: int
    positions: Tensor  # [R, Q] columns to write
    num_columns: int  # columns to attend to: every position + 1 at least


class SlotCache(Cache):
    """Told by `plan` what the next forward means, then filled by the model through `update`."""

    def __init__(self, max_slots: int, *, keeps: bool = False):
        """With `keeps`, buffers survive their batch at one address, as recorded steps need; see `clear`."""
        super().__init__(layers=[])
        self.max_slots = max_slots
        self.num_slots = 0
        self.capacity = 0
        self.generation = 0  # changes with the buffers
        self._keeps = keeps
        self.plan: Fresh | Append | None = None
        # layer -> keys and values, `[slots, kv_heads, capacity, head_dim]`
        self.buffers: dict[int, tuple[Tensor, Tensor]] = {}
        # of this batch and of the last one, by layer and shape: reused, because new memory costs page faults
        self._made: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}
        self._aside: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}
        self._columns: dict[int, Tensor] = {}  # kv_heads -> flat index of the columns to write, for one plan

    def reserve(self, num_slots: int, num_tokens: int) -> None:
        """Make room, by doubling what has grown too small; keeps what is stored."""
        if num_slots <= self.num_slots and num_tokens <= self.capacity:
            return
        if num_slots > self.num_slots:
            self.num_slots = min(self.max_slots, max(num_slots, 2 * self.num_slots))
        if num_tokens > self.capacity:
            self.capacity = max(num_tokens + 15 & ~15, 2 * self.capacity)
        for layer, old in self.buffers.items():
            self.buffers[layer] = new = self._pair(layer, *old)
            for source, target in zip(old, new, strict=True):
                target[: source.shape[0], :, : source.shape[2]] = source

    def clear(self, *, reuse: bool = True) -> None:
        """Put the buffers aside for the next batch, or free them without `reuse`.

        The next ones get the shape they would have in a new process: it decides how a matrix product is cut, and so the
        last bit of a logprob, which must not depend on what ran before.
        """
        if self._keeps and reuse:
            return
        self._aside, self._made = self._made if reuse else {}, {}
        self.generation += 1
        self.num_slots = self.capacity = 0
        self.buffers = {}

    def start(self, plan: Fresh | Append) -> None:
        """Set what the next forward's keys and values mean."""
        self.plan = plan
        self._columns = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """Store `[R, kv_heads, Q, head_dim]` and return what the layer attends to."""
        keys, values = self._layer(layer_idx, key_states, value_states)
        if isinstance(self.plan, Fresh):
            for buffer, states in ((keys, key_states), (values, value_states)):
                _store_fresh(buffer, states, self.plan)
            return key_states, value_states
        assert self.plan is not None, "start() comes first"
        columns = self._flat_columns(keys.shape[1], self.plan)
        for buffer, states in ((keys, key_states), (values, value_states)):
            buffer.view(-1, buffer.shape[3]).index_copy_(0, columns, states.reshape(-1, buffer.shape[3]))
        rows = slice(self.plan.first_row, self.plan.first_row + key_states.shape[0])
        return keys[rows, :, : self.plan.num_columns], values[rows, :, : self.plan.num_columns]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: only asked for in a `Fresh` forward, where the model makes its own causal mask."""
        return 0

    def move(self, sources: Tensor, targets: Tensor, num_tokens: int) -> None:
        """Copy whole rows, the first `num_tokens` columns."""
        for pair in self.buffers.values():
            for buffer in pair:
                buffer[targets, :, :num_tokens] = buffer[sources, :, :num_tokens]

    def save(self, rows: Sequence[int], lengths: Sequence[int]) -> list[Stored]:
        """A copy of the first tokens of each of these rows."""
        planes, gathered = self.gather(rows, max(lengths))
        return [
            Stored(planes=planes, tensors=tuple(batch[i, :length].clone() for batch in gathered))
            for i, length in enumerate(lengths)
        ]

    def gather(self, rows: Sequence[int], num_tokens: int) -> tuple[Planes, list[Tensor]]:
        """The rows' first `num_tokens` columns: for each shape `[rows, num_tokens, planes, kv_heads, head_dim]`."""
        planes: Planes = {}
        for layer, pair in sorted(self.buffers.items()):
            for which, buffer in enumerate(pair):
                planes.setdefault((buffer.shape[1], buffer.shape[3]), []).append((layer, which))
        gathered = []
        for members in planes.values():
            buffers = [self.buffers[layer][which] for layer, which in members]
            index = torch.tensor(rows, device=buffers[0].device)
            parts = [buffer[:, :, :num_tokens].transpose(1, 2)[index] for buffer in buffers]
            gathered.append(torch.stack(parts, 2))
        return planes, gathered

    def load(self, first_row: int, stored: Sequence[Stored], known: Sequence[int]) -> None:
        """Put the first `known[i]` tokens of each saved row back, into the slots `first_row ..`."""
        for number, members in enumerate(stored[0].planes.values()):
            rows = [saved.tensors[number][:count] for saved, count in zip(stored, known, strict=True)]
            batch = pad_sequence(rows, batch_first=True)  # zeros behind a row: columns that nothing looks at
            part, columns = slice(first_row, first_row + len(rows)), batch.shape[1]
            for plane, (layer, which) in enumerate(members):
                buffer = self._layer_like(layer, stored[0])[which]
                buffer[part, :, :columns] = batch[:, :, plane].transpose(1, 2)

    def _layer_like(self, layer: int, stored: Stored) -> tuple[Tensor, Tensor]:
        """A layer's buffers; where there are none yet, new ones of the shape that was saved."""
        if layer in self.buffers:
            return self.buffers[layer]
        like: dict[int, Tensor] = {}
        for tensor, ((heads, width), members) in zip(stored.tensors, stored.planes.items(), strict=True):
            like |= {which: tensor.new_empty(1, heads, 0, width) for of, which in members if of == layer}
        return self._layer(layer, like[KEYS], like[VALUES])

    def _layer(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if layer not in self.buffers:
            self.buffers[layer] = self._pair(layer, keys, values)
        return self.buffers[layer]

    def _pair(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's buffers in the present size: those of the last batch, or new ones."""
        self.generation += 1
        shape = (layer, self.num_slots, self.capacity)
        pair = self._aside.pop(shape, None) or (self._empty(keys), self._empty(values))
        if not self._keeps:
            self._made[shape] = pair
        return pair

    def _empty(self, like: Tensor) -> Tensor:
        # zeros: a masked column has weight 0, and 0 times the NaN of uninitialized memory would be NaN
        return like.new_zeros(self.num_slots, like.shape[1], self.capacity, like.shape[3])

    def _flat_columns(self, num_heads: int, plan: Append) -> Tensor:
        """Row numbers of the buffer seen as `[slots * kv_heads * capacity, head_dim]`, in the order of the states."""
        columns = self._columns.get(num_heads)
        if columns is None:
            device = plan.positions.device
            rows = torch.arange(plan.first_row, plan.first_row + len(plan.positions), device=device)
            heads = torch.arange(num_heads, device=device)
            starts = (rows[:, None] * num_heads + heads) * self.capacity  # [R, H]
            columns = (starts[:, :, None] + plan.positions[:, None, :]).flatten()  # [R, H, Q] as the states are
            self._columns[num_heads] = columns
        return columns


def _store_fresh(buffer: Tensor, states: Tensor, plan: Fresh) -> None:
    target = buffer[plan.first_row : plan.first_row + len(plan.copies), :, : states.shape[2]]
    if plan.group_size is None:
        target.copy_(states[plan.copies])
    else:
        target.unflatten(0, (len(states), plan.group_size)).copy_(states.unsqueeze(1))
