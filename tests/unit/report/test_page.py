import base64
import hashlib
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from rlvr.errors import UserError
from rlvr.report.page import Page, pack, render, write_report
from tests.unit.report.runs import chunk_of

ASSETS = files("rlvr.report").joinpath("assets")
HOSTILE = "</script><script>alert(1)</script><!-- <script>"


def scripts() -> dict[str, str]:
    return {file.name: file.read_text() for file in ASSETS.iterdir() if file.name.endswith(".js")}


def test_data_comes_back_from_the_page_as_it_was() -> None:
    main = {"title": "t", "texts": ["\u2028", "😀", "\ud800", "%%DATA%%"], "numbers": [None, 0.1, 12]}
    html = render(Page(title="t", main=main, chunks={"index": pack([1, 2])}))
    assert chunk_of(html, "main") == main
    assert chunk_of(html, "index") == [1, 2]


def test_pitfall_38_texts_in_data_and_title_cannot_break_out() -> None:
    html = render(Page(title=HOSTILE, main={"text": HOSTILE}, chunks={"index": pack([HOSTILE])}))
    assert "alert(1)</script>" not in html
    assert html.count("</script>") == 3  # main, index, the page's own
    assert "<title>&lt;/script&gt;" in html


def test_pitfall_38_only_the_pages_own_script_and_style_may_run() -> None:
    html = render(Page(title="t", main={}))
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    assert found
    rules = dict(rule.strip().split(" ", 1) for rule in found[1].split(";"))
    assert rules["default-src"] == "'none'"
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[kind] == f"'sha256-{digest}'"


def test_pitfall_38_no_script_makes_code_or_markup_out_of_text() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://|<script"
    for name, text in scripts().items():
        code = re.sub(r"(?m)^((?!.*://).*?)//.*", r"\1", text)  # without comments
        found = re.search(forbidden, code.replace("http://www.w3.org/2000/svg", ""))
        assert not found, (name, found)


def test_no_two_scripts_use_one_name() -> None:
    """They become one script: a name that is declared twice would stop all of it."""
    pattern = r"^(?:async function|function|const|let|class) ([A-Za-z_]\w*)"
    names = Counter(name for text in scripts().values() for name in re.findall(pattern, text, re.MULTILINE))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    report = write_report(Page(title="t", main={}), tmp_path, path)
    assert path.stat().st_size == report.size
    assert [one.name for one in path.parent.iterdir()] == ["report.html"]
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match=r"Cannot write .*taken"):
        write_report(Page(title="t", main={}), tmp_path, tmp_path / "taken")
