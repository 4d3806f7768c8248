"""Checkpoints of several ranks: each writes its rows, and any number of processes resumes."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlvr.core.trainer import Trainer
from rlvr.core.world import ALONE, World
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.scale.sharding import is_sharded, whole
from rlvr.scale.shards import INDEX, Shards, shard_name
from rlvr.training.checkpoint import (
    SHARDS,
    Contents,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from rlvr.training.state import CheckpointSchedule
from tests.ranks import RankError, Ranks
from tests.unit.core.tiny import tiny_batch, tiny_config, tiny_policy, tiny_trainer, update
from tests.unit.models.checkpoints import adapted, save_model
from tests.unit.training.test_checkpoint import entries, write_model
from tests.variants import variants

pytestmark = pytest.mark.slow

OVERRIDES = ("algorithm=ppo", "algorithm.num_epochs=2", "trainer.learning_rate=0.003", "trainer.precision=fp32")
Weights = dict[str, list[float]]


class Cursor:
    """What checkpoints need of the rollouts."""

    cursor = 17

    def state(self) -> dict[str, int]:
        return {"cursor": self.cursor}

    def restore(self, state: dict[str, int]) -> None:
        self.cursor = state["cursor"]


def make(world: World, strategy: str, folder: str, base: str | None) -> tuple[Trainer, CheckpointSchedule, Cursor]:
    """A trainer of a small model with a critic, or of adapters on the model in `base`, and its checkpoints."""
    policy = tiny_policy("qwen2", critic=True) if base is None else adapted(Path(base))
    settings = (f"trainer.strategy={strategy}", *(OVERRIDES if base is None else ()))
    trainer = tiny_trainer(policy, *settings, world=world)
    cursor: Any = Cursor()
    parts: dict[str, Any] = {"policy": trainer.policy, "trainer": trainer, "rollouts": cursor, "world": world}
    parts |= {"headline": "eval/rpn/accuracy", "before_save": lambda: None}
    made = CheckpointSchedule(folder=Path(folder), settings=tiny_config(*settings).trainer, **parts)
    return trainer, made, cursor


def weights_of(policy: HubPolicy) -> Weights:
    return {name: whole(p).flatten().tolist() for name, p in policy.named_parameters()}


def moments_of(trainer: Trainer) -> Weights:
    """By name: sharded parameters have another order."""
    state = trainer.optimizer.state
    return {
        f"{name} {key}": whole(state[parameter][key]).flatten().tolist()
        for name, parameter in trainer.policy.named_parameters()
        for key in ("exp_avg", "exp_avg_sq", "step")
    }


Numbers = tuple[Weights, Weights, Weights]


def begin(world: World, strategy: str, folder: str, base: str | None = None) -> Numbers:
    """Two steps, saved; weights and moments then, and the weights after a third one."""
    trainer, made, _ = make(world, strategy, folder, base)
    batch = tiny_batch(tiny_policy("qwen2"))
    for _ in range(2):
        update(trainer, batch)
    made.save_if_due(2, {}, now=True)
    saved, moments = weights_of(trainer.policy), moments_of(trainer)
    update(trainer, batch)
    return saved, moments, weights_of(trainer.policy)


def go_on(world: World, strategy: str, folder: str, base: str | None = None) -> Numbers:
    """The same numbers, restored into a trainer with other weights."""
    trainer, made, cursor = make(world, strategy, folder, base)
    with torch.no_grad():
        for parameter in trainer.policy.parameters():
            parameter.fill_(7.0)
    cursor.cursor = 0
    made.restore(load_checkpoint(list_checkpoints(Path(folder))[2], world))
    assert cursor.cursor == 17
    saved, moments = weights_of(trainer.policy), moments_of(trainer)
    update(trainer, tiny_batch(tiny_policy("qwen2")))
    return saved, moments, weights_of(trainer.policy)


def run(ranks: Ranks, size: int, strategy: str, job: Callable[..., Any], *arguments: Any) -> Any:
    """The answer that all ranks agree on."""
    if strategy == "single":
        return job(ALONE, strategy, *arguments)
    answers = ranks(size, strategy, job, strategy, *arguments)
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def largest_gap(left: Weights, right: Weights) -> float:
    assert left.keys() == right.keys()
    return max((torch.tensor(left[name]) - torch.tensor(right[name])).abs().max().item() for name in left)


@pytest.mark.parametrize(
    ("before", "after"),
    variants(
        [
            ((2, "fsdp2"), (3, "fsdp2")),
            ((3, "fsdp2"), (2, "ddp")),
            ((2, "fsdp2"), (1, "single")),
            ((2, "fsdp2"), (2, "fsdp2")),
            ((1, "single"), (2, "fsdp2")),
        ]
    ),
    ids=lambda value: f"{value[1]}{value[0]}",
)
def test_pitfall_37_any_number_of_ranks_resumes(
    before: tuple[int, str], after: tuple[int, str], ranks: Ranks, tmp_path: Path
) -> None:
    saved, moments, further = run(ranks, *before, begin, str(tmp_path))
    path = list_checkpoints(tmp_path)[2]
    files = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    sharded = {f"shards/{INDEX}", *(f"shards/{shard_name(rank)}" for rank in range(before[0]))}
    assert {name for name in files if name.startswith("shards")} == (sharded if before[1] == "fsdp2" else set())
    assert {Path(name).suffix for name in files} == {".json", ".safetensors"}
    restored, moments_then, further_then = run(ranks, *after, go_on, str(tmp_path))
    assert restored == saved  # every bit
    assert moments_then == moments
    assert largest_gap(further_then, further) < 1e-5
    assert largest_gap(further, saved) > 1e-3


@pytest.mark.parametrize(("before", "after"), [("fsdp2", "single"), ("single", "fsdp2")])
def test_pitfall_37_adapters_of_a_sharded_model_are_saved_whole(
    before: str, after: str, ranks: Ranks, tmp_path: Path
) -> None:
    base = str(save_model(tmp_path / "base"))
    saved, moments, further = run(ranks, 2, before, begin, str(tmp_path / "run"), base)
    path = list_checkpoints(tmp_path / "run")[2]
    assert not (path / SHARDS).exists()
    assert "adapter_model.safetensors" in entries(path / "model")
    restored, moments_then, further_then = run(ranks, 2, after, go_on, str(tmp_path / "run"), base)
    assert (restored, moments_then) == (saved, moments)
    assert largest_gap(further_then, further) < 1e-5


def test_each_rank_writes_only_its_rows(ranks: Ranks, tmp_path: Path) -> None:
    saved, _, _ = run(ranks, 2, "fsdp2", begin, str(tmp_path))
    folder = list_checkpoints(tmp_path)[2] / SHARDS
    total = sum(len(values) for name, values in saved.items() if not name.startswith("value_head"))
    for rank in range(2):
        held = load_file(folder / shard_name(rank))
        assert {name.split("/")[0] for name in held} == {"parameters", "state"}
        numbers = sum(tensor.numel() for tensor in held.values())
        assert numbers == pytest.approx(3 * total / 2, rel=0.05)  # weights and two moments of them
    consolidated = load_file(list_checkpoints(tmp_path)[2] / "model" / "model.safetensors")
    for name, tensor in consolidated.items():
        assert torch.equal(Shards(folder).rows(f"parameters/{name}"), tensor), name


def write(folder: Path, rows: Mapping[str, list[tuple[int, int]]], width: int = 2) -> dict[str, torch.Tensor]:
    """Tensors of `width` columns cut into ranges of rows, one for each rank."""
    whole_ones = {name: torch.arange(width * ranges[-1][1]).reshape(-1, width) for name, ranges in rows.items()}
    folder.mkdir(parents=True)
    for rank in range(max(map(len, rows.values()))):
        held = {n: whole_ones[n][slice(*r[rank])].clone() for n, r in rows.items() if len(r) > rank}
        save_file(held, folder / shard_name(rank))
    index = {
        name: {
            "shape": list(whole_ones[name].shape),
            "dtype": "int64",
            "rows": [[rank, *ends] for rank, ends in enumerate(ranges)],
        }
        for name, ranges in rows.items()
    }
    (folder / INDEX).write_text(json.dumps({"tensors": index}))
    return whole_ones


def test_pitfall_37_rows_are_read_from_the_files_that_hold_them(tmp_path: Path) -> None:
    wanted = write(tmp_path / "s", {"long": [(0, 3), (3, 6), (6, 7)], "short": [(0, 1)]})
    shards = Shards(tmp_path / "s")
    for first in range(8):
        for end in range(first, 8):
            assert torch.equal(shards.rows("long", first, end), wanted["long"][first:end])
    assert torch.equal(shards.rows("short"), wanted["short"])
    assert shards.rows("long", 7, 7).shape == (0, 2)
    assert "other" not in shards
    assert "long" not in Shards(None)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("damage", "name"),
    [(flip, "rank_00001.safetensors"), (Path.unlink, "rank_00000.safetensors"), (flip, "index.json")],
)
def test_pitfall_37_damage_is_named_by_all_ranks(
    damage: Callable[[Path], None], name: str, ranks: Ranks, tmp_path: Path
) -> None:
    run(ranks, 2, "fsdp2", begin, str(tmp_path))
    path = list_checkpoints(tmp_path)[2]
    damage(path / SHARDS / name)
    with pytest.raises(UserError, match=rf"step_000002 is damaged: shards/{name} is missing or.*; delete that folder"):
        load_checkpoint(path)
    errors = ranks(2, "ddp", load_error, str(path))
    assert errors[0] == errors[1]
    assert f"shards/{name} is missing or" in errors[0]


def error_of(act: Callable[[], Any]) -> str:
    try:
        act()
    except UserError as error:
        return str(error)
    return "none"


def load_error(world: World, path: str) -> str:
    return error_of(lambda: load_checkpoint(Path(path), world))


def test_weights_of_another_shape_are_refused(ranks: Ranks, tmp_path: Path) -> None:
    # a model folder that has changed since the run began
    run(ranks, 2, "fsdp2", begin, str(tmp_path))
    found = run(ranks, 2, "fsdp2", go_on_with_fewer_tokens, str(tmp_path))
    assert re.search(r"does not fit the model \(model.embed_tokens.weight\): use", found)


def go_on_with_fewer_tokens(world: World, strategy: str, folder: str) -> str:
    with patch(f"{__name__}.tiny_policy", partial(tiny_policy, vocab_size=13)):
        _, made, _ = make(world, strategy, folder, None)
    return error_of(lambda: made.restore(load_checkpoint(list_checkpoints(Path(folder))[2], world)))


def save_twice(world: World, folder: str, die_at: int, victim: int) -> None:
    """Two saves of a cut tensor; one rank is killed at its n-th file operation of the second."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world.size,))
    cut = distribute_tensor(torch.arange(12.0).reshape(6, 2), mesh, [Shard(0)])
    assert is_sharded(cut)
    contents = Contents(
        save_model=lambda to: write_model(to) if world.is_first else None,
        tensors={"count": torch.tensor(3), "parameters/x": cut},
        state={},
    )
    save_checkpoint(Path(folder), 1, contents, world)
    if world.rank == victim:
        sys.addaudithook(partial(kill_at, die_at, count()))
    save_checkpoint(Path(folder), 2, contents, world)


def save_on_a_full_disk(world: World, strategy: str, folder: str, full: int) -> str:
    """One rank has no room for its rows."""
    trainer, made, _ = make(world, strategy, folder, None)
    update(trainer, tiny_batch(tiny_policy("qwen2")))
    no_room = OSError(errno.ENOSPC, "No space left on device")
    rows = patch("rlvr.training.checkpoint.write_rows", side_effect=no_room) if world.rank == full else nullcontext()
    with rows:
        return error_of(lambda: made.save_if_due(1, {}, now=True))


@pytest.mark.parametrize("full", [0, 1])
def test_pitfall_37_a_full_disk_of_one_rank_is_the_error_of_all(full: int, ranks: Ranks, tmp_path: Path) -> None:
    found = run(ranks, 2, "fsdp2", save_on_a_full_disk, str(tmp_path), full)
    assert re.fullmatch(rf"Cannot write .*{shard_name(full)}: the disk is full; free some space\.", found)
    assert entries(tmp_path) == []


def pushed_to_the_disk(world: World, strategy: str, folder: str) -> list[str]:
    _, made, _ = make(world, strategy, folder, None)
    with patch("rlvr.training.checkpoint.sync_file") as sync:
        made.save_if_due(1, {}, now=True)
    return [call.args[0].name for call in sync.call_args_list]


def test_pitfall_37_each_rank_pushes_its_own_rows_to_the_disk(ranks: Ranks, tmp_path: Path) -> None:
    first, second = ranks(2, "fsdp2", pushed_to_the_disk, "fsdp2", str(tmp_path))
    assert first[0] == shard_name(0)
    assert second == [shard_name(1)]


def test_pitfall_37_only_the_first_rank_deletes_and_syncs(ranks: Ranks, tmp_path: Path) -> None:
    assert run(ranks, 2, "fsdp2", deletes, str(tmp_path)) == "done"
    assert list(list_checkpoints(tmp_path)) == [3]


def deletes(world: World, strategy: str, folder: str) -> str:
    _, made, _ = make(world, strategy, folder, None)
    made.settings = made.settings.model_copy(update={"keep_last": 1})
    if not world.is_first:
        made.before_save = Mock(side_effect=AssertionError("the metrics are the first rank's"))
    forbidden = [] if world.is_first else ["rlvr.training.state.prune", "shutil.rmtree", "pathlib.Path.rename"]
    with ExitStack() as stack:
        for name in forbidden:
            stack.enter_context(patch(name, side_effect=AssertionError(name)))
        for step in (1, 2, 3):
            made.save_if_due(step, {}, now=True)
    return "done"


def kill_at(die_at: int, counter: Iterator[int], event: str, args: tuple[object, ...]) -> None:
    """An audit hook that kills the process at its n-th operation on the file system, reading included."""
    changes = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod")
    if event in changes and next(counter) == die_at - 1:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("victim", "die_at"), [(1, 1), (1, 2), *((0, number) for number in (1, 4, 7, 12, 20, 28))], ids=str
)
def test_pitfall_37_a_rank_killed_while_saving_damages_nothing(victim: int, die_at: int, tmp_path: Path) -> None:
    pool = Ranks()
    try:
        with pytest.raises((RankError, EOFError, TimeoutError)):
            pool(2, "ddp", save_twice, str(tmp_path), die_at, victim)
    finally:
        pool.close()
    assert latest_checkpoint(tmp_path) is not None
    for step, path in list_checkpoints(tmp_path).items():
        checkpoint = load_checkpoint(path)
        assert checkpoint.step == step
        assert torch.equal(checkpoint.shards.rows("parameters/x"), torch.arange(12.0).reshape(6, 2))
    assert 1 in list_checkpoints(tmp_path)
    assert not [name for name in entries(tmp_path) if name.startswith(".")]
