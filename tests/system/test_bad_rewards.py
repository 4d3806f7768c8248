"""Bad data, prompts, functions and verifiers, through the real command: one sentence, or a counted failure.

Never a silent 0, no run folder that cannot be gone on with, and no process left behind.
"""

import gzip
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.main import main
from rlvr.tracking.rollouts import read_rollouts
from tests.system.harness import DATA, ON_DATA, Command, Finished, metrics, once, wait_until
from tests.unit.models.checkpoints import save_model
from tests.unit.rewards.bad_calls import MARK, survivors
from tests.unit.tasks.data_tasks import sums, write_jsonl

Run = Callable[..., Finished]


@pytest.fixture
def run(qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`rlvr train` in an empty folder, from the small checkpoint and on the rows of the tests unless told otherwise."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLVR_DATA", str(DATA))
    monkeypatch.setenv(MARK, str(tmp_path))

    def call(*words: str) -> Finished:
        capsys.readouterr()
        code = main(once("train", "--config-name", "gsm8k", *ON_DATA, f"model.name_or_path={qwen}", *words))
        out, err = capsys.readouterr()
        return Finished(code=code, out=out, err=err)

    return call


def refused(run: Run, words: list[str], code: int, *parts: str) -> None:
    """One line on stderr that holds all the parts, and nothing written."""
    before = sorted(Path().iterdir())
    done = run(*words)
    assert (done.code, done.out) == (code, ""), done.err
    assert done.err.startswith("rlvr: error: "), done.err
    assert done.err.count("\n") == 1, done.err
    assert [part for part in parts if part not in done.err] == [], done.err
    assert sorted(Path().iterdir()) == before
    assert survivors(os.environ[MARK]) == []


# ------------------------------------------------------------------------------------------------------------ data

GOOD = sums(4)
ROWS: dict[str, tuple[Any, list[str], tuple[str, ...]]] = {
    "missing field": (
        [*GOOD, {"answer": "3"}],
        [],
        ("bad.jsonl, line 5: field 'question' is missing; there are 'answer'",),
    ),
    "no number": (
        [*GOOD, {"question": "Why?", "answer": "because"}],
        [],
        ("line 5", "'because'", "task.metric=numeric"),
    ),
    "duplicate ids": (
        [{**row, "id": "same"} for row in GOOD],
        ["task.id_field=id"],
        ("bad.jsonl, line 2: the id 'same' was given before, at", "line 1: ids must differ"),
    ),
    "no answers": ([{"question": f"{n}?", "answer": None} for n in range(4)], [], ("0 different questions",)),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_that_cannot_be_used_are_named(case: str, run: Run) -> None:
    rows, words, parts = ROWS[case]
    write_jsonl(Path("bad.jsonl"), rows)
    code = 2 if "different questions" in parts[0] else 1
    refused(run, ["task=jsonl", "task.path=bad.jsonl", *words], code, *parts)


TRAIN = (DATA / "gsm8k" / "train.jsonl").read_bytes()
FILES: dict[str, tuple[str, bytes, str]] = {
    "empty": ("bad.jsonl", b"", "bad.jsonl is empty: it has no row"),
    "no JSON": ("bad.jsonl", TRAIN + b"{'question': 1}\n", "bad.jsonl, line 13: this is not JSON"),
    "Latin-1": ("bad.jsonl", '{"question": "Où ?"}'.encode("latin-1"), "bad.jsonl, line 1: this is not UTF-8"),
    "cut gz": ("bad.jsonl.gz", gzip.compress(TRAIN)[:-20], "the file is damaged"),
    "other ending": ("bad.tsv", TRAIN, "bad.tsv: data files end in .jsonl, .jsonl.gz, .json, "),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_cannot_be_read_are_named(case: str, run: Run) -> None:
    name, data, sentence = FILES[case]
    Path(name).write_bytes(data)
    refused(run, ["task=jsonl", f"task.path={name}"], 2 if case == "other ending" else 1, sentence)


def test_a_damaged_split_is_no_smaller_data_set(run: Run) -> None:
    shutil.copytree(DATA / "gsm8k", "data")
    Path("data/train.jsonl").unlink()
    Path("data/train.jsonl.gz").write_bytes(gzip.compress(TRAIN)[:-20])
    refused(run, ["task.path=data"], 1, "data/train.jsonl.gz", "the file is damaged", "get it again")


def test_data_that_is_not_there_or_of_another_task_is_named(run: Run) -> None:
    refused(run, ["task.path=nowhere/at/all"], 2, "task.path=nowhere/at/all: there is no such folder")
    refused(run, ["task.eval_split=validation"], 2, "has no validation.jsonl", "only test.jsonl, train.jsonl")
    refused(run, [f"task.path={DATA / 'finqa'}"], 1, "train.json, row 1: field 'question' is missing; there are 'id'")
    refused(run, ["task=finqa", f"task.path={DATA / 'gsm8k'}"], 1, "line 1: field 'table' is missing")
    refused(run, ["task=jsonl", "task.path=nowhere.jsonl"], 2, "there is no file nowhere.jsonl")


def test_everything_held_out_is_told(run: Run) -> None:
    refused(run, ["task.train_split=test"], 1, "every training example is also held out", "give other data")


# ----------------------------------------------------------------------------------------------- prompts and models


def custom(name: str, settings: str = "{}", weight: float = 1.0) -> str:
    """A part `mine` of the reward."""
    function = name if ":" in name else f"tests.system.functions:{name}"
    return f"+reward.parts.mine={{type: custom, weight: {weight}, function: '{function}', settings: {settings}}}"


PROMPTS = {
    "unknown marker": (
        ["prompt.system='{reasoning_strat}'"],
        "prompt.system has an unknown placeholder {reasoning_strat}",
    ),
    "no question": (
        ["prompt.user=Hello"],
        "prompt.user=Hello: must have the right form (user message; holds {question}",
    ),
    "no finite setting": (
        [custom("value", "{kind: nan}")],
        "reward.parts.mine.settings.kind=NaN: must be true or false or a whole number or a finite number or text",
    ),
    "no family": (["markers.families.qwen2=nosuch"], "markers.families.qwen2=nosuch: there is no such set"),
    "shown examples": (["prompt.few_shot=12"], "prompt.few_shot=12: gsm8k has 12 different training examples"),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_a_prompt_that_cannot_be_made_is_refused(case: str, run: Run) -> None:
    words, sentence = PROMPTS[case]
    refused(run, words, 2, sentence)


def test_a_model_family_without_markers_is_a_sentence(run: Run) -> None:
    folder = save_model(Path("mixtral").resolve(), "mixtral")
    sentence = (
        "prompt.markers=auto: markers.families has no set for models of type mixtral; add markers.families.mixtral"
    )
    refused(run, [f"model.name_or_path={folder}"], 2, sentence, "prompt.markers=SET")


def test_a_model_without_chat_template_runs_and_says_so(
    run: Run, qwen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(qwen, "plain")
    Path("plain/chat_template.jinja").unlink()
    done = run("model.name_or_path=plain", "tracker.console=plain", "run_dir=run")
    assert done.code == 0, done.err
    assert "the tokenizer has no chat template: messages are joined line by line" in done.err
    record = read_rollouts(Path("run/rollouts/step_000001.jsonl.gz"))[0]
    assert record.turns[0].prompt.startswith("You are given a problem.")
    assert "<|im_start|>" not in record.turns[0].prompt
    row = metrics(Path("run"))[1]
    assert row["rollout/invalid_share"] == sum(r.score_status == "invalid" for r in all_records()) / 8
    capsys.readouterr()
    assert main(["eval", "run", "--num-examples", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "the tokenizer has no chat template: messages are joined line by line" in err
    assert "eval/gsm8k/invalid_share" in json.loads(out)


def test_prompts_that_do_not_fit_are_refused_or_counted(run: Run) -> None:
    refused(run, ["rollout.max_completion_tokens=480"], 1, "the prompts of all 12 training examples have more than 32")
    done = run("task.max_prompt_tokens=95", "tracker.console=plain", "run_dir=run")
    assert done.code == 0, done.err
    assert "1 of 12 training examples have prompts of more than 95 tokens: left out" in done.err
    assert "of 6 held-out examples have prompts of more than 95 tokens: left out" in done.err


# ------------------------------------------------------------------------------------------------------- functions


def all_records(folder: str = "run") -> list[Any]:
    return read_rollouts(Path(folder) / "rollouts" / "step_000001.jsonl.gz")


FUNCTIONS = {
    "no module": (custom("nosuchmodule:f"), "module nosuchmodule cannot be imported (ModuleNotFoundError"),
    "not called so": (custom("functions:needs"), "missing a required argument: 'rubric'"),
    "broken module": (
        custom("broken:f"),
        "broken cannot be imported (ZeroDivisionError: division by zero (broken.py, line 1))",
    ),
    "exiting module": (custom("leaving:f"), "module leaving cannot be imported (SystemExit"),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_a_function_that_cannot_be_used_is_refused(case: str, run: Run) -> None:
    part, sentence = FUNCTIONS[case]
    Path("functions.py").write_text("def needs(completion, rubric): return 1.0\n")
    Path("broken.py").write_text("1 / 0\n")
    Path("leaving.py").write_text("raise SystemExit(0)\n")
    before = {path.name for path in Path().iterdir()}
    done = run(part)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert done.err.startswith("rlvr: error: reward.parts.mine.function="), done.err
    assert sentence in done.err
    assert {path.name for path in Path().iterdir()} - {"__pycache__"} == before


SOURCES = {
    "no module": ("nosuchmodule:f", 2, "task.source=nosuchmodule:f: module nosuchmodule cannot be imported"),
    "no examples": ("mine:nothing", 1, "task.source=mine:nothing: yields no example"),
    "failing": ("mine:failing", 1, "task.source=mine:failing, example 1: ValueError: no data today"),
    "numbers": ("mine:numbers", 1, "must be (question, answer)"),
}


@pytest.mark.parametrize("case", SOURCES)
def test_a_generator_that_cannot_be_used_is_refused(case: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    source, code, sentence = SOURCES[case]
    Path("mine.py").write_text(
        "def nothing(): return []\n\ndef numbers(): return [1, 2]\n\n"
        "def failing():\n    raise ValueError('no data today')\n    yield\n"
    )
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    refused(run, ["task=generator", f"task.source='{source}'"], code, sentence)


@pytest.mark.parametrize("kind", ["nan", "list", "text"])
def test_a_reward_that_is_no_number_ends_the_run_naming_it(kind: str, run: Run) -> None:
    done = run(custom("value", f"{{kind: '{kind}'}}"), "run_dir=run")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), done.err
    shown = {"nan": "float nan", "list": "list [1.0, 2.0, 3.0]", "text": "str '1.0'"}
    wanted = f"rlvr: error: reward.parts.mine returned {shown[kind]} for example 'gsm8k/test/"
    assert done.err.startswith(wanted)
    assert "it must return one finite number, or None for a completion that it cannot read" in done.err
    assert not Path("run/final").exists()
    assert not Path("run/metrics.jsonl").exists() or metrics(Path("run")) == []
    assert survivors(os.environ[MARK]) == []


def test_after_a_function_was_mended_the_run_goes_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "mended", raising=False)
    Path("mended.py").write_text("def score(completion): return 'good'\n")
    words = [custom("mended:score"), "run_dir=run"]
    assert run(*words).code == 1
    Path("mended.py").write_text("def score(completion): return 1.0\n")
    monkeypatch.delitem(sys.modules, "mended", raising=False)
    done = run(*words, "resume=true")
    assert done.code == 0, done.err
    assert metrics(Path("run"))[1]["reward/mine"] == 1.0


def test_unreadable_completions_are_counted(run: Run) -> None:
    done = run(custom("unreadable"), "reward.parts.correct.weight=0", "run_dir=run")
    assert done.code == 0, done.err
    records = all_records()
    odd = [len(record.turns[0].completion.removesuffix("<|im_end|>")) % 2 == 1 for record in records]
    assert {True, False} == set(odd)
    assert all(record.score_status == "invalid" for record, is_odd in zip(records, odd, strict=True) if is_odd)
    assert metrics(Path("run"))[1]["rollout/invalid_share"] >= sum(odd) / len(odd)


# ------------------------------------------------------------------------------------------- verifiers that misbehave

KILLED = {
    "forks_and_hangs": "timed out after 1 s",
    "eats_memory": "memory",
    "exits": "its process died",
    "crashes": "its process died",
}
LIMITS = ("reward.timeout_s=1.0", "reward.max_memory_mb=512")


@pytest.mark.parametrize("name", KILLED)
def test_a_verifier_that_fails_is_counted_and_left_out(name: str, run: Run) -> None:
    limits = ("reward.timeout_s=30", "reward.max_memory_mb=512") if name == "eats_memory" else LIMITS
    done = run(custom(name), *limits, "reward.max_error_share=1.0", "run_dir=run")
    assert done.code == 0, done.err
    records = all_records()
    failed = [record for record in records if record.score_status == "error"]
    odd = [len(record.turns[0].completion.removesuffix("<|im_end|>")) % 2 == 1 for record in records]
    assert [record.score_status == "error" for record in records] == odd
    assert 0 < len(failed) < len(records)
    for record in failed:
        assert record.reward is None
        assert record.advantage == 0.0
        assert str(record.diagnostics["error"]).startswith("mine: ")
        assert KILLED[name] in str(record.diagnostics["error"])
    row = metrics(Path("run"))[1]
    assert row["rollout/error_share"] == len(failed) / len(records)
    rewards = [record.reward for record in records if record.reward is not None]
    assert row["reward/mean"] == pytest.approx(sum(rewards) / len(rewards))
    assert row["reward/mine"] == 1.0
    assert metrics(Path("run"))[0]["eval/gsm8k/error_share"] >= 0.0
    assert survivors(os.environ[MARK]) == []


def test_more_failures_than_allowed_stop_the_run(run: Run) -> None:
    name = "exits"
    done = run(custom(name), *LIMITS, "run_dir=run")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), done.err
    assert "of 8 episodes of this step, more than reward.max_error_share=0.2 (first: mine: " in done.err
    assert KILLED[name] in done.err
    assert "and go on with resume=true" in done.err
    assert not Path("run/final").exists()
    assert survivors(os.environ[MARK]) == []
    assert run(custom(name), *LIMITS, "reward.max_error_share=1.0", "run_dir=run", "resume=true").code == 0
    assert metrics(Path("run"))[1]["rollout/error_share"] > 0.2


def test_a_verifier_that_leaves_a_process_behind_does_not(run: Run) -> None:
    done = run(custom("leaves_a_child"), "run_dir=run")
    assert done.code == 0, done.err
    assert metrics(Path("run"))[1]["rollout/error_share"] == 0.0
    assert survivors(os.environ[MARK]) == []


def test_eval_counts_failures_too(run: Run, qwen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [custom("picky"), "rollout.max_completion_tokens=24"]
    words = [word for line in lines for word in ("--set", line)]
    assert main(["eval", str(qwen), "--task", "gsm8k", *words, "--num-examples", "6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["eval/gsm8k/error_share"] <= 1


def test_a_run_that_is_killed_leaves_no_verifier_behind(qwen: Path, tmp_path: Path) -> None:
    words = ["train", "--config-name", "gsm8k", *ON_DATA, f"model.name_or_path={qwen}", custom("forks_and_hangs")]
    environment = {"RLVR_DATA": str(DATA), MARK: str(tmp_path), "PYTHONPATH": str(DATA.parents[1])}
    words += ["reward.timeout_s=100", f"run_dir={tmp_path / 'run'}"]
    command = Command(*words, log=tmp_path / "log", environment=environment)
    try:
        wait_until(lambda: len(survivors(str(tmp_path))) >= 4)  # the nursery, two workers, their children
    finally:
        command.send(signal.SIGKILL)
        command.wait()
    wait_until(lambda: survivors(str(tmp_path)) == [])
