"""Settings shared by retrievers: `task.retrieval.*`."""

from collections.abc import Mapping
from typing import Any, Literal

from rlvr.settings import NonNegativeInt, PositiveFloat, PositiveInt, Settings, Share, Text, setting


def _read_by(retrievers: str, name: str, default: Any, description: str) -> Any:
    """A field for some retrievers only, see `Retriever.uses`."""
    only_if = f"'{name}' in task.retriever_reads  # task.retriever={retrievers.replace(' and ', ' or ')}"
    return setting(default, f"{retrievers}: {description}", only_if=only_if)


class RetrievalSettings(Settings):
    """Document search. A retriever's `uses` names the fields it reads."""

    scope: Literal["paragraphs", "corpus"] = setting(
        "paragraphs", "paragraphs: the question's own; corpus: all passages of the corpus"
    )
    corpus: Text | None = setting(
        None,
        "file of passages (title and text), .jsonl or .json, either also .gz",
        only_if="scope == 'corpus'",
    )
    index_dir: Text | None = setting(
        None,
        "folder of corpus indexes; null: ~/.cache/rlvr, or XDG_CACHE_HOME",
        only_if="scope == 'corpus' and corpus is not None",
    )
    stem: bool = _read_by("bm25, hybrid and filtered", "stem", True, "Snowball stems of English words")
    remove_stop_words: bool = _read_by(
        "bm25, hybrid and filtered", "remove_stop_words", True, "leave out Lucene's English stop words"
    )
    rerank_url: Text | None = _read_by("rerank", "rerank_url", None, "address of the service; null: RERANK_API_URL")
    search_url: Text | None = _read_by(
        "search", "search_url", None, "address of the service; null: WIKI_SEARCH_API_URL"
    )
    api_key_var: Text | None = _read_by(
        "rerank and search", "api_key_var", None, "name of the variable with the key; null: no key"
    )
    service_model: Text | None = _read_by(
        "rerank", "service_model", None, "model requested from the service; null: its own choice"
    )
    timeout_s: PositiveFloat = _read_by("rerank and search", "timeout_s", 10.0, "time limit of a request")
    max_retries: NonNegativeInt = _read_by("rerank and search", "max_retries", 3, "retries of a failed request")
    max_error_share: Share = _read_by(
        "rerank and search",
        "max_error_share",
        0.1,
        "the model is told of an unanswered search; more than this share of the last 50 end the run",
    )
    max_document_chars: PositiveInt = _read_by("rerank", "max_document_chars", 8_000, "longer documents are cut")
    own: Mapping[str, Any] = setting({}, "fields of your own retriever (module:Class)")
