"""One self-contained HTML file: assets/ as text, data as gzip in base64.

The page loads nothing and executes no data: scripts are allowed by hash, data is base64 (no `<` can occur), and the
page's code shows it as text only.
"""

import base64
import gzip
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlvr.records.files import write_atomically, writing

SHELL_BYTES = 200_000  # size of a page without data


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page's data. `main` (see the top of assets/app.js) is read at once, `chunks` (made by `pack`) on demand.

    It holds the texts of `kept` of `total` episodes; `notes` name damaged or excluded parts.
    """

    title: str
    main: Mapping[str, Any]
    chunks: Mapping[str, bytes] = field(default_factory=dict)
    kept: int = 0
    total: int = 0
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class PageLimits:
    max_episodes: int = 20_000
    max_mb: float = 30.0

    @property
    def max_packed_bytes(self) -> float:
        """Size limit of all chunks, without the page's own files."""
        return max(0.0, self.max_mb * 1e6 - SHELL_BYTES) * 3 / 4  # base64 makes 4 bytes of 3


def pack(value: Any) -> bytes:
    """A JSON value of finite numbers in gzip; equal values give equal bytes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # a lone surrogate in a decoded text must not break the page
    return gzip.compress(text.encode("utf-8", errors="backslashreplace"), compresslevel=4, mtime=0)


def finite(value: float | None, digits: int = 6) -> float | None:
    """A number with `digits` significant digits, None if it is not finite: `finite(0.12345678)` is 0.123457."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.{digits}g}")


def render(page: Page) -> str:
    style, script = _assets(".css"), _assets(".js")
    sources = f"script-src {_hash(script)}; style-src {_hash(style)}"
    connects = "; connect-src 'self'" if page.main.get("live") else ""  # a served page asks for news
    data = {"main": pack(page.main), **page.chunks}
    blocks = [
        f'<script type="application/gzip" id="chunk-{html.escape(name)}">{base64.b64encode(value).decode()}</script>'
        for name, value in data.items()
    ]
    fill = {
        "POLICY": f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'{connects}",
        "TITLE": html.escape(page.title),
        "STYLE": style,
        "DATA": "\n".join(blocks),
        "SCRIPT": script,
    }
    pieces = _asset("page.html").split("%%")  # text, name, text, name, ..., text
    return "".join(fill[piece] if number % 2 else piece for number, piece in enumerate(pieces))


@dataclass(frozen=True, kw_only=True)
class Report:
    """A written page: size in bytes, numbers of embedded and excluded episodes, notes on damaged parts."""

    path: Path
    size: int
    num_episodes: int
    num_left_out: int
    notes: Sequence[str]


def write_report(page: Page, source: Path, output: Path | None = None) -> Report:
    """Write a page atomically; by default `report.html` in the folder `source`, `F.html` beside `F.jsonl`.

    UserError if it cannot be written.
    """
    path = output or (source / "report.html" if source.is_dir() else source.with_suffix(".html"))
    data = render(page).encode("utf-8", errors="backslashreplace")
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    left_out = page.total - page.kept
    return Report(path=path, size=len(data), num_episodes=page.kept, num_left_out=left_out, notes=page.notes)


def _assets(suffix: str) -> str:
    """All assets with this suffix as one text: `base.*` first, `app.*` last, the others by name."""
    names = [file.name for file in files("rlvr.report").joinpath("assets").iterdir() if file.name.endswith(suffix)]
    order = {f"base{suffix}": 0, f"app{suffix}": 2}
    return "\n".join(_asset(name) for name in sorted(names, key=lambda name: (order.get(name, 1), name)))


def _asset(name: str) -> str:
    return files("rlvr.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source of an inline script or style in a Content-Security-Policy (w3.org/TR/CSP3, 2.3.1)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
