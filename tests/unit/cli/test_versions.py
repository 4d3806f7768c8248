"""The note on libraries outside of their tested range, from patched metadata."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlvr.cli import versions
from rlvr.cli.versions import note_untested_versions, untested_versions
from rlvr.errors import UserError
from rlvr.places import cache_folder

REQUIRES = [
    "hydra-core<1.4,>=1.3.2",
    "numpy<3,>=2.0",
    "peft<0.22,>=0.19",
    "torch<2.14,>=2.8",
    "transformers<5.25,>=5.17",
    "torchvision<1; extra == 'x'",
]
TESTED = {"hydra-core": "1.3.2", "peft": "0.21.2", "torch": "2.13.0+cpu", "transformers": "5.24.0", "numpy": "9.0"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """The versions that the metadata names; a test changes them."""
    found = dict(TESTED)
    monkeypatch.setattr(versions, "requires", lambda name: REQUIRES)
    monkeypatch.setattr(versions, "version", found.__getitem__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return found


def test_tested_versions_need_no_note(installed: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    note_untested_versions()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "version", "untested"),
    [
        ("transformers", "5.25.0", True),
        ("transformers", "5.25.0rc1", True),
        ("transformers", "5.24.9", False),
        ("transformers", "5.9.3", True),
        ("transformers", "6", True),
        ("peft", "0.19", False),
        ("peft", "0.18.1", True),
        ("torch", "2.14.0+cu130", True),
        ("torch", "2.8.0", False),
        ("hydra-core", "1.4.0.dev1", True),
        ("hydra-core", "1.3.1", True),
        ("hydra-core", "main", True),
        ("numpy", "9.9", False),
    ],
)
def test_a_version_outside_of_the_range_is_named(
    name: str, version: str, untested: bool, installed: dict[str, str]
) -> None:
    installed[name] = version
    assert [text.split(" (tested: ")[0] for text in untested_versions()] == [f"{name} {version}"] * untested


def test_the_note_is_printed_once_a_day_and_again_for_another_version(
    installed: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    installed |= {"transformers": "5.25.0", "peft": "0.22.0"}
    line = "not tested with peft 0.22.0 (tested: <0.22,>=0.19), transformers 5.25.0 (tested: <5.25,>=5.17)\n"
    note_untested_versions()
    told = capsys.readouterr().err
    assert told.startswith("note: rlvr ")
    assert told.endswith(line)
    note_untested_versions()
    assert capsys.readouterr().err == ""
    (stamp,) = (tmp_path / "cache" / "rlvr" / "untested").iterdir()
    os.utime(stamp, (today := time.time() - 23 * 3600, today))
    note_untested_versions()
    assert capsys.readouterr().err == ""
    os.utime(stamp, (yesterday := time.time() - 24 * 3600 - 1, yesterday))
    note_untested_versions()
    assert capsys.readouterr().err == told
    installed["peft"] = "0.23.0"
    note_untested_versions()
    assert "peft 0.23.0" in capsys.readouterr().err
    installed["peft"] = "0.22.0"  # another environment of the same user
    note_untested_versions()
    assert capsys.readouterr().err == ""


def test_a_user_without_a_home_or_a_damaged_library_is_no_error(
    installed: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    installed["peft"] = None  # type: ignore[assignment]  # what importlib.metadata says
    note_untested_versions()
    assert "not tested with peft ? (" in capsys.readouterr().err
    with pytest.raises(UserError, match="set XDG_CACHE_HOME"):
        cache_folder()


def test_a_cache_that_cannot_be_written_is_no_error(
    installed: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file")
    installed["peft"] = "0.22.0"
    note_untested_versions()
    note_untested_versions()
    assert capsys.readouterr().err.count("note: ") == 2


def test_the_ranges_are_found_in_our_metadata() -> None:
    named = {name for name in versions.INTERNALS for text in versions.requires("rlvr") or () if text.startswith(name)}
    assert named == {*versions.INTERNALS}


def test_no_library_is_imported_for_the_note() -> None:
    code = "import sys; from rlvr.cli.versions import untested_versions; untested_versions(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"torch", "transformers", "peft", "hydra", "packaging"} & {*loaded} == set()
