"""When checkpoints are written, which are kept, and that a new process goes on from one."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr.core.trainer import Trainer
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.scale.tensors import SavedTensors, write_tensors
from rlvr.training import state as state_module
from rlvr.training.checkpoint import Checkpoint, list_checkpoints, load_checkpoint
from rlvr.training.state import CheckpointSchedule, flatten, load_weights, random_state, set_random_state, unflatten
from tests.unit.core.tiny import tiny_batch, tiny_config, tiny_policy, tiny_trainer, update
from tests.unit.models.checkpoints import KINDS, adapted, frozen_bytes, save_model

HEADLINE = "eval/rpn/accuracy"


class Cursor:
    """What checkpoints need of the rollouts."""

    cursor = 0

    def state(self) -> dict[str, int]:
        return {"cursor": self.cursor}

    def restore(self, state: dict[str, int]) -> None:
        self.cursor = state["cursor"]


def schedule(
    folder: Path,
    trainer: Trainer,
    *overrides: str,
    cursor: Any = None,
    before_save: Callable[[], None] = lambda: None,
) -> CheckpointSchedule:
    return CheckpointSchedule(
        folder=folder,
        settings=tiny_config(*overrides).trainer,
        policy=trainer.policy,
        trainer=trainer,
        rollouts=cursor or Cursor(),
        headline=HEADLINE,
        before_save=before_save,
    )


def steps(folder: Path) -> list[int]:
    return list(list_checkpoints(folder))


def save(made: CheckpointSchedule, accuracies: dict[int, float | None], *, last: int | None = None) -> None:
    for step, accuracy in accuracies.items():
        metrics = {} if accuracy is None else {HEADLINE: accuracy}
        made.save_if_due(step, metrics, now=step == last)


def saved(folder: Path, trainer: Trainer, **options: Any) -> Checkpoint:
    """What is read again of a checkpoint after one step."""
    save(schedule(folder, trainer, **options), {1: None}, last=1)
    return load_checkpoint(list_checkpoints(folder)[1])


def assert_alike(first: Trainer | HubPolicy, second: Trainer | HubPolicy) -> None:
    """The trained weights are equal bit for bit."""
    policies = (getattr(one, "policy", one) for one in (first, second))
    for one, two in zip(*(policy.parameters() for policy in policies), strict=True):
        assert torch.equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "last", "expected"), [("2", 5, [0, 2, 4, 5]), ("null", 5, [5]), ("null", None, []), ("9", None, [0])]
)
def test_saves_come_on_schedule_and_when_asked_for(
    every: str, last: int | None, expected: list[int], tmp_path: Path
) -> None:
    keep = [] if every == "null" else ["trainer.keep_last=9"]
    made = schedule(tmp_path, tiny_trainer(tiny_policy()), f"trainer.checkpoint_every={every}", *keep)
    save(made, dict.fromkeys(range(6)), last=last)
    assert steps(tmp_path) == expected


@pytest.mark.parametrize(("best", "expected"), [("true", [3, 5]), ("false", [5])])
def test_the_newest_are_kept_and_the_best(best: str, expected: list[int], tmp_path: Path) -> None:
    settings = ["trainer.checkpoint_every=1", "trainer.keep_last=1", f"trainer.keep_best={best}"]
    made = schedule(tmp_path, tiny_trainer(tiny_policy()), *settings)
    save(made, {0: 0.2, 1: 0.6, 2: 0.6, 3: 0.9, 4: 0.9, 5: None})
    assert steps(tmp_path) == expected


def test_pitfall_37_a_resume_remembers_the_best_checkpoint(tmp_path: Path) -> None:
    settings = ["trainer.checkpoint_every=1", "trainer.keep_last=1"]
    save(schedule(tmp_path, tiny_trainer(tiny_policy()), *settings), {0: 0.2, 1: 0.9, 2: 0.3})
    resumed = schedule(tmp_path, tiny_trainer(tiny_policy()), *settings)
    resumed.restore(load_checkpoint(list_checkpoints(tmp_path)[2]))
    save(resumed, {3: 0.5, 4: 0.4})
    assert steps(tmp_path) == [1, 4]


@pytest.mark.slow
@pytest.mark.parametrize("critic", [False, True])
def test_pitfall_37_a_restored_trainer_goes_on_bit_for_bit(critic: bool, tmp_path: Path) -> None:
    overrides = ["algorithm=ppo", "rollout.group_size=1", "rollout.prompts_per_step=12"] if critic else []
    batch = tiny_batch(tiny_policy())
    first, second = (tiny_trainer(tiny_policy(critic=critic), *overrides) for _ in range(2))
    update(first, batch)
    cursor, restored = Cursor(), Cursor()
    cursor.cursor = 17
    schedule(tmp_path, second, cursor=restored).restore(saved(tmp_path, first, cursor=cursor))
    assert restored.cursor == 17
    for trainer in (first, second):
        update(trainer, batch)
    assert_alike(first, second)


def test_pitfall_37_a_run_goes_on_in_its_precision(tmp_path: Path) -> None:
    """`auto` is another one on another machine."""
    checkpoint = saved(tmp_path, tiny_trainer(tiny_policy(), "trainer.precision=bf16"))
    second = tiny_trainer(tiny_policy(), "trainer.precision=auto")
    assert not second.parallel.bf16  # such a small model would be slower in it
    schedule(tmp_path, second).restore(checkpoint)
    assert second.parallel.bf16


def test_pitfall_37_the_random_generators_are_restored(tmp_path: Path) -> None:
    def seed(number: int) -> None:
        random.seed(number)
        torch.manual_seed(number)

    def draws() -> tuple[float, list[float]]:
        return random.random(), torch.rand(3).tolist()

    before = random_state()
    try:
        seed(5)
        draws()
        checkpoint = saved(tmp_path, tiny_trainer(tiny_policy()))
        expected = draws()
        resumed = schedule(tmp_path, tiny_trainer(tiny_policy()))
        seed(6)
        resumed.restore(checkpoint)
        assert draws() == expected
    finally:
        set_random_state(before)


def test_random_states_of_0_2_0_are_restored() -> None:
    """It had those of CUDA only, and called them so; none on a CPU, and one of a GPU that is not here."""
    before = random_state()
    expected = torch.rand(3).tolist()
    del before["devices"]
    for devices in ([], [torch.zeros(16, dtype=torch.uint8)]):
        set_random_state({**before, "cuda": devices})
        assert torch.rand(3).tolist() == expected


def test_every_device_gets_its_own_state_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        """torch's module of two devices."""

        states = [torch.tensor([1]), torch.tensor([2])]  # noqa: RUF012
        device_count = staticmethod(lambda: 2)
        get_rng_state = staticmethod(lambda number: Two.states[number])
        set_rng_state = staticmethod(lambda state, number: Two.states.__setitem__(number, state))

    monkeypatch.setattr(state_module, "accelerator", lambda: Two)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: len(Two.states))
    kept = random_state()
    Two.states = [torch.tensor([7]), torch.tensor([8])]
    set_random_state(kept)
    assert [int(one) for one in Two.states] == [1, 2]
    Two.states = [torch.tensor([9])]  # a machine with another number of devices keeps its own
    set_random_state(kept)
    assert [int(one) for one in Two.states] == [9]


def test_pitfall_37_earlier_lines_reach_the_disk_first(tmp_path: Path) -> None:
    """Seen at each sync: the checkpoints that were already there."""
    seen: list[list[int]] = []
    settings = ["trainer.checkpoint_every=2", "trainer.keep_last=9"]
    made = schedule(tmp_path, tiny_trainer(tiny_policy()), *settings, before_save=lambda: seen.append(steps(tmp_path)))
    save(made, dict.fromkeys(range(5)))
    assert seen == [[], [0], [0, 2]]
    assert steps(tmp_path) == [0, 2, 4]


def test_loading_writes_into_the_shared_tensors(tmp_path: Path) -> None:
    """Engine and optimizer share them."""
    trainer, other = tiny_trainer(tiny_policy()), tiny_policy(initializer_range=0.1)
    places = [parameter.data_ptr() for parameter in other.parameters()]
    load_weights(other, saved(tmp_path, trainer))
    assert [parameter.data_ptr() for parameter in other.parameters()] == places
    assert_alike(trainer, other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_pitfall_37_a_checkpoint_of_adapters_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "base")
    batch = tiny_batch(adapted(folder))
    overrides = ("algorithm.kl_coef=0.1", "trainer.learning_rate=0.01")
    first, second = (tiny_trainer(adapted(folder, **KINDS[kind]), *overrides) for _ in range(2))
    update(first, batch)
    checkpoint = saved(tmp_path, first)
    files = {path.name for path in checkpoint.model_path.iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"} <= files
    assert "model.safetensors" not in files
    schedule(tmp_path, second).restore(checkpoint)
    metrics = [update(trainer, batch) for trainer in (first, second)]
    assert metrics[0] == metrics[1]
    assert metrics[0]["policy/reference_kl"] > 0
    assert_alike(first, second)
    assert frozen_bytes(first.policy) == frozen_bytes(second.policy)


@pytest.mark.slow
def test_pitfall_37_moments_find_their_parameters_by_name(tmp_path: Path) -> None:
    """Where weights are sharded, the optimizer may number its parameters in another order."""
    batch = tiny_batch(tiny_policy())
    first, second = (tiny_trainer(tiny_policy()) for _ in range(2))
    update(first, batch)
    checkpoint = saved(tmp_path, first)
    names = checkpoint.state["parameters"]
    assert sorted(names) == sorted(name for name, _ in first.policy.named_parameters())
    moments = dict(dict(checkpoint.state["structure"]["dict"])["optimizer"]["dict"])["state"]
    other = {"layers.0": "layers.1", "layers.1": "layers.0"}  # of the same shapes: fused AdamW would not mind
    swapped = [re.sub(r"layers\.[01]", lambda found: other[found[0]], name) for name in names]
    moments["dict"] = [[swapped.index(names[number]), values] for number, values in moments["dict"]]
    names[:] = swapped
    schedule(tmp_path, second).restore(checkpoint)
    for trainer in (first, second):
        update(trainer, batch)
    assert_alike(first, second)


@pytest.mark.slow
def test_pitfall_37_older_checkpoints_have_the_optimizers_order(tmp_path: Path) -> None:
    first, second = (tiny_trainer(tiny_policy()) for _ in range(2))
    update(first, tiny_batch(tiny_policy()))
    checkpoint = saved(tmp_path, first)
    del checkpoint.state["parameters"]
    schedule(tmp_path, second).restore(checkpoint)
    states = (trainer.optimizer.state_dict()["state"] for trainer in (first, second))
    for one, two in zip(*(state.values() for state in states), strict=True):
        assert all(torch.equal(one[key], two[key]) for key in ("exp_avg", "exp_avg_sq", "step"))


def test_a_checkpoint_of_another_model_names_what_does_not_fit(tmp_path: Path) -> None:
    first, second = (tiny_trainer(tiny_policy()) for _ in range(2))
    update(first, tiny_batch(tiny_policy()))
    checkpoint, made = saved(tmp_path, first), schedule(tmp_path, second)
    name = "model.embed_tokens.weight"
    place = checkpoint.state["parameters"].index(name)
    moment = f"state/optimizer/state/{place}/exp_avg"
    write_tensors(tmp_path / "other.safetensors", {**checkpoint.tensors, moment: checkpoint.tensors[moment][:3]})
    other = replace(checkpoint, tensors=SavedTensors([tmp_path / "other.safetensors"]))
    with pytest.raises(UserError, match=rf"does not fit the model \({name}\): use the versions"):
        made.restore(other)
    checkpoint.state["parameters"][place] = "model.other"
    with pytest.raises(UserError, match=rf"\({name}\)"):
        made.restore(checkpoint)


def test_a_tree_comes_back_as_it_was() -> None:
    tree = {"a": (1, [2.5, None, True]), 3: {"x": float("inf")}, "t": (), "e": {}, "s": "text"}
    structure = flatten(tree, "n", {})
    assert unflatten(json.loads(json.dumps(structure, allow_nan=False)), {}.__getitem__) == tree


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="n/a holds a set"):
        flatten({"a": {1}}, "n", {})
