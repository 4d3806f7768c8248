"""Decoding by recorded steps: `SharedPrefixRunner` in a few fixed shapes.

All sizes of a step are rounded up: rows, sampled columns, prefixes, their columns and the rows of a prefix. Padding
rows sample into free slots at column 0, which the next owner of the slot overwrites first; they do not change the
numbers of other rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from rlvr.engines.local.graphs import CudaRecorder, Graphs, rounded_up
from rlvr.engines.local.shared_prefix import Grouping, SharedPrefixRunner

LEAST_COLUMNS = 64
"""Least sampled columns of a step: one shape for the first tokens, whose attention is cheap."""


class GraphedRunner(SharedPrefixRunner):
    """A `SharedPrefixRunner` whose decode steps are recorded, on a GPU as CUDA graphs."""

    def __init__(self, model: PreTrainedModel, max_slots: int, *, recorder: CudaRecorder | None = None):
        super().__init__(model, max_slots, keeps=True)
        self._max_slots = max_slots
        self.graphs = Graphs(CudaRecorder() if recorder is None else recorder)
        self._recorded_for: tuple[int, int] | None = None  # generations of the buffers that recorded steps use

    def decode(self, ids: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """One token a row, by the recorded step of the next larger shape."""
        starts = self._starts[: len(ids)]
        self._prepare(len(ids), lengths - starts)
        num_rows = min(self._max_slots, rounded_up(len(ids)))
        num_columns = rounded_up(max(LEAST_COLUMNS, self._longest))
        members, places, shape = self._padded_grouping(num_rows)
        self._shared.reserve(num_rows, num_columns)
        self._shared.prefixes.reserve(shape[0], shape[2])
        if self._recorded_for != self._buffers():
            self.graphs.clear()
        more = num_rows - len(ids)
        inputs = [*(pad(tensor, (0, more)) for tensor in (ids, lengths, starts)), members, places]

        def compute(ids: Tensor, lengths: Tensor, starts: Tensor, members: Tensor, places: Tensor) -> Tensor:
            grouping = Grouping(num_prefixes=shape[0], num_columns=shape[2], members=members, places=places)
            self._shared.grouping = grouping if shape[0] else None
            return self._step(ids, lengths, starts, num_columns)

        logits = self.graphs.run((num_rows, num_columns, *shape), compute, inputs, most_rows=self._max_slots)
        self._recorded_for = self._buffers()  # the first step of all makes them
        return logits[: len(ids)]

    def _group(self) -> None:
        """Nothing: `_padded_grouping` makes it."""
        self._grouped = True
        self._padded: dict[int, tuple[Tensor, Tensor, tuple[int, int, int]]] = {}

    def _padded_grouping(self, num_rows: int) -> tuple[Tensor, Tensor, tuple[int, int, int]]:
        """Members `[U * G]`, places `[num_rows]` and U, G and prefix columns, all rounded up."""
        if not self._prefix_lengths:
            nothing = torch.zeros(0, dtype=torch.int64, device=self._device)
            return nothing, nothing, (0, 0, 0)
        if num_rows not in self._padded:
            (members, places, size), num_prefixes = self._members(), len(self._prefix_lengths)
            count, each = min(self._max_slots, rounded_up(num_prefixes)), rounded_up(size)
            table, index = torch.tensor(members).view(num_prefixes, size), torch.tensor(places)
            index = index // size * each + index % size
            self._padded[num_rows] = (
                pad(table, (0, each - size, 0, count - num_prefixes)).flatten().to(self._device),
                pad(index, (0, num_rows - len(places))).to(self._device),
                (count, each, rounded_up(max(self._prefix_lengths))),
            )
        return self._padded[num_rows]

    def _buffers(self) -> tuple[int, int]:
        return self._shared.generation, self._shared.prefixes.generation

    def _column_range(self, num_columns: int) -> Tensor:
        """Made anew: a recorded step must not use what others may replace."""
        return torch.arange(num_columns, device=self._device)[None]
