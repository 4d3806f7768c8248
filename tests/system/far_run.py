"""`rlvr` commands, divided by `then`, with models on the device of `far.py`; at the end what a decode step waits for.

The last line of standard output is JSON: [{"tolist": 1.0}], how often the host read what, per step, of each model.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from transformers import PreTrainedModel

from tests.system.far import FarLists, FarMode, inner_of, install

STEPS = 20


def save_as_inner() -> None:
    """safetensors wants to know where tensors begin, which those of Python do not have."""
    save = PreTrainedModel.save_pretrained

    def save_pretrained(model: Any, *args: Any, **kwargs: Any) -> None:
        state = kwargs.pop("state_dict", None) or model.state_dict()
        save(model, *args, state_dict={name: inner_of(tensor) for name, tensor in state.items()}, **kwargs)

    PreTrainedModel.save_pretrained = save_pretrained


def models_are_there() -> None:
    """Let a pass fail whose model is not on the device: on the CPU all of it would work, too."""
    import rlvr.core.trainer as trainer
    from rlvr.core.engine import LocalEngine

    forward, init = trainer.forward, LocalEngine.__init__

    def training(policy: Any, *args: Any, **kwargs: Any) -> Any:
        assert policy.model.device.type == "far"
        return forward(policy, *args, **kwargs)

    def sampling(engine: Any, model: Any, **kwargs: Any) -> None:
        assert model.device.type == "far"
        init(engine, model, **kwargs)

    trainer.forward, LocalEngine.__init__ = training, sampling


def commands(words: Sequence[str]) -> Iterator[list[str]]:
    """`a b then c` as `[a, b]` and `[c]`."""
    found: list[str] = []
    for word in words:
        if word == "then":
            yield found
            found = []
        else:
            found.append(word)
    yield found


class Calls:
    """Records a step by calling it, and replays it so, too; fails where CUDA could not record it."""

    def __init__(self, mode: FarMode) -> None:
        self._mode, self.recorded = mode, 0

    def __call__(self, compute: Callable[[], None]) -> Callable[[], None]:
        self._mode.recording = True
        try:
            compute()
        finally:
            self._mode.recording = False
        self.recorded += 1
        return compute

    def forget(self) -> None:
        """Nothing is kept."""


def reads_per_step(mode: FarMode, architecture: str) -> dict[str, float]:
    """Of recorded decode steps in which no row starts or ends."""
    from rlvr.core.engine import LocalEngine
    from rlvr.core.engine.graphs import GraphedRunner
    from rlvr.core.engine.request import Request
    from rlvr.core.engine.shared_prefix import engine_attention
    from rlvr.types import SamplingParams
    from tests.unit.engines.tiny import tiny_model

    model = tiny_model(architecture).to("far:0")
    engine = LocalEngine(model, max_batch_size=8, max_context_tokens=100)
    assert type(engine._scheduler._runner).__name__ == "CachedRunner"
    calls = Calls(mode)
    engine._scheduler._runner = GraphedRunner(model, 8, recorder=calls)
    settings = [SamplingParams(max_tokens=60, temperature=1.0, stop_ids=frozenset(), seed=i) for i in range(6)]
    for seed, sampling in enumerate(settings):
        request = Request(prompt_ids=(1, 2, 3 + seed // 3), sampling=sampling, future=Future())  # pyright: ignore[reportArgumentType]
        engine._scheduler.submit(request)
    with engine_attention(model):
        for _ in range(3):
            engine._step()
        mode.reads.clear()
        for _ in range(STEPS):
            engine._step()
    assert calls.recorded
    return {name: count / STEPS for name, count in mode.reads.items() if count}


def main() -> int:
    """The first exit code that is not 0."""
    install()
    import rlvr.models.devices as devices

    devices.choose_device = lambda wanted: torch.device("cpu" if wanted == "cpu" else "far:0")
    save_as_inner()
    models_are_there()
    with FarMode() as mode, FarLists():
        from rlvr.cli.main import main as rlvr

        for command in commands(sys.argv[1:]):
            if code := rlvr(command):
                return code
        print(json.dumps([reads_per_step(mode, name) for name in ("llama", "gemma3")]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
