"""Recorded decode steps without a GPU: the operations of a step are recorded with the tensors that they met, and
replayed without the Python that called them."""

import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlvr.core.engine import LocalEngine
from rlvr.core.engine.graphs import MOST_STEPS, CudaRecorder, GraphedRunner, Graphs, rounded_up
from rlvr.core.engine.rows import Rows
from rlvr.core.engine.runner import CachedRunner
from rlvr.core.engine.scheduler import Scheduler
from rlvr.core.engine.select import choose_runner, probe
from rlvr.core.engine.shared_prefix import engine_attention
from tests.unit.engines.tiny import VOCABULARY, assert_exact, generate, play, prompt, sampling, tiny_model
from tests.unit.engines.tiny import crowd as ragged
from tests.variants import variants

WAITS = ("_local_scalar_dense", "nonzero", "_unique2", "masked_select")


@dataclass
class Tape(TorchDispatchMode):
    """What a CUDA graph keeps of a step: operations and addresses, no Python."""

    operations: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(func._schema.name.endswith(name) for name in WAITS):
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        """Do it all again, into the same memory."""
        for func, args, kwargs, result in self.operations:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@dataclass
class TapeRecorder:
    """Counts what it records and what is replayed."""

    recorded: int = 0
    replayed: int = 0

    def __call__(self, compute):
        with Tape() as tape:
            compute()
        self.recorded += 1

        def replay():
            self.replayed += 1
            tape.replay()

        return replay

    def forget(self):
        """Tapes share nothing."""


def make_engine(model, recorder, *, max_batch_size=8) -> LocalEngine:
    """An engine that decodes by recorded steps."""
    engine = LocalEngine(model, max_batch_size=max_batch_size, max_context_tokens=100)
    runner = GraphedRunner(model, max_batch_size, recorder=recorder)
    engine._scheduler = Scheduler(Rows(runner, model.device), num_slots=max_batch_size, max_cached_tokens=1000)
    return engine


crowd = partial(ragged, max_tokens=75, stop_ids=frozenset(range(0, VOCABULARY, 12)))


@pytest.mark.slow
@pytest.mark.parametrize("name", variants(["llama", "gemma3", "qwen2_sliding", "mixtral"], always=2))
def test_pitfall_31_replayed_steps_equal_a_plain_forward(name):
    model, recorder = tiny_model(name).eval(), TapeRecorder()
    with torch.inference_mode(), engine_attention(model):
        assert probe(model, partial(GraphedRunner, recorder=TapeRecorder())) is None
    engine = make_engine(model, recorder, max_batch_size=8)
    long = [(prompt(4), sampling(7, max_tokens=90))]
    # one that lets the buffers grow, then many whose steps are recorded with few columns and go on to more, then some
    # of all lengths, five to a prompt: as many as no recorded step has
    for requests in (long, crowd(2, 4, max_tokens=75, stop_ids=frozenset()), crowd(4, 5), crowd(4, 5)):
        assert_exact(model, requests, generate(engine, requests))
    assert recorder.replayed > 3 * recorder.recorded


@pytest.mark.slow
def test_later_batches_record_nothing_new():
    model, recorder = tiny_model("llama"), TapeRecorder()
    engine = make_engine(model, recorder)
    for _ in range(2):  # the first one's steps were recorded before the buffers had grown to their size
        generate(engine, crowd())
    before = replace(recorder)
    generate(engine, crowd())
    assert recorder.recorded == before.recorded
    assert recorder.replayed > before.replayed


def test_prompts_longer_and_more_than_there_was_room_for():
    """Their buffers grow to what a shape is rounded up to, and steps that were recorded before do not read the old."""
    model, recorder = tiny_model("llama"), TapeRecorder()
    engine = make_engine(model, recorder)
    short = crowd(2, 4, max_tokens=4)
    long = [(prompt(65 + i), sampling(i, max_tokens=4)) for i in range(5)]
    others = [(prompt(len(ids), seed=9), settings) for ids, settings in short]
    for requests in (short, long, others):
        assert_exact(model, requests, generate(engine, requests))
    before = recorder.recorded
    generate(engine, [(prompt(4), sampling(7, max_tokens=90))])
    assert recorder.recorded - before <= 4  # columns come in a few numbers, too


def test_sessions_go_on_from_what_is_kept():
    model = tiny_model("qwen2")
    engine = make_engine(model, TapeRecorder(), max_batch_size=4)
    assert_exact(model, *play(engine, [prompt(4 + i) for i in range(5)], max_tokens=9, stop_ids=frozenset({5})))


def test_a_step_that_cannot_be_recorded_is_computed():
    class Refusing(TapeRecorder):
        def __call__(self, compute):
            try:
                raise RuntimeError("operation not permitted when stream is capturing\nmore")
            finally:  # as the end of a recording does
                raise RuntimeError("operation failed due to a previous error during capture")

    model = tiny_model("llama")
    with torch.inference_mode(), engine_attention(model), pytest.warns(UserWarning, match="CUDA graphs"):
        reason = probe(model, partial(GraphedRunner, recorder=Refusing()))
    assert reason == "steps that cannot be recorded"
    engine = make_engine(model, Refusing())
    requests = crowd(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_exact(model, requests, generate(engine, requests))
    said = [str(w.message) for w in caught if "CUDA graphs" in str(w.message)]
    assert said == ["sampling goes on without CUDA graphs (operation not permitted when stream is capturing)"]


def test_what_is_recorded_is_bounded_and_forgotten_on_demand():
    recorder = TapeRecorder()
    graphs = Graphs(recorder)

    def twice(number):
        return graphs.run(number, lambda x: x[:, None] * 2.0, [torch.tensor([1.0 + number])], most_rows=4).tolist()

    for number in (*range(MOST_STEPS), 0, MOST_STEPS):  # the last takes the place of 1, which was used longest ago
        assert twice(number) == [[2.0 * (1.0 + number)]]
    assert len(graphs.steps) == recorder.recorded - 1 == MOST_STEPS
    assert (twice(0), recorder.recorded) == ([[2.0]], MOST_STEPS + 1)
    assert (twice(1), recorder.recorded) == ([[4.0]], MOST_STEPS + 2)
    graphs.clear()
    assert len(graphs.steps) == 0


class Streams:
    """As much of torch.cuda as a recorder uses, with the rules that it has to keep."""

    def __init__(self, monkeypatch) -> None:
        self.default, self.here, self.num_pools = "default", "default", 0
        self.users: dict[int, int] = {}  # pool -> graphs; 0: all are gone
        self.warm: set[str] = set()
        self.waits: list[tuple[str, str]] = []
        names = ("Stream", "current_stream", "stream", "set_stream", "graph_pool_handle", "graph", "CUDAGraph")
        for name in names:
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def Stream(self):  # noqa: N802
        return self.named("aside")

    def current_stream(self):
        return self.named(self.here)

    def named(self, name):
        return SimpleNamespace(wait_stream=lambda other: self.waits.append((name, other.name)), name=name)

    @contextmanager
    def stream(self, stream):
        before, self.here = self.here, stream.name
        self.warm.add(stream.name)
        yield
        self.here = before

    def set_stream(self, stream):
        self.here = stream.name

    def graph_pool_handle(self):
        self.num_pools += 1
        return self.num_pools

    def CUDAGraph(self):  # noqa: N802
        return SimpleNamespace(replay=lambda: None)

    @contextmanager
    def graph(self, graph, pool=None, stream=None, capture_error_mode="global"):
        assert capture_error_mode != "global", "what another thread does would fail"
        assert stream is not None, "the stream of an earlier graph of the pool"
        assert stream.name in self.warm, "a library would set itself up in the pool"
        assert self.waits == [("aside", "default"), ("default", "aside")]
        assert self.users.get(pool) != 0, "it->second->use_count > 0 INTERNAL ASSERT FAILED"
        self.users[pool] = self.users.get(pool, 0) + 1
        self.here = stream.name
        yield  # an error passes, and leaves the stream
        self.here, self.waits = self.default, []


@pytest.fixture
def cuda(monkeypatch) -> Streams:
    return Streams(monkeypatch)


def test_recording_keeps_the_rules_of_cuda(cuda):
    graphs, streams = Graphs(CudaRecorder()), []

    def step(x):
        streams.append(cuda.here)
        return x[:, None]

    for key in (1, 2):
        graphs.run(key, step, [torch.ones(2)], most_rows=4)
    assert streams == ["default", "aside", "aside"] * 2  # the first call, the one for the libraries, the recording
    assert cuda.users == {1: 2}
    cuda.users = {1: 0}
    graphs.clear()
    graphs.run(1, step, [torch.ones(2)], most_rows=4)
    assert cuda.users == {1: 0, 2: 1}


def test_a_failed_recording_leaves_the_stream(cuda):
    graphs, streams = Graphs(CudaRecorder()), []

    def step(x):
        streams.append(cuda.here)
        if len(streams) == 3:
            raise RuntimeError("operation not permitted when stream is capturing")
        return x[:, None]

    with pytest.warns(UserWarning, match="not permitted when stream is capturing"):
        graphs.run(1, step, [torch.ones(2)], most_rows=4)
    assert streams == ["default", "aside", "aside", "default"]
    assert graphs.gave_up


def test_new_weights_act_at_once_after_nan():
    model = tiny_model("llama")
    engine, requests = make_engine(model, TapeRecorder()), crowd(2)
    generate(engine, requests)
    with torch.no_grad():
        kept = [(parameter, 0.7 * parameter) for parameter in model.parameters()]
        model.get_output_embeddings().weight.fill_(float("nan"))
        model.model.layers[0].self_attn.v_proj.weight.fill_(float("nan"))
    engine.load_weights(1)
    with pytest.raises(FloatingPointError):
        generate(engine, requests)
    with torch.no_grad():
        for parameter, value in kept:
            parameter.copy_(value)
    engine.load_weights(2)
    assert_exact(model, requests, generate(engine, requests))


def test_a_gpu_gets_recorded_steps(monkeypatch):
    tried = []
    monkeypatch.setattr("rlvr.core.engine.select.probe", lambda model, kind, prompts: tried.append(kind) or "no")
    for device in ("cpu", "cuda"):
        choose_runner(SimpleNamespace(device=torch.device(device), config=tiny_model().config))
    assert tried == [CachedRunner, GraphedRunner, CachedRunner]


def test_shapes_are_rounded_up_to_few():
    known = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 6, 7: 8, 8: 8, 9: 12, 12: 12, 13: 16, 17: 24, 24: 24, 25: 32}
    known |= {100: 128, 512: 512}
    assert {number: rounded_up(number) for number in known} == known
    assert len({rounded_up(n) for n in range(1, 513)}) == 18
