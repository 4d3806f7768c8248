"""Settings of the trackers, as `test_settings` has those of everything else: two values give something else."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.system.harness import SMALL, Finished, pretrained, run_train
from tests.system.test_trackers import TENSORBOARD, hanging, refusing
from tests.system.tracker_readers import Kept, from_mlflow, from_tensorboard, from_wandb

pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore")]  # the libraries' warnings


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a run left behind in each tracker; None where it was not reported to."""

    mlflow_store: str
    mlflow: Kept
    wandb: Kept
    tensorboard: Kept | None


@dataclass(frozen=True, kw_only=True)
class TrackerCase:
    """`a` and `b` are values of `path`; `look` must see something else in the runs that have them."""

    path: str
    a: str
    b: str
    look: Callable[[Seen], Any]
    owner: str = ""


def case(name: str, a: str, b: str, look: Callable[[Seen], Any]) -> TrackerCase:
    return TrackerCase(path=f"tracker.{name}", a=a, b=b, look=look)


READ_BACK = [
    case("report_to", "[mlflow,wandb,tensorboard]", "[mlflow,wandb]", lambda seen: seen.tensorboard is None),
    case("run_name", "null", "mine", lambda seen: (seen.mlflow.name, seen.wandb.name)),
    case("group", "null", "ours", lambda seen: (seen.mlflow.group, seen.wandb.group)),
    case("tags", "[]", "[paper]", lambda seen: ("paper" in seen.mlflow.tags, list(seen.wandb.tags))),
    case("max_completions", "3", "1", lambda seen: (len(seen.mlflow.completions[1]), len(seen.wandb.completions[1]))),
    case("mlflow.tracking_uri", "null", "sqlite:///FOLDER/other.db", lambda seen: seen.mlflow_store),
    case("mlflow.experiment", "null", "mine", lambda seen: seen.mlflow.config["tracker.mlflow.experiment"]),
    case("mlflow.log_model", "true", "false", lambda seen: "final/model.safetensors" in seen.mlflow.files),
    case("wandb.project", "rlvr", "mine", lambda seen: seen.wandb.project),
    case("wandb.entity", "null", "us", lambda seen: seen.wandb.entity),
    case("wandb.log_model", "false", "true", lambda seen: "model.safetensors" in seen.wandb.files),
]
ELSEWHERE = [
    TrackerCase(path=f"tracker.{name}", a=a, b=b, look=lambda seen: None)
    for name, a, b in (
        ("tensorboard.folder", "null", "FOLDER"),
        ("timeout_s", "0.5", "1.5"),
        ("upload_timeout_s", "600", "1e-6"),
        ("wandb.mode", "offline", "online"),
    )
]
TRACKER_CASES = [*READ_BACK, *ELSEWHERE]


@pytest.fixture(scope="module")
def both(model: Path, tracked: tuple[Path, Finished], tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, Seen]:
    """A run with all first values and one with all second ones."""
    seen = []
    for second in (False, True):
        folder = tmp_path_factory.mktemp("settings")
        shutil.copy(tracked[0].parent / "mlflow.db", folder / ("other.db" if second else "mlflow.db"))
        values = {case.path: (case.b if second else case.a).replace("FOLDER", str(folder)) for case in READ_BACK}
        words = [f"{path}={value}" for path, value in values.items()]
        run_train(
            folder / "run", *SMALL, *pretrained(model), "trainer.max_steps=1", "tracker.wandb.mode=offline", *words
        )
        store, experiment = ("other.db", "mine") if second else ("mlflow.db", "rpn")
        (mlflow,) = from_mlflow(f"sqlite:///{folder / store}", experiment).values()
        (offline,) = from_wandb(folder / "run")
        events = folder / "run" / "tensorboard"
        tensorboard = from_tensorboard(events) if events.exists() else None
        seen.append(Seen(mlflow_store=store, mlflow=mlflow, wandb=offline, tensorboard=tensorboard))
    return seen[0], seen[1]


@pytest.mark.parametrize("case", READ_BACK, ids=lambda case: case.path)
def test_a_setting_of_a_tracker_does_what_it_says(case: TrackerCase, both: tuple[Seen, Seen]) -> None:
    assert case.look(both[0]) != case.look(both[1])


@pytest.fixture
def said(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`said("tracker.report_to=wandb")`: stderr of a run."""

    def run(*words: str) -> str:
        run_train(tmp_path / "run", *SMALL, *pretrained(model), "tracker.console=plain", *words)
        return capsys.readouterr().err

    return run


def test_event_files_go_where_they_are_wanted(said: Callable[..., str], tmp_path: Path) -> None:
    said(TENSORBOARD, f"tracker.tensorboard.folder={tmp_path / 'events'}")
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert from_tensorboard(tmp_path / "events").status == "finished"


@pytest.mark.parametrize("limit", ["0.5", "1.5"])
def test_a_tracker_is_given_up_after_so_long(limit: str, said: Callable[..., str]) -> None:
    with hanging() as port:
        server = f"tracker.mlflow.tracking_uri=http://127.0.0.1:{port}"
        text = said("tracker.report_to=mlflow", server, f"tracker.timeout_s={limit}")
    assert f"MLflow at http://127.0.0.1:{port} is disabled" in text
    assert f"within {limit} s" in text


def test_the_model_has_a_limit_of_its_own(said: Callable[..., str]) -> None:
    words = ("tracker.report_to=wandb", "tracker.wandb.mode=offline", "tracker.wandb.log_model=true")
    assert "no answer to `model` within 1e-06 s" in said(*words, "tracker.upload_timeout_s=1e-6")


def test_online_needs_a_server(said: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with refusing() as port:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        words = ("tracker.report_to=wandb", "tracker.wandb.mode=online", "tracker.timeout_s=2")
        assert "Weights & Biases is disabled" in said(*words)
