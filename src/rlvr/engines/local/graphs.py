"""Decode steps of a fixed shape, recorded once and replayed as CUDA graphs.

A small model's step is a thousand kernels of a few microseconds, which the host launches one by one. A recorded step
reads and writes fixed addresses: inputs are copied into its own tensors, all steps share one result tensor, and a
change of any other address it uses needs `clear`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_STEPS = 128
"""Recorded steps kept, the last used ones; each holds some megabytes on the GPU."""


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


@dataclass(frozen=True, kw_only=True)
class _Step:
    inputs: tuple[Tensor, ...]
    replay: Callable[[], None]


class Graphs:
    """Recorded steps by a key of their shapes."""

    def __init__(self, recorder: CudaRecorder) -> None:
        self._recorder: CudaRecorder | None = recorder
        self._steps: dict[Hashable, _Step] = {}
        self._result: Tensor | None = None  # [most rows, V], of the last step

    @property
    def num_steps(self) -> int:
        """Recorded steps."""
        return len(self._steps)

    @property
    def gave_up(self) -> bool:
        """Whether a step could not be recorded."""
        return self._recorder is None

    def clear(self) -> None:
        """Forget all steps: an address they use has changed."""
        self._steps.clear()
        if self._recorder is not None:
            self._recorder.forget()

    def run(self, key: Hashable, compute: Callable[..., Tensor], inputs: Sequence[Tensor], *, most_rows: int) -> Tensor:
        """`compute(*inputs)` `[R, V]`, which is overwritten by the next call. Equal keys mean equal shapes.

        After a step that cannot be recorded all are computed directly, with one warning.
        """
        if self._recorder is None:
            return compute(*inputs)
        step = self._steps.pop(key, None)
        if step is None:
            try:
                step = self._record(self._recorder, compute, inputs, most_rows)
            except RuntimeError as error:
                cause = error.__context__ or error  # the failure inside the recording
                warnings.warn(f"sampling goes on without CUDA graphs ({str(cause).splitlines()[0]})", stacklevel=2)
                self._recorder, self._result = None, None
                self.clear()
                return compute(*inputs)
            if len(self._steps) == MOST_STEPS:
                del self._steps[next(iter(self._steps))]
        self._steps[key] = step  # at the end: the first is evicted next
        for own, value in zip(step.inputs, inputs, strict=True):
            own.copy_(value)
        step.replay()
        assert self._result is not None, "a step was recorded"
        return self._result[: len(inputs[0])]

    def _record(
        self, recorder: CudaRecorder, compute: Callable[..., Tensor], inputs: Sequence[Tensor], most_rows: int
    ) -> _Step:
        own = tuple(value.clone() for value in inputs)
        logits = compute(*own)  # allocates what outlives a step, such as a cache's buffers, before the recording
        if self._result is None:
            self._result = logits.new_empty(most_rows, logits.shape[1])
        result = self._result[: len(own[0])]

        def step() -> None:
            result.copy_(compute(*own))

        return _Step(inputs=own, replay=recorder(step))


def rounded_up(count: int) -> int:
    """The next of 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: few shapes, at most half again as many."""
    if count <= 4:
        return count
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power
