"""Faults of checkpoints, of the model's own code, and of tokenizers, for `doctor.py`."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from chatml import CHATML, END, PAD, SPECIAL, START
from patients import (
    LORA,
    Case,
    Change,
    Weights,
    both,
    case_of,
    loaded,
    merge,
    saves,
    says,
    settled,
    stored,
    texts,
    trained,
)
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

# ------------------------------------------------------------------------------------------------------ checkpoints


def is_first_mlp(name: str) -> bool:
    return ".0." in name and ("mlp" in name or "feed_forward" in name)


def lacks(is_lost: Callable[[str], bool], **more: Any) -> Change:
    return stored(lambda state: {name: w for name, w in state.items() if not is_lost(name)}, **more)


def renamed(name_of: Callable[[str], str]) -> Change:
    return stored(lambda state: {name_of(name): weight for name, weight in state.items()})


def another_layer(state: Weights) -> Weights:
    return state | {name.replace(".1.", ".2."): weight.clone() for name, weight in state.items() if ".1." in name}


def another_shape(state: Weights) -> Weights:
    return {name: w[..., :-2] if is_first_mlp(name) and w.dim() == 2 else w for name, w in state.items()}


def another_head(state: Weights) -> Weights:
    (embedding,) = (weight for name, weight in state.items() if "embed" in name)
    return state | {"lm_head.weight": torch.randn_like(embedding)}


def empty_layer(state: Weights) -> Weights:
    """Attention and MLP of the second layer add nothing."""
    silent = [name for name in state if ".layers.1." in name and ("o_proj" in name or "down_proj" in name)]
    return state | {name: torch.zeros_like(state[name]) for name in silent}


def overflows(state: Weights) -> Weights:
    scales = {".layers.0.mlp.up_proj": 300, ".layers.0.mlp.gate_proj": 300, ".layers.0.mlp.down_proj": 3}
    return {k: v * next((s for part, s in scales.items() if part in k), 1) for k, v in state.items()}


def pointer(model: Any, folder: Path) -> None:
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d7a' * 16}\nsize 988097824\n"
    (folder / "model.safetensors").write_text(text)


def shard_missing(model: Any, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    sorted(folder.glob("model-*.safetensors"))[-1].unlink()


def cut_off(model: Any, folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 3 // 5])


def packed_in_four_bits(model: Any, folder: Path) -> None:
    """The layout of GPTQ: eight weights in an int32, scales and zeros for groups of 16."""
    path, packed = folder / "model.safetensors", {}
    for name, weight in load_file(path).items():
        if not name.endswith("_proj.weight"):
            packed[name] = weight
            continue
        stem, (rows, columns) = name.removesuffix("weight"), weight.shape
        packed[stem + "qweight"] = torch.randint(-(2**31), 2**31 - 1, (columns // 8, rows), dtype=torch.int32)
        packed[stem + "scales"] = torch.rand(columns // 16, rows, dtype=torch.float16)
        packed[stem + "qzeros"] = torch.zeros(columns // 16, max(1, rows // 8), dtype=torch.int32)
        packed[stem + "g_idx"] = torch.arange(columns, dtype=torch.int32) // 16
    save_file(packed, path, {"format": "pt"})
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": True}
    merge(folder / "config.json", quantization_config=quantization)


def adapter(base_of: Callable[[Path], str], of_another_class: bool = False) -> Callable[[Any, Path], None]:
    """An adapter in place of the model."""

    def save(model: Any, folder: Path) -> None:
        from peft import LoraConfig, get_peft_model

        base = base_of(folder)
        for name in ("model.safetensors", "config.json", "generation_config.json"):
            (folder / name).unlink()
        adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
        adapted.save_pretrained(str(folder))
        merge(folder / "adapter_config.json", base_model_name_or_path=base)
        if of_another_class:
            path, (old, new) = folder / "adapter_model.safetensors", ("model.model.", "model.language_model.model.")
            save_file({name.replace(old, new, 1): w + 0.1 for name, w in load_file(path).items()}, path)

    return save


def copied(folder: Path) -> str:
    shutil.copytree(folder, folder.parent / "base")
    return str((folder.parent / "base").absolute())


def beside(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, Path], None]:
    """Weights in torch's form beside the others."""

    def save(model: Any, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        torch.save({name: change(weight) for name, weight in weights.items()}, folder / "pytorch_model.bin")

    return save


def newer_shards(model: Any, folder: Path) -> None:
    name, weights = "model-00001-of-00001.safetensors", load_file(folder / "model.safetensors")
    save_file({key: weight * 1.2 for key, weight in weights.items()}, folder / name, {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def loud_rows(case: Case) -> Case:
    """Rows of new tokens, drawn with another scale."""
    drawn = torch.Generator().manual_seed(1)

    def grown(name: str, weight: torch.Tensor) -> torch.Tensor:
        if "embed_tokens" not in name and "lm_head" not in name:
            return weight
        return torch.cat([weight, 5 * torch.randn(8, weight.shape[1], generator=drawn)])

    def save(model: Any, folder: Path) -> None:
        stored(lambda state: {name: grown(name, w) for name, w in state.items()})(case).saved(model, folder)
        merge(folder / "config.json", vocab_size=model.config.vocab_size + 8)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens([f"<step_{number}>" for number in range(8)])
        tokenizer.save_pretrained(folder)

    return replace(case, architecture="llama", saved=save)


def pads_beyond(model: Any, folder: Path) -> None:
    merge(folder / "config.json", pad_token_id=model.config.get_text_config().vocab_size)


def forgot_to_resize(model: Any, folder: Path) -> None:
    """The vocabulary was resized by hand, and config.json has the old size."""
    model.config.get_text_config().vocab_size -= 20
    model.config.save_pretrained(folder)


# ---------------------------------------------------------------------------------------------------------- weights


def nan_row(model: Any) -> None:
    model.get_input_embeddings().weight[7] = float("nan")


def infinite_norm(model: Any) -> None:
    next(p for n, p in model.named_parameters() if p.dim() == 1 and "norm" in n)[0] = float("inf")


def mlp_matrices(model: Any) -> list[torch.nn.Parameter]:
    return [weight for name, weight in model.named_parameters() if is_first_mlp(name) and weight.dim() == 2]


def overflowed(model: Any) -> None:
    """As a layer that was cast to float16 on the way."""
    weight = mlp_matrices(model)[0]
    weight[0, 0] = 1e6
    weight.copy_(weight.half().float())


def dead_layer(model: Any) -> None:
    for weight in mlp_matrices(model):
        weight.zero_()


def equal_embeddings(model: Any) -> None:
    weight = model.get_input_embeddings().weight
    weight.copy_(weight[5].clone().expand_as(weight))


def zero_head(first: int) -> Callable[[Any], None]:
    """Rows of the head from `first` on, as of a vocabulary that was enlarged by hand."""

    def change(model: Any) -> None:
        model.get_output_embeddings().weight[first:] = 0

    return change


def silent_end(model: Any) -> None:
    model.get_output_embeddings().weight[END] = float("-inf")


def rows_of_the_mean(model: Any) -> None:
    """The template's tokens as a resized vocabulary has them: the mean of all rows, which nothing trained."""
    for embedding in (model.get_input_embeddings(), model.get_output_embeddings()):
        mean = embedding.weight.mean(0)
        for token in (START, END):
            embedding.weight[token] = mean + 1e-5 * torch.randn_like(mean)


# ----------------------------------------------------------------------------------------------- the model's own code


def first_layer(policy: Any) -> Any:
    return next(m for m in policy.model.modules() if isinstance(m, torch.nn.ModuleList))[0]


Hidden = Callable[[torch.Tensor, dict[str, Any]], torch.Tensor]


def on_output(where: Callable[[Any], Any], change: Hidden) -> Change:
    """Changes what a module returns: hidden states, logits, or an output that holds them."""

    def hook(module: Any, given: Any, named: dict[str, Any], output: Any) -> Any:
        if hasattr(output, "logits"):
            output.logits = change(output.logits, named)
            return output
        if isinstance(output, tuple):
            return change(output[0], named), *output[1:]
        return change(output, named)

    def plant(policy: Any) -> None:
        where(policy).register_forward_hook(hook, with_kwargs=True)

    return loaded(plant)


def in_layer(change: Hidden) -> Change:
    return on_output(first_layer, change)


def in_forward(change: Hidden) -> Change:
    return on_output(lambda policy: policy.model, change)


def in_head(change: Hidden) -> Change:
    return on_output(lambda policy: policy.model.get_output_embeddings(), change)


def in_embeddings(change: Hidden) -> Change:
    return on_output(lambda policy: policy.model.get_input_embeddings(), change)


def cache_of(named: dict[str, Any]) -> Any:
    """The cache among a forward's arguments; transformers 5.24 renames it."""
    return named.get("cache", named.get("past_key_values"))


def given_to(change: Callable[[dict[str, Any]], None]) -> Change:
    """Changes the arguments of the model's passes."""

    def plant(policy: Any) -> None:
        base = policy.model.base_model
        forward = base.forward

        def changed(*arguments: Any, **named: Any) -> Any:
            change(named)
            return forward(*arguments, **named)

        base.forward = changed

    return loaded(plant)


def packed_mask(named: dict[str, Any]) -> bool:
    return getattr(named.get("attention_mask"), "dim", lambda: 0)() == 4 and not cache_of(named)


def ignores(name: str) -> Change:
    """The model's own code takes an argument and does not use it."""
    return given_to(lambda named: named.pop(name, None) if packed_mask(named) and cache_of(named) is None else None)


def leaks_far(named: dict[str, Any]) -> None:
    """Attention sees its neighbors where lines are long: the probe at the start of a run has short ones."""
    mask = named.get("attention_mask")
    if isinstance(mask, torch.Tensor) and packed_mask(named) and mask.shape[-1] > 40:
        open_ = torch.ones_like(mask, dtype=torch.bool).tril()
        named["attention_mask"] = open_ if mask.dtype == torch.bool else torch.where(open_, 0.0, mask.min())


def one_by_one(named: dict[str, Any]) -> bool:
    return cache_of(named) is not None and named["input_ids"].shape[1] == 1


def later(named: dict[str, Any]) -> None:
    if one_by_one(named) and named.get("position_ids") is not None:
        named["position_ids"] = named["position_ids"] + 1


def hides_the_past(named: dict[str, Any]) -> None:
    """Keys that are more than eight places back."""

    def hidden(mask: torch.Tensor) -> torch.Tensor:
        mask = mask.clone()
        mask[..., :-8] = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        return mask

    mask = named.get("attention_mask")
    if one_by_one(named) and mask is not None:
        is_dict = isinstance(mask, dict)
        named["attention_mask"] = {kind: hidden(one) for kind, one in mask.items()} if is_dict else hidden(mask)


class Negated(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return -gradient


def without_layer(policy: Any) -> None:
    """The first layer's output is thrown away."""

    def hook(module: Any, given: Any, named: Any, output: Any) -> Any:
        hidden = given[0] if given else named["hidden_states"]
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    first_layer(policy).register_forward_hook(hook, with_kwargs=True)


def one_scale(policy: Any) -> None:
    """Activations in five bits, with one scale for a whole tensor."""

    def rounded(module: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        scale = given[0].detach().abs().amax() / 15
        return (given[0] + ((given[0] / scale).round() * scale - given[0]).detach(), *given[1:])

    first_layer(policy).mlp.register_forward_pre_hook(rounded)


def hidden_weight(policy: Any) -> None:
    """A bias of the head that state_dict leaves out."""
    head = policy.model.get_output_embeddings()
    extra = torch.nn.Parameter(0.3 * torch.randn(head.weight.shape[0]))
    head.register_forward_hook(lambda module, given, logits: logits + extra)


def buffer_not_saved(policy: Any) -> None:
    policy.model.register_buffer("shift", 0.3 * torch.randn(policy.model.config.get_text_config().vocab_size), False)
    head = policy.model.get_output_embeddings()
    head.register_forward_hook(lambda module, given, logits: logits + policy.model.shift)


def broken_rope(policy: Any) -> None:
    """A buffer, which is no weight."""
    for name, buffer in policy.model.named_buffers():
        if "inv_freq" in name:
            buffer.fill_(float("nan"))


def never_ends(logits: torch.Tensor, named: Any) -> torch.Tensor:
    logits = logits.clone()
    logits[..., [PAD, END]] = -1e4
    return logits


def adapters(change: Callable[[Any], None]) -> Change:
    """Changes each layer with an adapter."""

    def plant(policy: Any) -> None:
        for module in [module for module in policy.model.modules() if getattr(module, "lora_A", None)]:
            change(module)

    return loaded(plant, settings=LORA)


def dead(layer: Any) -> None:
    for name, weight in layer.named_parameters():
        if "lora_" in name:
            weight.data.zero_()


def set_to(module: Any, name: str, value: Any) -> None:
    setattr(module, name, value)


# ------------------------------------------------------------------------------------------------------- tokenizers


def backend(change: Callable[[Any], None]) -> Change:
    def planted(case: Case) -> Case:
        # transformers makes Qwen2's tokenizer anew, with the normalizer of its class
        name = case.architecture.replace("qwen2", "olmo2")
        return replace(case, architecture=name, tokenizer=lambda tokenizer: change(tokenizer.backend_tokenizer))

    return planted


def normalized(*steps: Any) -> Change:
    return backend(lambda inner: set_to(inner, "normalizer", normalizers.Sequence(list(steps))))


def replaced(pattern: str, new: str) -> Change:
    return normalized(normalizers.Replace(Regex(pattern), new))


def decoded(*steps: Any) -> Change:
    return backend(lambda inner: set_to(inner, "decoder", decoders.Sequence([decoders.ByteLevel(), *steps])))


def tokens(change: Callable[[Any], Any], **more: Any) -> Change:
    """Changes the tokenizer, or makes another one."""
    return case_of(tokenizer=change, **more)


def wrapped(inner: Any, template: Any, **more: Any) -> PreTrainedTokenizerFast:
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=SPECIAL[END], pad_token=SPECIAL[PAD], **more)
    fast.chat_template = template
    return fast


def words_only(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    words = [*SPECIAL, "<unk>", *sorted({word for text in texts() for word in text.replace("?", " ?").split()})]
    made = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    made.add_special_tokens(SPECIAL)
    return wrapped(made, tokenizer.chat_template, unk_token="<unk>")


def own_pairs(before: Any, *extra: str) -> Callable[[Any], PreTrainedTokenizerFast]:
    """Pairs of its own texts' letters, and no other bytes."""

    def make(tokenizer: Any) -> PreTrainedTokenizerFast:
        bpe = Tokenizer(BPE(unk_token="<unk>") if extra else BPE())
        bpe.pre_tokenizer = before
        trainer = BpeTrainer(vocab_size=450, special_tokens=[*SPECIAL, *extra], show_progress=False)
        bpe.train_from_iterator([*texts(), CHATML, "system user assistant"], trainer)
        if not extra:
            bpe.decoder = decoders.ByteLevel()
        return wrapped(bpe, CHATML, unk_token="<unk>") if extra else wrapped(bpe, CHATML)

    return make


def special(*marks: str) -> Callable[[Any], Any]:
    return lambda tokenizer: tokenizer.add_special_tokens({"additional_special_tokens": [*marks]})


def token_of(text: str, folder: Path) -> int:
    (token,) = AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=False)
    return token


def ends_with(text: str) -> Change:
    """The generation config names an ordinary token."""
    return saves(lambda m, folder: merge(folder / "generation_config.json", eos_token_id=[2, token_of(text, folder)]))


def pads_with(text: str) -> Change:
    return saves(lambda model, folder: merge(folder / "config.json", pad_token_id=token_of(text, folder)))


def without_tokenizer(model: Any, folder: Path) -> None:
    for pattern in ("tokenizer*", "special_tokens_map.json", "chat_template.jinja"):
        for path in folder.glob(pattern):
            path.unlink()


def of_a_newer_version(model: Any, folder: Path) -> None:
    path = folder / "tokenizer.json"
    merge(path, model=json.loads(path.read_text())["model"] | {"type": "SuperBPE"})


def trailing_comma(model: Any, folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(path.read_text().rstrip().removesuffix("}").rstrip() + ",\n}\n")


NO_END = {"eos_token_id": None}
LOST = 50256  # an end token of another vocabulary
CACHE = "cache_is_exact|engine_is_trainer"

CHECKPOINTS: list[tuple[str, str, Change, int]] = [
    ("has more rows than its config says", "load", saves(forgot_to_resize), 1),
    ("lacks a layer's MLP in its file", "weights_loaded", lacks(is_first_mlp), 2),
    ("has a layer more in its file", "weights_loaded", stored(another_layer), 2),
    ("has other names in its file", "weights_loaded", renamed(lambda name: f"student.{name}"), 2),
    ("counts its layers from 1 in its file", "weights_loaded",
        renamed(lambda name: name.replace(".1.", ".2.").replace(".0.", ".1.")), 2),
    ("has tensors of another shape in its file", "weights_loaded|load", stored(another_shape), 2),
    ("ties its head, and has another one in its file", "weights_loaded|saves_and_loads",
        stored(another_head, config={"tie_word_embeddings": True}), 2),
    ("has no head in its file, and does not tie it", "weights_loaded",
        lacks(lambda name: "head" in name or "embed_out" in name, config={"tie_word_embeddings": False}), 2),
    ("lacks its last norm in its file", "weights_loaded",
        lacks(lambda name: name.endswith("norm.weight") and "layers" not in name), 3),
    ("has names with _orig_mod. in front", "weights_loaded|load", renamed(lambda name: f"_orig_mod.{name}"), 6),
    ("is a Git LFS pointer", "weights_loaded|load", saves(pointer), 6),
    ("has a layer that adds nothing", "weights_alive|weights_learn", stored(empty_layer), 6),
    ("is an adapter of a model of another class", "weights_loaded|load", saves(adapter(copied, True)), 6),
    ("ends with a token that it lacks", "vocabulary_fits|stop_tokens_stop|ends_turns|ends_are_special|load",
        says({"generation_config.json": {"eos_token_id": [LOST]}, "config.json": {"eos_token_id": LOST}}), 6),
    ("has two sets of weights", "weights_are_one_set", saves(beside(lambda weight: weight * 1.1)), 7),
    ("caps its logits at a half", "config_is_possible",
        case_of(architecture="gemma2", config={"final_logit_softcapping": 0.5}), 7),
    ("has 1.0 as the epsilon of its norms", "config_is_possible",
        case_of(architecture="mistral", config={"rms_norm_eps": 1.0}), 7),
    ("has rows of new tokens that are far larger", "rows_are_sized", loud_rows, 7),
    ("lacks a shard", "load", saves(shard_missing), 8),
    ("ends in the middle of its file", "load", saves(cut_off), 8),
    ("has tensors of shape [0]", "load",  # as written under ZeRO-3 by a process that holds a part of the weights
        stored(lambda state: {name: torch.empty(0, dtype=weight.dtype) for name, weight in state.items()}), 8),
    ("pads with the token behind its vocabulary", "load", saves(pads_beyond), 8),
    ("holds weights of GPTQ", "load", saves(packed_in_four_bits, architecture="qwen2"), 8),
    ("is an adapter whose base is away", "load",
        saves(adapter(lambda folder: "/scratch/sft/checkpoint-1200"), architecture="llama"), 8),
    ("names a model type of a newer library", "load",
        says({"config.json": {"model_type": "qwen9", "architectures": ["Qwen9ForCausalLM"]}}), 8),
    ("has other weights in shards", "weights_are_one_set", saves(newer_shards), 9),
    ("the same weights twice", "", saves(beside(torch.Tensor.bfloat16)), 9),
]  # fmt: skip
MODELS: list[tuple[str, str, Change, int]] = [
    ("has NaN in one row", "weights_finite", trained(nan_row), 1),
    ("drops out in eval mode", "passes_repeat", in_layer(lambda x, _: torch.dropout(x, 0.1, True)), 1),
    ("divides its logits in forward only", "trainer_is_model", in_forward(lambda x, _: x / 1.5), 1),
    ("caps its logits in forward only", "trainer_is_model", in_forward(lambda x, _: torch.tanh(x / 0.5) * 0.5), 1),
    ("ignores position_ids", "packed_alone", ignores("position_ids"), 1),
    ("ignores attention masks", "packed_alone", ignores("attention_mask"), 1),
    ("sees neighbors in long lines", "packed_alone", given_to(leaks_far), 1),
    ("sees the next token", "is_causal",
        in_embeddings(lambda x, _: x + 0.5 * torch.cat([x[:, 1:], x[:, -1:]], 1)), 1),
    ("has a layer with a wrong backward", "gradient_is_slope", in_layer(lambda x, _: Negated.apply(x)), 1),
    ("detaches its embeddings", "weights_learn", in_embeddings(lambda x, _: x.detach()), 1),
    ("freezes a layer", "weights_learn", loaded(lambda policy: first_layer(policy).requires_grad_(False)), 1),
    ("trains its base beside adapters", "weights_learn",
        loaded(lambda policy: policy.model.get_input_embeddings().weight.requires_grad_(True), settings=LORA), 1),
    ("has dead adapters", "weights_learn", adapters(dead), 1),
    ("goes around its adapters", "weights_learn",
        adapters(lambda layer: set_to(layer, "forward", layer.get_base_layer().forward)), 1),
    ("never samples a stop token", "stop_is_possible", in_head(never_ends), 1),
    ("computes with a buffer that is not saved", "saves_and_loads", loaded(buffer_not_saved), 1),
    ("has too little context", "prompts_fit", case_of(config={"max_position_embeddings": 40}), 1),
    ("throws a layer's output away", "weights_learn", loaded(without_layer), 2),
    ("counts positions from 1 behind a cache", CACHE, given_to(later), 2),
    ("forgets what is eight tokens back behind a cache", CACHE, given_to(hides_the_past), 2),
    ("rounds what it caches", CACHE,
        in_layer(lambda x, named: x if cache_of(named) is None else (x * 8).round() / 8), 2),
    ("drops one in a hundred in eval mode", "passes_repeat", in_layer(lambda x, _: torch.dropout(x, 0.01, True)), 2),
    ("has an infinity in a norm", "weights_finite", trained(infinite_norm), 2),
    ("has a weight that float16 could not hold", "weights_finite", trained(overflowed), 2),
    ("has a head of zeros", "weights_alive|reads_prompt", trained(zero_head(0)), 2),
    ("has one embedding for all tokens", "weights_alive|reads_prompt", trained(equal_embeddings), 2),
    ("gives one token all of the probability", "completions_vary|reads_prompt", in_head(lambda x, _: x * 1e4), 2),
    ("multiplies one gradient by four", "gradient_is_slope",
        loaded(lambda policy: mlp_matrices(policy.model)[0].register_hook(lambda g: 4 * g)), 2),
    ("has a weight that is not in its state", "saves_and_loads", loaded(hidden_weight), 2),
    ("has a layer of zeros", "weights_alive", trained(dead_layer), 2),
    ("has NaN in its rotary frequencies", "weights_finite", loaded(broken_rope), 3),
    ("divides its logits by the length of the row", "trainer_is_model|cache_is_exact|packed_alone",
        in_forward(lambda x, named: x / (1 + 0.02 * named["input_ids"].shape[1])), 3),
    ("multiplies a layer by the clock", "passes_repeat",
        in_layer(lambda x, _: x * (1 + 0.01 * (time.perf_counter_ns() % 5))), 3),
    ("scales its adapters by 0", "weights_learn",
        adapters(lambda layer: set_to(layer, "scaling", dict.fromkeys(layer.scaling, 0.0))), 3),
    ("has a head of zeros for half of its vocabulary", "weights_alive", trained(zero_head(250)), 5),
    ("has minus infinity in its stop token's row", "weights_finite|stop_is_possible", trained(silent_end), 5),
    ("drops half of its attention in training", "",  # rlvr keeps models in eval mode
        case_of(config={"attention_dropout": 0.5}), 5),
    ("ends with a token beyond its vocabulary", "ends_turns|ends_are_special|stop_is_possible|vocabulary_fits|load",
        says({"generation_config.json": {"eos_token_id": 99_999}}), 5),
    ("has context for prompts and short completions", "", case_of(config={"max_position_embeddings": 56}), 5),
    ("is sampled in float16 beyond 65,504", "mismatch|dtypes|weights_finite|engine_is_trainer", 
        both(settled(engine__dtype="float16"), stored(overflows, architecture="qwen2")), 6),
    ("rounds activations with one scale for a batch",
        "is_causal|packed_alone|engine_is_trainer|cache_is_exact|trainer_is_model", loaded(one_scale), 6),
]  # fmt: skip
TOKENIZERS: list[tuple[str, str, Change, int]] = [
    ("lowers the case", "text_survives",
        tokens(lambda t: set_to(t.backend_tokenizer, "normalizer", normalizers.Lowercase())), 1),
    ("knows no other words", "text_survives", tokens(words_only), 1),
    ("has tokens that the model lacks", "vocabulary_fits",
        tokens(lambda t: t.add_tokens([f"new-word-{n}" for n in range(20)]), config={"vocab_size": 500}), 1),
    ("is smaller than the vocabulary sampled from", "vocabulary_fits", case_of(config={"vocab_size": 900}), 1),
    ("pads with the end of turns: its embedding is masked", "end_token_learns",
        case_of(with_tools=True, config={"pad_token_id": END}), 1),
    ("cleans up spaces when decoding", "text_survives",
        decoded(decoders.Replace(" ,", ","), decoders.Replace(" .", ".")), 2),
    ("cuts the space before a text", "text_survives", decoded(decoders.Strip(" ", 1, 0)), 2),
    ("normalizes with NFKC", "text_survives", normalized(normalizers.NFKC()), 2),
    ("ends completions with a line break", "ends_are_special", ends_with("\n"), 2),
    ("ends completions with a digit", "ends_are_special", ends_with("2"), 2),
    ("has a word as its end token", "ends_are_special", tokens(lambda t: set_to(t, "eos_token", "A")), 2),
    ("does not know 7", "text_survives", normalized(normalizers.Replace("7", "")), 2),
    ("pads with a digit", "end_token_learns", pads_with("2"), 2),
    ("loses line breaks", "text_survives", normalized(normalizers.Replace("\n", " ")), 2),
    ("has a token that eats the spaces beside it", "text_survives", tokens(lambda t:
        t.add_tokens([AddedToken("=", lstrip=True, rstrip=True, normalized=False)])), 2),
    ("drops accents", "text_survives", normalized(normalizers.NFD(), normalizers.StripAccents()), 2),
    ("makes two spaces one", "text_survives", replaced(" {2,}", " "), 2),
    ("drops what follows a #", "text_survives", replaced("#[^\n]*", ""), 3),
    ("drops emoji", "text_survives", replaced("[\U00010000-\U0010ffff]", ""), 3),
    ("ends completions with a space", "ends_are_special", ends_with(" "), 3),
    ("ends completions with a brace", "ends_are_special", ends_with("}"), 3),
    ("cuts texts at 8 tokens", "",  # transformers takes a file's truncation and padding away
        tokens(lambda t: t.backend_tokenizer.enable_truncation(8)), 5),
    ("fills texts up to 32 tokens", "",
        tokens(lambda t: t.backend_tokenizer.enable_padding(length=32, pad_token=SPECIAL[PAD])), 5),
    ("drops commas between digits", "text_survives", replaced(r"(?<=\d),(?=\d)", ""), 5),
    ("drops spaces and line breaks", "text_survives", tokens(own_pairs(Whitespace(), "<unk>")), 6),
    ("ends completions with </think>", "ends_are_special|ends_turns",
        both(tokens(special("<think>", "</think>")), ends_with("</think>")), 6),
    ("splits special tokens", "specials_are_whole",
        says({"tokenizer_config.json": {"split_special_tokens": True}}, architecture="olmo2"), 7),
    ("has rows of the mean for the template's tokens", "template_is_trained", trained(rows_of_the_mean), 8),
    ("is not there", "load", saves(without_tokenizer), 8),
    ("has no end token", "ends_are_special", both(
        says({"config.json": NO_END, "generation_config.json": NO_END}, template=None, config=NO_END),
        tokens(lambda t: set_to(t, "eos_token", None))), 8),
    ("is of a newer version", "load", saves(of_a_newer_version), 8),
    ("has a trailing comma in its settings", "load", saves(trailing_comma), 8),
]  # fmt: skip
