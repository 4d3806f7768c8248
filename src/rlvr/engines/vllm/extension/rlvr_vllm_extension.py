"""Our extension of vLLM's workers: loads weights from safetensors files or a trainer's broadcast, and verifies them.

Start the server with this folder on its PYTHONPATH and `--worker-extension-cls rlvr_vllm_extension.RlvrExtension`.
rlvr is not installed where vLLM is, so nothing of it is imported. Methods answer JSON-able dictionaries through
`/collective_rpc`; errors are `{"error": ...}`, never an exception, which could end the server.

A checkpoint's tensors are not the server's: query, key and value (and gate and up) are fused, tensor parallel workers
hold slices, and on a CPU linear weights are packed inside a kernel. So each tensor of a file is mapped to a piece of
the model, and a packed weight is read back through the layer: the product with a unit vector is exactly a column.

Tensor parallel workers each check their own slices: run with two workers on a CPU, never on GPUs.
"""

# pyright: reportMissingImports=false

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import vllm
from rlvr_vllm_group import CutOffError, Offer, OfferError, Stream, join, vocabulary_digest
from safetensors import safe_open
from torch import Tensor, nn
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.model_executor.models.utils import is_pp_missing_parameter

NUM_COLUMNS = 64
"""Columns read back from a packed weight: one that was not loaded differs in nearly all."""
NUM_NAMED = 5
"""Names in an answer."""

LOG = logging.getLogger("vllm.rlvr")
"""vLLM's log: a trainer that is gone gets no answer."""


class FileError(Exception):
    """The files do not fit the model."""


@dataclass(frozen=True)
class Slice:
    """`size` entries from `start` on, of `total`, along a dimension of the checkpoint's tensor."""

    dim: int
    start: int
    size: int
    total: int


@dataclass(frozen=True)
class Piece:
    """Place of a checkpoint's tensor in this worker: rows of `module.<attr>`.

    `part` is this worker's slice of it (None: all); without `rows` it cannot be compared.
    """

    module: nn.Module
    attr: str
    shape: tuple[int, ...]  # in the checkpoint
    rows: tuple[int, int] | None  # first row and number of rows
    part: Slice | None = None

    def local(self, tensor: Tensor) -> Tensor:
        """This worker's part of the checkpoint's tensor."""
        return tensor if self.part is None else tensor.narrow(self.part.dim, self.part.start, self.part.size)


class RlvrExtension:
    """Mixed into vLLM's worker: `self.model_runner` and `self.rank` are the worker's."""

    model_runner: Any
    rank: int

    def describe(self) -> dict[str, Any]:
        """Facts for a client to check; see `Facts` in engines/vllm/server.py."""
        config = self.model_runner.model_config
        text = config.hf_text_config
        lora = self.model_runner.lora_config
        parallel = self.model_runner.parallel_config
        return {
            "vllm": vllm.__version__,
            "device": self.model_runner.device.type,
            "num_workers": int(parallel.world_size * parallel.data_parallel_size),
            "architecture": type(self.model_runner.get_model()).__name__,
            "vocab_size": int(text.vocab_size),
            "hidden_size": int(text.hidden_size),
            "num_layers": int(text.num_hidden_layers),
            "dtype": str(config.dtype).removeprefix("torch."),
            "quantization": config.quantization,
            "max_model_len": int(config.max_model_len),
            "logprobs_mode": str(config.logprobs_mode),
            "max_logprobs": int(config.max_logprobs),
            "chunked_prefill": bool(self.model_runner.scheduler_config.enable_chunked_prefill),
            "max_lora_rank": int(lora.max_lora_rank) if lora else 0,
            "tokenizer": _tokenizer_digest(config),
        }

    def load_policy(self, path: str) -> dict[str, Any]:
        """Load the safetensors file, or all of a folder, in place of the model's weights, and verify.

        `{"rank": 0, "loaded": 26, "verified": 26, "unverifiable": [], "num_unverifiable": 0}`; `{"error": ...}` before
        any change if the files are not exactly the model's tensors, and afterwards if some did not arrive.
        """
        model = self.model_runner.get_model()
        pieces, tied = pieces_of(model)
        try:
            files = _files(path)
            shapes, names = _headers(files)
            _check(shapes, pieces, tied, model)
        except FileError as error:
            return self._failed(str(error))
        own_parts = lambda: _own_parts(_stream(files, names), pieces)  # noqa: E731
        return self._load(_stream(files, names), own_parts, pieces, tied)

    def receive_policy(self, offer: str) -> dict[str, Any]:
        """As `load_policy`, with tensors that a trainer broadcasts; `offer` is an `Offer` as JSON.

        It must be exactly the model's tensors, checked before waiting. `{"error": ..., "cut_off": true}` if the
        broadcast breaks; the model then holds zeros and needs another push.
        """
        model = self.model_runner.get_model()
        pieces, tied = pieces_of(model)
        try:
            offered = Offer.from_json(offer)
            _check({name: shape for name, shape, _ in offered.tensors}, pieces, tied, model)
            group = join(offered, has_gpu=self.model_runner.device.type == "cuda")
        except (FileError, OfferError) as error:
            return self._failed(str(error))
        except CutOffError as error:
            return self._failed(f"no weights came: {error}", cut_off=True)
        stream, kept = Stream(offered, group), {}
        tensors = _keeping(stream, pieces, kept)
        try:
            report = self._load(tensors, kept.items, pieces, tied)
            for _ in tensors:  # the other workers get theirs, whatever failed here
                pass
        finally:
            group.leave()
        return report if stream.problem is None else self._failed(stream.problem, cut_off=True)

    def _failed(self, error: str, **more: Any) -> dict[str, Any]:
        LOG.warning("a push of weights failed: %s", error)
        return {"rank": self.rank, "error": error, **more}

    def _load(
        self,
        tensors: Iterator[tuple[str, Tensor]],
        own_parts: Callable[[], Iterable[tuple[str, Tensor]]],
        pieces: dict[str, Piece],
        tied: dict[str, str],
    ) -> dict[str, Any]:
        """Load the tensors, and compare this worker's parts of them with its model."""
        try:
            self.model_runner.reload_weights(weights_iterator=tensors)
            with torch.inference_mode():
                _renew_tied(pieces, tied)
                found = _compare(own_parts(), pieces, tied, self.model_runner.model_config.dtype)
        except Exception as error:  # from the loader: the client must get it
            return self._failed(f"loading failed in between: {type(error).__name__}: {error}"[:2000])
        wrong = [name for name in pieces if found.get(name, False) is False]
        if wrong:
            return self._failed(f"{len(wrong)} tensors kept other weights: {_some(wrong)}")
        unverifiable = [name for name, same in found.items() if same is None]
        return {
            "rank": self.rank,
            "loaded": len(found),
            "verified": len(found) - len(unverifiable),
            "unverifiable": unverifiable[:NUM_NAMED],
            "num_unverifiable": len(unverifiable),
        }


# --------------------------------------------------------------------------------------------- the model, in pieces


def pieces_of(model: nn.Module) -> tuple[dict[str, Piece], dict[str, str]]:
    """Name in a checkpoint -> piece; and tied names (`lm_head.weight`) -> name of the tensor they share."""
    fused = getattr(model, "packed_modules_mapping", None) or {}
    pieces: dict[str, Piece] = {}
    tied: dict[str, str] = {}
    owners: dict[int, str] = {}
    for path, module in model.named_modules():
        if hasattr(module, "base_layer"):  # a LoRA wrapper; the layer inside is listed itself
            continue
        name = path.replace(".base_layer", "")
        for attr, parameter in module.named_parameters(recurse=False):
            found = dict(_pieces(name, module, attr, parameter, fused))
            if id(parameter) in owners and len(found) == 1:
                tied[next(iter(found))] = owners[id(parameter)]
            elif len(found) == 1:
                owners[id(parameter)] = next(iter(found))
            pieces.update(found)
    return pieces, tied


def _pieces(
    name: str, module: nn.Module, attr: str, parameter: Tensor, fused: dict[str, list[str]]
) -> Iterator[tuple[str, Piece]]:
    parent, _, leaf = name.rpartition(".")
    parts = fused.get(leaf, [leaf])
    prefix = f"{parent}." if parent else ""
    if isinstance(module, MergedColumnParallelLinear | QKVParallelLinear) and len(parts) > 1:
        fused_layer: Any = module
        first = 0
        for part, (rows, total, start) in zip(parts, _outputs(fused_layer), strict=True):
            cut = None if rows == total else Slice(0, start, rows, total)
            shape = (total, fused_layer.input_size) if attr == "weight" else (total,)
            yield f"{prefix}{part}.{attr}", Piece(module, attr, shape, (first, rows), cut)
            first += rows
        return
    yield f"{prefix}{leaf}.{attr}", _whole(module, attr, parameter)


def _outputs(module: Any) -> Iterator[tuple[int, int, int]]:
    """Rows in this worker, rows in all and this worker's first row, for each part of a fused layer."""
    if isinstance(module, QKVParallelLinear):
        heads = [module.num_heads, module.num_kv_heads, module.num_kv_heads]
        totals = [module.total_num_heads, module.total_num_kv_heads, module.total_num_kv_heads]
        sizes = [module.head_size, module.head_size, module.v_head_size]
        shards = [module.tp_rank, *[module.tp_rank // module.num_kv_head_replicas] * 2]
        for count, total, size, shard in zip(heads, totals, sizes, shards, strict=True):
            yield count * size, total * size, shard * count * size
        return
    for total in module.output_sizes:
        yield total // module.tp_size, total, module.tp_rank * total // module.tp_size


def _whole(module: Any, attr: str, parameter: Tensor) -> Piece:
    """A tensor that is not split in the checkpoint."""
    if isinstance(module, VocabParallelEmbedding):
        first, last = module.shard_indices.org_vocab_start_index, module.shard_indices.org_vocab_end_index
        total, rows = module.org_vocab_size, last - first
        cut = None if rows == total else Slice(0, first, rows, total)
        shape = (total, module.embedding_dim) if attr == "weight" else (total,)
        return Piece(module, attr, shape, (0, rows), cut)
    if isinstance(module, RowParallelLinear) and attr == "weight":
        rows, total, columns = module.output_size, module.input_size, module.input_size_per_partition
        cut = None if columns == total else Slice(1, module.tp_rank * columns, columns, total)
        return Piece(module, attr, (rows, total), (0, rows), cut)
    if isinstance(module, MergedColumnParallelLinear | QKVParallelLinear):  # fused in the checkpoint as well
        total = sum(total for _, total, _ in _outputs(module))
        rows = (0, total) if module.tp_size == 1 else None
        return Piece(module, attr, (total, module.input_size) if attr == "weight" else (total,), rows)
    if isinstance(module, ColumnParallelLinear):
        rows, total = module.output_size_per_partition, module.output_size
        cut = None if rows == total else Slice(0, module.tp_rank * rows, rows, total)
        return Piece(module, attr, (total, module.input_size) if attr == "weight" else (total,), (0, rows), cut)
    if attr == "weight" and hasattr(module, "output_size") and hasattr(module, "input_size"):  # replicated
        return Piece(module, attr, (module.output_size, module.input_size), (0, module.output_size))
    shape = tuple(parameter.shape)
    return Piece(module, attr, shape, (0, shape[0]) if shape else None)


def _tokenizer_digest(config: Any) -> str | None:
    """None where the server has no tokenizer."""
    if config.skip_tokenizer_init:
        return None
    from vllm.tokenizers import cached_tokenizer_from_config

    return vocabulary_digest(cached_tokenizer_from_config(config).get_vocab())


# ------------------------------------------------------------------------------------------------------------- files


def _files(path: str) -> list[Path]:
    given = Path(path)
    files = sorted(given.glob("*.safetensors")) if given.is_dir() else [given]
    if not files or not all(file.is_file() for file in files):
        raise FileError(f"there is no safetensors file at {path} on the server's side")
    return files


def _headers(files: Iterable[Path]) -> tuple[dict[str, tuple[int, ...]], dict[str, Path]]:
    """Shape and file of each tensor."""
    shapes: dict[str, tuple[int, ...]] = {}
    names: dict[str, Path] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - no dictionary
                    shapes[name] = tuple(opened.get_slice(name).get_shape())
                    names[name] = file
        except Exception as error:  # safetensors has its own kinds for damaged files
            raise FileError(f"{file.name} is no whole safetensors file ({error})"[:500]) from error
    return shapes, names


def _check(
    shapes: Mapping[str, tuple[int, ...]], pieces: dict[str, Piece], tied: dict[str, str], model: nn.Module
) -> None:
    """FileError unless these are exactly the model's tensors, in name and shape."""
    unknown = sorted(name for name in shapes if name not in pieces and not is_pp_missing_parameter(name, model))
    missing = sorted(name for name in pieces if name not in shapes and name not in tied)
    if unknown or missing:
        what = [f"{len(unknown)} tensors that the model has not: {_some(unknown)}"] if unknown else []
        what += [f"not {len(missing)} tensors of the model: {_some(missing)}"] if missing else []
        raise FileError(f"the weights hold {' and '.join(what)}")
    odd = sorted(name for name in shapes if name in pieces and shapes[name] != pieces[name].shape)
    if odd:
        raise FileError(f"{odd[0]} has shape {shapes[odd[0]]}, the model's has {pieces[odd[0]].shape}")


def _stream(files: Iterable[Path], names: dict[str, Path]) -> Iterator[tuple[str, Tensor]]:
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no dictionary
                if names[name] == file:
                    yield name, opened.get_tensor(name)


def _own_parts(tensors: Iterable[tuple[str, Tensor]], pieces: dict[str, Piece]) -> Iterator[tuple[str, Tensor]]:
    """This worker's parts; other pipeline stages have the rest."""
    for name, tensor in tensors:
        if name in pieces:
            yield name, pieces[name].local(tensor)


def _keeping(
    tensors: Iterable[tuple[str, Tensor]], pieces: dict[str, Piece], kept: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors; copies of this worker's parts go into `kept` for the comparison."""
    for name, tensor in tensors:
        if name in pieces:
            kept[name] = pieces[name].local(tensor).clone()
        yield name, tensor


# -------------------------------------------------------------------------------------------------------- comparison


def _renew_tied(pieces: dict[str, Piece], tied: dict[str, str]) -> None:
    """Repack a tied head: vLLM 0.32 does so for the embedding alone, and on a CPU the head keeps its old copy."""
    for name in tied:
        module: Any = pieces[name].module
        if "cpu_linear" in vars(module):
            module.quant_method.process_weights_after_loading(module)


def _compare(
    own_parts: Iterable[tuple[str, Tensor]], pieces: dict[str, Piece], tied: dict[str, str], dtype: torch.dtype
) -> dict[str, bool | None]:
    """Whether each tensor, tied ones too, equals the sent one; None: unknown."""
    others: dict[str, list[str]] = {}
    for alias, owner in tied.items():
        others.setdefault(owner, []).append(alias)
    return {
        place: _is(pieces[place], part, dtype) for name, part in own_parts for place in (name, *others.get(name, []))
    }


def _is(piece: Piece, part: Tensor, dtype: torch.dtype) -> bool | None:
    """Whether the model holds this part of a tensor; None: it cannot be compared."""
    module: Any = piece.module
    method: Any = getattr(module, "quant_method", None)
    plain = method is None or isinstance(method, UnquantizedLinearMethod | UnquantizedEmbeddingMethod)
    if piece.rows is None or not plain:
        return None
    own: Tensor = getattr(module, piece.attr)
    wanted = part.to(device=own.device, dtype=dtype)
    first, count = piece.rows
    results: list[bool] = []
    if own.shape[:1] >= (first + count,) and own[first : first + count].shape == wanted.shape:
        results.append(torch.equal(own[first : first + count].to(dtype), wanted))
    if piece.attr == "weight" and "cpu_linear" in vars(module):
        columns = torch.linspace(0, wanted.shape[1] - 1, min(NUM_COLUMNS, wanted.shape[1])).long()
        units = torch.zeros(len(columns), wanted.shape[1], dtype=dtype)
        units[torch.arange(len(columns)), columns] = 1
        read = module.quant_method.apply(module, units, None)[:, first : first + count]
        results.append(torch.equal(read.to(dtype).T, wanted[:, columns]))
    return all(results) if results else None


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    return ", ".join(names[:NUM_NAMED]) + more
