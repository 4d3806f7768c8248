"""A real vLLM server, its CPU build in an environment of its own: served, trained on, killed and started again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlvr.engines.vllm import server as vllm_client
from rlvr.engines.vllm.weights import transfer
from rlvr.errors import UserError
from rlvr.models.loading import load_for_inference
from rlvr.records.rollouts import EpisodeRecord, read_rollouts
from tests.system.harness import SCRATCH, SMALL, num_lines, numbers, once, pretrained, run_train, wait_until
from tests.system.served import Server, served
from tests.system.torchrun import Job

pytestmark = pytest.mark.vllm

LONG_S = 600.0  # for a server to be up, on a machine that does other things, too
STEPS = 6
HEADS = "model.head_dim=32"
KEY = "hush"
WITH_KEY = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm-started model whose heads vLLM's attention can do."""
    run = run_train(tmp_path_factory.mktemp("start") / "run", *SMALL, *SCRATCH, HEADS, "trainer.max_steps=1")
    return run.folder / "warm_start"


@pytest.fixture(scope="module")
def adapter(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that changes much."""
    lora = ("model.lora.enabled=true", "model.lora.r=4", "model.lora.target_modules=[q_proj,v_proj]")
    words = [*SMALL, *pretrained(start), *lora, "trainer.learning_rate=0.3", "model.lora.merge_final=false"]
    return run_train(tmp_path_factory.mktemp("adapter") / "run", *words).folder / "final"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def vllm(model: Path, *options: str, **environment: str) -> Iterator[Server]:
    """`rlvr serve --engine vllm`, once it is healthy."""
    words = ["--engine", "vllm", "--max-batch-size", "32", *options]
    with served(str(model), words, VLLM_CPU_CI_ENV="1", **environment) as server:
        yield server


def process_group(server: Server) -> tuple[int, list[int]]:
    """vLLM's first process, and all of its group."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid=,pgid="], capture_output=True, text=True, check=True).stdout
    rows = [tuple(map(int, line.split())) for line in table.splitlines()]
    (first,) = [pid for pid, parent, group in rows if parent == server.process.pid and pid == group]
    return first, [pid for pid, _, group in rows if group == first]


def are_gone(pids: Sequence[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() and not _is_zombie(pid) for pid in pids)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def settings(server: Server, start: Path, *more: str) -> list[str]:
    """A run of a few steps on the server."""
    few = [f"trainer.max_steps={STEPS}", "evaluation.every=3"]
    return once(*SMALL, *pretrained(start), "engine=vllm", f"engine.urls=[{server.url}]", *few, *more)


def sampled(folder: Path) -> dict[tuple[int, int, int], EpisodeRecord]:
    """Every episode that was trained on, by step, group and place in the group."""
    records = [
        (step, one)
        for step in range(1, STEPS + 1)
        for one in read_rollouts(folder / "rollouts" / f"step_{step:06d}.jsonl.gz")
    ]
    found = {(step, one.group, one.sample_index): one for step, one in records}
    assert len(found) == len(records), "an episode stands there twice"
    return found


def tokens(record: EpisodeRecord) -> list[int]:
    return [token for turn in record.turns for token in turn.completion_ids]


def test_two_ranks_survive_a_killed_server(
    start: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second server has an adapter on the model, and both a key: starting them is what takes the time."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    port = str(free_port())
    folder = tmp_path / "killed"
    with vllm(start, "--port", port, "--log", str(tmp_path / "first.log")) as first:
        ranks = ("trainer.strategy=fsdp2", "engine.sync=broadcast", f"run_dir={folder}", "tracker.console=plain")
        job = Job(2, "train", *settings(first, start, *ranks), cwd=tmp_path)
        job.wait_until(lambda: num_lines(folder) >= 3, timeout_s=LONG_S)
        api, processes = process_group(first)
        os.kill(api, signal.SIGKILL)
        code, err = first.ended()
        assert (code, "vLLM died (SIGKILL)" in err) == (1, True), err
        wait_until(lambda: are_gone(processes))  # they would hold its memory
    log = str(tmp_path / "second.log")
    with vllm(adapter, "--port", port, "--served-model-name", "m", "--api-key", KEY, "--log", log) as second:
        done = job.wait(LONG_S)
        assert done.code == 0, done.err
        check_complete(folder, done.err)
        whole = run_train(tmp_path / "whole", *settings(second, start)).folder
        check_same_samples(folder, whole)
        check_sampling_beside_the_trainer(second, start, whole, tmp_path)
        check_bad_input(second, start, tmp_path)
        check_adapter(second, adapter, start)
        _, processes = process_group(second)
        second.process.kill()  # nobody is left to end vLLM but vLLM itself
        wait_until(lambda: are_gone(processes), timeout_s=LONG_S)


def check_complete(folder: Path, err: str) -> None:
    """Every step and every episode is there once, each sampled with the weights of its step."""
    assert [row["step"] for row in numbers(folder)] == list(range(STEPS + 1))
    found = sampled(folder)
    assert set(found) == {
        (step, group, index) for step in range(1, STEPS + 1) for group in range(4) for index in range(4)
    }
    assert {key[0] - one.policy_version for key, one in found.items()} == {1}
    assert "is back" in err or "lost the server" in err, err


def check_same_samples(killed: Path, whole: Path) -> None:
    """The same prompts in the same order with the same seeds, and but for rounding the same tokens."""
    left, right = sampled(killed), sampled(whole)
    assert {key: (one.example_id, one.seed) for key, one in left.items()} == {
        key: (one.example_id, one.seed) for key, one in right.items()
    }
    same = [tokens(one) == tokens(right[key]) for key, one in left.items()]
    assert sum(same) >= 0.9 * len(same), f"{sum(same)} of {len(same)}"
    assert all(equal for key, equal in zip(left, same, strict=True) if key[0] == 1)


def check_sampling_beside_the_trainer(server: Server, start: Path, whole: Path, folder: Path) -> None:
    """The same draws; no token is older than allowed; what is of the newest weights has the trainer's logprobs."""
    words = settings(server, start, "rollout.max_staleness=1", "algorithm.mismatch_correction=truncate")
    ran = run_train(folder / "beside", *words)
    found, theirs = sampled(ran.folder), sampled(whole)
    assert {key: one.seed for key, one in found.items()} == {key: one.seed for key, one in theirs.items()}
    assert max(row["rollout/staleness_max"] for row in ran.rows[1:]) == 1
    for (step, _, _), episode in found.items():
        for row in episode.rows:
            triples = zip(row.policy_versions or (), row.trainer_logprobs or (), row.behavior_logprobs, strict=True)
            for version, trainer, behavior in triples:
                assert version in (-1, step - 2, step - 1)
                if version == step - 1 and trainer is not None and behavior is not None:
                    assert trainer == pytest.approx(behavior, abs=1e-4)


def check_bad_input(server: Server, start: Path, folder: Path) -> None:
    """One sentence each, and the server goes on."""
    shape = [*SMALL, *SCRATCH, HEADS, "model.intermediate_size=32", "model.hidden_size=64", "trainer.max_steps=1"]
    wide = run_train(folder / "wide", *shape).folder / "warm_start"
    for named, told in (
        (wide, "has a model with hidden_size=32, the policy has 64: start it on the policy's model"),
        (with_two_words_exchanged(start, folder / "words"), "has another tokenizer than the policy"),
        (with_one_word_more(start, folder / "more"), "has a model with vocab_size=10, the policy has 11"),
    ):
        with pytest.raises(UserError, match=re.escape(told)):
            run_train(folder / f"refused-{named.name}", *settings(server, named))
    down = f"engine.urls=[http://127.0.0.1:{free_port()}]"
    with pytest.raises(UserError, match=r"does not answer .*; start it with: rlvr serve MODEL --engine vllm"):
        run_train(folder / "refused", *settings(server, start), down)
    assert not (folder / "refused").exists()


def with_two_words_exchanged(start: Path, folder: Path) -> Path:
    """The same model; its tokenizer calls the first two digits by each other's ids."""
    shutil.copytree(start, folder)
    file = folder / "tokenizer.json"
    whole = json.loads(file.read_text())
    ids = whole["model"]["vocab"]
    ids["0"], ids["1"] = ids["1"], ids["0"]
    file.write_text(json.dumps(whole))
    return folder


def with_one_word_more(start: Path, folder: Path) -> Path:
    """The same model with a row more in its embeddings."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(start), AutoTokenizer.from_pretrained(start)
    model.resize_token_embeddings(len(tokenizer) + 1, mean_resizing=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def check_adapter(server: Server, adapter: Path, start: Path) -> None:
    """With the model that it was trained on, which is pushed back, it says what transformers and peft say."""
    body = {"model": "m", "prompt": [1, 3, 4, 5], "max_tokens": 2, "temperature": 0, "logprobs": 1}
    for path in ("/v1/completions", "/collective_rpc", "/pause", "/update_weights"):
        assert server.post(path, body)[0] == 401
    client = vllm_client.Server(server.url, timeout_s=LONG_S)
    client.call("/pause?mode=keep")
    client.forget_prefixes()
    transfer(client, client.describe(), start, "start")
    client.call("/resume")
    status, answer = server.post("/v1/completions", body, WITH_KEY)
    assert status == 200, answer
    theirs = answer["choices"][0]["logprobs"]["token_logprobs"][0]
    assert theirs == pytest.approx(largest_logprob(adapter, body["prompt"]), abs=1e-4)
    assert abs(theirs - largest_logprob(start, body["prompt"])) > 1e-2, "the adapter makes no difference"


@torch.no_grad()
def largest_logprob(folder: Path, prompt: list[int]) -> float:
    """Of the first greedy token, as transformers and peft say."""
    model = load_for_inference(str(folder)).model
    return model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1).max().item()


def test_a_served_teacher_teaches_as_a_loaded_one_does(start: Path, tmp_path: Path) -> None:
    """The distance to the teacher of the first step, before anything differs; the run learns from the server alone."""
    words = [*SMALL, *SCRATCH, HEADS, "algorithm=distill", "rollout.prompts_per_step=8", "rollout.group_size=1"]
    words += ["warm_start.num_steps=40", "warm_start.final_phase_steps=0", "warm_start.warmup_steps=0"]
    loaded = run_train(tmp_path / "loaded", *words, f"algorithm.teacher={start}").numbers
    with vllm(start, "--served-model-name", "teacher") as server:
        address = f"openai:{server.url}#teacher"
        served_one = run_train(tmp_path / "served", *words, f"algorithm.teacher='{address}'").numbers
    assert loaded[1]["policy/teacher_kl"] > 0.01
    for mine, other in zip(served_one[1:], loaded[1:], strict=True):
        assert mine["policy/teacher_kl"] == pytest.approx(other["policy/teacher_kl"], abs=1e-3)
