"""Commands, blocks of code, links and anchors of a Markdown page."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHELL = ("bash", "sh", "console")
PROGRAMS = ("rlvr", "python", "python3", "pip", "curl", "vf-install", "vf-eval", "export")


def pages() -> list[Path]:
    """The README and every page of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """`docs/train.md`"""
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: `Block(line=12, language="yaml", file="mine/quick.yaml", text="...")`; mostly without a file."""

    line: int
    language: str
    file: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line: `rlvr eval runs/latest --json | head -1` of docs/evaluation.md, line 12.

    `words` are those of the first program, without the folder of a virtual environment and without comments.
    """

    page: str
    line: int
    words: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    output: str | None = None  # behind >

    @property
    def text(self) -> str:
        """As one line, to be matched by the table of treatments."""
        return shlex.join(self.words)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, also those with a longer fence."""
    return [
        Block(line=text.count("\n", 0, found.start(4)) + 1, language=found[2], file=found[3], text=found[4])
        for found in re.finditer(r"(?ms)^[ \t]*(`{3,})(\w*) ?([\w/.-]*)\n(.*?)^[ \t]*\1[ \t]*$", text)
    ]


def commands(page: Path) -> list[Command]:
    """All command lines of a page, in order.

    Of a shell block each line is one. In a block without a language, which shows a session or a list of commands, those
    behind `$ ` are, or, where there is no such line, those that begin with a program of ours.
    """
    return [
        command
        for block in blocks(page.read_text(encoding="utf-8"))
        for number, line in _lines(block)
        for command in _commands(name_of(page), number, line)
    ]


def files(page: Path) -> dict[str, str]:
    """The files that a page has its reader make: YAML, Python and rows, by their names."""
    kinds = ("yaml", "python", "json")
    return {b.file: b.text for b in blocks(page.read_text(encoding="utf-8")) if b.file and b.language in kinds}


def _lines(block: Block) -> list[tuple[int, str]]:
    if block.language not in (*SHELL, ""):
        return []
    joined = _joined(block)
    prompted = [(number, line[2:]) for number, line in joined if line.startswith("$ ")]
    if prompted or (block.language == "console"):
        return prompted
    if block.language in SHELL:
        return [(number, line) for number, line in joined if line and not line.startswith("#")]
    # a table of commands: what stands behind three spaces says what they are for
    return [
        (number, re.split(r"\s{3,}", line)[0])
        for number, line in joined
        if re.match(rf"(\.venv/bin/)?({'|'.join(PROGRAMS)}) [^:|]", line)
    ]


def _joined(block: Block) -> list[tuple[int, str]]:
    """Lines with those that a backslash continues."""
    found: list[tuple[int, str]] = []
    is_continued = False
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        part = line.rstrip().removesuffix("\\").rstrip()
        if is_continued:
            start, before = found.pop()
            number, part = start, f"{before} {part.strip()}"
        found.append((number, part))
        is_continued = line.rstrip().endswith("\\")
    return found


def _commands(page: str, number: int, line: str) -> list[Command]:
    line = re.sub(r"""('[^']*'|"[^"]*")|(?<!\S)#.*""", r"\1", line)  # a # inside a word or quotes begins no comment
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    parts: list[list[str]] = [[]]
    for word in lexer:
        if word in ("&&", ";"):
            parts.append([])
        elif word != "&":
            parts[-1].append(word)
    return [_command(page, number, part) for part in parts if part]


def _command(page: str, number: int, words: list[str]) -> Command:
    words = words[: words.index("|")] if "|" in words else words
    output = None
    if ">" in words:
        place = words.index(">")
        output, words = words[place + 1], words[:place]
    variables = {}
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        key, _, value = words.pop(0).partition("=")
        variables[key] = value
    if words:
        words[0] = re.sub(r"^\.?[\w/]*venv/bin/", "", words[0])
    return Command(page=page, line=number, words=tuple(words), variables=variables, output=output)


# ------------------------------------------------------------------------------------------------------ links, anchors


def links(page: Path) -> list[tuple[int, str]]:
    """Targets of the links and pictures of a page, with their lines; none of those inside code."""
    found, fence = [], ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        marks = re.match(r"\s*(`{3,})", line)
        if marks and not fence:
            fence = marks[1]
        elif marks and line.strip() == fence:
            fence = ""
        elif not fence:
            plain = re.sub(r"`[^`]*`", lambda code: "x" * len(code[0]) if "](" not in code[0] else code[0], line)
            found += [(number, target) for target in re.findall(r"\]\(([^)\s]+)\)", plain)]
    return found


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(text):
        text = text.replace(block.text, "")
    found: set[str] = set()
    for title in re.findall(r"(?m)^#{1,6}\s+(.+?)\s*$", text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        base = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        name, count = base, 0
        while name in found:
            count += 1
            name = f"{base}-{count}"
        found.add(name)
    return found
