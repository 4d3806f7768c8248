"""Checks of a model's folder with files in it that contradict each other."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rlvr.chat.coding import Coder
from rlvr.checks.files import config_is_possible, template_is_one, template_is_there, weights_are_one_set
from tests.unit.chat.tokenizers import CHATML, END, TEXT_END, byte_tokenizer, encode
from tests.unit.core.tiny import tiny_model


def of(folder: Path, tokenizer: Any = None, model: Any = None, prompt: str = "") -> Any:
    ids = encode(tokenizer, prompt) if tokenizer else ()
    return SimpleNamespace(
        config=SimpleNamespace(model=SimpleNamespace(pretrained=SimpleNamespace(name_or_path=str(folder)))),
        policy=SimpleNamespace(tokenizer=tokenizer),
        model=model,
        coder=tokenizer and Coder(tokenizer),
        prompt=lambda index: (None, ids),
    )


def weights(scale: float = 1.0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(0)
    return {name: (scale * torch.randn(8, 8, generator=drawn)).to(dtype) for name in ("a", "b")}


@pytest.mark.parametrize(
    ("other", "differ"), [(weights(), False), (weights(dtype=torch.bfloat16), False), (weights(1.1), True)]
)
@pytest.mark.parametrize("form", ["pytorch_model.bin", "model.safetensors.index.json"])
def test_two_sets_of_weights_are_the_same(form: str, other: dict[str, Any], differ: bool, tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "model.safetensors")
    assert weights_are_one_set(of(tmp_path)).status == "ok"
    if form == "pytorch_model.bin":
        torch.save(other, tmp_path / form)
    else:
        save_file(other, tmp_path / "shard.safetensors")
        (tmp_path / form).write_text(json.dumps({"weight_map": dict.fromkeys(other, "shard.safetensors")}))
    found = weights_are_one_set(of(tmp_path))
    assert found.status == ("fail" if differ else "ok")
    assert found.evidence == {"used": "model.safetensors", "others": [form]}


def test_a_model_of_the_hub_is_no_folder(tmp_path: Path) -> None:
    patient = of(tmp_path / "owner" / "name")
    assert [check(patient).status for check in (weights_are_one_set,)] == ["skipped"]


@pytest.mark.parametrize(
    ("inside", "status"),
    [
        (None, "ok"),
        (CHATML, "ok"),
        (f"{CHATML}{{# a comment #}}", "ok"),
        (CHATML.replace("user", "human") + "x", "fail"),
        ([{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}], "ok"),
        ([{"name": "default", "template": "{{ messages[0].content }}"}], "fail"),
        ("{{ raise_exception('no') }}", "fail"),
    ],
)
def test_two_templates_render_the_same(inside: Any, status: str, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": inside} if inside else {}))
    assert template_is_one(of(tmp_path, byte_tokenizer())).status == status


@pytest.mark.parametrize(
    ("template", "eos", "prompt", "status"),
    [
        (CHATML, END, "x", "ok"),
        (None, TEXT_END, "x", "ok"),  # a base model
        (None, END, "x", "fail"),
        (None, END, f"<|im_start|>user\nx{END}\n", "ok"),  # the data have it
    ],
)
def test_a_model_of_conversations_has_a_template(
    template: str | None, eos: str, prompt: str, status: str, tmp_path: Path
) -> None:
    tokenizer = byte_tokenizer(template=template, eos=eos)
    model = tiny_model(eos_token_id=tokenizer.eos_token_id)
    assert template_is_there(of(tmp_path, tokenizer, model, prompt)).status == status


@pytest.mark.parametrize(
    ("architecture", "changes", "wrong"),
    [
        ("llama", {}, None),
        ("llama", {"rms_norm_eps": 1e-3}, None),
        ("llama", {"rms_norm_eps": 0.1}, "rms_norm_eps=0.1"),
        ("gemma3", {}, None),  # 5 nats are enough for 17 words
        ("gemma3", {"final_logit_softcapping": 1.0}, "final_logit_softcapping=1: no token can have a probability over"),
        ("gemma3", {"attn_logit_softcapping": 0.5}, "attn_logit_softcapping=0.5"),
    ],
)
def test_numbers_of_a_config_are_possible(
    architecture: str, changes: dict[str, Any], wrong: str | None, tmp_path: Path
) -> None:
    found = config_is_possible(of(tmp_path, model=tiny_model(architecture, **changes)))
    assert found.status == ("ok" if wrong is None else "fail")
    assert wrong is None or found.says.startswith(f"config.json has {wrong}")
