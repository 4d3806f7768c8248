"""`rlvr retrieve`: shows a retriever's results, serves it, or tells what decomposed questions would gain."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rlvr import imports, registry
from rlvr.cli.model_arguments import add_config_dir, add_set, at_least, port
from rlvr.cli.signals import ended_by_sigterm
from rlvr.errors import ConfigError
from rlvr.printable import printable

if TYPE_CHECKING:
    from rlvr.retrieval.retriever import Retriever
    from rlvr.retrieval.settings import RetrievalSettings

HELP = "search a corpus, or serve it"
DESCRIPTION = """Search a corpus, or serve it to other programs.
CORPUS is a file of passages: one JSON object per line (.jsonl) or a JSON list (.json), optionally .gz, with "text" and
optional "title" and "id". Its indexes are cached and rebuilt when the file changes.
With --decomposed it is a file of questions with their decompositions, as MuSiQue's: prints the recall of gold
sub-questions with and without the answers between them, beside the whole question and controls."""
EXAMPLE = """examples:
  rlvr retrieve corpus.jsonl.gz --query "Where was Marie Curie born?"     results of every retriever
  rlvr retrieve corpus.jsonl.gz --query "Marie Curie" --retriever bm25 --top-n 10 --json
  rlvr retrieve corpus.jsonl.gz --serve --retriever hybrid --port 8931    POST /search and /rerank, docs/retrieve.md
  rlvr retrieve musique/dev.jsonl.gz --decomposed --corpus musique/corpus.jsonl.gz
"""
SHOWN_CHARS = 200
TOP_N, PORT = 5, 8931
GOES_WITH = {  # option -> the actions that read it
    "json": ("query", "decomposed"),
    "top_n": ("query",),
    "corpus": ("decomposed",),
    "port": ("serve",),
    "host": ("serve",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="CORPUS", help=".jsonl, .jsonl.gz, .json or .json.gz")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--query", metavar="TEXT", help="print the passages found")
    action.add_argument("--serve", action="store_true", help="answer requests on this machine until Ctrl-C")
    action.add_argument(
        "--decomposed", action="store_true", help="print what gold sub-questions and bridges of the questions find"
    )
    parser.add_argument(
        "--retriever",
        metavar="R",
        help="bm25, filtered, semantic[/MODEL], hybrid[/MODEL], or your own, my_search:Elastic; default: all installed "
        "ones with --query, else bm25",
    )
    add_config_dir(parser)
    add_set(parser, "a field of your own retriever", "task.retrieval.own.width=4")
    parser.add_argument("--corpus", metavar="F", help="of --decomposed: also search these passages")
    parser.add_argument("--top-n", metavar="N", type=at_least(1), help=f"passages to print (default: {TOP_N})")
    parser.add_argument("--host", metavar="H", help="address of --serve (default: 127.0.0.1, this machine only)")
    parser.add_argument("--port", metavar="P", type=port, help=f"of --serve; 0: any (default: {PORT})")
    parser.add_argument("--index-dir", metavar="D", help="folder of cached indexes (default: ~/.cache/rlvr/retrieval)")
    parser.add_argument("--no-stem", action="store_true", help="bm25: do not stem words")
    parser.add_argument("--keep-stop-words", action="store_true", help="bm25: also search for 'the', 'of', ...")
    parser.add_argument("--json", action="store_true", help="print JSON lines, and nothing else, on stdout")


def run(args: argparse.Namespace) -> int:
    from rlvr.http_server import check_installed, reserve
    from rlvr.retrieval.server import serve
    from rlvr.retrieval.settings import RetrievalSettings

    for option, actions in GOES_WITH.items():
        value = getattr(args, option)
        if value is not None and value is not False and not any(getattr(args, action) for action in actions):
            raise ConfigError(f"--{option.replace('_', '-')} goes with --{' or --'.join(actions)}.")
    imports.look_in(args.config_dir)
    settings = RetrievalSettings(
        scope="corpus",
        corpus=args.file,
        index_dir=args.index_dir,
        stem=not args.no_stem,
        remove_stop_words=not args.keep_stop_words,
        own=_own(args.set, args.retriever),
    )
    if args.serve:
        name = args.retriever or "bm25"
        check_installed("--serve")
        host, port = args.host or "127.0.0.1", PORT if args.port is None else args.port
        with ended_by_sigterm(), reserve(host, port) as listening:
            serve(name, _opened(name, settings), host, listening)
        return 0
    if args.decomposed:
        _print_decomposed(settings, args)
        return 0
    for name in [args.retriever] if args.retriever else _local_names():
        try:
            retriever = _opened(name, settings)
        except ConfigError as error:
            if args.retriever or name == "bm25":
                raise
            print(f"rlvr: without {name}: {error}", file=sys.stderr)
            continue
        _print_found(name, retriever, args)
    return 0


def _own(lines: Sequence[str], retriever: str | None) -> dict[str, Any]:
    """The settings of the user's own retriever, with `--set` applied."""
    if not lines:
        return {}
    from rlvr.config.overrides import parse_overrides

    prefix, own = "task.retrieval.own.", {}
    for line, said in zip(lines, parse_overrides(lines), strict=True):
        if not said.key_or_group.startswith(prefix) or retriever is None:
            raise ConfigError(f"--set {line}: sets {prefix}KEY of the retriever that --retriever names, nothing else.")
        own[said.key_or_group.removeprefix(prefix)] = said.value()
    return own


def _local_names() -> list[str]:
    """Retrievers for any corpus, each once; bm25 first, which has no dependencies."""
    names: dict[type, str] = {}
    for name, component in registry.every("retriever").items():
        if component.is_local:
            names.setdefault(component, name)
    return list(names.values())


def _opened(name: str, settings: RetrievalSettings) -> Retriever:
    from rlvr.retrieval.retriever import find_retriever

    retriever = find_retriever(name, settings)
    if not retriever.is_local:
        others = ", ".join(_local_names())
        raise ConfigError(f"--retriever {name}: cannot search a corpus by itself; take one of {others}.")
    return retriever.open()


def _print_found(name: str, retriever: Retriever, args: argparse.Namespace) -> None:
    assert retriever.corpus is not None
    passages = retriever.corpus.documents
    begin = time.perf_counter()
    ranked = asyncio.run(retriever.ranked(args.query, passages, args.top_n or TOP_N))
    took = time.perf_counter() - begin
    rows = [
        {"retriever": name, "rank": rank, "score": round(score, 4)} | asdict(document)
        for rank, (document, score) in enumerate(ranked, start=1)
    ]
    lines = [json.dumps(line) for line in rows]
    if not args.json:
        lines = [name if rows else f"{name}: nothing", *map(result_lines, rows), ""]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    print(f"rlvr: {name}: {len(passages):,} passages searched in {1000 * took:.1f} ms", file=sys.stderr)


def _print_decomposed(settings: RetrievalSettings, args: argparse.Namespace) -> None:
    """The table of the questions' own paragraphs, then of the corpus."""
    from rlvr.commands.retrieve import decomposed
    from rlvr.data.multihop_sets import Library

    name, opened = args.retriever or "bm25", []
    for scope in ("paragraphs", "corpus") if args.corpus else ("paragraphs",):
        retriever = _opened(name, settings.model_copy(update={"scope": scope, "corpus": args.corpus}))
        corpus = retriever.corpus
        library = None if corpus is None else Library(corpus.documents, "title_and_text")
        opened.append((scope, retriever, *decomposed.read_questions(args.file, library)))
    for scope, retriever, questions, notes in opened:
        print(f"rlvr: {name}, {scope}: {len(questions):,} questions", *notes, sep="; ", file=sys.stderr)
        lines = decomposed.lines(scope, retriever, questions)
        texts = [json.dumps({"retriever": name} | line.as_json()) for line in lines]
        if not args.json:
            texts = [*([decomposed.header(lines)] if scope == "paragraphs" else []), *(line.as_row() for line in lines)]
        sys.stdout.write("".join(f"{text}\n" for text in texts))


def result_lines(line: Mapping[str, Any]) -> str:
    """A result in two lines of text."""
    text, name, title = (printable(" ".join(line[key].split())) for key in ("text", "id", "title"))
    text = text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."
    return f"  {line['rank']:2}  {line['score']:8.4f}  {name}  {title}\n{' ' * 16}{text}"
