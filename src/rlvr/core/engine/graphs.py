"""Decode steps of a few fixed shapes, recorded once and replayed as CUDA graphs.

A small model's step launches a thousand kernels of a few microseconds each. A recorded step reads and writes fixed
addresses: inputs are copied into its own tensors, all steps share one result tensor, and `clear` is needed when any
other address changes.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from rlvr.core.devices import first_line
from rlvr.core.engine.runner import CachedRunner

MOST_STEPS = 128
"""Recorded steps kept, least recently used evicted first; each holds some megabytes on the GPU."""

LEAST_COLUMNS = 64
"""Minimum sampled columns of a step: one shape for the first tokens, whose attention is cheap."""


class CudaRecorder:
    """Records CUDA graphs of the current GPU in one memory pool; one graph runs at a time."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # shared: cuBLAS keeps a 32 MB workspace per stream
        self.forget()

    def __call__(self, compute: Callable[[], None]) -> Callable[[], None]:
        """A function that repeats `compute` on the same tensors; calls `compute` a few times.

        Raises RuntimeError if it cannot be recorded, such as a wait for the GPU.
        """
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            compute()  # libraries' first-call allocations on a stream must stay out of the pool
        here.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # thread_local: the trainer's thread may use CUDA meanwhile
            with torch.cuda.graph(graph, self._pool, stream=self._stream, capture_error_mode="thread_local"):
                compute()
        finally:
            torch.cuda.set_stream(here)  # a failed recording leaves its stream current
        return graph.replay

    def forget(self) -> None:
        """Use a new pool: torch cannot record into one whose graphs are gone ("use_count > 0 INTERNAL ASSERT")."""
        self._pool = torch.cuda.graph_pool_handle()


class Graphs:
    """Recorded steps, keyed by their shapes."""

    def __init__(self, recorder: CudaRecorder) -> None:
        self._recorder: CudaRecorder | None = recorder
        self.steps: OrderedDict[Hashable, tuple[tuple[Tensor, ...], Callable[[], None]]] = OrderedDict()
        self._result: Tensor | None = None  # [most rows, V], of the last step

    @property
    def gave_up(self) -> bool:
        """True after a step that could not be recorded."""
        return self._recorder is None

    def clear(self) -> None:
        """Drop all steps, after a change of an address they use."""
        self.steps.clear()
        if self._recorder is not None:
            self._recorder.forget()

    def run(self, key: Hashable, compute: Callable[..., Tensor], inputs: Sequence[Tensor], *, most_rows: int) -> Tensor:
        """`compute(*inputs)` `[R, V]`, overwritten by the next call. Equal keys mean equal shapes.

        After a failed recording all steps are computed directly, with one warning.
        """
        if self._recorder is None:
            return compute(*inputs)
        if key not in self.steps:
            try:
                step = self._record(self._recorder, compute, inputs, most_rows)
            except RuntimeError as error:
                reason = error.__context__ or error  # ending a failed recording raises again
                warnings.warn(f"sampling goes on without CUDA graphs ({first_line(reason)})", stacklevel=2)
                self._recorder = self._result = None
                self.clear()
                return compute(*inputs)
            self.steps[key] = step
            if len(self.steps) > MOST_STEPS:
                self.steps.popitem(last=False)
        self.steps.move_to_end(key)
        recorded_inputs, replay = self.steps[key]
        for target, value in zip(recorded_inputs, inputs, strict=True):
            target.copy_(value)
        replay()
        assert self._result is not None, "a step was recorded"
        return self._result[: len(inputs[0])]

    def _record(
        self, recorder: CudaRecorder, compute: Callable[..., Tensor], inputs: Sequence[Tensor], most_rows: int
    ) -> tuple[tuple[Tensor, ...], Callable[[], None]]:
        recorded_inputs = tuple(value.clone() for value in inputs)
        logits = compute(*recorded_inputs)  # allocates long-lived tensors, such as cache buffers, before the recording
        if self._result is None:
            self._result = logits.new_empty(most_rows, logits.shape[1])
        result = self._result[: len(inputs[0])]

        def step() -> None:
            result.copy_(compute(*recorded_inputs))

        return recorded_inputs, recorder(step)


class GraphedRunner(CachedRunner):
    """A `CachedRunner` with recorded decode steps.

    All sizes of a step are rounded up: rows, sampled columns, prefixes, their columns and the rows of a prefix. Padding
    rows write column 0 of free slots, which the next owner overwrites first; they do not change other rows.
    """

    def __init__(self, model: PreTrainedModel, max_slots: int, *, recorder: CudaRecorder | None = None):
        super().__init__(model, max_slots, fixed=True)
        self.graphs = Graphs(CudaRecorder() if recorder is None else recorder)
        self._recorded_for: tuple[int, int] | None = None  # generations of the buffers that recorded steps use

    def decode(self, ids: Tensor, positions: Tensor) -> Tensor:
        """One token per row, by the recorded step of the next larger shape."""
        grouping = self._group(positions)
        num_columns = rounded_up(max(LEAST_COLUMNS, self._longest))
        num_rows, index = len(grouping.starts), (grouping.members, grouping.places)
        self._cache.rows.reserve(num_rows, num_columns)
        self._cache.prefixes.reserve(grouping.num_prefixes, grouping.num_columns)
        if self._recorded_for != self._generations():
            self.graphs.clear()

        def compute(ids: Tensor, positions: Tensor, starts: Tensor, *index: Tensor) -> Tensor:
            members, places = index or (None, None)
            recorded = replace(grouping, starts=starts, members=members, places=places)
            return self._step(ids, positions, recorded, num_columns)

        padded = [pad(tensor, (0, num_rows - len(ids))) for tensor in (ids, positions)]
        inputs = [*padded, grouping.starts, *(tensor for tensor in index if tensor is not None)]
        key = (*(len(tensor) for tensor in inputs), grouping.num_prefixes, grouping.num_columns, num_columns)
        logits = self.graphs.run(key, compute, inputs, most_rows=self._max_slots)
        self._recorded_for = self._generations()  # the first step creates the buffers
        return logits[: len(ids)]

    def _rounded(self, count: int) -> int:
        return rounded_up(count)

    def _generations(self) -> tuple[int, int]:
        return self._cache.rows.generation, self._cache.prefixes.generation


def rounded_up(count: int) -> int:
    """Round up to one of 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: few shapes, at most 1.5 times as many."""
    if count <= 4:
        return count
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power
