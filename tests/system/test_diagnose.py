"""`rlvr diagnose`: a real flat run is explained, its remedy tried beside it, and the run only read."""

import json
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import pytest

import rlvr
from rlvr.commands.diagnose import trial
from rlvr.report.run import write_run_report
from rlvr.trust.chain import diagnosed
from tests.system.harness import SMALL, Cli, metrics, numbers, pretrained, run_train
from tests.unit.report.runs import chunk_of

FLAT = (
    *("trainer.max_steps=6", "rollout.temperature=0.02", "rollout.prompts_per_step=16", "trainer.learning_rate=1e-3"),
    *("evaluation.every=6", "evaluation.num_examples=16", "tracker.console=plain", "tracker.rollouts_every=5"),
    *("trainer.checkpoint_every=2", "trainer.keep_last=9"),
)


@pytest.fixture(scope="module")
def ended(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run whose completions of a question are all the same, and what it said."""
    folder = tmp_path_factory.mktemp("diagnosed") / "flat"
    with redirect_stderr(StringIO()) as said:
        run_train(folder, *SMALL, *pretrained(model), *FLAT)
    return folder, said.getvalue()


@pytest.fixture
def flat(ended: tuple[Path, str]) -> Path:
    return ended[0]


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_a_flat_run_is_explained_and_its_remedy_tried_beside_it(flat: Path, cli: Cli) -> None:
    before = contents(flat)
    done = cli.ok("diagnose", flat, "--try", "--steps", "3", "--json")
    found = json.loads(done.out)
    assert found["causes"][0]["name"] == "differs"
    assert found["causes"][0]["overrides"] == ["rollout.temperature=1"]
    tried = found["trial"]
    assert (tried["cause"], tried["start"], tried["steps"]) == ("differs", 0, 3)
    assert [one["name"] for one in tried["differences"]] == ["held-out accuracy", "rise of the reward"]
    arms = [Path(tried["folder"]) / name for name in ("unchanged", "remedy")]
    assert [rlvr.open(arm).config.rollout.temperature for arm in arms] == [0.02, 1.0]
    for name in ("unchanged", "remedy"):
        assert [row["step"] for row in metrics(flat.with_name("flat.try") / name)] == [0, 1, 2, 3]
    assert contents(flat) == before
    assert cli.ok("diagnose", flat).out.splitlines()[2].startswith("1. differs, ")


def test_the_unchanged_run_goes_on_as_the_run_did(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_start", lambda root, record: 2)
    found = trial.tried(str(flat), diagnosed(flat), 3)

    def after_two(folder: Path) -> list[dict[str, float]]:
        rows = [row for row in numbers(folder) if 3 <= row["step"] <= 5]
        return [{name: value for name, value in row.items() if not name.startswith("eval/")} for row in rows]

    assert len(after_two(flat)) == 3
    assert after_two(Path(found.folder) / "unchanged") == after_two(flat)
    assert after_two(Path(found.folder) / "remedy") != after_two(flat)


def test_its_report_has_a_tab(flat: Path, tmp_path: Path) -> None:
    page = write_run_report([flat], tmp_path / "page.html").path.read_text()
    checks = chunk_of(page, "main")["runs"][0]["checks"]
    assert [check["status"] for check in checks["diagnose"][:2]] == ["notice", "fail"]


def test_it_said_so_at_its_end(ended: tuple[Path, str]) -> None:
    folder, said = ended
    last = said.splitlines()[-1]
    assert last.startswith("the curve is flat: rollout.temperature=0.02: 0.1 to 2 is usual")
    assert last.endswith(f"Set rollout.temperature=1. More: rlvr diagnose {folder}")
