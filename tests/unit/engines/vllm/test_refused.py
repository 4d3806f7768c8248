"""Servers, addresses and keys that are refused before anything is sampled, each in a sentence."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.engines.vllm.server import Server, client_settings
from rlvr.errors import UserError
from tests.unit.engines.tiny import prompt, sampling
from tests.unit.engines.vllm.fake import FakeVllm, Fault, running
from tests.unit.engines.vllm.world import engine_of, fake_of, make_policy


def never_starts(fakes: list[FakeVllm], folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        engine_of(make_policy(), folder, *fakes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"config": {"vocab_size": 41}}, "has a model with vocab_size=41, the policy has 40: start it on the policy's"),
        ({"config": {"model_type": "x", "hidden_size": None}}, "has a model with model_type=x, the policy has llama"),
        ({"tokenizer": "x"}, "has another tokenizer than the policy: start it on the policy's model"),
        ({"quantization": "fp8"}, "keeps its weights quantized (fp8)"),
        ({"logprobs_mode": "raw_logprobs"}, "start it with --logprobs-mode processed_logprobs"),
        ({"chunked_prefill": True}, "start it with --no-enable-chunked-prefill"),
        ({"dtype": "float8"}, "cannot take weights (of another version)"),
    ],
)
def test_a_server_that_does_not_fit_is_refused_at_once(facts: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    fits, other = fake_of(make_policy()), fake_of(make_policy(), facts=facts)
    with running(fits, other):
        said = never_starts([fits, other], tmp_path)
    assert sentence in said
    assert other.url in said


def no_model(answer: dict[str, Any]) -> dict[str, Any]:
    return {"data": answer["data"][:1]}


def test_what_is_no_server_of_ours_is_refused_in_a_sentence(tmp_path: Path) -> None:
    def rpc(answer: Fault) -> FakeVllm:
        return fake_of(make_policy(), fault=lambda route, count: answer if route == "/collective_rpc" else None)

    nobody = fake_of(make_policy())
    plain = rpc(Fault(status=500, body=json.dumps({"error": {"message": "no attribute 'describe'"}}).encode()))
    closed, garbage = rpc(Fault(status=404, body=b"not\nhere\x1b[31m\xff")), rpc(Fault(body=b" <!DOCTYPE html>x"))
    stalled = rpc(Fault(status=500, body=b'{"error": {"message": "RPC call to describe timed out."}}'))
    strange = fake_of(make_policy(), fault=lambda route, count: no_model if route == "/v1/models" else None)
    with running(nobody, plain, closed, garbage, stalled, strange):
        nobody.die()
        assert "start it with: rlvr serve MODEL --engine vllm" in never_starts([nobody], tmp_path)
        assert "cannot take weights (status 500: no attribute 'describe')" in never_starts([plain], tmp_path)
        assert "cannot take weights (status 404: not here [31m\ufffd): start" in never_starts([closed], tmp_path)
        assert "does not answer (status 500: RPC call to describe timed out)" in never_starts([stalled], tmp_path)
        assert "does not answer (it has adapters, and no model" in never_starts([strange], tmp_path)
        assert "what it answered cannot be read (<!DOCTYPE html>x)" in never_starts([garbage], tmp_path)


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(UserError, match="VLLM_API_KEY") as caught:
        Server("http://me:hush@127.0.0.1:8000", timeout_s=1.0)
    assert "hush" not in str(caught.value)


def test_what_is_no_address_is_one_sentence(tmp_path: Path) -> None:
    for url in ("http://a:x", "http://[::1", "http://a..b"):
        with pytest.raises(UserError, match="does not answer"):
            engine_of(make_policy(), tmp_path, urls=(url,))


def test_only_https_reads_certificates_and_proxies() -> None:
    urls = ["HTTPS://a"], ["http://a", "https://b"], ["http://a", "http://https"]
    assert [client_settings(*one, read_s=None)["verify"] for one in urls] == [True, True, False]


def test_the_key_goes_with_every_request_to_the_server_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "hush")
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    policy = make_policy()
    fake = fake_of(policy)
    with running(fake):
        engine = engine_of(policy, tmp_path, urls=(f"{fake.url}/v1/",))
        engine.load_weights(0)
        asyncio.run(engine.generate(prompt(5), sampling()))
    assert fake.keys == {"Bearer hush"}


@pytest.mark.parametrize("key", ["hush\n", "hush hush", "h\xfcsh"])
def test_a_key_that_no_request_can_carry_is_refused_and_not_shown(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", key)
    with pytest.raises(UserError, match="VLLM_API_KEY: a key has no spaces, line breaks or letters beyond") as caught:
        engine_of(make_policy(), tmp_path, urls=("http://127.0.0.1:9",))
    assert "sh" not in str(caught.value).replace("ASCII", "")
