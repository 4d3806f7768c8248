"""A model that also sees: the sizes of its language model stand in a config within its config."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoTokenizer,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    SiglipVisionConfig,
)

from tests.system.harness import Cli, once, run_train
from tests.system.small_qwen import save_questions, save_small_qwen
from tests.system.test_adapters import SHORT


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 as its 4B is published: text and vision."""
    folder = save_small_qwen(tmp_path_factory.mktemp("nested"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    heads: dict[str, Any] = {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "initializer_range": 0.2,
    }
    heads |= {"max_position_embeddings": 256, "sliding_window": 16, "pad_token_id": 0, "eos_token_id": [2, 0]}
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    text = Gemma3TextConfig(vocab_size=len(tokenizer), bos_token_id=None, **sizes, **heads)
    sees = SiglipVisionConfig(num_attention_heads=2, image_size=28, patch_size=14, **sizes)
    config = Gemma3Config(text_config=text, vision_config=sees, mm_tokens_per_image=4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Gemma3ForConditionalGeneration(config)
        torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)
    assert not hasattr(config, "vocab_size")
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("adapted", [False, True])
def test_it_is_planned_trained_saved_and_read_again(adapted: bool, nested: Path, cli: Cli, tmp_path: Path) -> None:
    task = (f"model.name_or_path={nested}", f"task.path={save_questions(tmp_path / 'sums.jsonl')}")
    words = once(*(word for word in SHORT if adapted or "lora" not in word), *task, "trainer.max_steps=2")
    planned = cli.ok("plan", "--config-name", "gsm8k", "--seconds", "1", "--json", *words).out
    assert json.loads(planned)["memory"]["logits"] > 0
    ran = run_train(tmp_path / "run", *words, "tracker.rollouts_every=1", name="gsm8k")
    assert ran.result.num_steps == 2
    assert any(row.get("policy/grad_norm", 0) > 0 for row in ran.numbers)
    if adapted:
        (file,) = (tmp_path / "run" / "checkpoints").glob("*/**/*adapter*.safetensors")
        with safe_open(file, "pt") as saved:
            assert not [name for name in saved.keys() if "vision" in name or "projector" in name]  # noqa: SIM118
    more = ("resume=true", "trainer.max_steps=3")
    assert run_train(tmp_path / "run", *words, *more, name="gsm8k").result.num_steps == 3
    done = cli("doctor", tmp_path / "run")
    assert "FAIL" not in done.out, done.out
