"""An evaluation that was killed anywhere goes on, and its records are those of one that never was."""

import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr.cli.main import main
from rlvr.records.graded import EvaluationRecord, GradedTurn, read_records
from tests.system.harness import Cli, Command, wait_until

EVAL = ("--num-examples", "20", "--samples-per-example", "3", "--json")


def words(command: str, model: Path, output: Path, *more: str) -> list[str]:
    return [command, str(model), "--output", str(output), *more]


def partial(output: Path) -> Path:
    return output.with_name(output.name + ".partial")


def num_kept(output: Path) -> int:
    return partial(output).read_bytes().count(b"\n") if partial(output).exists() else 0


def comparable(path: Path) -> list[EvaluationRecord]:
    """All but the clock, and the last bits of logprobs: they depend on how large the batch was."""

    def plain(turn: GradedTurn) -> GradedTurn:
        return replace(turn, logprobs=tuple(round(value, 3) for value in turn.logprobs))

    records, problems = read_records(path)
    assert problems == []
    return [replace(one, time_s=0.0, turns=tuple(map(plain, one.turns))) for one in records]


@pytest.fixture(scope="module")
def whole(first_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of an evaluation that nobody disturbed."""
    output = tmp_path_factory.mktemp("whole") / "F.jsonl"
    assert main(words("eval", first_run, output, *EVAL)) == 0
    return output


def test_pitfall_37_a_killed_evaluation_resumes_exactly(first_run: Path, whole: Path, tmp_path: Path, cli: Cli) -> None:
    output = tmp_path / "F.jsonl"
    line = words("eval", first_run, output, *EVAL)
    assert Command(*line, log=tmp_path / "log", die_at=30).wait() == -signal.SIGKILL
    assert 10 <= num_kept(output) < 80
    with partial(output).open("ab") as file:
        file.write(b'{"model": "and the line that it was wri')
    before = {record.key for record in read_records(partial(output))[0]}
    done = cli.ok(*line)
    assert "is damaged" in done.err
    assert not partial(output).exists()
    assert comparable(output) == comparable(whole)
    assert json.loads(done.out)["eval/rpn/num_examples"] == 20
    times = {record.key: record.time_s for record in read_records(output)[0]}
    assert len(before) < len(times) == 80
    assert cli.ok(*line).out == done.out  # nothing is left to do
    assert {record.key: record.time_s for record in read_records(output)[0]} == times


def test_more_examples_and_samples_use_what_is_there(first_run: Path, whole: Path, tmp_path: Path, cli: Cli) -> None:
    output = tmp_path / "F.jsonl"
    output.write_bytes(whole.read_bytes())
    cli.ok(*words("eval", first_run, output, "--num-examples", "25", "--samples-per-example", "4", "--json"))
    records = {record.key: record for record in read_records(output)[0]}
    assert len(records) == 25 * 5
    assert all(records[record.key].time_s == record.time_s for record in read_records(whole)[0])


@pytest.mark.parametrize(
    "other",
    [
        "--temperature 0.5",
        "--split train",
        "--set rollout.max_completion_tokens=7",
        "--set reward.parts.boxed.weight=1.0",
        "other weights",
    ],
)
def test_pitfall_38_records_of_other_settings_are_refused(other: str, first_run: Path, whole: Path, cli: Cli) -> None:
    before = whole.read_bytes()
    model, more = (first_run / "warm_start", []) if other == "other weights" else (first_run, other.split())
    done = cli(*words("eval", model, whole, *EVAL, *more))
    assert done.code == 1
    assert "holds records of other settings" in done.err
    assert "name another --output" in done.err
    assert whole.read_bytes() == before


def test_what_is_done_is_kept_at_the_first_signal(first_run: Path, tmp_path: Path) -> None:
    output = tmp_path / "F.jsonl"
    many = ("--num-examples", "200", "--samples-per-example", "20", "--json")
    command = Command(*words("eval", first_run, output, *many), log=tmp_path / "log")
    wait_until(lambda: num_kept(output) > 5)
    command.send(signal.SIGTERM)
    assert command.wait() == 143
    assert f"what is done is kept in {output}.partial" in command.err
    # the signal may come between the opening of a file or context and its `with`; users do not see these warnings
    harmless = "ResourceWarning: unclosed file|RuntimeWarning: coroutine 'nullcontext"
    said = re.sub(rf"Exception ignored in: <.*?\n({harmless})[^\n]*\n", "", command.err, flags=re.DOTALL)
    assert "Traceback" not in said
    records, problems = read_records(partial(output))
    assert len(records) > 5
    assert problems == []


def test_pitfall_37_killed_predictions_go_on(first_run: Path, tmp_path: Path, cli: Cli) -> None:
    source, output, once = tmp_path / "in.jsonl", tmp_path / "F.jsonl", tmp_path / "once.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"{a} {b} +"}) + "\n" for a in range(5) for b in range(5)))
    options = ("--input", str(source), "--num-samples", "2", "--temperature", "0.7")
    command = Command(*words("predict", first_run, output, *options), log=tmp_path / "log", die_at=20)
    assert command.wait() == -signal.SIGKILL
    assert 5 <= num_kept(output) < 50
    assert cli.ok(*words("predict", first_run, output, *options, "--batch-size", "7")).out == ""
    cli.ok(*words("predict", first_run, once, *options))
    assert comparable(output) == comparable(once)
    assert len(comparable(output)) == 50
