"""Models x tasks x retrievers: killed anywhere, broken anyhow, the table is the same in the end."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.main import main
from rlvr.records.graded import read_records
from tests.system.harness import Cli, Command
from tests.system.openai_server import error, serve

SUMMARY = ("summary.md", "summary.csv", "summary.json")
FEW_ON_DATA = ("--num-examples", "4", "--set", "rollout.max_completion_tokens=32")
SIZE = ("--num-examples", "12", "--samples-per-example", "2")


def plan(run: Path, folder: Path) -> list[str]:
    """Two models on the run's own task: the warm-started one, and the one that RL made of it."""
    return ["benchmark", "--models", f"{run / 'warm_start'},{run}", "--tasks", str(run), "--output-dir", str(folder)]


def table(folder: Path) -> dict[str, str]:
    """The summary, without where it lies."""
    return {name: (folder / name).read_text() for name in SUMMARY}


@pytest.fixture(scope="module")
def whole(first_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "bench"
    assert main([*plan(first_run, folder), *SIZE]) == 0
    return folder


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "summary.json").read_text())


def times(folder: Path) -> dict[tuple[str, str, int], float]:
    return {r.key: r.time_s for file in sorted((folder / "records").glob("*.jsonl")) for r in read_records(file)[0]}


def test_the_table_has_a_row_a_cell_and_says_who_is_better(first_run: Path, whole: Path, cli: Cli) -> None:
    lines = lines_of(whole)
    assert [line["kind"] for line in lines] == ["cell", "cell", "comparison"]
    assert [line["model"] for line in lines[:2]] == [str(first_run / "warm_start"), str(first_run)]
    assert all((line["num_examples"], line["samples_per_example"]) == (12, 2) for line in lines[:2])
    header = (whole / "summary.csv").read_text().splitlines()[0].split(",")
    assert {"model", "task", "retriever", "accuracy", "accuracy_low", "accuracy_high", "pass_at_2_low"} <= set(header)
    text = (whole / "summary.md").read_text()
    assert "seconds" not in "".join(table(whole).values())
    assert sum(line.startswith(f"| {first_run}") for line in text.splitlines()) == 2
    done = cli.ok("analyze", whole)  # what it measured is what analyze reads
    assert lines[2]["sentence"].split(", McNemar")[0].split(": ")[-1] in " ".join(done.out.split())
    one = cli.ok("eval", first_run, *SIZE, "--json")
    assert json.loads(one.out)["eval/rpn/accuracy"] == lines[1]["scores"]["accuracy"]["value"]


def test_pitfall_37_a_killed_benchmark_ends_with_the_same_table(
    first_run: Path, whole: Path, cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "bench"
    for number, die_at in enumerate((25, 60)):  # in each cell
        command = Command(*plan(first_run, folder), *SIZE, log=tmp_path / f"log{number}", die_at=die_at)
        assert command.wait() in (-signal.SIGKILL, 0)
        if number == 0:
            assert not (folder / "summary.md").exists()
            partial = next((folder / "records").glob("*.partial"))
            with partial.open("ab") as file:
                file.write(b'{"model": "the line that it was writ')
            cli.ok("analyze", folder)  # what there is can be looked at
    cli.ok("benchmark", "--output-dir", folder)
    assert table(folder) == table(whole)
    before = times(folder)
    cli.ok("benchmark", "--output-dir", folder)
    assert times(folder) == before  # nothing was measured again
    assert table(folder) == table(whole)


def test_pitfall_38_a_corrupt_record_file_is_measured_again(
    first_run: Path, whole: Path, cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "bench"
    shutil.copytree(whole, folder)
    first, second = sorted((folder / "records").glob("*.jsonl"))
    first.write_bytes(b"\x00garbage\n" * 3)
    lines = second.read_bytes().splitlines(keepends=True)
    second.write_bytes(b"".join(lines[:5]) + lines[5][:40] + b"\n" + b"".join(lines[6:]))
    analyzed = cli.ok("analyze", folder, "--json")
    assert f"{first} holds no record of an evaluation and is left out" in analyzed.err
    assert f"{second}, line 6, is damaged" in analyzed.err
    before = times(whole)
    done = cli.ok("benchmark", "--output-dir", folder)
    assert f"{first} holds no record" in done.err
    assert f"{second}, line 6, is damaged" in done.err
    assert table(folder) == table(whole)
    kept = [key for key, time_s in times(folder).items() if time_s == before[key]]
    assert len(kept) == 35  # of the second file's 36


def test_models_and_examples_can_be_added(first_run: Path, whole: Path, cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "bench"
    cli.ok("benchmark", "--models", first_run, "--tasks", first_run, "--output-dir", folder, *SIZE)
    before = times(folder)
    cli.ok("benchmark", "--models", f"{first_run / 'warm_start'}/", "--output-dir", folder)
    lines, expected = ({line["model"]: line for line in lines_of(one) if "model" in line} for one in (folder, whole))
    assert lines == expected
    cli.ok("benchmark", "--output-dir", folder, "--num-examples", "14")
    after = times(folder)
    assert len(after) == 2 * 14 * 3
    assert all(after[key] == time_s for key, time_s in before.items())
    for words, said in [
        (["--num-examples", "13"], "holds a benchmark with 14, which can grow but not shrink"),
        (["--samples-per-example", "1"], "holds a benchmark with 2, which can grow"),
        (["--set", "rollout.temperature=0.5"], "holds a benchmark made without --set"),
    ]:
        cli.refuses(2, ["benchmark", "--output-dir", folder, *words], said)


def test_a_cell_that_fails_is_reported_and_the_others_finish(first_run: Path, cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "bench"
    words = ["benchmark", "--models", first_run, "--tasks", f"two_hop,{first_run}", "--output-dir", folder, *SIZE]
    done = cli(*words)
    assert done.code == 1
    assert f"failed: {first_run} on two_hop: " in done.err
    assert f"1 of 2 cells failed; the same command tries them again: {first_run} on two_hop" in done.err
    assert "failed" in done.out
    lines = lines_of(folder)
    assert [line["kind"] for line in lines] == ["cell", "failed"]
    before = times(folder)
    assert cli("benchmark", "--output-dir", folder, "--json").code == 1
    assert times(folder) == before


def test_retrained_weights_are_not_mixed_with_the_old_ones(first_run: Path, cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(first_run, run)
    words = ["benchmark", "--models", run, "--tasks", run, "--output-dir", tmp_path / "bench", *SIZE]
    cli.ok(*words)
    shutil.rmtree(run / "final")
    shutil.copytree(run / "warm_start", run / "final")
    done = cli(*words)
    assert done.code == 1
    assert "was measured with other weights, data or settings" in done.err
    # the numbers of the old weights are not told for the new ones
    assert [line["kind"] for line in lines_of(tmp_path / "bench")] == ["failed"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--models {run}x --tasks rpn", 1, "did you mean {run}?"),
        ("--models {run},{damaged} --tasks rpn", 1, "{damaged}/model.safetensors is damaged"),
        ("--models {run} --tasks rpn,rnp", 2, "--tasks rnp: there is no such configuration; did you mean"),
        ("--models {run} --tasks musique --retrievers bm52", 2, "did you mean bm25?"),
        ("--models {run} --tasks rpn --retrievers bm25", 2, "none of rpn searches documents"),
        ("--models {run} --tasks rpn --set rollout.temprature=1", 2, "rollout.temperature"),
        ("--models {run}, --tasks rpn", 2, "empty name between its commas"),
        ("--tasks rpn", 2, "--models: is needed"),
        ("--models {run}", 2, "--tasks: is needed"),
        ("--models openai:http://127.0.0.1:9/v1#b --tasks rpn", 1, "the endpoint"),
    ],
)
def test_pitfall_38_bad_names_are_refused_before_loading(
    first_run: Path, cli: Cli, tmp_path: Path, words: str, code: int, said: str
) -> None:
    if "openai" in words:
        pytest.importorskip("openai")
    damaged = tmp_path / "damaged"
    shutil.copytree(first_run / "final", damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    names = {"run": str(first_run), "damaged": str(damaged)}
    line = ["benchmark", *(word.format(**names) for word in words.split()), "--output-dir", tmp_path / "bench"]
    cli.refuses(code, line, said.format(**names))
    assert not (tmp_path / "bench").exists()


def test_a_damaged_plan_is_refused_with_a_remedy(cli: Cli, tmp_path: Path) -> None:
    for text in ("{", "[]", '{"models": "runs/a"}'):
        (tmp_path / "benchmark.json").write_text(text)
        cli.refuses(1, ["benchmark", "--output-dir", tmp_path], "benchmark.json is damaged: delete it")


def test_retrievers_vary_only_where_a_task_searches(tmp_path: Path, tool_qwen: Path, cli: Cli) -> None:
    model, folder = tool_qwen, tmp_path / "bench"
    words = ["benchmark", "--models", model, "--tasks", "musique,gsm8k", "--output-dir", folder, *FEW_ON_DATA]
    cli.ok(*words, "--retrievers", "bm25")
    before = times(folder)
    cli.ok(*words, "--retrievers", "golden")  # one more way to search
    lines = lines_of(folder)
    cells = [(line["task"], line["retriever"]) for line in lines if line["kind"] == "cell"]
    assert cells == [("musique", "bm25"), ("musique", "golden"), ("gsm8k", None)]
    pairs = [(line["first"], line["second"]) for line in lines if line["kind"] == "comparison"]
    assert pairs == [(f"{model} + bm25", f"{model} + golden")]
    assert all(times(folder)[key] == time_s for key, time_s in before.items())


@pytest.mark.openai
def test_a_failed_endpoint_is_measured_again_and_only_it(tmp_path: Path, tool_qwen: Path, cli: Cli) -> None:
    model, is_down = tool_qwen, True
    with serve(
        lambda messages: {"content": "<SOLUTION>7</SOLUTION>"},
        fault=lambda number, body: error(400, "out of order") if is_down else None,
    ) as server:
        endpoint, folder = f"openai:{server.url}#policy", tmp_path / "bench"
        models = f"{endpoint},{model}"
        words = ["benchmark", "--models", models, "--tasks", "gsm8k", "--output-dir", folder, *FEW_ON_DATA]
        done = cli(*words)
        assert done.code == 1
        assert f"failed: {endpoint} on gsm8k: " in done.err
        before = times(folder)
        assert len(before) == 4
        is_down = False
        cli.ok(*words)
    after = times(folder)
    assert len(after) == 8
    assert all(after[key] == time_s for key, time_s in before.items())
    assert endpoint in (folder / "summary.md").read_text()
