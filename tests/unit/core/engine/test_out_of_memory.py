"""Memory that runs out while the local engine samples: half as many completions at a time, and the same tokens."""

import asyncio
import sys

import pytest
import torch

import rlvr.core.engine.engine as engine_module
from rlvr.core.engine import LocalEngine
from rlvr.core.engine.base import Alternatives
from rlvr.core.engine.runner import CachedRunner
from rlvr.core.errors import SamplingMemoryError
from rlvr.errors import UserError
from rlvr.seeding import derive_seed
from tests.unit.engines.tiny import VOCABULARY, assert_exact, generate, prompt, sampling, tiny_model

pytestmark = pytest.mark.slow

REQUESTS = [
    (prompt(3 + i), sampling(derive_seed(0, i), max_tokens=12, stop_ids=frozenset(range(0, VOCABULARY, 9))))
    for i in range(11)
]


def make_engine(notes, *, max_batch_size=8) -> LocalEngine:
    return LocalEngine(tiny_model(), max_batch_size=max_batch_size, max_context_tokens=64, on_note=notes.append)


@pytest.fixture
def rows(monkeypatch):
    """How many rows each step had; more than `rows[0]` of them do not fit into memory from step `rows[1]` on."""
    seen = [99, 0]
    decode = CachedRunner.decode

    def limited(self, ids, lengths):
        seen.append(len(ids))
        if len(ids) > seen[0] and len(seen) > seen[1] + 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
        return decode(self, ids, lengths)

    monkeypatch.setattr(CachedRunner, "decode", limited)
    return seen


def said(before: int, after: int) -> str:
    reason = "CUDA out of memory. Tried to allocate 2.00 GiB."
    return f"out of memory with up to {before} completions sampled together ({reason}): going on with {after} at a time"


def outcomes(engine, calls) -> list:
    """Completions and errors of requests with more arguments."""

    async def together():
        jobs = (engine.generate(*one, **arguments) for one, arguments in zip(REQUESTS, calls, strict=True))
        return await asyncio.gather(*jobs, return_exceptions=True)

    return asyncio.run(together())


@pytest.mark.parametrize("from_step", [0, 3])
def test_pitfall_36_half_as_many_at_a_time_give_the_same_tokens(rows, from_step):
    expected = generate(make_engine([]), REQUESTS)
    notes = []
    engine = make_engine(notes)
    rows[:] = [3, from_step]
    completions = generate(engine, REQUESTS)
    assert notes == [said(8, 4), said(4, 2)]
    assert [c.token_ids for c in completions] == [c.token_ids for c in expected]
    assert_exact(engine._model, REQUESTS, completions)
    rows[:] = [99, 0]
    generate(engine, REQUESTS)
    assert max(rows[2:]) == 2, "it stays so"


def test_the_running_rows_are_halved_and_nothing_is_held(rows, monkeypatch):
    notes, errors = [], []
    monkeypatch.setattr(engine_module, "free", lambda: errors.append(sys.exc_info()[1]))
    engine = make_engine(notes, max_batch_size=64)
    rows[0] = 1
    generate(engine, REQUESTS[:4])
    assert notes == [said(4, 2), said(2, 1)]
    assert errors == [None, None]


def test_one_completion_that_does_not_fit_is_a_sentence(rows):
    engine = make_engine([])
    rows[0] = 0
    found = outcomes(engine, [{}] * 11)
    assert len({str(error) for error in found}) == 1
    assert isinstance(found[0], SamplingMemoryError)
    assert str(found[0]).startswith("out of memory with up to 1 completions sampled together (CUDA out of memory.")
    rows[0] = 99
    assert len(generate(engine, REQUESTS[:2])) == 2, "the next ones may fit"


def test_no_memory_to_start_over_is_an_error_for_all(rows, monkeypatch):
    engine = make_engine([])
    rows[0] = 4
    monkeypatch.setattr(engine_module, "Scheduler", lambda *args, **kwargs: torch.zeros(1 << 60))
    assert {type(error) for error in outcomes(engine, [{}] * 11)} == {RuntimeError}


def test_pitfall_24_restarted_completions_use_the_newest_weights(rows):
    engine = make_engine([])
    rows[:] = [5, 4]

    async def run():
        engine.load_weights(6)
        waiting = asyncio.gather(*(engine.generate(*one) for one in REQUESTS[:8]))
        while len(rows) < 2 + 3:
            await asyncio.sleep(0)
        assert engine.num_running > 5
        engine.load_weights(7)
        return await waiting

    for completion in asyncio.run(run()):
        last = 6 if len(completion.token_ids) <= 3 else 7
        assert (completion.policy_version, completion.version_changes) in ((last, ()), (7, ()))
    assert engine.policy_version == 7


def test_alternatives_are_noted_once(rows):
    engine = make_engine([])
    rows[:] = [3, 2]
    seen = [Alternatives(count=2) for _ in REQUESTS]
    for completion, alternatives in zip(outcomes(engine, [{"alternatives": a} for a in seen]), seen, strict=True):
        assert len(alternatives.seen) == len(completion.token_ids)


def test_listeners_hear_of_the_end_and_the_others_go_on(rows):
    engine = make_engine([])
    rows[:] = [3, 2]
    heard = [[] for _ in REQUESTS]

    def listener(index):
        return None if index % 2 else lambda token, logprob: heard[index].append(token)

    found = outcomes(engine, [{"on_token": listener(index)} for index in range(11)])
    failed = [index for index, one in enumerate(found) if isinstance(one, UserError)]
    assert failed
    assert all(index % 2 == 0 and heard[index] for index in failed)
    assert all(str(found[index]).endswith(": ask again") for index in failed)
    for index in set(range(0, 11, 2)) - set(failed):
        assert heard[index] == list(found[index].token_ids)
