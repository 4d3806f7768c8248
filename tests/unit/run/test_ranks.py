"""Errors, stops, shares and folders of processes that train together, on real ranks."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr.config.compose import load_config
from rlvr.core.world import ALONE, World
from rlvr.errors import ConfigError, UserError
from rlvr.run import ranks as module
from rlvr.run.policies import set_threads
from rlvr.run.ranks import any_stopped, check_shares, fail_together, shared_folder
from tests.ranks import RankError, Ranks
from tests.unit.core.tiny import tiny_policy

# --------------------------------------------------------------------------------------------------------- errors


class EndedError(Exception):
    """How the block ended on this rank, as JSON; raised, so that its connections close as those of a process."""


def ending(world: World, failing: Callable[[World], None]) -> None:
    """A block in which `failing` fails on some ranks, and the others wait for them."""
    module.PATIENCE_S = 0.1  # the process that speaks goes on living here
    world.gather(None)  # all are connected: else one may leave while another still looks for it
    try:
        with fail_together(world):
            failing(world)
            world.gather(None)
    except (Exception, SystemExit) as error:
        code = error.exit_code if isinstance(error, UserError) else getattr(error, "code", None)
        raise EndedError(json.dumps([type(error).__name__, str(error), code])) from error


def endings(ranks: Ranks, size: int, failing: Callable[[World], None]) -> list[tuple[str, str, int | None]]:
    """By rank: the class of its error, the message and the exit status."""
    with pytest.raises(RankError) as error:
        ranks(size, "ddp", ending, failing)
    found = re.findall(r"^tests.unit.run.test_ranks.EndedError: (.*)$", str(error.value), re.MULTILINE)
    return [tuple(json.loads(text)) for text in found]


def on_one(world: World) -> None:
    if world.rank == 1:
        on_all(world)


def on_all(world: World) -> None:
    raise ConfigError("task.path=x: is bad.")


def lost(world: World) -> None:
    """Rank 1 exits silently."""
    if world.rank == 1:
        raise SystemExit(9)


def bug(world: World) -> None:
    if world.rank == 0:
        raise KeyError("x")


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_others(ranks: Ranks) -> None:
    found = endings(ranks, 3, on_one)
    assert found[1] == ("ConfigError", "task.path=x: is bad.", 2)
    assert [(name, code) for name, _, code in (found[0], found[2])] == [("SystemExit", 1)] * 2


def test_ranks_that_fail_alike_report_it_once(ranks: Ranks) -> None:
    found = endings(ranks, 3, on_all)
    assert sorted((name, code) for name, _, code in found) == [("ConfigError", 2), *[("SystemExit", 2)] * 2]


def test_a_rank_that_exits_silently_is_missed_by_another(ranks: Ranks) -> None:
    found = endings(ranks, 3, lost)
    assert found[1] == ("SystemExit", "9", 9)
    kind, text, code = min(found[0], found[2], key=lambda answer: answer[0] != "UserError")
    assert (kind, code) == ("UserError", 1)
    assert text.startswith(f"process {0 if found[0][0] == 'UserError' else 2} of 3 has lost another one")
    assert "resume=true (torch says: " in text
    assert "\n" not in text
    assert ".cc:" not in text
    assert sorted(answer[0] for answer in (found[0], found[2])) == ["SystemExit", "UserError"]


def test_a_bug_is_shown_and_ends_the_others(ranks: Ranks) -> None:
    found = endings(ranks, 2, bug)
    assert found[0] == ("KeyError", "'x'", None)
    assert found[1][0] == "SystemExit"


def test_the_first_one_to_fail_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a counter in the launcher's store; without a store each does."""

    def failed(error: Exception) -> None:
        with fail_together(World(size=2)):
            raise error

    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    monkeypatch.setattr(module.atexit, "register", lambda *arguments: None)
    for _ in range(2):
        with pytest.raises(KeyError):
            failed(KeyError("x"))
    for error in (RuntimeError("another"), ValueError("Connection reset by peer")):  # not torch's of a lost process
        with pytest.raises(type(error), match=str(error)):
            failed(error)
    store = torch.distributed.HashStore()
    monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", lambda: store)
    with pytest.raises(KeyError):
        failed(KeyError("x"))
    for error, code in ((KeyError("x"), 1), (ConfigError("x"), 2)):
        with pytest.raises(SystemExit) as ended:
            failed(error)
        assert ended.value.code == code


def stops(world: World, asked: list[list[bool]]) -> tuple[list[bool], list[str]]:
    """`asked[rank]`: whether each rank was signaled, check after check."""
    notes: list[str] = []
    answers = iter(asked[world.rank])
    stopped = any_stopped(lambda: next(answers), world, notes.append)
    return [stopped() for _ in asked[world.rank]], notes


def test_pitfall_37_all_stop_when_one_was_asked_to(ranks: Ranks) -> None:
    found = ranks(2, "ddp", stops, [[False, False], [False, True]])
    assert found == [([False, True], ["stopping after this step"])] * 2


def test_a_process_alone_asks_itself() -> None:
    notes = list[str]()
    assert any_stopped(lambda: True, ALONE, notes.append)()
    assert notes == []


@pytest.mark.parametrize(
    ("prompts", "size", "choose"), [(5, 2, "4 or 6"), (2, 4, "4"), (10, 4, "8 or 12"), (8, 4, None), (3, 1, None)]
)
def test_prompts_that_do_not_split_evenly_are_refused(prompts: int, size: int, choose: str | None) -> None:
    config = load_config([f"rollout.prompts_per_step={prompts}"])
    world = World(size=size)
    if choose is None:
        check_shares(config, world)
        return
    split = f"does not split into equal parts for {size} processes; choose {choose}, or start another"
    with pytest.raises(ConfigError, match=rf"^rollout.prompts_per_step={prompts}: {split} .*number of processes\.$"):
        check_shares(config, world)


LARGE = {"hidden_size": 256, "intermediate_size": 512}


def folder_of(world: World, root: str, seen: list[bool]) -> str:
    """Each rank works in a directory where it sees the folder, or does not."""
    here = Path.cwd()
    os.chdir(Path(root) if seen[world.rank] else "/")
    try:
        return str(shared_folder(Path("runs/x") if world.is_first else None, world))
    except UserError as error:
        return str(error)
    finally:
        os.chdir(here)


def test_a_process_alone_has_its_folder(tmp_path: Path) -> None:
    assert shared_folder(tmp_path, ALONE) == tmp_path
    with pytest.raises(UserError, match="process 0 does not see this folder"):
        shared_folder(tmp_path / "none", ALONE)


def test_the_first_rank_chooses_the_folder_and_all_must_see_it(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "runs" / "x").mkdir(parents=True)
    assert ranks(2, "ddp", folder_of, str(tmp_path), [True, True]) == ["runs/x", "runs/x"]
    found = ranks(2, "ddp", folder_of, str(tmp_path), [True, False])
    assert found[0] == found[1]
    assert found[0].startswith("run_dir=runs/x: process 1 does not see this folder of process 0; choose one on a file")


@pytest.mark.parametrize(
    ("sizes", "world", "cores", "overrides", "expected"),
    [
        (LARGE, ALONE, 8, [], 8),
        (LARGE, World(size=8, local_size=4), 8, [], 2),
        (LARGE, World(size=4, local_size=4), 2, [], 1),
        (LARGE, ALONE, 8, ["rollout.max_staleness=1"], 4),  # the engine samples beside the trainer
        (LARGE, World(size=8, local_size=4), 8, ["rollout.max_staleness=1"], 1),
        (LARGE, ALONE, 8, ["rollout.max_staleness=1", "engine=vllm", "engine.urls=[http://a]"], 8),
        (LARGE, World(size=4, local_size=4), 8, ["trainer.num_threads=3"], 3),
        ({}, World(size=2, local_size=2), 8, [], 1),
    ],
)
def test_ranks_share_the_cores_of_their_machine(
    sizes: dict[str, int], world: World, cores: int, overrides: list[str], expected: int, monkeypatch: Any
) -> None:
    policy = tiny_policy(**sizes)
    assert (policy.num_weights > 500_000) == bool(sizes)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    before = torch.get_num_threads()
    try:
        set_threads(load_config(overrides), policy, world)
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)
