"""`rlvr eval` and `rlvr predict` on a model behind an endpoint: a small one of the tests' own, and `rlvr serve`."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.main import main
from rlvr.tracking.evaluations import read_records
from tests.system.harness import DATA, TASK, Command, wait_until
from tests.system.openai_server import Fault, error, serve

pytestmark = pytest.mark.openai

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVR_DATA", str(DATA))


def solve(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Knows the answers of the fixture's questions."""
    rows = [json.loads(line) for line in (DATA / "gsm8k" / "test.jsonl").read_text().splitlines()]
    row = next(row for row in rows if row["question"] in messages[-1]["content"])
    answer = row["answer"].rpartition("####")[2].strip()
    return {"content": f"<REASONING>easy</REASONING><SOLUTION>{answer}</SOLUTION>"}


def test_an_endpoint_is_asked_only_for_what_is_missing(tmp_path: Path, capsys: Capture) -> None:
    output = tmp_path / "F.jsonl"
    with serve(solve) as server:
        words = ["eval", f"openai:{server.url}#policy", "--task", "gsm8k", "--num-examples", "4", "--json"]
        assert main([*words, "--samples-per-example", "1", "--output", str(output)]) == 0
        out, err = capsys.readouterr()
        assert len(server.requests) == 8
        assert main([*words, "--samples-per-example", "2", "--output", str(output)]) == 0
        assert len(server.requests) == 12
    result = json.loads(out)
    assert result["model"] == f"openai:{server.url}#policy"
    assert result["eval/gsm8k/accuracy"] == result["eval/gsm8k/sampled_accuracy"] == 1.0
    assert "the endpoint's model is not known here" in err
    assert len(read_records(output)[0]) == 12
    capsys.readouterr()


def test_predict_asks_an_endpoint_too(tmp_path: Path, capsys: Capture) -> None:
    with serve(lambda messages: {"content": "\x1b[2J so <SOLUTION>7</SOLUTION>"}) as server:
        words = ["predict", f"openai:{server.url}#policy", "--task", "gsm8k"]
        assert main([*words, "--prompt", "3 + 4?"]) == 0
        assert capsys.readouterr().out == "\\x1b[2J so <SOLUTION>7</SOLUTION>\nanswer 7\n"
        assert main([*words, "--num-examples", "2", "--json"]) == 0
        assert len([json.loads(line) for line in capsys.readouterr().out.splitlines()]) == 2


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("openai:http://127.0.0.1:9/v1#policy", "does not answer"),
        ("openai:URL#polcy", "has no model 'polcy': there are policy"),
        ("openai:URL", "an endpoint is written openai:ADDRESS#MODEL"),
    ],
)
def test_an_endpoint_that_is_not_there_is_one_sentence(model: str, sentence: str, capsys: Capture) -> None:
    with serve(solve) as server:
        code = main(["eval", model.replace("URL", server.url), "--task", "gsm8k"])
    refused(code, sentence, capsys)


def refused(code: int, sentence: str, capsys: Capture) -> None:
    out, err = capsys.readouterr()
    assert code == 1
    assert out == ""
    assert sentence in err
    assert err.splitlines()[-1].startswith("rlvr: error: ")
    assert "Traceback" not in err


def test_an_endpoint_has_no_task_of_its_own(capsys: Capture) -> None:
    assert main(["eval", "openai:http://127.0.0.1:9/v1#policy"]) == 1
    assert "so has no task of its own: add --task" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (error(401, "who are you"), "refuses the key (401: who are you): set OPENAI_API_KEY"),
        (error(404, "no such model"), "has no model 'policy' or no chat completions (404: no such model)"),
        (Fault(body=b"<html>"), "4 of 4 episodes could not be played"),
        (Fault(body=b'{"choices": []}'), "4 of 4 episodes could not be played"),
    ],
)
@pytest.mark.parametrize("command", ["eval", "predict"])
def test_an_endpoint_that_misbehaves_is_one_sentence(
    command: str, fault: Fault, sentence: str, capsys: Capture
) -> None:
    with serve(solve, fault=lambda number, body: fault) as server:
        code = main([command, f"openai:{server.url}#policy", "--task", "gsm8k", "--num-examples", "4"])
    refused(code, sentence, capsys)


def test_what_an_endpoint_failed_at_is_asked_again_later(tmp_path: Path, capsys: Capture) -> None:
    output = tmp_path / "F.jsonl"
    broken = True

    def fault(number: int, body: dict[str, Any]) -> Fault | None:
        return error(400, "not today") if broken and number >= 2 else None

    with serve(solve, fault=fault) as server:
        words = ["eval", f"openai:{server.url}#policy", "--task", "gsm8k", "--num-examples", "6", "--json"]
        words += ["--output", str(output)]
        code = main(words)
        refused(code, "4 of 6 episodes could not be played", capsys)
        broken = False
        assert main(words) == 0
        assert len(server.requests) == 6 + 4
    assert json.loads(capsys.readouterr().out)["eval/gsm8k/num_examples"] == 6


# ------------------------------------------------------------------------------------------------------ a served model


@pytest.fixture
def served(first_run: Path, tmp_path: Path) -> Iterator[str]:
    """The address of the run's model behind `rlvr serve`."""
    command = Command("serve", str(first_run), "--port", "0", "--served-model-name", "sums", log=tmp_path / "log")
    wait_until(lambda: "/v1" in command.err or not command.process.is_alive())
    found = re.search(r"http://127\.0\.0\.1:\d+/v1", command.err)
    assert found, command.err
    yield found[0]
    command.send(signal.SIGTERM)
    command.wait()


def test_a_served_model_has_the_score_of_its_folder(first_run: Path, served: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    options = ["--num-examples", "30", "--samples-per-example", "1", "--json"]
    assert main(["eval", str(first_run), *options, "--output", str(here)]) == 0
    settings = [word for line in (*TASK, "rollout.max_completion_tokens=16") for word in ("--set", line)]
    words = ["eval", f"openai:{served}#sums", "--task", "rpn", *settings, *options, "--output", str(there)]
    assert main(words) == 0
    ours, theirs = read_records(here)[0], read_records(there)[0]
    assert len(ours) == len(theirs) == 60
    for one, other in zip(ours, theirs, strict=True):
        assert one.example_id == other.example_id
        assert one.turns[0].completion == other.turns[0].completion
        assert (one.answer, one.correct, one.reward) == (other.answer, other.correct, other.reward)
        assert one.turns[0].token_ids == other.turns[0].token_ids
        assert one.turns[0].logprobs == pytest.approx(other.turns[0].logprobs, abs=1e-4)
        assert (one.num_prompt_tokens, one.num_completion_tokens) == (
            other.num_prompt_tokens,
            other.num_completion_tokens,
        )
