"""Pretrained models are trained, resumed, evaluated, exported and served by the commands that users type."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlvr.models.loading import load_for_inference
from tests.system.conftest import shared
from tests.system.harness import (
    Cli,
    Command,
    metrics,
    num_lines,
    numbers,
    run_train,
    split,
    wait_until,
)
from tests.system.served import Server, served

pytestmark = pytest.mark.real

NAMES = ("Ann", "Bo", "Cy", "Di", "Ed", "Flo")
BORN = [f"{name} (born {day} May {1900 + day}) was a painter." for day, name in enumerate(NAMES, 3)]
SETTINGS = split("""
    task=jsonl task.metric=exact prompt=plain reward=custom reward.parts.custom.function=tests.system.functions:length
    warm_start.enabled=true warm_start.num_examples=4 warm_start.num_epochs=1 warm_start.batch_size=2
    rollout.prompts_per_step=2 rollout.group_size=4 rollout.max_completion_tokens=8 rollout.temperature=1.5
    trainer.max_steps=2 trainer.warmup_steps=0 trainer.checkpoint_every=1
    evaluation.every=100 evaluation.num_examples=2 tracker.console=none tracker.rollouts_every=1
""")
LORA = split("""
    model.lora.enabled=true model.lora.r=4 model.dtype=float32 trainer.precision=fp32 engine.dtype=float32
    trainer.learning_rate=1e-3
""")
"""In float32 on every processor: `auto` is bfloat16 where it multiplies that by itself, and the bound is float32's."""
MODELS = ("smollm2", "gemma")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Settings that name six questions; the last two are held out."""
    folder = tmp_path_factory.mktemp("born")
    lines = [
        json.dumps({"question": f"{text} When was this? Answer as YYYY-MM-DD.", "answer": f"{1900 + day}-05-{day:02}"})
        for day, text in enumerate(BORN, 3)
    ]
    (folder / "train.jsonl").write_text("\n".join(lines[:4]))
    (folder / "dev.jsonl").write_text("\n".join(lines[4:]))
    return (f"task.path={folder / 'train.jsonl'}", f"task.eval_path={folder / 'dev.jsonl'}")


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def adapted(model: Path, rows: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two batches of SFT and two steps of RL with LoRA; half of both for Gemma, whose head has 262k rows."""
    less = split("warm_start.num_examples=2 trainer.max_steps=1") if "gemma" in model.name else ()

    def make(folder: Path) -> None:
        run_train(folder / "run", *SETTINGS, *LORA, *rows, *less, f"model.name_or_path={model}", name="gsm8k")

    return shared(tmp_path_factory, f"adapted_{model.name}", make) / "run"


def moved(run: Path) -> None:
    """Each step changed the weights, and what was sampled is what was trained."""
    steps = metrics(run)[1:]
    assert steps
    for step in steps:
        assert math.isfinite(step["policy/grad_norm"])
        assert step["policy/grad_norm"] > 0
        assert abs(step["policy/mismatch_kl"]) < 1e-4


def test_adapters_learn_and_everything_reads_them(adapted: Path, tmp_path: Path, cli: Cli) -> None:
    moved(adapted)
    evaluated = json.loads(cli.ok("eval", adapted, "--num-examples", "2", "--json").out)
    assert evaluated
    answered = cli.ok("predict", adapted, "--prompt", BORN[0], "--set", "rollout.max_completion_tokens=4", "--json")
    assert json.loads(answered.out)["turns"]
    cli.ok("export", adapted, "--merge", "--output", tmp_path / "merged")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    policy = load_for_inference(str(adapted / "final"))
    ids = AutoTokenizer.from_pretrained(tmp_path / "merged")(BORN[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        ours, theirs = policy.model(input_ids=ids).logits, plain(input_ids=ids).logits.float()
    assert (ours - theirs).abs().max() < 1e-3 * theirs.abs().max()


@pytest.mark.parametrize("model", ["smollm2"], indirect=True, scope="module")
def test_a_killed_run_goes_on_number_for_number(
    adapted: Path, model: Path, rows: tuple[str, ...], tmp_path: Path
) -> None:
    words = (*SETTINGS, *LORA, *rows, f"model.name_or_path={model}", f"run_dir={tmp_path / 'run'}")
    killed = Command("train", "--config-name", "gsm8k", *words, log=tmp_path / "log")
    wait_until(lambda: num_lines(tmp_path / "run") >= 2 or not killed.process.is_alive(), timeout_s=200)
    killed.send(9)
    assert killed.wait() == -9, killed.err
    resumed = run_train(tmp_path / "run", *words, "resume=true", name="gsm8k")
    assert resumed.numbers == numbers(adapted)


def test_all_weights_are_trained(smollm2: Path, rows: tuple[str, ...], tmp_path: Path, cli: Cli) -> None:
    words = (*SETTINGS, *rows, f"model.name_or_path={smollm2}", "trainer.precision=fp32", "trainer.learning_rate=1e-5")
    moved(run_train(tmp_path / "run", *words, "trainer.checkpoint_every=null", name="gsm8k").folder)
    AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "final")


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[Server]:
    with served(str(smollm2), ["--served-model-name", "m"]) as there:
        yield there


CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"year": {"type": "integer", "minimum": 0, "maximum": 9999}},
    "required": ["year"],
}
SCHEMA |= {"additionalProperties": False}
TOOL = {
    "name": "lookup",
    "description": "Looks a word up.",
    "parameters": {"type": "object", "properties": {"word": {"type": "string", "maxLength": 8}}},
}


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8} | more


def test_the_served_model_streams_what_it_answers(server: Server) -> None:
    question = asked("What is the capital of France?")
    status, whole = server.post(CHAT, question)
    assert status == 200, whole
    text = whole["choices"][0]["message"]["content"]
    assert text.startswith("The capital of France is Paris")
    with closing(server.connect()) as connection:
        connection.request("POST", CHAT, json.dumps(question | {"stream": True}), {"Content-Type": "application/json"})
        lines = [line for line in connection.getresponse().read().decode().splitlines() if line.startswith("data: {")]
    parts = [choice["delta"].get("content") or "" for line in lines for choice in json.loads(line[6:])["choices"]]
    assert "".join(parts) == text
    assert len(parts) > 2


def test_the_served_model_keeps_to_a_schema_and_calls_tools(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "year", "schema": SCHEMA}}
    status, answer = server.post(CHAT, asked("When did Ada Lovelace die?", response_format=form, max_tokens=32))
    assert status == 200, answer
    assert list(json.loads(answer["choices"][0]["message"]["content"])) == ["year"]
    tools = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
    status, answer = server.post(CHAT, asked("Look up the word owl.", **tools, max_tokens=64))
    assert status == 200, answer
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "lookup"
    assert isinstance(json.loads(call["function"]["arguments"]), dict)
