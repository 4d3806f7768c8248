"""Our weight-transfer backend for vLLM, and a worker extension that describes the server.

Start the server with this folder on its PYTHONPATH, `--worker-extension-cls rlvr_vllm_extension.RlvrExtension` and
`--weight-transfer-config '{"backend": "rlvr"}'`. Imports nothing of rlvr, which is not installed in vLLM's environment.

`init_info["transport"]` selects the transport of tensors: `files` (safetensors in `update_info["path"]`, or base64 in
`update_info["data"]`), or `nccl` and `ipc`, vLLM's own engines. All of them load through vLLM's layerwise reload. An
incomplete update fails, and its missing tensors keep their old weights.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rlvr_vllm_launch import CONFIG_KEYS, REFUSED, vocabulary_digest
from safetensors import safe_open
from safetensors.torch import load
from torch import Tensor
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info


class RlvrTransfer(WeightTransferEngine):
    """Checks names and completeness for every transport."""

    init_info_cls = update_info_cls = dict

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        self._transport: Any = None  # vLLM's engine; None: files
        self._names = {name.replace(".base_layer.", ".") for name, _ in model.named_parameters()}  # tied ones once
        self._loaded: set[str] = set()

    def init_transfer_engine(self, info: dict[str, Any]) -> None:
        self.shutdown()
        transport = info.pop("transport")
        if transport != "files":
            target: Any = SimpleNamespace(load_weights=self._load)
            config = WeightTransferConfig(backend=transport)
            self._transport = WeightTransferEngineFactory.create_engine(config, self.vllm_config, self.device, target)
            self._transport.init_transfer_engine(self._transport.parse_init_info(info))

    def start_weight_update(self) -> None:
        self._loaded = set()
        initialize_layerwise_reload(self.model)

    def update_weights(self, info: dict[str, Any]) -> None:
        """Load tensors; with `is_last` all must have arrived. On error restores the old weights and raises
        ValueError."""
        try:
            is_last = info.pop("is_last")
            self.receive_weights(info)
            if is_last:
                self._check_complete()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            self.put_back()
            raise ValueError(f"{REFUSED} {type(error).__name__}: {error}"[:1000]) from error

    def receive_weights(self, info: dict[str, Any]) -> None:
        if "ipc_handles" in info:
            info["ipc_handles"] = [{gpu: _handle(args) for gpu, args in one.items()} for one in info["ipc_handles"]]
        if self._transport is not None:
            self._transport.receive_weights(self._transport.parse_update_info(info))
        elif "path" in info:
            self._load(_read(Path(info["path"])))
        else:
            self._load(load(base64.b64decode(info["data"])).items())

    def _load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self._loaded |= set(self.model.load_weights(weights) or ())

    def _check_complete(self) -> None:
        missing = {*(self._names - self._loaded), *self._half_loaded()}
        if missing:
            raise ValueError(f"not all weights came: {len(missing)} tensors are missing, as {min(missing)}")

    def _half_loaded(self) -> Iterator[str]:
        """Fused layers with a missing part, which vLLM would read from uninitialized memory."""
        for name, layer in self.model.named_modules():
            info = get_layerwise_info(layer)
            if info.can_load() and not is_deferred_attention_layer(layer):
                parameters = sum(one.numel() for one in layer.parameters(recurse=False))
                if 0 < info.load_numel < min(parameters, info.load_numel_total) and not hasattr(
                    layer, "org_vocab_size"
                ):
                    yield name

    def finish_weight_update(self) -> None:
        """Pack the layers again. vLLM 0.32 on a CPU forgets a head tied to the embeddings."""
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu" and getattr(self.model_config.hf_text_config, "tie_word_embeddings", False):
            for layer in self.model.modules():
                if isinstance(layer, ParallelLMHead) and "cpu_linear" in vars(layer):
                    layer.quant_method.process_weights_after_loading(layer)

    def put_back(self) -> None:
        """Restore the old weights of incomplete layers."""
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                info.load_numel = 0
                info.loaded_weights.clear()
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if self._transport is not None:
            self._transport.shutdown()
            self._transport = None


WeightTransferEngineFactory.register_engine("rlvr", RlvrTransfer)


class RlvrExtension:
    """Mixin of vLLM's worker, which has these attributes."""

    model_runner: Any
    weight_transfer_engine: Any
    _weight_update_active: bool

    def abort_update(self) -> None:
        """End an unfinished update, for example of a killed trainer."""
        if self._weight_update_active:
            self.weight_transfer_engine.put_back()
            self._weight_update_active = False

    def describe(self) -> dict[str, Any]:
        """Facts for a client to check; see `Facts` in engines/vllm/server.py."""
        from vllm.tokenizers import cached_tokenizer_from_config

        runner = self.model_runner
        config, lora, parallel = runner.model_config, runner.lora_config, runner.parallel_config
        has_gpu = runner.device.type == "cuda"
        return {
            "device": runner.device.type,
            "gpu": str(torch.cuda.get_device_properties(runner.device).uuid) if has_gpu else None,
            "num_workers": int(parallel.world_size * parallel.data_parallel_size),
            "architecture": type(runner.get_model()).__name__,
            "config": {key: getattr(config.hf_text_config, key, None) for key in CONFIG_KEYS},
            "dtype": str(config.dtype).removeprefix("torch."),
            "quantization": config.quantization,
            "max_model_len": int(config.max_model_len),
            "logprobs_mode": str(config.logprobs_mode),
            "max_logprobs": int(config.max_logprobs),
            "chunked_prefill": bool(runner.scheduler_config.enable_chunked_prefill),
            "max_lora_rank": int(lora.max_lora_rank) if lora else 0,
            "tokenizer": None
            if config.skip_tokenizer_init
            else vocabulary_digest(cached_tokenizer_from_config(config).get_vocab()),
        }


def _read(path: Path) -> Iterator[tuple[str, Tensor]]:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise FileNotFoundError(f"there is no safetensors file at {path} on the server's side")
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no dictionary
                yield name, opened.get_tensor(name)


def _handle(args: list[Any]) -> tuple[Any, ...]:
    """Arguments of torch's `rebuild_cuda_tensor` from JSON, instead of vLLM's pickles."""

    def read(value: Any) -> Any:
        if isinstance(value, dict):
            (kind, inside), *_ = value.items()
            return {"bytes": base64.b64decode, "dtype": lambda name: getattr(torch, name)}[kind](inside)
        return value

    return (torch.Tensor, *map(read, args[:3]), torch.storage.TypedStorage, *map(read, args[3:]))
