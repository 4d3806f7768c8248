"""`rlvr serve` refuses options that would do nothing; tests/system/test_serve.py and test_vllm.py serve."""

import socket
import sys

import pytest

from rlvr.commands.serve import _warn_of
from tests.unit.cli.conftest import Rlvr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "--engine vllm --max-queue 5",
            "--max-queue 5: has no effect with --engine vllm; pass vLLM's own options after --",
        ),
        ("--vllm-python python3", "--vllm-python python3: has no effect with --engine local; add --engine vllm"),
        ("-- --tensor-parallel-size 2", "--tensor-parallel-size after --: is for vLLM; add --engine vllm"),
        ("--engine vllm -- --port 1", "--port after --: rlvr serve sets --port; leave it out, or use its own option"),
        ("--engine vllm --max-batch-size 2 -- --max-num-seqs 3", "rlvr serve sets --max-num-seqs; leave it out"),
        ("--engine vllm --max-context-tokens 2 -- --max_model_len=3", "rlvr serve sets --max-model-len; leave it out"),
        ("--engine trt", "invalid choice: 'trt'"),
        ("--engine vllm --api-key=", "--api-key: a key has letters, digits and signs of ASCII"),
    ],
)
def test_an_option_without_effect_is_refused(words: str, told: str, rlvr: Rlvr) -> None:
    ran = rlvr("serve", "no/such/model", "--port", "0", *words.split())
    assert ran.code == 2
    assert told in ran.err
    assert (ran.out, ran.err.count("\n")) == ("", 1)


def test_what_constrains_completions_must_be_installed(monkeypatch: pytest.MonkeyPatch, rlvr: Rlvr) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    ran = rlvr("serve", "no/such/model")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "rlvr serve needs starlette, uvicorn and llguidance; install them with: " in ran.err


@pytest.mark.parametrize("engine", ["local", "vllm"])
def test_an_invalid_key_is_refused_and_not_shown(engine: str, monkeypatch: pytest.MonkeyPatch, rlvr: Rlvr) -> None:
    monkeypatch.setenv("RLVR_API_KEY", "hush\n")
    of_variable = rlvr("serve", "no/such/model", "--engine", engine)
    of_option = rlvr("serve", "no/such/model", "--engine", engine, "--api-key", "hush hush")
    assert of_variable.code == of_option.code == 2
    assert "hush" not in of_variable.err + of_option.err
    assert "error: $RLVR_API_KEY: a key has letters" in of_variable.err
    assert "error: --api-key: a key has letters" in of_option.err


def test_a_port_in_use_is_refused_at_once(rlvr: Rlvr) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = rlvr("serve", "no/such/model", "--engine", "vllm", "--port", port)
    assert ran.code == 1
    assert f"--port {port} cannot be used (Address already in use)" in ran.err


@pytest.mark.parametrize(
    ("host", "key", "warned"),
    [("127.0.0.1", None, False), ("::1", None, False), ("0.0.0.0", None, True), ("0.0.0.0", "key", False)],
)
def test_a_model_that_others_can_reach_without_a_key_is_told(
    host: str, key: str | None, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    _warn_of(host, key, ", and give it other weights")
    said = f"rlvr: anyone who can reach {host} can use the model, and give it other weights: give an --api-key\n"
    assert capsys.readouterr() == ("", said if warned else "")
