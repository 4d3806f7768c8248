"""`rlvr runs`: what it lists, in which order, and of which runs."""

import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Rlvr

CONFIG = """name: {name}
seed: 0
task:
  name: {task}
  operators: ['+']
algorithm:
  name: grpo
evaluation:
  headline: accuracy
trainer:
  max_steps: 10
  learning_rate: {rate}
"""


def make(
    folder: Path, steps: int, scores: dict[int, float], *, task: str = "rpn", rate: float = 0.001, age: int = 0
) -> Path:
    """A run folder with this number of steps, and scores at some of them."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG.format(name=folder.name, task=task, rate=rate))
    rows: list[dict[str, Any]] = [{"step": step, "reward/mean": 0.5} for step in range(steps + 1)]
    for step, score in scores.items():
        name = f"eval/{task.rpartition(':')[2].lower()}/accuracy"
        rows[step] |= {name: score, f"{name}_low": score - 0.1, f"{name}_high": score + 0.1}
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + '{"step": 99, "eval')  # the last line is not finished
    for file in folder.iterdir():
        os.utime(file, (1_000_000_000 - age, 1_000_000_000 - age))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (make(tmp_path / "a", 10, {0: 0.1, 10: 0.9}, rate=0.01, age=5) / "final").mkdir()
    make(tmp_path / "b", 4, {0: 0.2}, task="two_hop", age=9)
    (make(tmp_path / "sweep" / "seed-1", 7, {0: 0.1, 5: 0.4}) / "error.txt").write_text("reward: it broke\n")
    (tmp_path / "latest").symlink_to("a")
    (tmp_path / "notes").mkdir()
    return tmp_path


def names(out: str) -> list[str]:
    return [line.split()[0] for line in out.partition("\n\n")[0].splitlines()[1:]]


def test_a_pruned_run_has_not_failed(folder: Path, rlvr: Rlvr) -> None:
    (folder / "b" / "pruned.txt").write_text("it lies below a\n")
    (found,) = rlvr("runs", folder, "--filter", "state=pruned", "--json").lines
    assert (found["name"], found["error"], found["pruned"]) == ("b", None, "it lies below a")
    (folder / "b" / "error.txt").write_text("later it broke\n")  # going on by hand
    assert rlvr("runs", folder, "--filter", "name=b", "--json").lines[0]["state"] == "failed"


def test_runs_have_a_state_a_step_and_a_score(folder: Path, rlvr: Rlvr) -> None:
    ran = rlvr("runs", folder)
    assert (ran.code, ran.err) == (0, "")
    rows = {line.split()[0]: " ".join(line.split()[1:-2]) for line in ran.out.splitlines() if "grpo" in line}
    assert rows == {
        "a": "done rpn grpo 10/10 0.900 [0.800, 1.000]",
        "b": "stopped two_hop grpo 4/10 0.200 [0.100, 0.300]",
        "sweep/seed-1": "failed rpn grpo 7/10 0.400 [0.300, 0.500]",
    }
    assert ran.out.endswith("\n\nsweep/seed-1: reward: it broke\n")


def test_a_run_of_the_users_own_task_has_its_score(folder: Path, rlvr: Rlvr) -> None:
    """Its name is `my_shop:Shop`, its metrics are those of `shop`."""
    make(folder / "own", 10, {0: 0.1, 10: 0.5}, task="my_shop:Shop")
    (found,) = rlvr("runs", folder, "--filter", "task=my_shop:Shop", "--json").lines
    assert (found["score"], found["low"], found["high"]) == (0.5, 0.4, 0.6)


def test_runs_are_found_four_folders_deep(tmp_path: Path, rlvr: Rlvr) -> None:
    make(tmp_path / "1" / "2" / "3" / "4", 1, {})
    make(tmp_path / "a" / "b" / "c" / "d" / "e", 1, {})
    assert names(rlvr("runs", tmp_path).out) == ["1/2/3/4"]


def test_a_run_that_is_written_to_is_running(folder: Path, rlvr: Rlvr) -> None:
    with (folder / "b" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = rlvr("runs", folder, "--filter", "state=running")
        assert names(ran.out) == ["b"]
        fcntl.flock(lock, fcntl.LOCK_UN)
    assert names(rlvr("runs", folder, "--filter", "state=stopped").out) == ["b"]


def test_a_final_model_of_fewer_steps_is_not_the_end(folder: Path, rlvr: Rlvr) -> None:
    (folder / "b" / "final").mkdir()
    assert names(rlvr("runs", folder, "--filter", "state=done").out) == ["a"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], ["b", "a", "sweep/seed-1"]),  # the newest last
        (["--sort", "score"], ["b", "sweep/seed-1", "a"]),
        (["--sort", "name"], ["a", "b", "sweep/seed-1"]),
        (["--filter", "task=rpn"], ["a", "sweep/seed-1"]),
        (["--filter", "task=rpn", "--filter", "state=done"], ["a"]),
        (["--filter", "trainer.learning_rate=0.001", "--sort", "step"], ["b", "sweep/seed-1"]),
    ],
)
def test_runs_are_sorted_and_filtered(folder: Path, words: list[str], found: list[str], rlvr: Rlvr) -> None:
    assert names(rlvr("runs", folder, *words).out) == found


def test_more_columns_and_json(folder: Path, rlvr: Rlvr) -> None:
    assert "0.01" in rlvr("runs", folder, "--show", "trainer.learning_rate").out.splitlines()[2]
    lines = rlvr("runs", folder, "--json", "--sort", "name").lines
    assert [(line["name"], line["state"], line["score"]) for line in lines] == [
        ("a", "done", 0.9),
        ("b", "stopped", 0.2),
        ("sweep/seed-1", "failed", 0.4),
    ]
    assert lines[0]["settings"]["trainer"]["learning_rate"] == 0.01
    assert (lines[0]["error"], lines[2]["error"]) == (None, "reward: it broke")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Runs with missing, equal and infinite values."""
    for name, rate, score in (("c", ".nan", 0.5), ("a", "1.0e-5", 0.5), ("b", "null", None), ("d", "high", -0.5)):
        make(tmp_path / name, 3, {} if score is None else {3: score})
        (tmp_path / name / "config.yaml").write_text(CONFIG.format(name=name, task="rpn", rate=rate))
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "config.yaml").write_text("task: {name: rpn}\ntrainer: {learning_rate: 2.0, decay: true}\n")
    for file in tmp_path.glob("*/*"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    return tmp_path


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("score", "bedac"),  # missing ones first, equal ones by name
        ("low", "bedac"),
        ("max_steps", "eabcd"),
        ("trainer.learning_rate", "bcaed"),  # none and NaN, then numbers, then texts
        ("trainer.decay", "abcde"),
        ("updated", "abcde"),
    ],
)
def test_missing_values_are_first_and_equal_ones_by_name(odd: Path, key: str, order: str, rlvr: Rlvr) -> None:
    assert [line["name"] for line in rlvr("runs", odd, "--sort", key, "--json").lines] == list(order)


def test_what_is_not_known_has_a_sign_in_the_table(odd: Path, rlvr: Rlvr) -> None:
    ran = rlvr("runs", odd, "--show", "trainer.learning_rate", "--show", "trainer.decay", "--sort", "name")
    head, *rows = ([cell.strip() for cell in line.split("  ") if cell] for line in ran.out.splitlines())
    assert head == [*("name", "state", "task", "algorithm"), *("step", "score", "updated"), *head[7:]]
    assert head[7:] == ["trainer.learning_rate", "trainer.decay"]
    when = datetime.fromtimestamp(1_000_000_000, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    assert rows[0] == ["a", "stopped", "rpn", "grpo", "3/10", "0.500 [0.400, 0.600]", when, "1e-05", "null"]
    assert [row[3:6] for row in rows[1:]] == [
        ["grpo", "3/10", "-"],
        ["grpo", "3/10", "0.500 [0.400, 0.600]"],
        ["grpo", "3/10", "-0.500 [-0.600, -0.400]"],
        ["null", "0/?", "-"],
    ]
    assert [row[7:] for row in rows[1:]] == [["null", "null"], ["nan", "null"], ["high", "null"], ["2", "true"]]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("trainer.decay=true", "e"),
        ("trainer.learning_rate=null", "b"),
        ("trainer.learning_rate=2", "e"),
        ("score=0.5", "ac"),
        ("name=a=b", ""),
    ],
)
def test_conditions_are_written_as_on_the_command_line(odd: Path, condition: str, found: str, rlvr: Rlvr) -> None:
    assert [line["name"] for line in rlvr("runs", odd, "--filter", condition, "--json").lines] == list(found)


@pytest.mark.parametrize("count", [20, 21])
def test_twenty_values_are_listed_where_none_fits(count: int, tmp_path: Path, rlvr: Rlvr) -> None:
    for number in range(count):
        (tmp_path / f"r{number:02}").mkdir()
        (tmp_path / f"r{number:02}" / "config.yaml").write_text("task: {name: rpn}\n")
    ran = rlvr("runs", tmp_path, "--filter", "name=x")
    listed = ", ".join(f"name=r{number:02}" for number in range(20))
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.endswith(f"for which this holds; there are {listed}{', ...' if count > 20 else ''}\n")


def test_a_folder_without_runs_has_none_whatever_is_asked(folder: Path, rlvr: Rlvr) -> None:
    ran = rlvr("runs", folder / "notes", "--sort", "color", "--filter", "task=rpn")
    assert (ran.code, ran.err) == (0, f"no runs in {folder / 'notes'} for which this holds\n")
    assert rlvr("runs", folder / "notes", "--json").out == ""


@pytest.mark.parametrize("text", ["=rpn", "task"])
def test_a_condition_has_a_key_and_a_value(text: str, folder: Path, rlvr: Rlvr) -> None:
    ran = rlvr("runs", folder, "--filter", text)
    assert (ran.code, ran.out) == (2, "")
    assert f"--filter {text}: write KEY=VALUE, e.g. state=done." in ran.err


def test_damaged_runs_are_listed_with_what_is_known(folder: Path, rlvr: Rlvr) -> None:
    (folder / "a" / "config.yaml").write_text("task: [\n")
    (folder / "b" / "metrics.jsonl").write_text("no json\n")
    rows = {line["name"]: line for line in rlvr("runs", folder, "--json").lines}
    assert (rows["a"]["task"], rows["a"]["step"], rows["a"]["max_steps"], rows["a"]["score"]) == (None, 10, None, None)
    assert (rows["b"]["task"], rows["b"]["step"], rows["b"]["score"]) == ("two_hop", 0, None)
    assert (rows["a"]["state"], rows["b"]["error"]) == ("done", None)
    assert "a: its config.yaml cannot be read" in rlvr("runs", folder).out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere"], 1, "there is no folder nowhere"),
        (["{}", "--filter", "done"], 2, "write KEY=VALUE"),
        (["{}", "--filter", "color=red"], 2, "color: no run has it; there are name, state"),
        (["{}", "--sort", "trainer.lr"], 2, "trainer.lr: no run has it"),
        (["{}/notes"], 0, "no runs in"),
        (["{}", "--filter", "task=gsm8k"], 0, "for which this holds"),
    ],
)
def test_what_is_not_there_is_said(folder: Path, words: list[str], code: int, said: str, rlvr: Rlvr) -> None:
    ran = rlvr("runs", *(word.format(folder) for word in words))
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert said in ran.err


def test_a_value_that_no_run_has_is_told_the_others(folder: Path, rlvr: Rlvr) -> None:
    ran = rlvr("runs", folder, "--filter", "state=dun")
    assert ran.code == 2
    assert "state=dun: there is no such state; there are running, done, failed, pruned, stopped." in ran.error
    ran = rlvr("runs", folder, "--filter", "task=rnp")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == f"no runs in {folder} for which this holds; there are task=rpn, task=two_hop\n"


@pytest.mark.parametrize(
    "command",
    [
        ["eval"],
        ["eval", "--task", "rpn"],
        ["predict", "--prompt", "3 4 +"],
        ["diagnose"],
        ["doctor"],
        ["explain"],
        ["export", "--output", "out"],
        ["replay", "--step", "1"],
    ],
    ids=" ".join,
)
def test_where_one_run_is_meant_a_folder_of_runs_is_called_that(command: list[str], folder: Path, rlvr: Rlvr) -> None:
    ran = rlvr(command[0], folder, *command[1:])
    said = f"{folder} is a folder of runs: name one of them, e.g. {folder / 'latest'}; `rlvr runs {folder}` lists them."
    assert (ran.code, ran.err) == (1, f"rlvr: error: {said}\n")


def test_a_folder_of_sweeps_is_a_folder_of_runs(folder: Path, rlvr: Rlvr) -> None:
    for name in ("a", "b"):
        (folder / name / "metrics.jsonl").unlink()
    (folder / "latest").unlink()
    assert f"name one of them, e.g. {folder / 'sweep' / 'seed-1'};" in rlvr("eval", folder).err
