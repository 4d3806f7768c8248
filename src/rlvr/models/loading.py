"""Pretrained models: whole ones, adapters on top of one, and the critic."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rlvr.errors import ConfigError, UserError
from rlvr.models.adapters import add_adapters, check_same, insert_saved, merge, saved_settings
from rlvr.models.hub import ADAPTER, Located, from_hub, locate, sentence
from rlvr.models.policy import Adapters, Policy, check_trainable
from rlvr.models.quantization import Bits, dequantized, is_quantized, make_exact, settings_for
from rlvr.models.recompute import recompute_in_backward
from rlvr.models.settings import PretrainedModel

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Base:
    """A whole model and how its weights are stored: everything needed to load the same numbers again."""

    name: str  # folder or Hub id
    trust_remote_code: bool = False
    dtype: torch.dtype = torch.float32
    attention: str = "sdpa"
    bits: Bits | None = None
    device: torch.device = CPU

    @classmethod
    def of(cls, settings: PretrainedModel, device: torch.device = CPU) -> Base:
        """The model under the adapters of these settings."""
        return cls(
            name=settings.name_or_path,
            trust_remote_code=settings.trust_remote_code,
            dtype=getattr(torch, settings.dtype),
            attention=settings.attn_implementation,
            bits=4 if settings.load_in_4bit else 8 if settings.load_in_8bit else None,
            device=device,
        )


# ------------------------------------------------------------------------------------------------------ to be trained


def load_policy(settings: PretrainedModel, *, seed: int, device: torch.device = CPU) -> Policy:
    """The policy that training starts from: everything float32 and trained, or a frozen model with trained adapters.

    Training goes on with the adapter in a folder if `lora.enabled`; otherwise it is merged into its model in float32.
    Fresh adapters are a function of the seed. UserError if there is no such model, ConfigError for settings that do not
    fit it or this machine.
    """
    base, lora = Base.of(settings, device), settings.lora
    if base.attention == "flash_attention_2":
        on_cpu = base.device.type == "cpu"
        if on_cpu or importlib.util.find_spec("flash_attn") is None:
            reason = "the model is on the CPU here" if on_cpu else "the package flash-attn is not installed"
            raise ConfigError(
                f"model.attn_implementation=flash_attention_2: needs a GPU and flash-attn, and {reason}; choose sdpa "
                "(on a GPU torch has kernels of the same kind for it) or eager."
            )
    located = locate(settings.name_or_path)
    adapter = located.adapter_folder()
    if adapter is not None and lora.enabled:
        check_same(adapter, lora)
    model, tokenizer = _load(base, located, adapter)
    if adapter is not None:
        base = replace(base, name=base_of(adapter))
    adapters = None
    if lora.enabled:
        if adapter is None:
            add_adapters(model, lora, base=_lasting(base.name), seed=seed)
        kept = f"{base.bits}-bit" if base.bits else settings.dtype
        targets = ", ".join(lora.target_modules)
        note = f"LoRA r={lora.r} alpha={lora.alpha} on {targets}; the {kept} model under it is frozen"
        adapters = Adapters(fresh_base=partial(_load_float32, base), merge_final=lora.merge_final, note=note)
    elif adapter is not None:
        _merge_for_good(model)
    if settings.gradient_checkpointing:
        recompute_in_backward(model)
    policy = Policy(model=model.eval(), tokenizer=tokenizer, adapters=adapters)
    check_trainable(policy)
    return policy


def load_for_inference(name: str, settings: PretrainedModel | None = None, device: torch.device = CPU) -> Policy:
    """A model folder, adapter folder or Hub id, to sample from.

    An adapter gets the model it was trained on, stored as in `settings`, those of its run: what is measured is what was
    trained. Whole models are float32. Errors as in `load_policy`.
    """
    base = Base(name=name, device=device) if settings is None else replace(Base.of(settings, device), name=name)
    located = locate(name)
    if not located.is_adapter:
        base = replace(base, dtype=torch.float32, bits=None)
    adapter = located.adapter_folder()
    model, tokenizer = _load(base, located, adapter)
    adapters = None
    if adapter is not None:
        fresh_base = partial(_load_float32, replace(base, name=base_of(adapter)))
        adapters = Adapters(fresh_base=fresh_base, merge_final=False, note="adapter")
    return Policy(model=model.eval(), tokenizer=tokenizer, adapters=adapters)


def load_pretrained(
    name_or_path: str, *, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal LM and its tokenizer from a folder or the Hub, in eval mode. Errors as in `load_policy`.

    The weights are float32 whatever they were saved in: near 0.02 the spacing of bf16 is 1.2e-4, and an update of 1e-6
    would be rounded away.
    """
    located = locate(name_or_path)
    adapter = located.adapter_folder()
    model, tokenizer = _load(Base(name=name_or_path, trust_remote_code=trust_remote_code), located, adapter)
    if adapter is not None:
        _merge_for_good(model)
    return model.eval(), tokenizer


def model_family(settings: PretrainedModel) -> str:
    """`model_type` of the language model, e.g. `qwen2`; loads no weights. Errors as in `load_policy`."""
    located = locate(settings.name_or_path)
    base = Base.of(settings)
    if (adapter := located.adapter_folder()) is not None:
        base = replace(base, name=base_of(adapter))
        located = locate(base.name)
    return _from_pretrained(AutoConfig, base, located).get_text_config().model_type


# ------------------------------------------------------------------------------------------------------------- loading


def _load(base: Base, located: Located, adapter: Path | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer; with `adapter`, its base model with the adapter on it."""
    if adapter is None:
        return _load_model(base, located), _from_pretrained(AutoTokenizer, base, located)
    named = base_of(adapter)
    if not Path(named).is_dir() and Path(named).is_absolute():
        raise UserError(
            f"the adapter {str(adapter)!r} was trained on {named}, which is not there: put it back, or change "
            f"base_model_name_or_path in its {ADAPTER}"
        )
    under = replace(base, name=named)
    found = locate(named)
    if found.is_adapter:
        raise UserError(f"the adapter {str(adapter)!r} was trained on another adapter, {named!r}: merge that one first")
    model = _load_model(under, found)
    insert_saved(model, adapter, base=_lasting(named))
    if any((adapter / name).is_file() for name in TOKENIZER_FILES):
        under, found = replace(base, name=str(adapter)), Located(name=str(adapter), offline=True, is_adapter=True)
    return model, _from_pretrained(AutoTokenizer, under, found)


def base_of(adapter: Path) -> str:
    """Folder or Hub id of the model an adapter was trained on."""
    return str(saved_settings(adapter)["base_model_name_or_path"])


def _load_model(base: Base, located: Located) -> PreTrainedModel:
    if Path(base.name).is_dir() and not any((Path(base.name) / name).is_file() for name in TOKENIZER_FILES):
        raise UserError(
            f"the model folder {base.name!r} has no tokenizer (no tokenizer.json): "
            "copy the tokenizer files of the base model into it"
        )
    config = _from_pretrained(AutoConfig, base, located)
    saved_bits = _saved_bits(base, config)
    options: dict[str, Any] = {}
    if base.bits is not None:
        # quantized where it will be; without a map a quantized model would go to the GPU
        options = {"device_map": {"": str(base.device)}}
        if saved_bits is None:
            options["quantization_config"] = settings_for(base.bits, base.dtype)
    model = _from_pretrained(
        AutoModelForCausalLM,
        base,
        located,
        config=config,
        dtype=base.dtype,
        attn_implementation=base.attention,
        **options,
    )
    if base.bits is not None:
        make_exact(model)
    for parameter in model.parameters():
        # out of the mapped file into aligned memory: where a matrix begins decides the last bit of a product, and a
        # resumed process must not differ from the one that made these weights
        if not is_quantized(parameter):
            parameter.data = parameter.data.clone()
    if base.bits is None:
        model.to(base.device)
    return model.eval()


def _from_pretrained(kind: Any, base: Base, located: Located, **options: Any) -> Any:
    try:
        return kind.from_pretrained(
            base.name, trust_remote_code=base.trust_remote_code, local_files_only=located.offline, **options
        )
    except (OSError, ValueError) as error:
        if not located.offline and from_hub(error):
            raise sentence(base.name, error) from error
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"the model {base.name!r} cannot be loaded ({reason}): name a model folder or a Hub id"
        ) from error
    except Exception as error:  # safetensors raises its own kinds for damaged files
        raise UserError(f"the model {base.name!r} cannot be loaded: its files are damaged ({error})") from error


def _saved_bits(base: Base, config: Any) -> int | None:
    """4 or 8 for a checkpoint that was quantized before it was saved, None for plain weights.

    UserError if it was quantized otherwise than `base` asks for.
    """
    saved = getattr(config, "quantization_config", None)
    if saved is None:
        return None
    saved = saved if isinstance(saved, dict) else saved.to_dict()
    if saved.get("quant_method") != "bitsandbytes":
        raise UserError(
            f"the model {base.name!r} is quantized by {saved.get('quant_method')}, which cannot be trained here: "
            "name the model it was made from, with model.load_in_4bit=true"
        )
    bits = 4 if saved.get("load_in_4bit") else 8
    if bits != base.bits:
        raise UserError(
            f"the model {base.name!r} was saved in {bits} bits: set model.load_in_{bits}bit=true and "
            "model.lora.enabled=true, or name the model it was made from"
        )
    return bits


# --------------------------------------------------------------------------------------------------- merging, the rest


def _load_float32(base: Base) -> PreTrainedModel:
    """The weights of the base as training saw them, rounded and quantized, in float32 on the CPU."""
    model = _load_model(base if base.bits else replace(base, device=CPU), locate(base.name))
    return model.float() if base.bits is None else dequantized(model)


def _merge_for_good(model: PreTrainedModel) -> None:
    merge(model)
    model.requires_grad_(True)


def _lasting(name: str) -> str:
    """The absolute path of a folder; a Hub id unchanged."""
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def value_head(hidden_size: int) -> nn.Linear:
    """The critic: one linear output on the policy's trunk, zero at the start."""
    head = nn.Linear(hidden_size, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
