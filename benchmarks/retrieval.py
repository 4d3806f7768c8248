"""Recall of the retrievers on real data, and the speed of BM25 compared with direct use of `bm25s`.

    RLVR_DATA=data python benchmarks/retrieval.py [recall|speed ...] [--split dev|train] [--retrievers bm25,hybrid] \\
        [--index-dir D] [--sets musique,hotpotqa] [--repeats 9]

`recall`: mean share of a question's supporting passages among the first 2, 5 and 10 results, and the share of questions
with all of them among the first 5; the question is the query. Over the corpus, then within the question's own
paragraphs (bm25 with stems and without stop words, unless it says plain). `speed`: queries/s over each corpus, batched,
100 hits per query, including tokenization; direct use and ours alternate.

The first run of semantic or hybrid encodes the corpora: 2 to 10 minutes each on a CPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.retrieval.base import Corpus, Document
from rlvr.retrieval.bm25 import Bm25
from rlvr.retrieval.corpus import open_corpus
from rlvr.retrieval.hybrid import HybridIndex
from rlvr.retrieval.ranking import Index, best
from rlvr.retrieval.retriever import IndexRetriever, open_retriever
from rlvr.retrieval.semantic import Semantic, SemanticIndex
from rlvr.retrieval.settings import RetrievalSettings

STEMMED = RetrievalSettings()
PLAIN = RetrievalSettings(stem=False, remove_stop_words=False)
CUTS = (2, 5, 10)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with its paragraphs, if its row has them, and the titles (MuSiQue: whole texts) of its gold."""

    id: str
    text: str
    answers: tuple[str, ...]
    gold: frozenset[str]
    paragraphs: tuple[Document, ...]
    is_complete: bool  # whether the paragraphs contain all gold


@dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """Rows of one file, and their corpus."""

    name: str
    rows: str
    corpus: str
    gold_is_text: bool = False


SETS = (
    QuestionSet(name="musique", rows="musique/{split}.jsonl.gz", corpus="musique/corpus.jsonl.gz", gold_is_text=True),
    QuestionSet(name="hotpotqa", rows="hotpotqa/{split}.jsonl.gz", corpus="hotpotqa/corpus.jsonl.gz"),
    QuestionSet(name="wiki2", rows="2wikimultihopqa/{split}.jsonl.gz", corpus="2wikimultihopqa/corpus.jsonl.gz"),
    QuestionSet(
        name="hipporag",
        rows="2wikimultihopqa/hipporag_subset.jsonl.gz",
        corpus="2wikimultihopqa/hipporag_corpus.json.gz",
    ),
)


def questions(data: Path, chosen: QuestionSet, split: str) -> list[Question]:
    """The rows of a set. HotpotQA and 2Wiki: sentences are stripped and joined by one space."""
    with gzip.open(data / chosen.rows.format(split=split)) as file:
        return [_question(json.loads(line)) for line in file]


def _question(row: dict[str, Any]) -> Question:
    answers = (row["answer"], *row.get("answer_aliases", ()))
    asked = {"id": row.get("_id") or row["id"], "text": row["question"], "answers": answers}
    if "paragraphs" in row:  # MuSiQue
        found = [
            Document(id=str(entry["idx"]), title=entry["title"], text=entry["paragraph_text"])
            for entry in row["paragraphs"]
        ]
        supporting = [entry["is_supporting"] for entry in row["paragraphs"]]
        gold = frozenset(document.full for document, is_gold in zip(found, supporting, strict=True) if is_gold)
        return Question(**asked, gold=gold, paragraphs=tuple(found), is_complete=True)
    paragraphs = tuple(
        Document(id=str(number), title=title, text=" ".join(sentence.strip() for sentence in sentences))
        for number, (title, sentences) in enumerate(row.get("context", ()))
    )
    gold = frozenset(fact[0] for fact in row["supporting_facts"])
    is_complete = row.get("context_complete", gold <= {document.title for document in paragraphs})
    return Question(**asked, gold=gold, paragraphs=paragraphs, is_complete=is_complete)


def recall(found: Sequence[Document], question: Question, gold_is_text: bool, cut: int) -> float:
    """Share of the gold among the first `cut` results."""
    first = {document.full if gold_is_text else document.title for document in found[:cut]}
    return len(question.gold & first) / len(question.gold)


def cells(finds: Sequence[Sequence[Document]], asked: Sequence[Question], gold_is_text: bool, within: bool) -> str:
    """`40.2 / 50.3 / 58.0 / 12.9`; within paragraphs without the last two."""
    pairs = list(zip(finds, asked, strict=True))
    means = [
        statistics.fmean(recall(found, question, gold_is_text, cut) for found, question in pairs)
        for cut in (CUTS[:2] if within else CUTS)
    ]
    if not within:
        means.append(statistics.fmean(recall(found, question, gold_is_text, 5) == 1 for found, question in pairs))
    return " / ".join(f"{100 * mean:.1f}" for mean in means)


def over_corpus(index: Index, asked: Sequence[Question]) -> list[list[Document]]:
    """Search results for each question."""
    return [[document for document, _ in index.search(question.text, max(CUTS))] for question in asked]


def within_paragraphs(index: Callable[[Sequence[Document]], Index], asked: Sequence[Question]) -> list[list[Document]]:
    """The same, each question over its own paragraphs."""
    return [over_corpus(index(question.paragraphs), [question])[0] for question in asked]


def opened(name: str) -> IndexRetriever:
    """One of our retrievers; plain is bm25 without stems, with stop words."""
    retriever = open_retriever("bm25", PLAIN) if name == "plain" else open_retriever(name, STEMMED)
    assert isinstance(retriever, IndexRetriever)
    return retriever


def with_stored(name: str, corpus: Corpus) -> Callable[[Sequence[Document]], Index]:
    """A retriever's `index` that reuses a corpus's vectors for paragraphs if available."""
    import numpy as np

    if name not in ("semantic", "hybrid"):
        return opened(name).index
    bm25, semantic = opened("bm25"), opened("semantic")
    assert isinstance(bm25, Bm25)
    assert isinstance(semantic, Semantic)
    known = semantic.corpus_index(corpus)
    stored = {document.full: vector for document, vector in zip(known.documents, known.vectors, strict=True)}

    def index(documents: Sequence[Document]) -> Index:
        missing = [document for document in documents if document.full not in stored]
        new = {one.full: vector for one, vector in zip(missing, semantic.index(missing).vectors, strict=True)}
        vectors = np.stack([stored[one.full] if one.full in stored else new[one.full] for one in documents])
        meaning = SemanticIndex(documents, vectors=vectors, encoder=known.encoder)
        return meaning if name == "semantic" else HybridIndex(bm25.index(documents), meaning)

    return index


def recall_tables(args: argparse.Namespace) -> None:
    names = args.retrievers.split(",")
    corpus_rows, own_rows = [], []
    for chosen in SETS:
        if chosen.name not in args.sets.split(",") or (chosen.name == "hipporag" and args.split != "dev"):
            continue
        asked = questions(args.data, chosen, args.split)
        corpus = open_corpus(args.data / chosen.corpus, args.index_dir)
        finds = [over_corpus(opened(name).corpus_index(corpus), asked) for name in names]
        line = [cells(found, asked, chosen.gold_is_text, within=False) for found in finds]
        corpus_rows.append([chosen.name, str(len(asked)), f"{len(corpus.documents):,}", *line])
        complete = [question for question in asked if question.paragraphs and question.is_complete]
        if complete:
            finds = [within_paragraphs(with_stored(name, corpus), complete) for name in names]
            line = [cells(found, complete, chosen.gold_is_text, within=True) for found in finds]
            own_rows.append([chosen.name, str(len(complete)), *line])
    print(f"Over a corpus, {args.split} rows: R@2 / R@5 / R@10 / all gold in the first 5, %\n")
    _print_table(["set", "questions", "passages", *names], corpus_rows)
    print(f"\nWithin the question's own paragraphs, {args.split} rows: R@2 / R@5, %\n")
    _print_table(["set", "questions", *names], own_rows)


def speed_table(args: argparse.Namespace) -> None:
    rows = []
    for chosen in SETS:
        if chosen.name in args.sets.split(","):
            corpus = open_corpus(args.data / chosen.corpus, args.index_dir)
            asked = [question.text for question in questions(args.data, chosen, "dev")]
            asked = (asked * (args.queries // len(asked) + 1))[: args.queries]
            for label, name in (("stem + stop", "bm25"), ("plain", "plain")):
                rows.append([chosen.name, f"{len(corpus.documents):,}", label, *_speeds(corpus, name, asked, args)])
    print(f"Queries/s, {args.queries:,} queries in one batch, 100 hits each, medians of {args.repeats}\n")
    _print_table(["corpus", "passages", "words", "bm25s", "bm25s, numpy", "ours", "ratio", "ours, 10 documents"], rows)


def _speeds(corpus: Corpus, name: str, asked: list[str], args: argparse.Namespace) -> list[str]:
    """bm25s with its default top-k (JAX if installed) and with numpy's, ours, ratio of ours to the faster of both."""
    import bm25s
    import Stemmer

    retriever = opened(name)
    settings = retriever.retrieval
    options: dict[str, Any] = {
        "stopwords": "en" if settings.remove_stop_words else [],
        "stemmer": Stemmer.Stemmer("english") if settings.stem else None,
        "show_progress": False,
    }
    direct = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    direct.index(bm25s.tokenize([document.full for document in corpus.documents], **options), show_progress=False)
    index = retriever.corpus_index(corpus)

    def use_directly(top_k: str) -> None:
        direct.retrieve(bm25s.tokenize(asked, **options), k=100, show_progress=False, backend_selection=top_k)

    def use_ours() -> None:
        for query in asked:
            best(index.scores(query), 100, index.floor)

    def use_ours_with_documents() -> None:
        for query in asked:
            index.search(query, 10)

    ways: list[Callable[[], None]] = [
        lambda: use_directly("auto"),
        lambda: use_directly("numpy"),
        use_ours,
        use_ours_with_documents,
    ]
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(args.repeats):
        for way, taken in zip(ways, times, strict=True):
            begin = time.perf_counter()
            way()
            taken.append(time.perf_counter() - begin)
    rates = [len(asked) / statistics.median(taken) for taken in times]
    ratio = rates[2] / max(rates[:2])
    return [*(f"{rate:,.0f}" for rate in rates[:3]), f"**{ratio:.2f}**", f"{rates[3]:,.0f}"]


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["recall", "speed"], help="recall, speed; default: both")
    parser.add_argument("--data", type=Path, default=os.environ.get("RLVR_DATA", "data"))
    parser.add_argument("--index-dir", type=Path)
    parser.add_argument("--split", choices=("dev", "train"), default="dev")
    parser.add_argument("--sets", default="musique,hotpotqa,wiki2,hipporag")
    parser.add_argument("--retrievers", default="bm25,plain,semantic,hybrid")
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    args.data = Path(args.data)
    for part in args.parts:
        {"recall": recall_tables, "speed": speed_table}[part](args)
        print(flush=True)


if __name__ == "__main__":
    main()
