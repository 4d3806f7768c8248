"""Retrievers by name."""

from __future__ import annotations

from pathlib import Path

from rlvr.config.messages import nearest
from rlvr.config.schema.tasks import Retrieval
from rlvr.errors import ConfigError
from rlvr.retrieval.base import Indexer, Retriever
from rlvr.retrieval.bm25 import Bm25
from rlvr.retrieval.corpus import open_corpus
from rlvr.retrieval.golden import GoldenRetriever
from rlvr.retrieval.hybrid import Hybrid
from rlvr.retrieval.local import CorpusRetriever, ParagraphRetriever
from rlvr.retrieval.semantic import Semantic, load_encoder
from rlvr.retrieval.text import TextSettings

INDEXERS = ("bm25", "lexical", "semantic", "semantic/MODEL", "hybrid", "hybrid/MODEL")
NAMES = (*INDEXERS, "golden", "rerank", "search")


def check_name(name: str, option: str) -> None:
    """ConfigError unless `make_retriever` knows `name`; `option` is where the user wrote it."""
    plain = [known for known in NAMES if "/" not in known]
    kind, slash, model = name.partition("/")
    if name in plain or (f"{kind}/MODEL" in NAMES and slash and model):
        return
    near = nearest(kind, plain)
    hint = f"did you mean {near}?" if near else f"there are {', '.join(NAMES)}."
    raise ConfigError(f"{option} {name}: there is no such retriever; {hint}")


def make_retriever(name: str, settings: Retrieval) -> Retriever:
    """The retriever `name`, one of `NAMES`, ready to search: models are loaded and corpora indexed here.

    Raises:
        ConfigError: there is no such retriever, model, corpus or address, or it does not go with the scope.
        CorpusError: the corpus or its stored index is damaged.
    """
    kind = name.partition("/")[0]
    if kind == "golden":
        return GoldenRetriever()
    if kind in ("rerank", "search"):
        from rlvr.retrieval.services import make_client

        return make_client(kind, settings)
    indexer = make_indexer(name, TextSettings(stem=settings.stem, remove_stop_words=settings.remove_stop_words))
    if settings.scope == "paragraphs":
        return ParagraphRetriever(indexer, in_thread=not isinstance(indexer, Bm25))
    if settings.corpus is None:
        raise ConfigError("task.retrieval.scope=corpus needs task.retrieval.corpus: name a file of passages.")
    index_dir = None if settings.index_dir is None else Path(settings.index_dir)
    return CorpusRetriever(indexer.open(open_corpus(Path(settings.corpus).expanduser(), index_dir)))


def make_indexer(name: str, text: TextSettings) -> Indexer:
    """The `Indexer` of `bm25`, `lexical`, `semantic[/MODEL]` or `hybrid[/MODEL]`; loads the model.

    Raises ConfigError for another name, and for a model that cannot be loaded.
    """
    kind, slash, model = name.partition("/")
    if name in ("bm25", "lexical"):
        return Bm25(settings=text)
    if kind not in ("semantic", "hybrid") or (slash and not model):
        what = f"{name} makes no index of its own" if name in NAMES else f"there is no retriever {name}"
        raise ConfigError(f"{what}; take one of {', '.join(INDEXERS)}.")
    semantic = Semantic(encoder=load_encoder(model or None))
    return semantic if kind == "semantic" else Hybrid(bm25=Bm25(settings=text), semantic=semantic)
