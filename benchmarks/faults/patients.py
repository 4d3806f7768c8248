"""Tiny models of many architectures, as folders, and how `rlvr doctor` examines them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import transformers
from chatml import BOS, CHATML, END, PAD, SPECIAL
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

import rlvr
from rlvr.run import opened

EXAMPLES = Path(__file__).parents[2] / "examples" / "own"
ROWS = [{"question": f"What is {a} plus {b}?", "answer": str(a + b)} for a in range(1, 12) for b in range(20, 31)]
LORA = {"model.lora.enabled": True, "model.dtype": "float32", "model.lora.target_modules": ["all-linear"]}

# ---------------------------------------------------------------------------------------------------- architectures

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
GROUPED = {"num_key_value_heads": 1, "head_dim": 16}
SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
ONE = {"num_key_value_heads": 1}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", GROUPED),
    "qwen2": ("Qwen2", ONE | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", GROUPED),
    "mistral": ("Mistral", GROUPED | {"sliding_window": None}),
    "gemma2": ("Gemma2", GROUPED | SLIDING | {"query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3", GROUPED | SLIDING | {"query_pre_attn_scalar": 16}),
    "phi3": ("Phi3", ONE),
    "gpt_neox": ("GPTNeoX", {}),
    "olmo2": ("Olmo2", ONE),
    "granite": ("Granite", ONE | {"logits_scaling": 4.0, "embedding_multiplier": 3.0}),
    "cohere": ("Cohere", ONE | {"logit_scale": 0.25}),
    "stablelm": ("StableLm", ONE),
    "smollm3": ("SmolLM3", ONE),
}
LINEAR_HEADS = {f"linear_{kind}": 2 for kind in ("num_key_heads", "num_value_heads")}
LINEAR_HEADS |= {f"linear_{kind}": 16 for kind in ("key_head_dim", "value_head_dim")}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
UNUSUAL: dict[str, tuple[str, dict[str, Any]]] = {  # only sound ones: faults are planted in those above
    "falcon": ("Falcon", {"alibi": False}),  # attention of its own
    "gpt_oss": ("GptOss", GROUPED | SLIDING | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_next": (
        "Qwen3Next",
        GROUPED
        | LINEAR_HEADS
        | EXPERTS
        | {"shared_expert_intermediate_size": 16, "layer_types": ["linear_attention", "full_attention"]},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model folder, and how it is examined."""

    architecture: str
    template: str | None = CHATML
    tokenizer: Callable[[PreTrainedTokenizerFast], Any] = lambda tokenizer: tokenizer
    config: dict[str, Any] = field(default_factory=dict)  # of the model
    saved: Callable[[Any, Path], None] = lambda model, folder: None  # changes the saved model
    loaded: Callable[[Any], Any] = lambda policy: None  # what the model's own code does
    with_tools: bool = False  # questions with a tool, in several turns
    rows: list[dict[str, Any]] = field(default_factory=lambda: ROWS)
    reward: Callable[..., Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def texts() -> Iterator[str]:
    for row in ROWS:
        yield f"{row['question']} {row['answer']} Think step by step. The answer is \\boxed{{{row['answer']}}}."
    yield (EXAMPLES / "my_shop.py").read_text()


def byte_pairs(words: Iterator[str], size: int) -> Tokenizer:
    """A byte-level BPE tokenizer of these texts."""
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = ByteLevel(add_prefix_space=False)
    bpe.decoder = ByteLevelDecoder()
    alphabet = sorted(ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(words, trainer)
    return bpe


@cache
def vocabulary() -> str:
    return byte_pairs(texts(), 500).to_str()


def make_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    bpe = Tokenizer.from_str(vocabulary())
    end = SPECIAL[BOS if template is None else END]  # without a template nothing was taught to end turns
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end, pad_token=SPECIAL[PAD])
    tokenizer.chat_template = template
    return tokenizer


def make_model(architecture: str, given: dict[str, Any], seed: int) -> Any:
    name, more = (ARCHITECTURES | UNUSUAL)[architecture]
    prefix = "Gemma3Text" if name == "Gemma3" else name
    config = getattr(transformers, f"{prefix}Config")(**SIZES | {"initializer_range": 0.1} | more | given)
    torch.manual_seed(seed)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def save(case: Case, folder: Path, seed: int) -> None:
    tokenizer = make_tokenizer(case.template)
    if isinstance(made := case.tokenizer(tokenizer), PreTrainedTokenizerFast):  # else it was changed in place
        tokenizer = made
    ends = BOS if case.template is None else END
    given = {"pad_token_id": PAD, "bos_token_id": None, "eos_token_id": ends}
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 2048}
    model = make_model(case.architecture, sizes | given | case.config, seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    case.saved(model, folder)


def examine(case: Case, seed: int = 0) -> list[Any]:
    """The checks of `rlvr.doctor` on the case; a refusal to load is a failed check called `load`."""
    real, folder = opened.open_model, Path("model")

    def load(*arguments: Any, **named: Any) -> Any:
        policy = real(*arguments, **named)
        case.loaded(policy)
        return policy

    save(case, folder, seed)
    limit: dict[str, Any] = {
        "rollout.max_completion_tokens": 64 if case.with_tools else 24,
        "evaluation.num_examples": 4,
    }
    if case.with_tools:
        arguments: dict[str, Any] = {"task": "my_shop:Shop", "task.num_questions": 80}
    elif case.reward is None:
        arguments = {"data": case.rows, "reward": "numeric", "prompt": "plain"}
    else:
        arguments = {"data": case.rows}
    if case.reward is not None:
        arguments["reward"] = case.reward
    with patch.object(opened, "open_model", load):
        try:
            return rlvr.doctor(folder, **arguments | limit | case.settings)
        except rlvr.errors.UserError as error:
            return [SimpleNamespace(name="load", status="fail", says=str(error), evidence={}, remedy="")]


@contextmanager
def in_a_folder() -> Iterator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


# ------------------------------------------------------------------------------------------------ ways to plant one

Change = Callable[[Case], Case]
Weights = dict[str, torch.Tensor]
Save = Callable[[Any, Path], None]


def case_of(**fields: Any) -> Change:
    return lambda case: replace(case, **fields)


def both(*changes: Change) -> Change:
    def change(case: Case) -> Case:
        for one in changes:
            case = one(case)
        return case

    return change


def loaded(plant: Callable[[Any], Any], **more: Any) -> Change:
    return case_of(loaded=plant, **more)


def saves(save: Save, **more: Any) -> Change:
    """Changes the saved folder."""
    return case_of(saved=save, **more)


def trained(change: Callable[[Any], None], **more: Any) -> Change:
    """Changes the weights, and saves them."""

    def save(model: Any, folder: Path) -> None:
        with torch.no_grad():
            change(model)
        model.save_pretrained(folder)

    return saves(save, **more)


def stored(change: Callable[[Weights], Weights], **more: Any) -> Change:
    """Changes the tensors of the model's file."""

    def save(model: Any, folder: Path) -> None:
        path = folder / "model.safetensors"
        changed = change({name: weight.clone() for name, weight in load_file(path).items()})
        save_file({name: weight.contiguous() for name, weight in changed.items()}, path, {"format": "pt"})

    return saves(save, **more)


def merge(path: Path, **fields: Any) -> None:
    """Changes fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def says(changes: dict[str, dict[str, Any]], **more: Any) -> Change:
    """Changes fields of JSON files of the folder."""

    def save(model: Any, folder: Path) -> None:
        for name, fields in changes.items():
            merge(folder / name, **fields)

    return saves(save, **more)


def dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in settings.items()}


def asks(rows: list[dict[str, Any]], **settings: Any) -> Change:
    return case_of(rows=rows, settings=dotted(settings))


PAIRS = [(a, b) for a in range(1, 13) for b in range(1, 13)]


def question(a: int, b: int) -> str:
    return f"A shop has {a} apples and gets {b} more; how many are there?"


APPLES: list[dict[str, Any]] = [{"question": question(a, b), "answer": str(a + b)} for a, b in PAIRS]


def settled(**settings: Any) -> Change:
    """Other settings, with a double underline for a point."""
    return asks(APPLES, **settings)
