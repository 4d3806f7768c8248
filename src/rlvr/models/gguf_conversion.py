"""Turns a GGUF file into a Hub folder by transformers' own reader, after looking at its header."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from rlvr.errors import UserError, install
from rlvr.models.gguf_header import DamagedError, Header, read_header
from rlvr.models.policy import HubPolicy
from rlvr.printable import printable


class UnreadableError(Exception):
    """The file is whole, and transformers does not read such a one; the message ends a sentence."""


DTYPES = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
"""The types of plain numbers, by ggml's number."""


def convert(file: Path, folder: Path, called: str) -> dict[str, str]:
    """Write the model and its tokenizer in Hub format; returns the types of its weights, and their new dtype.

    The file lies alone in its folder and is `called` otherwise in messages. UserError if it is damaged or cannot be
    read, mostly before its weights are.
    """
    if find_spec("gguf") is None:
        raise UserError(f"{called} is a GGUF file, and the package gguf, which reads it, is missing: {install('gguf')}")
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        # the bars are tqdm's, which transformers does not let us turn off
        with redirect_stderr(io.StringIO()), _read_once():
            header = _checked_header(file)
            policy = _read(file, header)
    except DamagedError as error:
        raise UserError(f"the GGUF file {called} is incomplete or damaged: {error}; copy it again") from error
    except UnreadableError as error:
        raise UserError(f"the GGUF file {called} {error}") from error
    finally:
        logging.set_verbosity(level)
    policy.save(folder)
    _drop_tokens_beyond(policy.model.config.get_text_config().vocab_size, folder)
    return {"types": ", ".join(_types(header)), "dtype": str(policy.dtype).removeprefix("torch.")}


@contextmanager
def _read_once() -> Iterator[None]:
    """Within the block transformers reads what stands before the weights once, instead of for the config, the tokenizer
    and the weights, and lists the names of tensors once instead of for every module: the 262k tokens of Gemma 3 took
    three times half a minute. The reader's array is a plain one, whose slices cost a third of those of a file's.
    """
    import gguf

    class Reader(gguf.GGUFReader):
        @property
        def data(self) -> np.ndarray:
            return self._plain

        @data.setter
        def data(self, mapped: np.ndarray) -> None:
            self._plain = np.asarray(mapped)

    with (
        patch.object(gguf, "GGUFReader", cache(Reader)),
        patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        yield


def _checked_header(file: Path) -> Header:
    """The header of a file that holds all of its tensors, and the whole model."""
    import gguf

    header = read_header(file)
    if (parts := header.values.get("split.count", 1)) != 1:
        raise UnreadableError(
            f"is one of {parts} that hold its model: join them with `llama-gguf-split --merge`, and name the whole"
        )
    sizes = {kind.value: size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    for name, tensor in header.tensors.items():
        if tensor.kind not in sizes:
            raise DamagedError(f"its tensor {name} has the unknown type {tensor.kind}")
        numbers, num_bytes = sizes[tensor.kind]
        if tensor.begin + tensor.size // numbers * num_bytes > header.num_bytes:
            raise DamagedError(f"it breaks off in the tensor {name}, after {header.num_bytes:,} bytes")
    return header


def _read(file: Path, header: Header) -> HubPolicy:
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(file.parent, **where)
        _check_positions(header, config)
        with torch.device("meta"):
            described = AutoModelForCausalLM.from_config(config)
        wanted = sum(parameter.numel() for parameter in described.parameters())
        if wanted > header.num_weights:  # else random numbers would fill the rest, after reading for minutes
            raise DamagedError(f"its header describes {wanted:,} weights, and it holds {header.num_weights:,}")
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
        model = _model(file, config, _dtype(header), where)
    except (DamagedError, UnreadableError):
        raise
    except Exception as error:  # of any kind, for a header whose values do not fit each other
        reason = " ".join(str(error).replace(str(file), "the file").split())[:200] or type(error).__name__
        raise UnreadableError(
            f"of the architecture {printable(header.architecture)} cannot be read by transformers "
            f"{transformers.__version__} ({reason}): name the model's Hub folder or Hub id, or copy the file again"
        ) from error
    return HubPolicy(model=model, tokenizer=tokenizer)


def _check_positions(header: Header, config: Any) -> None:
    """UnreadableError for scaled rotary positions (Llama 3.1, long contexts) that transformers leaves out silently."""
    kind = header.values.get(f"{header.architecture}.rope.scaling.type", "none")
    scaled = [name for name in header.tensors if name.startswith("rope_")] + [f"{kind}"] * (kind != "none")
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    types = {part["rope_type"] for part in (rope, *rope.values()) if isinstance(part, dict) and "rope_type" in part}
    if scaled and types <= {"default"}:
        raise UnreadableError(
            f"scales its rotary positions ({printable(scaled[0])}), which transformers {transformers.__version__} does "
            "not read from GGUF files, so that each number would be off: name the model's Hub folder or Hub id"
        )


def _model(file: Path, config: Any, dtype: torch.dtype, where: dict[str, Any]) -> PreTrainedModel:
    """The dequantized model, without what marks it as a quantized one."""
    if hasattr(transformers, "GgufConfig"):  # else newer versions keep the blocks of some architectures
        where = where | {"quantization_config": transformers.GgufConfig(dequantize=True)}
    options = where | {"config": config, "dtype": dtype, "output_loading_info": True}
    loaded: Any = AutoModelForCausalLM.from_pretrained(file.parent, **options)
    read, report = loaded
    if missing := sorted({*report["missing_keys"], *report["mismatched_keys"]}, key=str):
        raise DamagedError(f"{len(missing)} tensors of the model are not in it, first {missing[0]}")
    if broken := [name for name, weight in read.named_parameters() if not weight.isfinite().all()]:
        raise DamagedError(f"{len(broken)} of its tensors hold numbers that are not finite, first {broken[0]}")
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    with torch.device("meta"):
        model = type(read)(read.config)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = read.generation_config
    return model


def _drop_tokens_beyond(size: int, folder: Path) -> None:
    """Drop special tokens of the tokenizer's class, `<|endoftext|>`, that the file does not have: transformers gives
    them ids that the model has no row for."""
    tokenizer, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    state, about = (json.loads(file.read_text(encoding="utf-8")) for file in (tokenizer, settings))
    beyond = {token["content"] for token in state["added_tokens"] if token["id"] >= size}
    if not beyond:
        return
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < size]
    about = {key: None if value in list(beyond) else value for key, value in about.items()}
    tokenizer.write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")
    settings.write_text(json.dumps(about, ensure_ascii=False, indent=2), encoding="utf-8")


def _dtype(header: Header) -> torch.dtype:
    """The dtype that a file of plain numbers has; else bfloat16, as most models are published.

    Rounding the dequantized weights of SmolLM2 (Q4_1) to bfloat16 moves its predictions by 6e-5 nats (KL), a 14th of
    what products in bfloat16 do, and each weight by a 70th of what the quantization did; for float16 it is 4e-6 nats.
    """
    kinds = {tensor.kind for tensor in header.tensors.values()}
    if not kinds <= DTYPES.keys():
        return torch.bfloat16
    return next(DTYPES[kind] for kind in (30, 1, 0) if kind in kinds)


def _types(header: Header) -> list[str]:
    """Names of the types of its weights, that of most weights first: `Q4_1, F32`."""
    from gguf import GGMLQuantizationType

    counts: dict[str, int] = {}
    for tensor in header.tensors.values():
        kind = GGMLQuantizationType(tensor.kind).name
        counts[kind] = counts.get(kind, 0) + tensor.size
    return sorted(counts, key=lambda kind: -counts[kind])
