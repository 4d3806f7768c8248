"""Sections of trackers, ours and the user's own."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rlvr.errors import ConfigError
from rlvr.settings import dumped, validated
from rlvr.tracking.settings import TrackerSettings

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "own"


def read(**values: Any) -> TrackerSettings:
    return validated(TrackerSettings, values)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_all_trackers_have_a_section_beside_the_other_keys() -> None:
    values = dumped(read())
    assert values["report_to"] == []
    assert values["wandb"] == {"project": "rlvr", "entity": None, "mode": "auto", "log_model": False}
    assert {"mlflow", "tensorboard"} < set(values)
    assert "backends" not in values
    settings = read(report_to=["wandb", "mlflow"], wandb={"project": "mine"}, tags=["a"])
    assert [tracker.name for tracker in settings.reported] == ["wandb", "mlflow"]
    assert dumped(settings)["wandb"]["project"] == "mine"
    assert read(**dumped(settings)) == settings


def test_reported_trackers_decide_whether_the_model_is_kept() -> None:
    assert not read().keeps_model
    assert not read(report_to=["wandb", "tensorboard"]).keeps_model
    assert read(report_to=["mlflow"]).keeps_model
    assert not read(report_to=["mlflow"], mlflow={"log_model": False}).keeps_model


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"report_to": ["wndb"]}, r"tracker.report_to=wndb: there is no such tracker; did you mean wandb\?"),
        ({"report_to": ["no_such_module:Csv"]}, "module no_such_module cannot be imported"),
        ({"report_to": ["half:Csv"]}, r"has no method log, which every Tracker needs"),
        ({"report_to": ["half:Csw"]}, r"module half has no Tracker Csw; did you mean Csv\?"),
        ({"report_to": ["half:Group"]}, r"tracker.group is taken"),
        ({"mlflow": {"tracking_uri": "postgresql://me:secret@db/x"}}, "^tracker.mlflow.tracking_uri: holds a pass"),
    ],
)
def test_a_wrong_tracker_is_one_sentence(folder: Path, values: dict[str, Any], message: str) -> None:
    imports = "from rlvr.tracking.trackers.base import Tracker\n"
    (folder / "half.py").write_text(f"{imports}class Csv(Tracker): pass\nclass Group(Tracker): pass\n")
    with pytest.raises(ConfigError, match=message) as error:
        read(**values)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_an_error_inside_a_section_keeps_its_place() -> None:
    with pytest.raises(ValidationError) as caught:
        read(wandb={"mode": "sometimes"})
    (outer,) = caught.value.errors()
    (section,) = outer["ctx"]["errors"]
    (inner,) = section["ctx"]["errors"]
    assert (outer["ctx"]["model"], section["loc"], inner["loc"]) == (TrackerSettings, ("wandb",), ("mode",))


def test_the_section_of_a_user_tracker_is_named_after_its_class(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    settings = read(report_to=["my_tracker:Csv"], csv={"path": "mine.csv"})
    assert dumped(settings)["csv"] == {"path": "mine.csv"}
    assert [tracker.name for tracker in settings.reported] == ["my_tracker:Csv"]
    assert read(**dumped(settings)) == settings
