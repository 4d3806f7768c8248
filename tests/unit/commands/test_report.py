"""`rlvr report` refuses options that would do nothing; tests/system/test_report_live.py serves a page."""

import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Rlvr
from tests.unit.report.runs import save_run


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--live", "nowhere"], 1, "there is no run in nowhere"),
        (["{}", "--port", "0"], 2, "--port 0: has no effect without --live"),
        (["{}", "--host", "0.0.0.0"], 2, "--host 0.0.0.0: has no effect without --live"),
        (["--live", "{}", "--output", "x.html"], 2, "--output: has no effect with --live"),
        (["--live", "{}", "--json"], 2, "--json: has no effect with --live"),
    ],
)
def test_what_would_do_nothing_is_refused(tmp_path: Path, words: list[str], code: int, said: str, rlvr: Rlvr) -> None:
    save_run(tmp_path / "run")
    ran = rlvr("report", *(word.format(tmp_path / "run") for word in words))
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert said in ran.err


def test_a_folder_of_sweeps_is_one_page(tmp_path: Path, rlvr: Rlvr) -> None:
    for name in ("one/seed-1", "one/seed-2", "two/seed-1"):
        save_run(tmp_path / name)
    assert rlvr("report", tmp_path, "--json").lines[0]["episodes"] == 9
    save_run(tmp_path / "own")
    assert rlvr("report", tmp_path, "--json").lines[0]["episodes"] == 12


def test_only_what_serves_the_page_must_be_installed(
    tmp_path: Path, rlvr: Rlvr, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what `rlvr serve` constrains completions with."""
    words = (
        "report",
        "--live",
        save_run(tmp_path / "run"),
        "--host",
        "192.0.2.1",
        "--port",
        "0",
    )  # not of this machine
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert "--host 192.0.2.1 --port 0 cannot be used" in rlvr(*words).err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    ran = rlvr(*words)
    assert ran.code == 2
    assert "rlvr report --live needs starlette and uvicorn; install them with: " in ran.err


@pytest.mark.parametrize(("left_out", "episodes"), [(0, "3 episodes"), (2, "1 episode")])
def test_the_file_is_printed_with_its_size(left_out: int, episodes: str, tmp_path: Path, rlvr: Rlvr) -> None:
    run = save_run(tmp_path / "run")
    ran = rlvr("report", run, "--max-episodes", 3 - left_out)
    size = (run / "report.html").stat().st_size
    assert ran.out == f"{run / 'report.html'}: {episodes}, {size / 1e6:.1f} MB; open it in a browser\n"
    (line,) = rlvr("report", run, "--max-episodes", 3 - left_out, "--output", tmp_path / "x.html", "--json").lines
    assert (line["report"], line["episodes"], line["left_out"]) == (str(tmp_path / "x.html"), 3 - left_out, left_out)
    assert line["bytes"] == (tmp_path / "x.html").stat().st_size
    assert bool(line["notes"]) == bool(left_out)


def test_what_is_not_there_has_no_report(tmp_path: Path, rlvr: Rlvr) -> None:
    ran = rlvr("report", save_run(tmp_path / "run"), tmp_path / "none")
    assert (ran.code, ran.out) == (1, "")
    assert f"there is no {tmp_path / 'none'}: name a run folder, or records of evaluations." in ran.err
