"""Loads pretrained models, adapters and the critic."""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rlvr.errors import ConfigError, UserError
from rlvr.models.adapters import add_adapters, check_same, insert_saved, merge, saved_settings
from rlvr.models.damage import damage
from rlvr.models.hub import Located, from_hub, locate, sentence
from rlvr.models.policy import Adapters, HubPolicy, check_trainable
from rlvr.models.quantization import dequantized, is_quantized, make_exact, settings_for
from rlvr.models.recompute import recompute_in_backward
from rlvr.models.settings import PretrainedModel

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
CPU = torch.device("cpu")
LFS = b"version https://git-lfs"


class NoSuchAttentionError(ConfigError):
    """The architecture has no attention of the chosen kind."""


def load_policy(settings: PretrainedModel, *, seed: int, device: torch.device = CPU) -> HubPolicy:
    """The initial policy: a float32 model, trained in full, or a frozen model with trained adapters.

    With `lora.enabled`, training continues an adapter folder; otherwise the adapter is merged in float32. Fresh
    adapters are a function of the seed. UserError for a missing model, ConfigError for settings that do not fit it or
    this machine.
    """
    lora = settings.lora
    located = locate(settings.name_or_path)
    adapter = located.adapter_folder()
    if adapter is not None and lora.enabled:
        check_same(adapter, lora)
    policy = _load(settings, device, located, adapter)
    model, adapters = policy.model, policy.adapters
    if adapters is not None and not lora.enabled:
        merge(model)
        model.requires_grad_(True)
        adapters = None
    if lora.enabled:
        if adapters is None:
            add_adapters(model, lora, base=_lasting(settings.name_or_path), seed=seed)
        fresh_base = adapters.fresh_base if adapters else partial(_load_float32, settings, device)
        kept = f"{settings.bits}-bit" if settings.bits else settings.dtype
        targets = ", ".join(lora.target_modules)
        note = f"LoRA r={lora.r} alpha={lora.alpha} on {targets}; the {kept} model under it is frozen"
        adapters = Adapters(fresh_base=fresh_base, merge_final=lora.merge_final, note=note)
    if settings.gradient_checkpointing:
        recompute_in_backward(model)
    policy = replace(policy, adapters=adapters)
    check_trainable(policy)
    return policy


def load_for_inference(
    name: str, settings: PretrainedModel | None = None, device: torch.device = CPU, dtype: torch.dtype = torch.float32
) -> HubPolicy:
    """A model folder, adapter folder or Hub id, for sampling.

    An adapter's base is loaded as in its run's `settings`, so evaluation sees the trained model. Whole models are
    float32 by default: near 0.02 the spacing of bf16 is 1.2e-4, and an update of 1e-6 would be rounded away. Errors as
    in `load_policy`.
    """
    located, own = locate(name), {"dtype": str(dtype).removeprefix("torch.")}
    changed = {} if located.is_adapter else own | {"load_in_4bit": False, "load_in_8bit": False}
    settings = settings or PretrainedModel(name_or_path=name).model_copy(update=own)
    settings = settings.model_copy(update={"name_or_path": name, **changed})
    return _load(settings, device, located, located.adapter_folder())


def model_family(settings: PretrainedModel) -> str:
    """`model_type` of the language model, e.g. `qwen2`; loads no weights. Errors as in `load_policy`."""
    located = locate(settings.name_or_path)
    if (adapter := located.adapter_folder()) is not None:
        settings = settings.model_copy(update={"name_or_path": base_of(adapter)})
        located = _located_base(adapter)
    return from_pretrained(AutoConfig, settings, located).get_text_config().model_type


def load_tokenizer(settings: PretrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, and no weights: an adapter's own, or that of its base. Errors as in `load_policy`."""
    located = locate(settings.name_or_path)
    if (adapter := located.adapter_folder()) is not None and not _has_tokenizer(adapter):
        located = _located_base(adapter)
    return from_pretrained(AutoTokenizer, settings, located)


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def _load(settings: PretrainedModel, device: torch.device, located: Located, adapter: Path | None) -> HubPolicy:
    if adapter is None:
        model, report = _load_model(settings, device, located)
        return HubPolicy(model=model, tokenizer=from_pretrained(AutoTokenizer, settings, located), load_report=report)
    named = base_of(adapter)
    under = settings.model_copy(update={"name_or_path": named})
    base = _located_base(adapter)
    model, report = _load_model(under, device, base)
    insert_saved(model, adapter, base=_lasting(named))
    adapters = Adapters(fresh_base=partial(_load_float32, under, device), merge_final=False, note="adapter")
    if _has_tokenizer(adapter):
        under = settings.model_copy(update={"name_or_path": str(adapter)})
        base = Located(name=str(adapter), offline=True, is_adapter=True)
    tokenizer = from_pretrained(AutoTokenizer, under, base)
    return HubPolicy(model=model, tokenizer=tokenizer, adapters=adapters, load_report=report)


def base_of(adapter: Path) -> str:
    return str(saved_settings(adapter)["base_model_name_or_path"])


def _located_base(adapter: Path) -> Located:
    named = base_of(adapter)
    if Path(named).is_absolute() and not Path(named).exists():
        raise UserError(
            f"the adapter {adapter} was trained on {named}, which is gone: put it back, or name its new place as "
            "base_model_name_or_path in adapter_config.json"
        )
    return locate(named)


def _load_model(
    settings: PretrainedModel, device: torch.device, located: Located
) -> tuple[PreTrainedModel, Mapping[str, Collection[Any]]]:
    """The model, and what transformers reports of its files."""
    name = located.name
    if Path(name).is_dir() and not _has_tokenizer(Path(name)):
        raise UserError(f"the model folder {name!r} has no tokenizer (no tokenizer.json): copy that of the base model")
    config = from_pretrained(AutoConfig, settings, located)
    dtype = getattr(torch, settings.dtype)
    options: dict[str, Any] = {"config": config, "dtype": dtype, "attn_implementation": settings.attn_implementation}
    saved = _saved_bits(config, settings)
    if settings.bits is not None:
        # quantize on the target device; without a map a quantized model goes to the GPU
        options["device_map"] = {"": str(device)}
        if saved is None:
            options["quantization_config"] = settings_for(settings.bits, dtype)
    options["output_loading_info"] = True
    try:
        model, report = from_pretrained(AutoModelForCausalLM, settings, located, **options)
    except NoSuchAttentionError as error:
        if settings.attn_implementation != "sdpa":  # the default
            raise
        warnings.warn(f"{str(error).partition(';')[0]}: eager is used", stacklevel=2)
        options["attn_implementation"] = "eager"
        model, report = from_pretrained(AutoModelForCausalLM, settings, located, **options)
    if settings.bits is not None:
        make_exact(model)
    for parameter in model.parameters():
        # copy from the mapped file to aligned memory: alignment decides the last bit of a product, and a resumed
        # process must not differ from the one that wrote these weights
        if not is_quantized(parameter):
            parameter.data = parameter.data.clone()
    if settings.bits is None:
        model.to(device)
    return model.eval(), report


def _load_float32(settings: PretrainedModel, device: torch.device) -> PreTrainedModel:
    """The weights as used in training, rounded and quantized, in float32 on the CPU."""
    model, _ = _load_model(settings, device if settings.bits else CPU, locate(settings.name_or_path))
    return dequantized(model) if settings.bits else model.float()


def from_pretrained(kind: Any, settings: PretrainedModel, located: Located, **options: Any) -> Any:
    """`kind.from_pretrained` with the settings. UserError for a model that cannot be loaded."""
    name, code = located.name, settings.trust_remote_code
    try:
        return kind.from_pretrained(name, trust_remote_code=code, local_files_only=located.offline, **options)
    except Exception as error:  # safetensors has its own exceptions for damaged files
        if not located.offline and from_hub(error):
            raise sentence(name, error) from error
        if pointer := _lfs_pointer(Path(name)):
            raise UserError(f"{pointer} is a Git LFS pointer, no weights: run `git lfs pull` in its folder.") from error
        reason = str(error).strip().partition("\n")[0]
        if "does not support an attention implementation" in reason or "not support Flash Attention" in reason:
            raise NoSuchAttentionError(
                f"model.attn_implementation={settings.attn_implementation}: the architecture of {name!r} has no such "
                "attention; set model.attn_implementation=eager."
            ) from error
        if found := damage(Path(name)):
            raise UserError(f"the model {name!r} cannot be loaded: {found}") from error
        raise UserError(f"the model {name!r} cannot be loaded ({reason}): name a model folder or a Hub id") from error


def _lfs_pointer(folder: Path) -> Path | None:
    """A file that git checked out without its content."""
    for file in sorted(folder.glob("*.*")) if folder.is_dir() else []:
        with file.open("rb") as opened:
            if opened.read(len(LFS)) == LFS:
                return file
    return None


def _saved_bits(config: Any, settings: PretrainedModel) -> int | None:
    """4 or 8 for a checkpoint saved in quantized form, None for plain weights.

    UserError if its quantization differs from the settings.
    """
    saved = getattr(config, "quantization_config", None)
    if saved is None:
        return None
    saved = saved if isinstance(saved, dict) else saved.to_dict()
    method, bits = saved.get("quant_method"), 4 if saved.get("load_in_4bit") else int(saved.get("bits") or 8)
    if method != "bitsandbytes" or bits != settings.bits:
        raise UserError(
            f"the model {settings.name_or_path!r} was saved in {bits} bits by {method}: name the model it was made from"
            + (f", or set model.load_in_{bits}bit=true and model.lora.enabled=true" if method == "bitsandbytes" else "")
        )
    return bits


def _lasting(name: str) -> str:
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def value_head(hidden_size: int) -> nn.Linear:
    """The critic: one linear output on the policy's trunk, initially zero."""
    head = nn.Linear(hidden_size, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
