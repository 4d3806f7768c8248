"""Low-rank adapters (LoRA, arXiv:2106.09685) inside a transformers model, by peft.

    W x  ->  W x + (alpha / r) B A x          A: [r, in] random, B: [out, r] zero at the start; W never changes

peft replaces the model's layers, so the class, `base_model` and the engine stay the same. Only peft's own functions are
called: transformers' integration (`add_adapter`, `save_pretrained`) accepts one range of peft versions per release, and
5.24 demands a peft that does not exist yet. Adapters are not merged into W during training: in bf16, merging and
unmerging do not cancel. `merge` is for a temporary copy of the model.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rlvr.errors import ConfigError, UserError
from rlvr.models.settings import LoraSettings
from rlvr.scale.tensors import SavedTensors
from rlvr.seeding import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ALL_LINEAR = "all-linear"
_NAME = "default"  # peft's name for the only adapter of a model


def add_adapters(model: PreTrainedModel, lora: LoraSettings, *, base: str, seed: int) -> None:
    """Add an untrained adapter to every layer in `lora.target_modules`, and freeze everything else.

    `base` is saved as the name of the adapter's base model. The weights are float32 and a function of the seed.
    ConfigError if a name matches no layer.
    """
    from peft import LoraConfig

    settings = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        target_modules=_targets(model, lora.target_modules),
        exclude_modules=_linear_layers(model)[1] or None,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "adapters"))
        _insert(model, settings, base)


def insert_saved(model: PreTrainedModel, folder: Path, *, base: str) -> None:
    from peft import LoraConfig

    settings = LoraConfig.from_pretrained(str(folder))
    assert isinstance(settings, LoraConfig)
    settings.inference_mode, settings.lora_dropout = False, 0.0
    _insert(model, settings, base)
    load_adapters(model, folder)


def copy_adapters(source: PreTrainedModel, target: PreTrainedModel) -> None:
    _insert(target, copy.deepcopy(source.peft_config[_NAME]), base="")
    with torch.no_grad():
        weights = adapter_weights(source)
        for name, weight in adapter_weights(target).items():
            weight.copy_(weights[name])


def _insert(model: PreTrainedModel, settings: Any, base: str) -> None:
    from peft import inject_adapter_in_model

    settings.base_model_name_or_path = base
    inject_adapter_in_model(settings, model, _NAME)
    for parameter in adapter_weights(model).values():
        parameter.data = parameter.data.float()
    for layer in lora_layers(model).values():
        layer._cast_input_dtype = _cast
    model.eval()  # peft's new modules are in training mode


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """An adapter's input. Autocast converts it by itself, and then keeps for backward the bfloat16 input that the
    layers share; peft would keep a float32 and a bfloat16 copy for each adapter."""
    return x if torch.is_autocast_enabled(x.device.type) else x.to(dtype)


def _linear_layers(model: PreTrainedModel) -> tuple[list[str], list[str]]:
    """Names of those that text goes through, and of the others, as of a vision tower."""
    from transformers.pytorch_utils import Conv1D

    reached = {*model.get_decoder().modules(), model.get_output_embeddings()}
    reads, others = list[str](), list[str]()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            (reads if module in reached else others).append(name)
    return reads, others


def _targets(model: PreTrainedModel, names: tuple[str, ...]) -> list[str]:
    """peft's `target_modules`; ConfigError for a name that matches no linear layer.

    `all-linear` differs from peft's, which includes routers and experts: a trained router could route a token
    differently from the sampler (pitfall 35).
    """
    head = model.get_output_embeddings()
    layers, _ = _linear_layers(model)
    if names == (ALL_LINEAR,):
        return [name for name in layers if model.get_submodule(name) is not head]
    if model.config.get_text_config().tie_word_embeddings:
        layers = [name for name in layers if model.get_submodule(name) is not head]
    known = sorted({layer.rpartition(".")[2] for layer in layers})
    for name in names:
        if not any(f".{layer}".endswith(f".{name}") for layer in layers):
            raise ConfigError(
                f"model.lora.target_modules: {name!r} is no linear layer of {type(model).__name__} with weights of its "
                f"own; write {', '.join(get_close_matches(name, known) or known)}, or [{ALL_LINEAR}]."
            )
    return list(names)


def saved_settings(folder: Path) -> dict[str, Any]:
    """Read adapter_config.json. UserError if it is damaged or not plain LoRA."""
    try:
        settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"the adapter {str(folder)!r} cannot be read ({CONFIG}: {error}): copy it again") from error
    if settings.get("peft_type") != "LORA" or not settings.get("base_model_name_or_path"):
        raise UserError(
            f"the adapter {str(folder)!r} is more than plain LoRA matrices on a named base model: merge it with peft "
            "and name the result"
        )
    if more := _more_than_lora(settings, _saved_names(folder)):
        raise UserError(
            f"the adapter {str(folder)!r} is more than plain LoRA matrices: it has {more}; merge it with peft and name "
            "the result"
        )
    return settings


_PARTS = {
    "lora_embedding_A": "matrices of embeddings",
    "lora_embedding_B": "matrices of embeddings",
    "lora_magnitude_vector": "DoRA's magnitudes",
    "lora_A.bias": "biases of its matrices (lora_bias)",
    "lora_B.bias": "biases of its matrices (lora_bias)",
    "trainable_tokens_delta": "rows of embeddings (trainable_token_indices)",
}
"""What peft calls the tensors that it may save beside the matrices."""


def _saved_names(folder: Path) -> list[str]:
    """The tensors in the adapter's file; none if it cannot be read, which loading says."""
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            return sorted(file.keys())
    except Exception:  # safetensors has its own exceptions for damaged files
        return []


def _more_than_lora(settings: dict[str, Any], names: Collection[str]) -> str | None:
    """What the adapter holds that is neither a matrix of LoRA nor a copy of a weight that a matrix belongs to."""
    more = [name for name in names if not _is_matrix(name) and _copied_from(name) not in _layers(names)]
    for name in more:
        if (part := next((part for part in _PARTS if part in name), None)) is not None:
            return f"{_PARTS[part]}, {name}"
    if more:
        return f"whole weights, {more[0]}"
    named = [key for key in ("modules_to_save", "use_dora") if settings.get(key)]
    named += ["bias"] if settings.get("bias", "none") != "none" else []
    return named[0] if named else None


def _is_matrix(name: str) -> bool:
    return name.endswith((".lora_A.weight", ".lora_B.weight"))


def _layers(names: Collection[str]) -> set[str]:
    return {name.removesuffix(".lora_A.weight") for name in names if name.endswith(".lora_A.weight")}


def _copied_from(name: str) -> str:
    """The layer whose weight peft saved beside its matrices, as of a head that is not tied to the embeddings."""
    return name.removesuffix(".weight").removesuffix(".base_layer")


def check_same(folder: Path, lora: LoraSettings) -> None:
    """ConfigError unless the adapter to continue has the form in the settings."""
    saved = saved_settings(folder)
    has = {"r": saved["r"], "alpha": saved["lora_alpha"]}
    if isinstance(targets := saved["target_modules"], list) and lora.target_modules != (ALL_LINEAR,):
        has["target_modules"] = tuple(sorted(targets))
    wanted = {"r": lora.r, "alpha": lora.alpha, "target_modules": tuple(sorted(lora.target_modules))}
    for name, value in has.items():
        if value != wanted[name]:
            said = f"[{','.join(value)}]" if isinstance(value, tuple) else value
            raise ConfigError(f"model.lora.{name}: the adapter {str(folder)!r} has another one; set it to {said}.")


def load_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Copy saved adapter weights into the model's tensors. UserError unless names and shapes match."""
    weights = adapter_weights(model)
    try:
        saved = SavedTensors([folder / WEIGHTS])
    except Exception as error:  # safetensors has its own exceptions for damaged files
        raise UserError(f"the adapter {str(folder)!r} cannot be read ({WEIGHTS}: {error}): copy it again") from error
    wanted = {_saved_name(name): weight for name, weight in weights.items()}
    copies = [name for name in saved if _copied_from(name) in _layers(wanted)]
    odd = sorted((saved.keys() - {*copies}) ^ wanted.keys())
    odd += [name for name in sorted(saved.keys() & wanted.keys()) if saved.shape(name) != wanted[name].shape]
    if odd:
        raise UserError(
            f"the adapter {str(folder)!r} does not fit the model ({odd[0]} and {len(odd) - 1} more): name the model "
            "it was trained on"
        )
    for name in copies:
        layer = model.get_submodule(_copied_from(name).removeprefix("base_model.model."))
        base: Any = layer.get_base_layer().weight  # type: ignore[operator]
        if base.shape != saved.shape(name) or not torch.equal(base.cpu(), saved[name].to(base.dtype)):
            raise UserError(
                f"the adapter {str(folder)!r} holds other weights for {_copied_from(name)} than its base model: merge "
                "it with peft and name the result"
            )
    with torch.no_grad():
        for name, weight in wanted.items():
            weight.copy_(saved[name])


def write_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Write the files that `load_adapters`, peft and transformers read; makes no Hub request for the base."""
    weights = {_saved_name(name): weight.detach().cpu() for name, weight in adapter_weights(model).items()}
    model.peft_config[_NAME].save_pretrained(str(folder))  # makes the folder
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def _saved_name(name: str) -> str:
    return f"base_model.model.{name}".replace(f".{_NAME}.", ".")


def adapter_weights(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    return {
        f"{name}.{part}.{_NAME}.weight": getattr(layer, part)[_NAME].weight
        for name, layer in lora_layers(model).items()
        for part in ("lora_A", "lora_B")
    }


def lora_layers(model: PreTrainedModel) -> dict[str, Any]:
    """peft's layers by name."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


@contextmanager
def without_adapters(model: PreTrainedModel) -> Iterator[None]:
    layers = lora_layers(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@contextmanager
def other_adapters(model: PreTrainedModel, weights: dict[str, Tensor]) -> Iterator[None]:
    """The model with other adapter weights, e.g. the initial ones."""
    own = adapter_weights(model)
    current = {name: weight.data for name, weight in own.items()}
    for name, weight in own.items():
        weight.data = weights[name]
    try:
        yield
    finally:
        for name, weight in own.items():
            weight.data = current[name]


def merge(model: PreTrainedModel) -> None:
    """Add the adapters to their base weights in float32, and remove them. For a copy of the model.

    ValueError if the weights are not float32: bf16 would lose most of an adapter to rounding.
    """
    layers = lora_layers(model)
    for name, layer in layers.items():
        dtypes = {weight.dtype for weight in layer.get_base_layer().parameters(recurse=False)}
        if dtypes != {torch.float32}:
            raise ValueError(f"{name} is {', '.join(map(str, dtypes))}: adapters are merged in float32 only")
        layer.merge(adapter_names=[_NAME])  # peft's: the weight of experts has other names than that of a linear layer
    for name, layer in layers.items():
        parent, _, child = name.rpartition(".")
        if not isinstance(model.get_submodule(parent), type(layer)):  # experts: a wrapper a parameter, one in the other
            setattr(model.get_submodule(parent), child, layer.get_base_layer())
    del model.peft_config
