"""`rlvr serve` refuses options that would do nothing; tests/system/test_serve.py and test_vllm.py serve."""

from __future__ import annotations

import pytest

from rlvr.cli.main import main


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--engine vllm --max-queue 5", "--max-queue 5: has no effect with --engine vllm; what vLLM itself can"),
        ("--engine vllm --max-body-mib 5", "--max-body-mib 5: has no effect with --engine vllm"),
        ("--engine vllm --request-timeout 5", "--request-timeout 5: has no effect with --engine vllm"),
        ("--engine vllm --tool-format hermes", "--tool-format hermes: has no effect with --engine vllm"),
        ("--vllm-python python3", "--vllm-python python3: has no effect with --engine local; add --engine vllm"),
        ("--log vllm.log", "--log vllm.log: has no effect with --engine local"),
        ("-- --tensor-parallel-size 2", "--tensor-parallel-size after --: is for vLLM; add --engine vllm"),
        ("--engine vllm -- --port 1", "--port after --: rlvr serve gives vLLM its --port; leave it out (use --port)."),
        ("--engine vllm --max-batch-size 2 -- --max-num-seqs 3", "leave it out (use --max-batch-size)"),
        ("--engine vllm --max-context-tokens 2 -- --max_model_len=3", "leave it out (use --max-context-tokens)"),
        ("--engine trt", "invalid choice: 'trt'"),
    ],
)
def test_an_option_without_effect_is_refused(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "no/such/model", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.count("\n") == 1


def test_words_after_two_dashes_are_for_serve_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "no/such/model", "--", "--engine", "vllm"]) != 0
    assert "after --" not in capsys.readouterr().err
