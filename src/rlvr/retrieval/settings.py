"""Settings that retrievers share: `task.retrieval.*`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rlvr.settings import NonNegativeInt, PositiveFloat, PositiveInt, Settings, Text, setting


class RetrievalSettings(Settings):
    """How documents are searched. A retriever's `uses` names the fields that it reads."""

    scope: Literal["paragraphs", "corpus"] = setting(
        "paragraphs", "paragraphs: the question's own; corpus: all passages of corpus"
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
    stem: bool = setting(
        True,
        "bm25 and hybrid: Snowball stems of English words",
        only_if="task.reads('stem')  # task.retriever=bm25 or hybrid",
    )
    remove_stop_words: bool = setting(
        True,
        "bm25 and hybrid: leave out Lucene's English stop words",
        only_if="task.reads('remove_stop_words')  # task.retriever=bm25 or hybrid",
    )
    rerank_url: Text | None = setting(
        None,
        "rerank: address of the service; null: RERANK_API_URL",
        only_if="task.reads('rerank_url')  # task.retriever=rerank",
    )
    search_url: Text | None = setting(
        None,
        "search: address of the service; null: WIKI_SEARCH_API_URL",
        only_if="task.reads('search_url')  # task.retriever=search",
    )
    api_key_var: Text | None = setting(
        None,
        "rerank and search: name of the variable with the key; null: no key",
        only_if="task.reads('api_key_var')  # task.retriever=rerank or search",
    )
    service_model: Text | None = setting(
        None,
        "rerank: model that the service is asked for; null: its own choice",
        only_if="task.reads('service_model')  # task.retriever=rerank",
    )
    timeout_s: PositiveFloat = setting(
        10.0,
        "rerank and search: time limit of a request",
        only_if="task.reads('timeout_s')  # task.retriever=rerank or search",
    )
    max_retries: NonNegativeInt = setting(
        3,
        "rerank and search: requests after the first failed one",
        only_if="task.reads('max_retries')  # task.retriever=rerank or search",
    )
    max_document_chars: PositiveInt = setting(
        8_000, "rerank: longer documents are cut", only_if="task.reads('max_document_chars')  # task.retriever=rerank"
    )
    own: Mapping[str, Any] = setting({}, "a retriever of your own (module:Class): its fields")
