"""`rlvr eval --few-shot 0,1,4`: accuracy by the number of worked examples in the prompt, on the same questions."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.records.graded import read_records
from tests.system.harness import DATA, Cli
from tests.system.openai_server import serve

pytestmark = pytest.mark.openai

ROWS = [json.loads(line) for line in (DATA / "gsm8k" / "test.jsonl").read_text().splitlines()]


def learns(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Knows the answers of half the questions without an example, and of all with two."""
    place, row = next((i, row) for i, row in enumerate(ROWS) if row["question"] in messages[-1]["content"])
    shown = sum(message["role"] == "assistant" for message in messages)
    answer = row["answer"].rpartition("####")[2].strip() if place % 2 or shown >= 2 else "1234567"
    return {"content": f"<REASONING>easy</REASONING><SOLUTION>{answer}</SOLUTION>"}


def test_accuracy_by_the_number_of_worked_examples(tmp_path: Path, cli: Cli) -> None:
    num = str(len(ROWS))
    with serve(learns) as server:
        model = f"openai:{server.url}#policy"
        words = ["eval", model, "--task", "gsm8k", "--num-examples", num, "--few-shot", "0,1,2"]
        done = cli.ok(*words, "--json", "--output", tmp_path / "F.jsonl")
        num_requests = len(server.requests)
        shown = cli.ok(*words, "--output", tmp_path / "F.jsonl")
        assert len(server.requests) == num_requests == 3 * len(ROWS)  # each number has a file of its own, to resume
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["few_shot"] for line in lines] == [0, 1, 2]
    half = len(ROWS) // 2 / len(ROWS)
    assert [line["eval/gsm8k/accuracy"] for line in lines] == [half, half, 1.0]
    against = [line.get("against_first") for line in lines]
    assert against[0] is None
    assert (against[1]["value"], against[2]["value"]) == (0.0, 1.0 - half)
    assert against[2]["num_examples"] == len(ROWS)
    assert against[2]["low"] <= 1.0 - half <= against[2]["high"]
    assert against[2]["adjusted_p_value"] == pytest.approx(2 * against[2]["p_value"])
    for name in ("0-shot", "1-shot", "2-shot"):
        records, _ = read_records(tmp_path / f"F_{name.replace('-', '_')}.jsonl")
        assert len({record.example_id for record in records}) == len(ROWS)
    table = [line.split() for line in shown.out.splitlines()]
    assert [row[:3] for row in table if row and row[0] in "012"] == [
        ["0", num, f"{half:.1%}"],
        ["1", num, f"{half:.1%}"],
        ["2", num, "100.0%"],
    ]
    assert "2-shot against 0-shot" in " ".join(shown.out.split()) or "2-shot is better" in " ".join(shown.out.split())
    assert done.err.count("the endpoint's model is not known here") == 1


@pytest.mark.parametrize(
    ("few_shot", "said"),
    [
        ("0,0", "0,0 has a number twice"),
        ("", "is not a whole number of 0 or more"),
        ("1,x", "x is not a whole number of 0 or more"),
    ],
)
def test_other_numbers_are_refused(few_shot: str, said: str, cli: Cli) -> None:
    cli.refuses(2, ["eval", "anywhere", "--task", "gsm8k", "--few-shot", few_shot], said)


def test_a_task_that_shows_no_examples_is_refused(first_run: Path, cli: Cli) -> None:
    cli.refuses(2, ["eval", first_run, "--few-shot", "0,2"], "prompt.few_shot=2: has no effect; it needs a task")


def test_a_local_model_is_loaded_once(qwen: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import rlvr.run.inference as inference

    loaded = list[str]()

    def load(source: str, *rest: Any) -> Any:
        loaded.append(source)
        return real(source, *rest)

    real = inference.load_for_inference
    monkeypatch.setattr(inference, "load_for_inference", load)
    words = ("--task", "gsm8k", "--num-examples", "2", "--few-shot", "1,0", "--json")
    done = cli.ok("eval", qwen, *words, "--set", "rollout.max_completion_tokens=8")
    assert [json.loads(line)["few_shot"] for line in done.out.splitlines()] == [1, 0]
    assert len(loaded) == 1
