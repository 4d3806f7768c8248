"""The wheel in a virtual environment of its own: its files, its command, and a first run as a user makes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import rlvr
from tests.system.harness import ENVIRONMENT, metrics
from tests.system.served import check_installed

pytestmark = pytest.mark.long
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`rlvr` of an environment that has the wheel, and from the running environment the libraries alone."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", python]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], check=True)
    # a path in a .pth file is searched last, and the .pth files in it (an editable install of rlvr) are not read
    libraries = dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text("\n".join(libraries) + "\n")
    return folder / "bin" / "rlvr"


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ENVIRONMENT


def run(program: Path, *words: str, cwd: Path) -> str:
    """What the command prints."""
    done = subprocess.run([program, *words], cwd=cwd, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    files = {path for path in (SOURCE / "rlvr").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"rlvr", f"rlvr-{rlvr.__version__}.dist-info"}  # and no plugin
    packed = {name for name in names if name.startswith("rlvr/")}
    assert packed == {path.relative_to(SOURCE).as_posix() for path in files}
    assert {"rlvr/py.typed", "rlvr/conf/rpn.yaml", "rlvr/report/assets/app.js"} <= packed


def test_a_first_run_from_an_empty_folder(program: Path, tmp_path: Path) -> None:
    assert run(program, "--version", cwd=tmp_path) == f"rlvr {rlvr.__version__}\n"
    out = run(program, "train", "--config-name", "rpn_test", "run_dir=run", cwd=tmp_path)
    assert out.startswith("rpn: held-out accuracy")
    assert len(metrics(tmp_path / "run")) == 16
    (tmp_path / "run" / "report.html").unlink()
    run(program, "report", "run", cwd=tmp_path)
    assert "<script" in (tmp_path / "run" / "report.html").read_text()
    scores = json.loads(run(program, "eval", "run", "--num-examples", "10", "--json", cwd=tmp_path))
    assert 0 <= scores["eval/rpn/accuracy"] <= 1
    check_installed([program], tmp_path, environment(), "<boe> 3 4 + =")
