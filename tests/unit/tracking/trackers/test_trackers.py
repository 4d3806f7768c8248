from pathlib import Path

import pytest

from rlvr.errors import ConfigError
from rlvr.tracking.trackers.base import without_password
from rlvr.tracking.trackers.mlflow import allowed
from rlvr.tracking.trackers.wandb import Wandb, has_key
from tests.unit.tracking.trackers.fake import Fake


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.tracking.trackers.base.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tracker\.report_to: wandb .*pip install -e '\.\[wandb\]'"):
        Wandb().check_installed()
    Fake().check_installed()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("eval/rpn/accuracy_2_operators", "eval/rpn/accuracy_2_operators"),
        ("reward.parts.a+b.weight", "reward.parts.a_b.weight"),
        ("reward/../x", "reward/_/x"),
        ("x" * 300, "x" * 250),
    ],
)
def test_names_that_mlflow_refuses_are_changed(name: str, expected: str) -> None:
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


def test_an_account_is_in_the_environment_or_the_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
