"""Servers that break, lie, hang, die and come back: no completion is lost, doubled or sampled with other weights."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr.engines.vllm import VllmEngine
from rlvr.engines.vllm.wire import GENERATE
from rlvr.errors import UserError
from rlvr.types import Completion
from tests.unit.engines.tiny import prompt, sampling
from tests.unit.engines.vllm.fake import Change, FakeVllm, Fault, running
from tests.unit.engines.vllm.world import engine_of, fake_of, make_policy, train_a_step

NUM_PROBES = 2  # requests of a push


def change(path: str, value: Any) -> Change:
    """Another value at `token_ids` or `logprobs.content.0.logprob` of the answer's choice; without it: None."""

    def changed(answer: dict[str, Any]) -> dict[str, Any]:
        *parents, last = path.split(".")
        place: Any = answer["choices"][0]
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place[key]
        place[last] = value(place[last]) if callable(value) else value
        return answer

    return changed


WRONG_ANSWERS: dict[str, Fault | Change] = {
    "status 500": Fault(status=500, body=b'{"error": {"message": "EngineDeadError"}}'),
    "status 503": Fault(status=503),
    "busy": Fault(status=429, body=b"slow down"),
    "a closed connection": Fault(drops=True),
    "no JSON": Fault(body=b"<html>"),
    "half an answer": Fault(body=b'{"choices": [{"token_ids": [1, 2'),
    "another answer": Fault(body=b'{"results": []}'),
    "no choice": Fault(body=b'{"choices": []}'),
    "deep": Fault(body=b"[" * 100_000),
    "far too much": Fault(body=b" " * 10_000_000),
    "given up": change("finish_reason", "abort"),
    "no reason": change("finish_reason", None),
    "no logprobs": change("logprobs", None),
    "logprobs of fewer tokens": change("logprobs.content", lambda content: content[:-1]),
    "logprobs of other tokens": change("logprobs.content.2.token_id", lambda token: (token + 1) % 40),
    "a logprob that is none": change("logprobs.content.2.logprob", "NaN"),
    "a logprob above 0": change("logprobs.content.2.logprob", 0.5),
    "no tokens": change("token_ids", []),
    "too few tokens": change("token_ids", lambda ids: ids[:-1]),
    "too many tokens": change("token_ids", lambda ids: [*ids, 1]),
    "other words": change("token_ids", ["w1", "w2"]),
    "a stop that is none": change("finish_reason", "stop"),
    "no versions": change("weight_versions", None),
    "versions of fewer tokens": change("weight_versions", lambda spans: [spans[0] | {"end": spans[0]["end"] - 1}]),
    "versions that overlap": change("weight_versions", lambda spans: [spans[0], spans[0]]),
    "another run's weights": change("weight_versions", lambda spans: [spans[0] | {"version": "0123456789ab/0"}]),
    "nobody's weights": change("weight_versions", lambda spans: [spans[0] | {"version": "default"}]),
    "weights of tomorrow": change(
        "weight_versions", lambda spans: [spans[0] | {"version": spans[0]["version"].replace("/0", "/9")}]
    ),
}


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
    policy = make_policy()
    fake = fake_of(policy, fault=at(NUM_PROBES, WRONG_ANSWERS[name]))
    with running(fake):
        engine = engine_of(policy, tmp_path, fake)
        engine.load_weights(0)
        first = asyncio.run(engine.generate(prompt(5), sampling(seed=7)))
        second = asyncio.run(engine.generate(prompt(5), sampling(seed=7)))
    assert first == second
    asked = [body["sampling_params"]["seed"] for body in fake.bodies if body["sampling_params"]["max_tokens"] > 1]
    assert set(asked) == {7}
    assert len(asked) == (2 if isinstance(WRONG_ANSWERS[name], Fault) else 3)


@pytest.mark.parametrize("name", ["status 500", "no JSON", "no logprobs", "another run's weights", "far too much"])
def test_a_server_that_is_always_wrong_ends_the_run_with_its_reason(name: str, tmp_path: Path) -> None:
    policy = make_policy()

    def only_long(route: str, count: int) -> Fault | Change | None:
        return WRONG_ANSWERS[name] if fake.bodies and count >= NUM_PROBES and count % 3 == 2 else None

    fake = fake_of(policy, fault=only_long)  # every third one: the two probes in between are fine
    with running(fake):
        engine = engine_of(policy, tmp_path, fake)
        engine.load_weights(0)
        with pytest.raises(UserError, match=rf"{fake.url} did not give a completion in 4 attempts \(.+\); see its log"):
            asyncio.run(engine.generate(prompt(5), sampling()))


def test_a_server_that_hangs_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    policy = make_policy()
    fake = fake_of(policy, fault=at(NUM_PROBES, Fault(silent=True)))
    with running(fake):
        engine = engine_of(policy, tmp_path, fake, timeout_s=1.0)
        engine.load_weights(0)
        began = time.monotonic()
        assert len(asyncio.run(engine.generate(prompt(5), sampling())).token_ids) == 8
        assert 1.0 <= time.monotonic() - began < 10.0


def sample_many(engine: VllmEngine, fakes: Sequence[FakeVllm], disturb: Callable[[], None]) -> list[Completion]:
    """32 completions, and what happens when each of them has four tokens."""

    async def all_of_them() -> list[Completion]:
        for fake in fakes:
            fake.holds_at = 4
        requests = [engine.generate([1 + i, 2], sampling(seed=i, max_tokens=10)) for i in range(32)]
        waiting = asyncio.gather(*requests)
        while sum(fake.running for fake in fakes) < 32:
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
    policy = make_policy()
    fake = fake_of(policy)
    notes: list[str] = []
    with running(fake):
        engine = engine_of(policy, tmp_path, fake, notes=notes)
        engine.load_weights(0)
        train_a_step(policy)
        engine.load_weights(1)
        undisturbed = sample_many(engine, [fake], lambda: None)
        version = fake.version

        def restart() -> None:
            fake.die()
            fake.start()

        train_a_step(policy)  # as a trainer that is busy: what counts is what was pushed
        assert sample_many(engine, [fake], restart) == undisturbed
        assert fake.version == version
        assert {version for one in undisturbed for version in one.policy_versions} == {1}


def test_a_server_that_does_not_come_back_ends_the_run_in_time(tmp_path: Path) -> None:
    policy = make_policy()
    fake = fake_of(policy)
    with running(fake):
        engine = engine_of(policy, tmp_path, fake, wait_s=0.5)
        engine.load_weights(0)
        began = time.monotonic()
        with pytest.raises(UserError, match=rf"no server answered for engine.wait_s=0.5: {fake.url}.*resume=true"):
            sample_many(engine, [fake], fake.die)
        with pytest.raises(UserError, match=rf"no server answered .*{fake.url} \(.*refused.*\)"):
            engine.load_weights(1)
        assert time.monotonic() - began < 10


def test_pitfall_30_a_server_that_was_started_anew_unseen_is_found_out_by_its_first_answer(tmp_path: Path) -> None:
    # its weights are those it was started with: what it samples with them is thrown away
    policy = make_policy()
    fake = fake_of(policy)
    with running(fake):
        engine = engine_of(policy, tmp_path, fake)
        engine.load_weights(0)
        before = asyncio.run(engine.generate(prompt(5), sampling()))
        fake.die()
        fake.start()
        assert asyncio.run(engine.generate(prompt(5), sampling())) == before


def test_a_server_that_comes_back_as_another_one_is_refused(tmp_path: Path) -> None:
    policy = make_policy()
    fake = fake_of(policy)
    with running(fake):
        engine = engine_of(policy, tmp_path, fake)
        engine.load_weights(0)
        fake.die()
        fake.facts = {"max_model_len": 50}
        fake.start()
        with pytest.raises(UserError, match="came back with room for 50 tokens, and had 128: start it with --max-mod"):
            asyncio.run(engine.generate(prompt(5), sampling()))


def never_starts(fakes: list[FakeVllm], folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        engine_of(make_policy(), folder, *fakes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"vocab_size": 41}, "has a model with vocab_size=41, the policy has 40: start it on the policy's model"),
        ({"hidden_size": 64}, "has a model with hidden_size=64, the policy has 32"),
        ({"num_layers": 2}, "has a model with num_hidden_layers=2, the policy has 3"),
        ({"tokenizer": "x"}, "has another tokenizer than the policy: start it on the policy's model"),
        ({"quantization": "fp8"}, "keeps its weights quantized (fp8)"),
        ({"logprobs_mode": "raw_logprobs"}, "start it with --logprobs-mode processed_logprobs"),
        ({"chunked_prefill": True}, "start it with --no-enable-chunked-prefill"),
        ({"vocab_size": None}, "has another version of our extension"),
    ],
)
def test_a_server_that_does_not_fit_is_refused_at_once(facts: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    fits, other = fake_of(make_policy()), fake_of(make_policy(), facts=facts)
    with running(fits, other):
        said = never_starts([fits, other], tmp_path)
    assert sentence in said
    assert other.url in said


def test_a_server_without_a_tokenizer_or_on_a_gpu_is_fine(tmp_path: Path) -> None:
    fake = fake_of(make_policy(), facts={"tokenizer": None, "chunked_prefill": True, "device": "cuda"})
    with running(fake):
        engine_of(make_policy(), tmp_path, fake)


def test_what_is_no_server_of_ours_is_refused_in_a_sentence(tmp_path: Path) -> None:
    def rpc(answer: Fault) -> FakeVllm:
        return fake_of(make_policy(), fault=lambda route, count: answer if route == "/collective_rpc" else None)

    nobody = fake_of(make_policy())
    plain = rpc(Fault(status=500, body=json.dumps({"error": {"message": "no attribute 'describe'"}}).encode()))
    closed, garbage = rpc(Fault(status=404)), rpc(Fault(body=b"<html>"))
    with running(nobody, plain, closed, garbage):
        nobody.die()
        assert "does not answer (" in (said := never_starts([nobody], tmp_path))
        assert said.endswith("start it with: rlvr serve MODEL --engine vllm.")
        assert "cannot take weights (status 500: no attribute 'describe')" in never_starts([plain], tmp_path)
        assert "cannot take weights (status 404" in never_starts([closed], tmp_path)
        assert "what it answered cannot be read (<html>)" in never_starts([garbage], tmp_path)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://a", "http://"])
def test_what_is_no_address_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no address of a server; write e.g. http://127.0.0.1:8000"):
        engine_of(make_policy(), tmp_path, urls=(url,))


def test_a_password_in_an_address_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="VLLM_API_KEY") as caught:
        engine_of(make_policy(), tmp_path, urls=("http://me:hush@127.0.0.1:8000",))
    assert "hush" not in str(caught.value)


def test_the_key_goes_with_every_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "hush")
    policy = make_policy()
    fake = fake_of(policy)
    with running(fake):
        engine = engine_of(policy, tmp_path, fake, urls=(f"{fake.url}/v1/",) if fake.port else ())
        engine.load_weights(0)
        asyncio.run(engine.generate(prompt(5), sampling()))
    assert fake.keys == {"Bearer hush"}
