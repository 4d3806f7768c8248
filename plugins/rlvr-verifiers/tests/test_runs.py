"""The verifiers library, both directions: its environments are trained here, and ours runs under its commands."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlvr.config.compose import load_config
from rlvr.config.config import keys
from rlvr.errors import ConfigError, UserError
from rlvr.records.rollouts import read_rollouts
from rlvr.run.tasks import open_tasks
from rlvr_verifiers.task import Verifiers
from scripted import ENVIRONMENTS
from settings_cases import CASES
from small import RUN, TINY, model_of_ten_words
from tests.conftest import LONG_S
from tests.system.harness import once, pretrained, run_train
from tests.system.openai_server import serve
from tests.system.test_data_settings import DataCase

ROOT = Path(__file__).resolve().parents[3]
MUSIQUE = Path(__file__).parent / "musique"
BIN = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def _environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ENVIRONMENTS))


def kind(name: str) -> str:
    return f"task.env_args.kind={name}"


# ------------------------------------------------------------------------------------------------- their environments


def test_a_single_turn_environment_is_learnt(tmp_path: Path) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    ran = run_train(tmp_path / "run", *RUN, *TINY, kind("letters"))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    rewards = [row["reward/mean"] for row in ran.rows[1:]]
    assert rewards[-1] > 5 * rewards[0]
    assert ran.rows[1]["policy/grad_norm"] > 0
    assert ran.rows[-1]["reward/share_of_e"] == ran.rows[-1]["reward/mean"]
    assert ran.rows[0]["eval/verifiers/part_length"] > 0
    assert ran.rows[-1]["eval/verifiers/accuracy"] > ran.rows[0]["eval/verifiers/accuracy"]


def test_a_tool_environment_is_learnt(tmp_path: Path) -> None:
    start = pretrained(model_of_ten_words(tmp_path / "model"))
    more = (kind("words"), "prompt.tool_format=words", "task.metric=looked")
    ran = run_train(tmp_path / "run", *RUN, *start, *more, "trainer.learning_rate=0.005")
    first, last = ran.rows[1], ran.rows[-1]
    assert 0.2 < first["reward/looked"] < 0.8
    assert last["reward/looked"] > 0.95
    assert last["reward/mean"] > first["reward/mean"] + 0.2
    assert last["eval/verifiers/sampled_accuracy"] > 0.9
    assert first["reward/total_tool_calls"] == first["rollout/tool_calls_mean"]
    found = read_rollouts(ran.folder / "rollouts" / "step_000001.jsonl.gz")
    records = [record for record in found if len(record.turns) > 1]
    assert records
    for record in records:
        before, after = record.turns[:2]
        said = list(before.prompt_ids) + list(before.completion_ids)
        assert list(after.prompt_ids[: len(said)]) == said
        assert after.prompt.split()[-1] in ("1", "no")


def test_a_rubric_that_fails_too_often_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"verifier failed on .*reward function broken: KeyError: 'no such column'"):
        run_train(tmp_path / "run", *RUN, *TINY, kind("breaks"), "reward.max_error_share=0.0")
    tolerant = run_train(tmp_path / "other", *RUN, *TINY, kind("breaks"), "trainer.max_steps=1")
    assert tolerant.rows[1]["rollout/error_share"] > 0
    assert tolerant.rows[1]["reward/mean"] == 0.5  # the failed ones are no zeros


@pytest.mark.parametrize("name", ["group", "both"])
def test_rewards_of_groups_train_and_evaluate(tmp_path: Path, name: str) -> None:
    ran = run_train(tmp_path / "run", *RUN, *TINY, kind(name), "task.env_args.num=12", "trainer.max_steps=1")
    assert ran.rows[1]["rollout/error_share"] == 0.0
    assert 0 < ran.rows[1]["reward/longest"] < 1
    assert ran.result.finished


# ------------------------------------------------------------------------------------------------------- the settings


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("prompt.system=Think.", r"prompt\.system=Think\.: has no effect"),
        ("prompt.answer_in=boxed", r"prompt\.answer_in=boxed: has no effect"),
        ("reward=numeric", r"reward: task=verifiers scores its episodes by itself; leave out reward="),
        ("evaluation.headline=part_f1", r"evaluation\.headline=part_f1: .*choose accuracy"),
        ("model=scratch", "this task has none"),
        ("task.metric_threshold=high", r"task\.metric_threshold=.?high"),
    ],
)
def test_settings_that_do_not_fit_an_environment_are_refused(line: str, message: str) -> None:
    lines = ["task=verifiers", "task.env_id=x", "model=scratch_bpe"]
    assert load_config(lines).task.name == "verifiers"
    with pytest.raises(ConfigError, match=message):
        load_config(once(*lines, line))
    with pytest.raises(ConfigError, match=r"task\.env_id: has no default"):
        load_config(["task=verifiers", "model=scratch_bpe"])


@pytest.mark.parametrize("case", CASES, ids=[case.key for case in CASES])
def test_a_setting_does_what_it_says(case: DataCase) -> None:
    seen = []
    for value in (case.a, case.b):
        base = [line for line in case.base if not line.startswith(f"{case.key}=")]
        with open_tasks(load_config([*base, f"{case.key}={value}", "model=scratch_bpe"]), None, {}) as tasks:
            tasks.own.limit_prompts(num_digits, 1_000)
            seen.append(case.look(tasks.own))
    assert seen[0] != seen[1]


def test_no_setting_is_left_out() -> None:
    assert {path for path, _ in keys(Verifiers, "task.")} == {case.key for case in CASES}


def num_digits(messages: Any, tools: Any = ()) -> int:
    """Stands for a tokenizer."""
    return sum(letter.isdigit() for letter in messages[-1].content)


# -------------------------------------------------------------------------------------------------- their commands


def _searches_and_completes(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A model that searches once, believes what it reads, and cites all of it."""
    last = messages[-1]
    if last["role"] != "tool":
        return {"calls": [("retrieve_documents", {"query": last["content"], "top_n": 2})]}
    ids, rivers = re.findall(r"Document ID: (\S+)", last["content"]), re.findall(r"the river (\w+)", last["content"])
    answer = {"reasoning": "It is written.", "final_answer": rivers[0] if rivers else "", "cited_doc_ids": ids}
    return {"calls": [("complete", answer)]}


@contextmanager
def installed(folder: Path) -> Iterator[dict[str, str]]:
    """`vf-install vf-musique -p environments`, without the package index; the environment of its commands."""
    environment = os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # where uv is
        "UV_OFFLINE": "1",
        "UV_NO_BUILD_ISOLATION": "1",
        "SOME_KEY": "a-secret",
    }

    def uv(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "uv"), "pip", *arguments, "--python", sys.executable, "vf-musique"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    copy = shutil.copytree(ROOT / "environments", folder / "environments")
    command = [str(BIN / "vf-install"), "vf-musique", "-p", "environments"]
    with Path(__file__).open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # another worker would see it installed, and lose it when this one ends
        was_there = uv("show").returncode == 0
        where = ROOT if was_there else copy.parent
        done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        try:
            yield environment
        finally:
            if not was_there:
                uv("uninstall")


@pytest.mark.timeout(LONG_S)
def test_vf_install_and_vf_eval_run_our_environment(tmp_path: Path) -> None:
    with installed(tmp_path) as environment:
        for server in ("--disable-env-server", "--num-workers=1"):  # in its process, and in a worker of its own
            _evaluate(tmp_path / server, environment, server)


def _evaluate(folder: Path, environment: dict[str, str], server: str) -> None:
    arguments = {
        "retriever": "golden",
        "train_sets": str(MUSIQUE / "train.jsonl"),
        "eval_sets": str(MUSIQUE / "dev.jsonl"),
    }
    folder.mkdir()
    with serve(_searches_and_completes) as there:
        command = [str(BIN / "vf-eval"), "vf-musique", "-m", "a/model", "-b", there.url, "-k", "SOME_KEY"]
        command += ["-n", "3", "-r", "2", "-a", json.dumps(arguments), "-s", "-d", "-o", str(folder), server]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert there.keys == {"Bearer a-secret"}
    assert {request["model"] for request in there.requests} == {"a/model"}
    names = [tool["function"]["name"] for tool in there.requests[0]["tools"]]
    assert names == ["retrieve_documents", "get_document", "list_documents", "complete"]
    (results,) = folder.rglob("results.jsonl")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(rows) == 6
    for row in rows:
        assert row["error"] is None
        assert (row["em"], row["citation"], row["recall"], row["num_turns"]) == (1.0, 1.0, 1.0, 2.0)
        assert row["stop_condition"] == "has_final_env_response"
    rewards = {row["reward"] for row in rows}
    assert len(rewards) == 1
    assert rewards.pop() > 1
