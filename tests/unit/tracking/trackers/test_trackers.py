import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlvr.errors import ConfigError
from rlvr.settings import validated
from rlvr.tracking.trackers.base import without_password
from rlvr.tracking.trackers.mlflow import allowed, split_tag
from rlvr.tracking.trackers.wandb import Wandb, has_key
from tests.unit.tracking.trackers.fake import Fake
from tests.unit.tracking.trackers.test_tensorboard import facts


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.tracking.trackers.base.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tracker\.report_to: wandb .*pip install 'rlvr\[wandb\]'"):
        Wandb().check_installed()
    Fake().check_installed()


def test_a_folder_that_is_called_like_a_library_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tracker_of_a_folder").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(Fake, "needs_package", "tracker_of_a_folder")
    with pytest.raises(ConfigError, match="pip install tracker_of_a_folder"):
        Fake().check_installed()


@pytest.mark.parametrize(
    ("tag", "pair"),
    [("team:nlp", ("team", "nlp")), ("paper", ("paper", "true")), (":x", (":x", "true")), ("a:b:c", ("a", "b:c"))],
)
def test_a_tag_may_have_a_value(tag: str, pair: tuple[str, str]) -> None:
    assert split_tag(tag) == pair


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("eval/rpn/accuracy_2_operators", "eval/rpn/accuracy_2_operators"),
        ("reward.parts.a+b.weight", "reward.parts.a_b.weight"),
        ("reward/../x", "reward/_/x"),
        ("x" * 300, "x" * 250),
    ],
)
def test_names_that_mlflow_refuses_are_changed_as_little_as_possible(name: str, expected: str) -> None:
    assert allowed(name) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://me:s3cret@host:5000/x", "http://host:5000/x"),
        ("request to https://me:s3cret@host/api failed: a@b", "request to https://host/api failed: a@b"),
        ("http://host/a@b", "http://host/a@b"),
        ("sqlite:///a/b@c.db", "sqlite:///a/b@c.db"),
    ],
)
def test_an_address_is_shown_without_its_password(text: str, expected: str) -> None:
    assert without_password(text) == expected


def test_an_account_is_one_in_the_environment_or_the_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not has_key()
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert has_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not has_key()
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert has_key()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, ("theirs", "team")), ({"project": "mine", "entity": "us"}, ("mine", "us"))],
)
def test_the_environment_names_project_and_entity_where_settings_do_not(
    settings: dict[str, str], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class InitError(Exception):
        """Instead of a run."""

    told: dict[str, object] = {}

    def init(**arguments: object) -> None:
        told.update(arguments)
        raise InitError

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict))
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    monkeypatch.setenv("WANDB_ENTITY", "team")
    monkeypatch.setenv("WANDB_DATA_DIR", "kept")
    monkeypatch.setenv("WANDB_CACHE_DIR", "kept")
    with pytest.raises(InitError):
        validated(Wandb, settings).start(facts(tmp_path))
    assert (told["project"], told["entity"]) == expected


def test_no_library_is_imported_by_naming_a_tracker() -> None:
    code = "import sys, rlvr.tracking.trackers.fanout, rlvr.tracking.trackers.mlflow as m, "
    code += "rlvr.tracking.trackers.wandb, rlvr.tracking.trackers.tensorboard; "
    code += "print([name for name in ('mlflow', 'wandb', 'tensorboard') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
