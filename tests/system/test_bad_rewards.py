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
from functools import partial
from pathlib import Path

import pytest

from rlvr.records.rollouts import EpisodeRecord, read_rollouts
from rlvr.rewards.parts import NEEDED
from tests.system.harness import DATA, ON_DATA, Cli, Command, metrics, once, wait_until
from tests.unit.models.checkpoints import save_model
from tests.unit.rewards.bad_calls import MARK, survivors
from tests.unit.tasks.data_tasks import sums, write_jsonl
from tests.variants import variants

Words = Callable[..., list[str]]
RUN = Path("run")


def training(model: Path, *more: str) -> list[str]:
    """Words of a training from the small checkpoint on the rows of the tests."""
    return once("train", "--config-name", "gsm8k", *ON_DATA, f"model.name_or_path={model}", *more)


@pytest.fixture
def words(qwen: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Words:
    """The same in an empty folder; the processes of its verifiers can be told from others."""
    monkeypatch.setenv(MARK, str(here))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return partial(training, qwen)


@pytest.fixture
def refused(words: Words, cli: Cli) -> Callable[..., str]:
    """`refused(code, words, *parts)`: a training that ends with one line on stderr, which holds the parts, and before
    anything is written."""

    def check(code: int, more: list[str], *parts: str) -> str:
        before = sorted(Path().glob("[!_]*"))  # not __pycache__
        err = cli.refuses(code, words(*more), *parts)
        assert sorted(Path().glob("[!_]*")) == before
        assert survivors(os.environ[MARK]) == []
        return err

    return check


def records() -> list[EpisodeRecord]:
    return read_rollouts(RUN / "rollouts" / "step_000001.jsonl.gz")


def are_odd(found: list[EpisodeRecord]) -> list[bool]:
    """Whose completions the functions of the tests take offense at."""
    return [len(record.turns[0].completion.removesuffix("<|im_end|>")) % 2 == 1 for record in found]


# ------------------------------------------------------------------------------------------------------------ data

GOOD = sums(4)
ROWS = {
    "missing field": ([*GOOD, {"answer": "3"}], [], ["line 5: field 'question' is missing; there are 'answer'"]),
    "no number": ([*GOOD, {"question": "Why?", "answer": "because"}], [], ["line 5", "'because'", "metric=numeric"]),
    "duplicate ids": (
        [{**row, "id": "same"} for row in GOOD],
        ["task.id_field=id"],
        ["bad.jsonl, line 2: the id 'same' was given before, at", "line 1: ids must differ"],
    ),
    "no answers": ([{"question": f"{n}?", "answer": None} for n in range(4)], [], ["0 different questions"]),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_that_cannot_be_used_are_named(case: str, refused: Callable[..., str]) -> None:
    rows, more, parts = ROWS[case]
    write_jsonl(Path("bad.jsonl"), rows)
    refused(2 if case == "no answers" else 1, ["task=jsonl", "task.path=bad.jsonl", *more], *parts)


TRAIN = (DATA / "gsm8k" / "train.jsonl").read_bytes()
FILES = {
    "empty": ("bad.jsonl", b"", 1, "bad.jsonl is empty: it has no row"),
    "no JSON": ("bad.jsonl", TRAIN + b"{'question': 1}\n", 1, "bad.jsonl, line 13: this is not JSON"),
    "Latin-1": ("bad.jsonl", '{"question": "Où ?"}'.encode("latin-1"), 1, "bad.jsonl, line 1: this is not UTF-8"),
    "cut gz": ("bad.jsonl.gz", gzip.compress(TRAIN)[:-20], 1, "the file is damaged"),
    "other ending": ("bad.tsv", TRAIN, 2, "bad.tsv: data files end in .jsonl, .jsonl.gz, .json, "),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_cannot_be_read_are_named(case: str, refused: Callable[..., str]) -> None:
    name, data, code, sentence = FILES[case]
    Path(name).write_bytes(data)
    refused(code, ["task=jsonl", f"task.path={name}"], sentence)


def test_a_damaged_split_is_no_smaller_data_set(refused: Callable[..., str]) -> None:
    shutil.copytree(DATA / "gsm8k", "data")
    Path("data/train.jsonl").unlink()
    Path("data/train.jsonl.gz").write_bytes(gzip.compress(TRAIN)[:-20])
    refused(1, ["task.path=data"], "data/train.jsonl.gz", "the file is damaged", "get it again")


@pytest.mark.parametrize(
    ("more", "code", "parts"),
    [
        ("task.path=nowhere/at/all", 2, ["task.path=nowhere/at/all: there is no such folder"]),
        ("task.eval_split=validation", 2, ["has no validation.jsonl", "only test.jsonl, train.jsonl"]),
        (f"task.path={DATA / 'finqa'}", 1, ["train.json, row 1: field 'question' is missing; there are 'id'"]),
        (f"task=finqa task.path={DATA / 'gsm8k'}", 1, ["line 1: field 'table' is missing"]),
        ("task=jsonl task.path=nowhere.jsonl", 2, ["there is no file nowhere.jsonl"]),
        ("task.train_split=test", 1, ["every training example is also held out", "give other data"]),
    ],
    ids=["no folder", "no split", "finqa as gsm8k", "gsm8k as finqa", "no file", "all held out"],
)
def test_data_that_is_not_there_or_of_another_task_is_named(
    more: str, code: int, parts: list[str], refused: Callable[..., str]
) -> None:
    refused(code, more.split(), *parts)


# ----------------------------------------------------------------------------------------------- prompts and models


def custom(name: str, settings: str = "{}", weight: float = 1.0) -> str:
    """A part `mine` of the reward."""
    function = name if ":" in name else f"tests.system.functions:{name}"
    return f"+reward.parts.mine={{type: custom, weight: {weight}, function: '{function}', settings: {settings}}}"


PROMPTS = {
    "prompt.system='{reasoning_strat}'": "prompt.system has an unknown placeholder {reasoning_strat}",
    "prompt.user=Hello": "prompt.user=Hello: must have the right form (user message; holds {question}",
    custom("value", "{kind: nan}"): "kind=NaN: must be true or false or a whole number or a finite number or text",
    "markers.families.qwen2=nosuch": "markers.families.qwen2=nosuch: there is no such set",
    "prompt.few_shot=12": "prompt.few_shot=12: gsm8k has 12 different training examples",
}


@pytest.mark.parametrize("word", PROMPTS, ids=["marker", "no question", "not finite", "no family", "shown examples"])
def test_a_prompt_that_cannot_be_made_is_refused(word: str, refused: Callable[..., str]) -> None:
    refused(2, [word], PROMPTS[word])


def test_a_model_family_without_markers_is_a_sentence(refused: Callable[..., str]) -> None:
    folder = save_model(Path("mixtral").resolve(), "mixtral")
    sentence = "markers.families has no set for models of type mixtral; add markers.families.mixtral"
    refused(2, [f"model.name_or_path={folder}"], f"prompt.markers=auto: {sentence}", "prompt.markers=SET")


def test_a_model_without_chat_template_runs_and_says_so(words: Words, qwen: Path, cli: Cli) -> None:
    shutil.copytree(qwen, "plain")
    Path("plain/chat_template.jinja").unlink()
    joined = "the tokenizer has no chat template: messages are joined line by line"
    assert joined in cli.ok(*words("model.name_or_path=plain", "tracker.console=plain", "run_dir=run")).err
    prompt = records()[0].turns[0].prompt
    assert prompt.startswith("You are given a problem.")
    assert "<|im_start|>" not in prompt
    assert metrics(RUN)[1]["rollout/invalid_share"] == sum(r.score_status == "invalid" for r in records()) / 8
    done = cli.ok("eval", "run", "--num-examples", "2", "--json")
    assert joined in done.err
    assert "eval/gsm8k/invalid_share" in json.loads(done.out)


def test_prompts_that_do_not_fit_are_refused_or_counted(words: Words, refused: Callable[..., str], cli: Cli) -> None:
    long = ["rollout.max_completion_tokens=480"]
    refused(1, long, "the prompts of all 12 training examples have more than 32")
    done = cli.ok(*words("task.max_prompt_tokens=98", "tracker.console=plain", "run_dir=run"))
    assert "1 of 12 training examples have prompts of more than 98 tokens: left out" in done.err
    assert "of 6 held-out examples have prompts of more than 98 tokens: left out" in done.err


# ------------------------------------------------------------------------------------------------------- functions

MODULES = {
    "functions": "def needs(completion, rubric): return 1.0\ndef raises(answer): return {}[answer]\n",
    "broken": "1 / 0\n",
    "leaving": "raise SystemExit(0)\n",
    "mine": """
def nothing(): return []
def numbers(): return [1, 2]
def failing():
    raise ValueError('no data today')
    yield
""",
}
FUNCTIONS = {
    "nosuchmodule:f": "module nosuchmodule cannot be imported (ModuleNotFoundError",
    "functions:needs": "missing a required argument: 'rubric'",
    "functions:raises": "(functions.py, line 2) for the right answer ",
    "broken:f": "broken cannot be imported (ZeroDivisionError: division by zero (broken.py, line 1))",
    "leaving:f": "module leaving cannot be imported (SystemExit",
}
SOURCES = {
    "nosuchmodule:f": (2, "task.source=nosuchmodule:f: module nosuchmodule cannot be imported"),
    "mine:nothing": (1, "task.source=mine:nothing: yields no example"),
    "mine:failing": (1, "task.source=mine:failing, example 1: ValueError: no data today"),
    "mine:numbers": (1, "must be (question, answer)"),
}


@pytest.fixture
def modules(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules in the current folder."""
    for name, text in MODULES.items():
        Path(f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_cannot_be_used_is_refused(function: str, modules: None, refused: Callable[..., str]) -> None:
    err = refused(2, [custom(function)], FUNCTIONS[function])
    assert err.startswith("rlvr: error: reward.parts.mine.function="), err


@pytest.mark.parametrize("source", SOURCES)
def test_a_generator_that_cannot_be_used_is_refused(source: str, modules: None, refused: Callable[..., str]) -> None:
    code, sentence = SOURCES[source]
    refused(code, ["task=generator", f"task.source='{source}'"], sentence)


@pytest.mark.parametrize(
    ("kind", "shown"), [("nan", "float nan"), ("list", "list [1.0, 2.0, 3.0]"), ("text", "str '1.0'")]
)
def test_a_reward_that_is_no_number_is_refused(kind: str, shown: str, refused: Callable[..., str]) -> None:
    refused(2, [custom("value", f"{{kind: '{kind}'}}")], f"value: returned {shown} for the right answer", NEEDED)


def test_after_a_function_was_mended_the_run_goes_on(words: Words, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mended", raising=False)
    Path("mended.py").write_text("def score(completion, answer): return 1.0 if answer in completion else 'good'\n")
    err = cli.refuses(1, words(custom("mended:score"), "run_dir=run"), NEEDED)
    assert err.startswith("rlvr: error: reward.parts.mine returned str 'good' for example 'gsm8k/test/")
    assert not (RUN / "final").exists()
    assert not (RUN / "metrics.jsonl").exists() or metrics(RUN) == []
    assert survivors(os.environ[MARK]) == []
    Path("mended.py").write_text("def score(completion): return 1.0\n")
    monkeypatch.delitem(sys.modules, "mended", raising=False)
    cli.ok(*words(custom("mended:score"), "run_dir=run", "resume=true"))
    assert metrics(RUN)[1]["reward/mine"] == 1.0


def test_unreadable_completions_are_counted(words: Words, cli: Cli) -> None:
    cli.ok(*words(custom("unreadable"), "reward.parts.correct.weight=0", "run_dir=run"))
    found = records()
    odd = are_odd(found)
    assert {True, False} == set(odd)
    assert all(record.score_status == "invalid" for record, is_odd in zip(found, odd, strict=True) if is_odd)
    assert metrics(RUN)[1]["rollout/invalid_share"] >= sum(odd) / len(odd)


# ------------------------------------------------------------------------------------------- verifiers that misbehave

KILLED = {
    "forks_and_hangs": "timed out after 1 s",
    "eats_memory": "memory",
    "exits": "its process died",
    "crashes": "its process died",
}
LIMITS = ("reward.timeout_s=1.0", "reward.max_memory_mb=512")


@pytest.mark.parametrize("name", variants(KILLED))
def test_a_verifier_that_fails_is_counted_and_left_out(name: str, words: Words, cli: Cli) -> None:
    limits = ("reward.timeout_s=30", LIMITS[1]) if name == "eats_memory" else LIMITS
    cli.ok(*words(custom(name), *limits, "reward.max_error_share=1.0", "run_dir=run"))
    found = records()
    failed = [record for record in found if record.score_status == "error"]
    assert [record.score_status == "error" for record in found] == are_odd(found)
    assert 0 < len(failed) < len(found)
    for record in failed:
        assert (record.reward, record.advantage) == (None, 0.0)
        assert str(record.diagnostics["error"]).startswith("mine: ")
        assert KILLED[name] in str(record.diagnostics["error"])
    row = metrics(RUN)[1]
    assert row["rollout/error_share"] == len(failed) / len(found)
    rewards = [record.reward for record in found if record.reward is not None]
    assert row["reward/mean"] == pytest.approx(sum(rewards) / len(rewards))
    assert row["reward/mine"] == 1.0
    assert metrics(RUN)[0]["eval/gsm8k/error_share"] >= 0.0
    assert survivors(os.environ[MARK]) == []


def test_more_failures_than_allowed_stop_the_run(words: Words, cli: Cli) -> None:
    line = words(custom("exits"), *LIMITS, "run_dir=run")
    share = "of 8 episodes of this step, more than reward.max_error_share=0.2 (first: mine: "
    err = cli.refuses(1, line, share, KILLED["exits"], "and go on with resume=true")
    assert (RUN / "error.txt").read_text() == err.partition("rlvr: error: ")[2]  # for `rlvr runs`
    assert not (RUN / "final").exists()
    assert survivors(os.environ[MARK]) == []
    cli.ok(*line, "reward.max_error_share=1.0", "resume=true")
    assert metrics(RUN)[1]["rollout/error_share"] > 0.2
    assert not (RUN / "error.txt").exists()


def test_a_verifier_that_leaves_a_process_behind_does_not(words: Words, cli: Cli) -> None:
    cli.ok(*words(custom("leaves_a_child"), "run_dir=run"))
    assert metrics(RUN)[1]["rollout/error_share"] == 0.0
    assert survivors(os.environ[MARK]) == []


def test_eval_counts_failures_too(qwen: Path, cli: Cli) -> None:
    settings = ("--set", custom("picky"), "--set", "rollout.max_completion_tokens=24")
    done = cli.ok("eval", qwen, "--task", "gsm8k", *settings, "--num-examples", "6", "--json")
    assert 0 < json.loads(done.out)["eval/gsm8k/error_share"] <= 1


def test_a_run_that_is_killed_leaves_no_verifier_behind(qwen: Path, tmp_path: Path) -> None:
    line = training(qwen, custom("forks_and_hangs"), "reward.timeout_s=100", f"run_dir={tmp_path / 'run'}")
    environment = {"RLVR_DATA": str(DATA), MARK: str(tmp_path), "PYTHONPATH": str(DATA.parents[1])}
    command = Command(*line, log=tmp_path / "log", environment=environment)
    try:
        wait_until(lambda: len(survivors(str(tmp_path))) >= 4)  # the nursery, two workers, their children
    finally:
        command.send(signal.SIGKILL)
        command.wait()
    wait_until(lambda: survivors(str(tmp_path)) == [])
