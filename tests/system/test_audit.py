"""`rlvr audit`: tables, exit statuses, wrong usage, the trained adversary."""

import json
import shutil
from pathlib import Path

import pytest

import rlvr
from rlvr.errors import ConfigError
from rlvr.records.checks import read_checks
from tests.system.harness import Cli

FUNCTIONS = """
from rlvr.rewards.numbers import parse_answer, same_answer

def contains(completion, answer):
    return float(answer in completion)

def sound(completion, answer):
    said, gold = parse_answer(completion), parse_answer(answer)
    if gold is None:
        raise ValueError(answer)
    return None if said is None else float(same_answer(said, gold))

def boxed(completion, answer):
    before, found, after = completion.partition("\\\\boxed{")
    return sound(after.partition("}")[0], answer) if found else 0.0

def tagged(completion, answer):
    before, found, after = completion.rpartition("<verdict>")
    return sound(after.partition("</verdict>")[0], answer) if found else 0.0

def last_line(completion, answer):
    last = (completion.strip().splitlines() or [""])[-1]
    return sound(last.removeprefix("Final answer:"), answer) if last.startswith("Final answer:") else -1.0

def form_or_answer(completion, answer):
    return 1.0 if completion.startswith("#### ") else boxed(completion, answer)

def nothing(completion, answer):
    return 0.0

def everything(completion, answer):
    return 1.0

class Thing: ...
"""
ROWS = [{"question": f"Of {n} and {3 * n + 1}, which one?", "answer": 3 * n + 1} for n in range(2, 42)]
QUICK = ("--num-examples", "6", "--seconds", "0")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards_to_audit.py").write_text(FUNCTIONS)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def test_a_task_is_trusted(cli: Cli) -> None:
    done = cli.ok("audit", "rpn", *QUICK)
    assert "rpn: nothing wrong was paid, and nothing right refused." in done.out
    assert "exploits paid: 0 of" in done.out


def test_a_runs_own_reward(cli: Cli, first_run: Path, tmp_path: Path) -> None:
    shutil.copytree(first_run, run := tmp_path / "run")
    assert "nothing wrong was paid" in cli.ok("audit", run, *QUICK).out
    kept = read_checks(run, "audit")
    assert {check.status for check in kept} == {"ok"}
    assert {"gold itself", "echo of the question"} <= {check.name for check in kept}


def test_a_function_that_pays_for_an_echo(cli: Cli, folder: Path) -> None:
    done = cli("audit", "rewards_to_audit:contains", "--data", "rows.jsonl", *QUICK)
    assert done.code == 1
    for part in (
        "echo of the question",
        "6 of 6 (61% to 100%)",
        "wherever it stands in the text",
        "gold ",
        "score 1 of 1",
    ):
        assert part in done.out
    for kind in ("two values", "negation", "comparison"):  # the metric of such rows refuses them
        assert f"reward  {kind} " in done.out


def test_a_sound_function(cli: Cli, folder: Path) -> None:
    assert "nothing wrong was paid" in cli.ok("audit", "rewards_to_audit:sound", "--data", "rows.jsonl", *QUICK).out


def test_a_verifier_of_another_format_is_not_accused(cli: Cli, folder: Path) -> None:
    words = ["audit", "rewards_to_audit:tagged", "--data", "rows.jsonl", *QUICK]
    cli.refuses(2, words, "this verifier reads another format, or nothing; say how an answer is written")
    found = cli.ok(*words, "--answer-template", "<verdict>{answer}</verdict>")
    assert "nothing wrong was paid, and nothing right refused" in found.out
    cli.refuses(2, [*words, "--answer-template", "<result>{answer}</result>"], "in this template")
    cli.refuses(2, [*words, "--answer-template", "<verdict>"], "has no {answer}")
    cli.refuses(2, ["audit", "rpn", *QUICK, "--answer-template", "{answer}"], "is for a function")


def test_a_common_format_is_found_out(cli: Cli, folder: Path) -> None:
    found = cli.ok("audit", "rewards_to_audit:last_line", "--data", "rows.jsonl", *QUICK)
    assert "answers are written as Final answer: ANSWER" in found.err


def test_a_format_that_pays_whatever_it_says_is_not_the_one(cli: Cli, folder: Path) -> None:
    done = cli("audit", "rewards_to_audit:form_or_answer", "--data", "rows.jsonl", *QUICK)
    assert "answers are written as \\boxed{ANSWER}" in done.err


def test_what_pays_nothing_and_what_pays_everything_differ(cli: Cli, folder: Path) -> None:
    cli.refuses(2, ["audit", "rewards_to_audit:nothing", "--data", "rows.jsonl", *QUICK], "no right answer earned more")
    found = cli("audit", "rewards_to_audit:everything", "--data", "rows.jsonl", *QUICK)
    assert found.code == 1
    assert "other answer" in found.out


def test_rows_and_findings_as_json(cli: Cli, folder: Path) -> None:
    done = cli("audit", "rewards_to_audit:boxed", "--data", "rows.jsonl", "--json", *QUICK)
    lines = [json.loads(line) for line in done.out.splitlines()]
    (earlier,) = [line for line in lines if line["kind"] == "earlier answer" and "share" in line]
    assert (earlier["alarm"], earlier["num_failed"], earlier["group"]) == (True, 6, "exploit")
    assert earlier["share_low"] == pytest.approx(0.61, abs=0.01)
    texts = [line["text"] for line in lines if line["kind"] == "earlier answer" and "text" in line]
    assert len(texts) == 6
    assert all(text.count("\\boxed{") == 2 for text in texts)
    assert "answers are written as \\boxed{ANSWER}" in done.err


def test_wrong_usage(cli: Cli, folder: Path) -> None:
    cli.refuses(2, ["audit", "rewards_to_audit:sound"], "--data FILE.jsonl or --task T")
    cli.refuses(2, ["audit", "rewards_to_audit:sond", "--data", "rows.jsonl"], "did you mean sound")
    cli.refuses(2, ["audit", "rewards_to_audit:sound", "--data", "rows.jsonl", "--task", "rpn"], "leave the other out")
    cli.refuses(2, ["audit", "rnp"], "rpn")
    cli.refuses(2, ["audit", "rpn", "task.modulo=5"], "task.modulus")
    cli.refuses(2, ["audit", "rpn", "--threshold", "2"], "share")
    cli.refuses(2, ["audit", "rewards_to_audit:sound", "--data", "absent.jsonl"], "absent.jsonl")


def test_in_python_with_the_adversary(folder: Path) -> None:
    def longest(completion: str, answer: str) -> float:
        return float(str(answer) in completion.split() or len(completion) > 12)

    found = rlvr.audit(longest, data=ROWS, num_examples=6, seconds=2)
    (row,) = [row for row in found.rows if row.kind == "adversary"]
    assert row.num_failed > 0
    assert row in found.alarms
    assert all(len(one.text) > 12 or one.gold in one.text.split() for one in found.findings if one.kind == "adversary")
    with pytest.raises(ConfigError, match="--data"):
        rlvr.audit(longest)


@pytest.mark.parametrize(
    ("answers", "words", "stop"),
    [
        (["red", "blue", "green"], ["reward=numeric", "task.metric=text"], True),
        (["red", "blue", "1"], ["reward=numeric", "task.metric=text"], False),
        (["1", "2", "3"], [], False),
    ],
)
def test_a_reward_that_refuses_every_right_answer_of_a_file_stops_its_audit(
    answers: list[str], words: list[str], stop: bool, cli: Cli, folder: Path
) -> None:
    rows = [{"prompt": f"{n}? Write it after ####.", "answer": answers[n % 3]} for n in range(30)]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["audit", "mine.jsonl", *words, *QUICK]
    if stop:
        cli.refuses(2, command, "no right answer earned more than a wrong one by the reward")
        return
    done = cli(*command)
    assert "prompts ask for `#### ...`" in done.err
    assert "exploits paid: 0 of" in done.out
    told = [line.split()[:2] for line in done.out.splitlines() if "gold itself" in line]
    assert (["reward", "gold"] in told) == ("red" in answers)
