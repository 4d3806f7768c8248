"""Errors before processes are connected, and the process that reports them."""

from functools import partial

import pytest

from rlvr.errors import ConfigError
from rlvr.scale import launch
from rlvr.scale.launch import errors_once, open_world


def test_one_process_of_each_machine_reports_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[str] = []
    for rank in ("0", "1", "2"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setattr(launch, "wait_for_the_end", partial(waiting.append, rank))
        with pytest.raises(ConfigError, match="is bad"), errors_once():
            raise ConfigError("task.path=x: is bad.")
    assert waiting == ["1", "2"]


@pytest.mark.parametrize(
    ("size", "strategy", "wanted", "message"),
    [
        ("1", "fsdp2", 2, r"^trainer\.world_size=2: 1 process trains here; start them with torchrun"),
        ("4", "fsdp2", 2, r"^trainer\.world_size=2: 4 processes train here"),
        ("2", "single", None, r"^trainer\.strategy=single: 2 processes were started"),
        ("x", "single", None, r"^WORLD_SIZE=x in the environment: must be a number"),
        ("", "ddp", None, r"^trainer\.strategy=ddp: no launcher started this process"),
    ],
)
def test_another_world_size_is_refused(
    size: str, strategy: str, wanted: int | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    if not size:
        monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ConfigError, match=message), open_world(strategy, wanted=wanted):
        pass
