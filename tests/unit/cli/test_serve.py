"""`rlvr serve` refuses options that would do nothing; tests/system/test_serve.py and test_vllm.py serve."""

import socket

import pytest

from rlvr.cli.main import main


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "--engine vllm --max-queue 5",
            "--max-queue 5: has no effect with --engine vllm; pass vLLM's own options after --",
        ),
        ("--vllm-python python3", "--vllm-python python3: has no effect with --engine local; add --engine vllm"),
        ("-- --tensor-parallel-size 2", "--tensor-parallel-size after --: is for vLLM; add --engine vllm"),
        (
            "--engine vllm -- --port 1",
            "--port after --: rlvr serve sets --port; leave it out, or use its own option (--help).",
        ),
        ("--engine vllm --max-batch-size 2 -- --max-num-seqs 3", "rlvr serve sets --max-num-seqs; leave it out"),
        ("--engine vllm --max-context-tokens 2 -- --max_model_len=3", "rlvr serve sets --max-model-len; leave it out"),
        ("--engine trt", "invalid choice: 'trt'"),
        ("--engine vllm --api-key=", "--api-key: a key has letters, digits and signs of ASCII"),
    ],
)
def test_an_option_without_effect_is_refused(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "no/such/model", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("engine", ["local", "vllm"])
def test_a_key_that_no_client_could_send_is_refused_and_not_shown(
    engine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLVR_API_KEY", "hush\n")
    assert main(["serve", "no/such/model", "--engine", engine]) == 2
    assert main(["serve", "no/such/model", "--engine", engine, "--api-key", "hush hush"]) == 2
    err = capsys.readouterr().err
    assert "hush" not in err
    assert "error: $RLVR_API_KEY: a key has letters" in err
    assert "error: --api-key: a key has letters" in err


def test_a_port_that_is_taken_is_refused_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "no/such/model", "--engine", "vllm", "--port", str(port)]) == 1
    assert f"--port {port} cannot be used (Address already in use)" in capsys.readouterr().err
