"""Servers that break, lie, hang, die and come back: no completion is lost, doubled or sampled with other weights."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr.engines.vllm import VllmEngine
from rlvr.engines.vllm.server import GENERATE
from rlvr.errors import UserError
from rlvr.types import Completion
from tests.unit.engines.tiny import prompt, sampling
from tests.unit.engines.vllm.fake import Change, FakeVllm, Fault, wrong_at
from tests.unit.engines.vllm.world import (
    REQUEST,
    answer,
    one_server,
    train_a_step,
    two_servers,
)

pytestmark = pytest.mark.slow

NUM_PROBES = 2  # requests of a push
BUSY = Fault(status=503)


def versions(change: Callable[[str], str]) -> Change:
    """Another version of the weights."""

    def changed(answer: dict[str, Any]) -> dict[str, Any]:
        span = answer["choices"][0]["weight_versions"][0]
        span["version"] = change(span["version"])
        return answer

    return changed


WRONG_ANSWERS: dict[str, Fault | Change] = {  # more of them in test_server.py
    "status 500": Fault(status=500, body=b'{"error": {"message": "EngineDeadError"}}'),
    "refused": Fault(status=404, body=b'{"error": {"message": "The model `x` does not exist."}}'),
    "redirected": Fault(status=307, location="http://127.0.0.1:9/"),
    "a closed connection": Fault(drops=True),
    "another run's weights": versions(lambda version: "0123456789ab/1"),
    "weights without a run": versions(lambda version: "default"),
    "later weights": versions(lambda version: version.replace("/1", "/9")),
    "earlier weights": versions(lambda version: version.replace("/1", "/0")),
}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between attempts; they are real time."""
    monkeypatch.setattr("rlvr.engines.vllm.engine.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("rlvr.engines.vllm.fleet.POLL_S", 0.05)


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_pitfall_24_after_a_wrong_answer_a_request_is_repeated(name: str, tmp_path: Path) -> None:
    wrong = WRONG_ANSWERS[name]
    with one_server(tmp_path, version=1, fault=wrong_at(GENERATE, wrong, NUM_PROBES)) as (engine, fake, _):
        first, second = (asyncio.run(engine.generate(prompt(5), sampling(seed=7))) for _ in range(2))
    assert first == second
    asked = [body["sampling_params"]["seed"] for body in fake.bodies if body["sampling_params"]["max_tokens"] > 1]
    assert set(asked) == {7}
    assert len(asked) == (2 if isinstance(wrong, Fault) else 3)
    assert [member.load for member in engine._fleet.members] == [0]


@pytest.mark.parametrize("name", ["status 500", "refused", "another run's weights"])
def test_a_server_that_is_always_wrong_ends_the_run(name: str, tmp_path: Path) -> None:
    def only_long(route: str, count: int) -> Fault | Change | None:
        return WRONG_ANSWERS[name] if route == GENERATE and count % 3 == NUM_PROBES else None

    # the two probes in between are fine
    sentence = r"http://\S+ did not give a completion in 4 attempts \(.+\); see its log"
    with one_server(tmp_path, version=1, fault=only_long) as (engine, _, _), pytest.raises(UserError, match=sentence):
        answer(engine)


def test_a_server_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    hangs = wrong_at(GENERATE, Fault(silent=True), NUM_PROBES)
    with one_server(tmp_path, fault=hangs, timeout_s=2.0, max_retries=30) as (engine, fake, _):
        fake.goes_on.clear()  # paused, as by a trainer that was killed in the middle of its push
        assert len(answer(engine).token_ids) == 8


def sample_many(
    engine: VllmEngine, fakes: Sequence[FakeVllm], disturb: Callable[[], None] = lambda: None
) -> list[Completion]:
    """32 completions, disturbed when each of them has four tokens."""

    async def all_of_them() -> list[Completion]:
        for fake in fakes:
            fake.holds_at = 4
        requests = [engine.generate([1 + i, 2], sampling(seed=i, max_tokens=10)) for i in range(32)]
        waiting = asyncio.gather(*requests)
        while sum(fake.held for fake in fakes) < 32:
            await asyncio.sleep(0.01)
        disturb()
        for fake in fakes:
            fake.holds_at = None
        return await waiting

    return asyncio.run(all_of_them())


def test_another_server_samples_what_a_dead_one_had(tmp_path: Path) -> None:
    notes: list[str] = []
    with two_servers(tmp_path, notes=notes) as (engine, (first, second), _):
        undisturbed = sample_many(engine, [first, second])
        assert min(len(first.bodies), len(second.bodies)) > 10
        assert sample_many(engine, [first, second], first.die) == undisturbed
        assert any(f"lost the server {first.url}" in note for note in notes)
        num_notes = len(notes)
        engine.load_weights(1)  # the dead one neither stops it nor is reported again
        assert len(notes) == num_notes
        first.start()
        engine.load_weights(2)
        assert first.version == second.version
        assert notes[num_notes:] == [f"the server {first.url} is back, and has the weights"]


def restart(fake: FakeVllm) -> None:
    fake.die()
    fake.start()


def test_the_only_server_gets_its_weights_before_it_samples(tmp_path: Path) -> None:
    with one_server(tmp_path) as (engine, fake, policy):
        train_a_step(policy)
        engine.load_weights(1)
        undisturbed = sample_many(engine, [fake])
        version = fake.version
        train_a_step(policy)  # as a busy trainer: the server gets what was pushed
        num_looks = fake.calls.count("/weight_info")
        assert sample_many(engine, [fake], lambda: restart(fake)) == undisturbed
        assert fake.calls.count("/weight_info") == num_looks + 1, "concurrent failures share one check"
        assert fake.version == version
        assert {version for one in undisturbed for version in one.policy_versions} == {1}


def test_a_server_that_does_not_come_back_ends_the_run(tmp_path: Path) -> None:
    notes: list[str] = []
    with one_server(tmp_path, wait_s=0.5, notes=notes) as (engine, fake, _):
        with pytest.raises(UserError, match=rf"no server answered for engine.wait_s=0.5: {fake.url}.*resume=true"):
            sample_many(engine, [fake], fake.die)
        waits = "no server is left: waiting for one to come back, for engine.wait_s=0.5 at most"
        assert notes.count(waits) == 1, "all of them wait together, once"
        with pytest.raises(UserError, match=rf"no server answered .*{fake.url} \(.*refused.*\)"):
            engine.load_weights(1)
        assert notes.count(waits) == 2
        fake.start()
        engine.load_weights(2)
        assert answer(engine).policy_version == 2
        looks = iter(range(2))
        fake.fault = lambda route, count: BUSY if route == "/weight_info" and next(looks, None) is not None else None
        engine._fleet._wait_s = 60.0
        restart(fake)
        assert answer(engine).policy_version == 2, "it is waited for once more"


@pytest.mark.parametrize("pushing", [False, True])
def test_a_stopped_run_does_not_wait_for_a_server(tmp_path: Path, pushing: bool) -> None:
    notes: list[str] = []
    with one_server(tmp_path, wait_s=3600.0, notes=notes) as (engine, fake, _):
        engine._fleet._stopped = lambda: any("waiting" in note for note in notes)
        fake.die()
        with pytest.raises(UserError, match=r"no server answered when the run was stopped: .*resume=true"):
            engine.load_weights(1) if pushing else answer(engine)


def test_a_session_moves_on_when_its_server_dies(tmp_path: Path) -> None:
    async def turns(engine: VllmEngine, fakes: Sequence[FakeVllm]) -> None:
        first = await engine.generate(*REQUEST, session="it")
        (own,) = [fake for fake in fakes if any(body["sampling_params"]["max_tokens"] == 8 for body in fake.bodies)]
        own.die()
        assert await engine.generate(*REQUEST, session="it") == first
        own.start()
        num_asked = len(own.bodies)
        assert await engine.generate(*REQUEST, session="it") == first
        assert len(own.bodies) == num_asked, "it stays where it went"

    with two_servers(tmp_path) as (engine, fakes, _):
        asyncio.run(turns(engine, fakes))


def test_pitfall_30_the_first_answer_shows_an_unseen_restart(tmp_path: Path) -> None:
    # the server has the weights it was started with: what it samples with them is dropped
    with one_server(tmp_path) as (engine, fake, _):
        before = answer(engine)
        restart(fake)
        assert answer(engine) == before


def test_a_server_that_comes_back_as_another_one_is_refused(tmp_path: Path) -> None:
    with one_server(tmp_path) as (engine, fake, _):
        for facts, sentence in (
            ({"max_model_len": 50}, "came back with room for 50 tokens, and had 128: start it with --max-model"),
            ({"tokenizer": "x"}, "has another tokenizer than the policy"),
        ):
            fake.facts = facts
            restart(fake)
            with pytest.raises(UserError, match=sentence):
                answer(engine)
        fake.facts, fake.name = {}, "renamed"
        restart(fake)
        assert answer(engine).policy_version == 0
