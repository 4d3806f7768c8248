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
from tests.unit.engines.vllm.fake import Change, FakeVllm, Fault, running
from tests.unit.engines.vllm.world import engine_of, fake_of, make_policy, one_server, train_a_step

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
    "sent elsewhere": Fault(status=307, location="http://127.0.0.1:9/"),
    "a closed connection": Fault(drops=True),
    "another run's weights": versions(lambda version: "0123456789ab/1"),
    "nobody's weights": versions(lambda version: "default"),
    "weights of tomorrow": versions(lambda version: version.replace("/1", "/9")),
}
YESTERDAY = versions(lambda version: version.replace("/1", "/0"))


def at(count: int, wrong: Fault | Change) -> Callable[[str, int], Fault | Change | None]:
    """Goes wrong at one request for a completion."""
    return lambda route, number: wrong if (route, number) == (GENERATE, count) else None


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between attempts; they are real time."""
    monkeypatch.setattr("rlvr.engines.vllm.engine.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("rlvr.engines.vllm.fleet.POLL_S", 0.05)


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_after_a_wrong_answer_the_request_is_issued_again_with_its_seed(name: str, tmp_path: Path) -> None:
    check_asked_again(WRONG_ANSWERS[name], tmp_path)


def test_pitfall_24_weights_of_an_earlier_push_are_not_taken_for_those_of_the_last(tmp_path: Path) -> None:
    check_asked_again(YESTERDAY, tmp_path)


def check_asked_again(wrong: Fault | Change, tmp_path: Path) -> None:
    with one_server(tmp_path, version=1, fault=at(NUM_PROBES, wrong)) as (engine, fake, _):
        first = asyncio.run(engine.generate(prompt(5), sampling(seed=7)))
        second = asyncio.run(engine.generate(prompt(5), sampling(seed=7)))
    assert first == second
    asked = [body["sampling_params"]["seed"] for body in fake.bodies if body["sampling_params"]["max_tokens"] > 1]
    assert set(asked) == {7}
    assert len(asked) == (2 if isinstance(wrong, Fault) else 3)
    assert [member.load for member in engine._fleet.members] == [0]


@pytest.mark.parametrize("name", ["status 500", "refused", "another run's weights"])
def test_a_server_that_is_always_wrong_ends_the_run_with_its_reason(name: str, tmp_path: Path) -> None:
    policy = make_policy()

    def only_long(route: str, count: int) -> Fault | Change | None:
        return WRONG_ANSWERS[name] if route == GENERATE and count % 3 == NUM_PROBES else None

    fake = fake_of(policy, fault=only_long)  # every third one: the two probes in between are fine
    with running(fake):
        engine = engine_of(policy, tmp_path, fake)
        engine.load_weights(1)
        with pytest.raises(UserError, match=rf"{fake.url} did not give a completion in 4 attempts \(.+\); see its log"):
            asyncio.run(engine.generate(prompt(5), sampling()))


def test_a_server_that_hangs_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with one_server(tmp_path, fault=at(NUM_PROBES, Fault(silent=True)), timeout_s=2.0, max_retries=30) as (
        engine,
        fake,
        _,
    ):
        fake.goes_on.clear()  # as somebody's push leaves it who was killed in the middle
        assert len(asyncio.run(engine.generate(prompt(5), sampling())).token_ids) == 8


def sample_many(engine: VllmEngine, fakes: Sequence[FakeVllm], disturb: Callable[[], None]) -> list[Completion]:
    """32 completions, and what happens when each of them has four tokens."""

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


def test_what_a_server_had_when_it_died_is_sampled_by_another_one_with_the_same_seeds(tmp_path: Path) -> None:
    policy = make_policy()
    first, second = fake_of(policy), fake_of(policy)
    notes: list[str] = []
    with running(first, second):
        engine = engine_of(policy, tmp_path, first, second, notes=notes)
        engine.load_weights(0)
        undisturbed = sample_many(engine, [first, second], lambda: None)
        assert min(len(first.bodies), len(second.bodies)) > 10
        disturbed = sample_many(engine, [first, second], first.die)
        assert disturbed == undisturbed
        assert any(f"lost the server {first.url}" in note for note in notes)
        num_notes = len(notes)
        engine.load_weights(1)  # the dead one is no reason to stop, nor to be told of again
        assert len(notes) == num_notes
        first.start()
        engine.load_weights(2)
        assert first.version == second.version
        assert notes[num_notes:] == [f"the server {first.url} is back, and has the weights"]


def test_the_only_server_is_waited_for_and_gets_its_weights_before_it_samples(tmp_path: Path) -> None:
    notes: list[str] = []
    with one_server(tmp_path, notes=notes) as (engine, fake, policy):
        train_a_step(policy)
        engine.load_weights(1)
        undisturbed = sample_many(engine, [fake], lambda: None)
        version = fake.version

        def restart() -> None:
            fake.die()
            fake.start()

        train_a_step(policy)  # as a trainer that is busy: what counts is what was pushed
        num_looks = fake.calls.count("/weight_info")
        assert sample_many(engine, [fake], restart) == undisturbed
        assert fake.calls.count("/weight_info") == num_looks + 1, "whoever fails together looks once"
        assert fake.version == version
        assert {version for one in undisturbed for version in one.policy_versions} == {1}


def test_a_server_that_does_not_come_back_ends_the_run_with_a_sentence_and_is_used_when_it_does(tmp_path: Path) -> None:
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
        assert asyncio.run(engine.generate(prompt(5), sampling())).policy_version == 2
        looks = iter(range(2))
        fake.fault = lambda route, count: BUSY if route == "/weight_info" and next(looks, None) is not None else None
        engine._fleet._wait_s = 60.0
        fake.die()
        fake.start()
        assert asyncio.run(engine.generate(prompt(5), sampling())).policy_version == 2, "it is waited for once more"


@pytest.mark.parametrize("pushing", [False, True])
def test_who_is_asked_to_stop_does_not_wait_for_a_server(tmp_path: Path, pushing: bool) -> None:
    fake = fake_of(make_policy())
    notes: list[str] = []
    with running(fake):
        engine = engine_of(make_policy(), tmp_path, fake, wait_s=3600.0, notes=notes)
        engine.load_weights(0)
        engine._fleet._stopped = lambda: any("waiting" in note for note in notes)
        fake.die()
        with pytest.raises(UserError, match=r"no server answered when the run was stopped: .*resume=true"):
            engine.load_weights(1) if pushing else asyncio.run(engine.generate(prompt(5), sampling()))


def test_a_session_moves_on_when_its_server_dies(tmp_path: Path) -> None:
    policy = make_policy()
    fakes = [fake_of(policy), fake_of(policy)]

    async def turns(engine: VllmEngine) -> None:
        first = await engine.generate(prompt(5), sampling(), session="it")
        (own,) = [fake for fake in fakes if any(body["sampling_params"]["max_tokens"] == 8 for body in fake.bodies)]
        own.die()
        assert await engine.generate(prompt(5), sampling(), session="it") == first
        own.start()
        num_asked = len(own.bodies)
        assert await engine.generate(prompt(5), sampling(), session="it") == first
        assert len(own.bodies) == num_asked, "it stays where it went"

    with running(*fakes):
        engine = engine_of(policy, tmp_path, *fakes)
        engine.load_weights(0)
        asyncio.run(turns(engine))


def test_pitfall_30_a_server_that_was_started_anew_unseen_is_found_out_by_its_first_answer(tmp_path: Path) -> None:
    # its weights are those it was started with: what it samples with them is thrown away
    with one_server(tmp_path) as (engine, fake, _):
        before = asyncio.run(engine.generate(prompt(5), sampling()))
        fake.die()
        fake.start()
        assert asyncio.run(engine.generate(prompt(5), sampling())) == before


def test_a_server_that_comes_back_as_another_one_is_refused(tmp_path: Path) -> None:
    with one_server(tmp_path) as (engine, fake, _):
        for facts, sentence in (
            (
                {"max_model_len": 50},
                "came back with room for 50 tokens, and had 128: start it with --max-model",
            ),
            ({"tokenizer": "x"}, "has another tokenizer than the policy"),
        ):
            fake.die()
            fake.facts = facts
            fake.start()
            with pytest.raises(UserError, match=sentence):
                asyncio.run(engine.generate(prompt(5), sampling()))
        fake.die()
        fake.facts, fake.name = {}, "renamed"
        fake.start()
        assert asyncio.run(engine.generate(prompt(5), sampling())).policy_version == 0
