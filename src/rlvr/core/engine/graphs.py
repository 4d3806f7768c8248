"""Decode steps of a few fixed shapes, recorded once and replayed as CUDA graphs.

A small model's step is a thousand kernels of a few microseconds, which the host launches one by one. A recorded step
reads and writes fixed addresses: inputs are copied into its own tensors, all steps share one result tensor, and a
change of any other address it uses needs `clear`.
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
"""Recorded steps kept, the last used ones; each holds some megabytes on the GPU."""

LEAST_COLUMNS = 64
"""Least sampled columns of a step: one shape for the first tokens, whose attention is cheap."""


class CudaRecorder:
    """Makes steps replayable: CUDA graphs of the current GPU in one memory pool, of which one runs at a time."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # one for all: cuBLAS keeps 32 MB of work space for each
        self.forget()

    def __call__(self, compute: Callable[[], None]) -> Callable[[], None]:
        """Returns a function that does what `compute` does, on the same tensors; calls `compute` a few times.

        RuntimeError for what cannot be recorded, such as a wait for the GPU.
        """
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            compute()  # what libraries set up at their first call on a stream must not lie in the pool
        here.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # thread_local: else what the trainer's thread does meanwhile (rollout.max_staleness) would fail
            with torch.cuda.graph(graph, self._pool, stream=self._stream, capture_error_mode="thread_local"):
                compute()
        finally:
            torch.cuda.set_stream(here)  # where a recording fails torch leaves its stream the current one
        return graph.replay

    def forget(self) -> None:
        """All recorded steps are gone: torch cannot record into their pool again ("use_count > 0 INTERNAL ASSERT")."""
        self._pool = torch.cuda.graph_pool_handle()


class Graphs:
    """Recorded steps by a key of their shapes."""

    def __init__(self, recorder: CudaRecorder) -> None:
        self._recorder: CudaRecorder | None = recorder
        self.steps: OrderedDict[Hashable, tuple[tuple[Tensor, ...], Callable[[], None]]] = OrderedDict()
        self._result: Tensor | None = None  # [most rows, V], of the last step

    @property
    def gave_up(self) -> bool:
        """Whether a step could not be recorded."""
        return self._recorder is None

    def clear(self) -> None:
        """Forget all steps: an address they use has changed."""
        self.steps.clear()
        if self._recorder is not None:
            self._recorder.forget()

    def run(self, key: Hashable, compute: Callable[..., Tensor], inputs: Sequence[Tensor], *, most_rows: int) -> Tensor:
        """`compute(*inputs)` `[R, V]`, which is overwritten by the next call. Equal keys mean equal shapes.

        After a step that cannot be recorded all are computed directly, with one warning.
        """
        if self._recorder is None:
            return compute(*inputs)
        if key not in self.steps:
            try:
                step = self._record(self._recorder, compute, inputs, most_rows)
            except RuntimeError as error:
                reason = error.__context__ or error  # the end of a recording fails again
                warnings.warn(f"sampling goes on without CUDA graphs ({first_line(reason)})", stacklevel=2)
                self._recorder = self._result = None
                self.clear()
                return compute(*inputs)
            self.steps[key] = step
            if len(self.steps) > MOST_STEPS:
                self.steps.popitem(last=False)
        self.steps.move_to_end(key)
        own, replay = self.steps[key]
        for target, value in zip(own, inputs, strict=True):
            target.copy_(value)
        replay()
        assert self._result is not None, "a step was recorded"
        return self._result[: len(inputs[0])]

    def _record(
        self, recorder: CudaRecorder, compute: Callable[..., Tensor], inputs: Sequence[Tensor], most_rows: int
    ) -> tuple[tuple[Tensor, ...], Callable[[], None]]:
        own = tuple(value.clone() for value in inputs)
        logits = compute(*own)  # allocates what outlives a step, such as a cache's buffers, before the recording
        if self._result is None:
            self._result = logits.new_empty(most_rows, logits.shape[1])
        result = self._result[: len(own[0])]

        def step() -> None:
            result.copy_(compute(*own))

        return own, recorder(step)


class GraphedRunner(CachedRunner):
    """A `CachedRunner` whose decode steps are recorded.

    All sizes of a step are rounded up: rows, sampled columns, prefixes, their columns and the rows of a prefix. Padding
    rows sample into free slots at column 0, which the next owner of the slot overwrites first; they do not change the
    numbers of other rows.
    """

    def __init__(self, model: PreTrainedModel, max_slots: int, *, recorder: CudaRecorder | None = None):
        super().__init__(model, max_slots, fixed=True)
        self.graphs = Graphs(CudaRecorder() if recorder is None else recorder)
        self._recorded_for: tuple[int, int] | None = None  # generations of the buffers that recorded steps use

    def decode(self, ids: Tensor, positions: Tensor) -> Tensor:
        """One token a row, by the recorded step of the next larger shape."""
        grouping = self._group(positions)
        num_columns = rounded_up(max(LEAST_COLUMNS, self._longest))
        num_rows, index = len(grouping.starts), (grouping.members, grouping.places)
        self._cache.rows.reserve(num_rows, num_columns)
        self._cache.prefixes.reserve(grouping.num_prefixes, grouping.num_columns)
        if self._recorded_for != self._generations():
            self.graphs.clear()

        def compute(ids: Tensor, positions: Tensor, starts: Tensor, *index: Tensor) -> Tensor:
            members, places = index or (None, None)
            own = replace(grouping, starts=starts, members=members, places=places)
            return self._step(ids, positions, own, num_columns)

        padded = [pad(tensor, (0, num_rows - len(ids))) for tensor in (ids, positions)]
        inputs = [*padded, grouping.starts, *(tensor for tensor in index if tensor is not None)]
        key = (*(len(tensor) for tensor in inputs), grouping.num_prefixes, grouping.num_columns, num_columns)
        logits = self.graphs.run(key, compute, inputs, most_rows=self._max_slots)
        self._recorded_for = self._generations()  # the first step of all makes them
        return logits[: len(ids)]

    def _rounded(self, count: int) -> int:
        return rounded_up(count)

    def _generations(self) -> tuple[int, int]:
        return self._cache.rows.generation, self._cache.prefixes.generation


def rounded_up(count: int) -> int:
    """The next of 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: few shapes, at most half again as many."""
    if count <= 4:
        return count
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power
