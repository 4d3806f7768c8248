"""`rlvr eval` and `rlvr predict` on a model behind an endpoint: a small one of the tests' own, and `rlvr serve`."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.records.graded import read_records
from tests.system.harness import DATA, TASK, Cli
from tests.system.openai_server import Fault, error, serve
from tests.system.served import served

pytestmark = pytest.mark.openai


def solve(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Knows the answers of the fixture's questions."""
    rows = [json.loads(line) for line in (DATA / "gsm8k" / "test.jsonl").read_text().splitlines()]
    row = next(row for row in rows if row["question"] in messages[-1]["content"])
    answer = row["answer"].rpartition("####")[2].strip()
    return {"content": f"<REASONING>easy</REASONING><SOLUTION>{answer}</SOLUTION>"}


def test_an_endpoint_is_asked_only_for_what_is_missing(tmp_path: Path, cli: Cli) -> None:
    output = tmp_path / "F.jsonl"
    with serve(solve) as server:
        words = ["eval", f"openai:{server.url}#policy", "--task", "gsm8k", "--num-examples", "4", "--json"]
        done = cli.ok(*words, "--samples-per-example", "1", "--output", output)
        assert len(server.requests) == 8
        cli.ok(*words, "--samples-per-example", "2", "--output", output)
        assert len(server.requests) == 12
    result = json.loads(done.out)
    assert result["model"] == f"openai:{server.url}#policy"
    assert result["eval/gsm8k/accuracy"] == result["eval/gsm8k/sampled_accuracy"] == 1.0
    assert "the endpoint's model is not known here" in done.err
    assert len(read_records(output)[0]) == 12


def test_predict_asks_an_endpoint_too(cli: Cli) -> None:
    with serve(lambda messages: {"content": "\x1b[2J so <SOLUTION>7</SOLUTION>"}) as server:
        words = ["predict", f"openai:{server.url}#policy", "--task", "gsm8k"]
        assert cli.ok(*words, "--prompt", "3 + 4?").out == "\\x1b[2J so <SOLUTION>7</SOLUTION>\nanswer 7\n"
        assert len(cli.ok(*words, "--num-examples", "2", "--json").out.splitlines()) == 2


def refused(cli: Cli, sentence: str, *words: object, code: int = 1) -> None:
    """One sentence at the end, and no result."""
    done = cli(*words)
    assert (done.code, done.out) == (code, "")
    assert sentence in done.err
    assert done.err.splitlines()[-1].startswith("rlvr: error: ")
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("openai:http://127.0.0.1:9/v1#policy", "does not answer"),
        ("openai:URL#polcy", "has no model 'polcy': there are policy"),
    ],
)
def test_an_endpoint_that_is_not_there_is_one_sentence(model: str, sentence: str, cli: Cli) -> None:
    with serve(solve) as server:
        refused(cli, sentence, "eval", model.replace("URL", server.url), "--task", "gsm8k")


def test_an_endpoint_has_no_task_of_its_own(cli: Cli) -> None:
    refused(cli, "so has no task of its own: add --task", "eval", "openai:http://127.0.0.1:9/v1#policy", code=2)


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
def test_an_endpoint_that_misbehaves_is_one_sentence(command: str, fault: Fault, sentence: str, cli: Cli) -> None:
    with serve(solve, fault=lambda number, body: fault) as server:
        words = (command, f"openai:{server.url}#policy", "--task", "gsm8k", "--num-examples", "4")
        refused(cli, sentence, *words)


def test_what_an_endpoint_failed_at_is_asked_again_later(tmp_path: Path, cli: Cli) -> None:
    broken = True

    def fault(number: int, body: dict[str, Any]) -> Fault | None:
        return error(400, "not today") if broken and number >= 2 else None

    with serve(solve, fault=fault) as server:
        words = ["eval", f"openai:{server.url}#policy", "--task", "gsm8k", "--num-examples", "6", "--json"]
        words += ["--output", str(tmp_path / "F.jsonl")]
        refused(cli, "4 of 6 episodes could not be played", *words)
        broken = False
        done = cli.ok(*words)
        assert len(server.requests) == 6 + 4
    assert json.loads(done.out)["eval/gsm8k/num_examples"] == 6


# ------------------------------------------------------------------------------------------------------ a served model


def test_a_served_model_has_the_score_of_its_folder(first_run: Path, tmp_path: Path, cli: Cli) -> None:
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    options = ["--num-examples", "30", "--samples-per-example", "1", "--json"]
    cli.ok("eval", first_run, *options, "--output", here)
    settings = [word for line in (*TASK, "rollout.max_completion_tokens=16") for word in ("--set", line)]
    with served(str(first_run), ["--served-model-name", "sums"]) as server:
        cli.ok("eval", f"openai:{server.url}#sums", "--task", "rpn", *settings, *options, "--output", there)
    ours, theirs = read_records(here)[0], read_records(there)[0]
    assert len(ours) == len(theirs) == 60
    for one, other in zip(ours, theirs, strict=True):
        (turn,), (other_turn,) = one.turns, other.turns
        assert one.example_id == other.example_id
        assert (turn.completion, turn.token_ids) == (other_turn.completion, other_turn.token_ids)
        assert (one.answer, one.correct, one.reward) == (other.answer, other.correct, other.reward)
        assert turn.logprobs == pytest.approx(other_turn.logprobs, abs=1e-4)
        for count in ("num_prompt_tokens", "num_completion_tokens"):
            assert getattr(one, count) == getattr(other, count)
