"""Servers, addresses and keys that are refused before anything is sampled, each in a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.engines.vllm.server import Server, client_settings
from rlvr.errors import UserError
from tests.unit.engines.vllm.fake import Fault, running, wrong_at
from tests.unit.engines.vllm.world import answer, engine_of, fake_of, make_policy, one_server


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
    fits, other = fake_of(), fake_of(facts=facts)
    with running(fits, other), pytest.raises(UserError) as caught:
        engine_of(make_policy(), tmp_path, fits, other)
    assert sentence in str(caught.value)
    assert other.url in str(caught.value)


def message(status: int, text: str) -> Fault:
    return Fault(status=status, body=json.dumps({"error": {"message": text}}).encode())


def no_model(answer: dict[str, Any]) -> dict[str, Any]:
    return {"data": answer["data"][:1]}


@pytest.mark.parametrize(
    ("route", "wrong", "sentence"),
    [
        (None, None, "start it with: rlvr serve MODEL --engine vllm"),
        ("rpc", message(500, "no attribute 'describe'"), "cannot take weights (status 500: no attribute 'describe')"),
        ("rpc", Fault(status=404, body=b"not\nhere\x1b[31m\xff"), "weights (status 404: not here [31m\ufffd): start"),
        ("rpc", message(500, "RPC call timed out."), "does not answer (status 500: RPC call timed out)"),
        ("rpc", Fault(body=b" <!DOCTYPE html>x"), "what it answered cannot be read (<!DOCTYPE html>x)"),
        ("models", no_model, "does not answer (it has adapters, and no model"),
    ],
)
def test_a_server_of_another_kind_is_refused(route: str | None, wrong: Any, sentence: str, tmp_path: Path) -> None:
    routes = {"rpc": "/collective_rpc", "models": "/v1/models"}
    fake = fake_of(**({"fault": wrong_at(routes[route], wrong)} if route else {}))
    with running(fake):
        if route is None:
            fake.die()
        with pytest.raises(UserError) as caught:
            engine_of(make_policy(), tmp_path, fake)
    assert sentence in str(caught.value)


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(UserError, match="VLLM_API_KEY") as caught:
        Server("http://me:hush@127.0.0.1:8000", timeout_s=1.0)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://a:x", "http://[::1", "http://a..b"])
def test_a_malformed_address_is_one_sentence(url: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not answer"):
        engine_of(make_policy(), tmp_path, urls=(url,))


def test_only_https_reads_certificates_and_proxies() -> None:
    urls = ["HTTPS://a"], ["http://a", "https://b"], ["http://a", "http://https"]
    assert [client_settings(*one, read_s=None)["verify"] for one in urls] == [True, True, False]


def test_the_key_goes_with_every_request_past_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "hush")
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with one_server(tmp_path, version=None) as (_, fake, policy):
        fake.keys.clear()
        engine = engine_of(policy, tmp_path, urls=(f"{fake.url}/v1/",))
        engine.load_weights(0)
        answer(engine)
    assert fake.keys == {"Bearer hush"}


@pytest.mark.parametrize("key", ["hush\n", "hush hush", "h\xfcsh"])
def test_an_invalid_key_is_refused_and_not_shown(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", key)
    with pytest.raises(UserError, match="VLLM_API_KEY: a key has no spaces, line breaks or letters beyond") as caught:
        engine_of(make_policy(), tmp_path, urls=("http://127.0.0.1:9",))
    assert "sh" not in str(caught.value).replace("ASCII", "")
