"""What a checkpoint of a run holds, and the schedule it is written on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from rlvr.errors import UserError
from rlvr.models.policy import Policy
from rlvr.models.sharding import is_sharded, own_rows, row_range
from rlvr.rollout.schedule import RolloutSchedule
from rlvr.training.checkpoint import Checkpoint, prune, save_checkpoint
from rlvr.training.checkpoint_state import flatten, random_state, set_random_state, unflatten
from rlvr.training.settings import TrainerSettings
from rlvr.training.shards import sharded_like
from rlvr.training.trainer import Trainer
from rlvr.world import ALONE, World

WEIGHTS = "parameters/"
"""Before the names of weights among the tensors of `shards/`."""


class CheckpointSchedule:
    """Saves every `checkpoint_every` steps and at the end; keeps the newest ones and the best."""

    def __init__(
        self,
        *,
        folder: Path,
        settings: TrainerSettings,
        policy: Policy,
        trainer: Trainer,
        rollouts: RolloutSchedule,
        headline: str,
        before_save: Callable[[], None],
        world: World = ALONE,
    ) -> None:
        """Every rank asks for the same saves at the same steps; the first one decides what is kept."""
        self._folder, self._settings = folder, settings
        self._policy, self._trainer, self._rollouts = policy, trainer, rollouts
        self._headline, self._before_save, self._world = headline, before_save, world
        self._best: tuple[float, int] | None = None

    def save_if_due(self, step: int, metrics: dict[str, float], *, now: bool) -> None:
        """Save after `step` updates if the schedule says so, or `now`. The best is the best among the saved."""
        every = self._settings.checkpoint_every
        if not now and (every is None or step % every):
            return
        accuracy = metrics.get(self._headline)
        if accuracy is not None and (self._best is None or accuracy > self._best[0]):
            self._best = (accuracy, step)
        if self._world.is_first:
            self._before_save()  # a checkpoint must not outlive the lines before it
        structure, tensors = flatten(
            {"optimizer": self._trainer.optimizer.state_dict(), "random": random_state()}, "state"
        )
        if self._policy.value_head is not None:
            tensors |= {f"value_head/{name}": t for name, t in self._policy.value_head.state_dict().items()}
        tensors |= {f"{WEIGHTS}{name}": p for name, p in self._policy.named_parameters() if is_sharded(p)}
        state = {
            "structure": structure,
            "parameters": self._order(),
            "rollouts": self._rollouts.state(),
            "best": self._best,
            "bf16": self._trainer.bf16,  # precision=auto is decided once: another machine must not change the numbers
        }
        save_checkpoint(
            self._folder,
            step,
            model_saver=partial(self._policy.save, writes=self._world.is_first),
            tensors={name: tensor for name, tensor in tensors.items() if not is_sharded(tensor)},
            state=state,
            sharded={name: tensor for name, tensor in tensors.items() if is_sharded(tensor)},
            world=self._world,
        )
        if self._world.is_first:
            keep = self._best[1] if self._best and self._settings.keep_best else None
            prune(self._folder, self._settings.keep_last, keep)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put everything back as it was when the checkpoint was written, by however many processes."""
        order = checkpoint.state.get("parameters", self._order())  # older versions did not write it
        parameters = dict(self._policy.named_parameters())
        if others := set(order) ^ set(parameters):
            raise _misfit(checkpoint, f"{min(others)} is in one of them only")
        load_weights(self._policy, checkpoint)
        tree = unflatten(checkpoint.state["structure"], _Placed(checkpoint, [parameters[name] for name in order]))
        for number, moments in tree["optimizer"]["state"].items():
            name = order[number]
            for moment in (moments["exp_avg"], moments["exp_avg_sq"]):
                if moment.shape != parameters[name].shape:  # torch's fused AdamW would write beyond its end
                    raise _misfit(checkpoint, f"{name} has a moment of shape {list(moment.shape)}")
        self._load_optimizer(tree["optimizer"]["state"], order)
        set_random_state(tree["random"])
        self._rollouts.restore(checkpoint.state["rollouts"])
        self._trainer.bf16 = checkpoint.state["bf16"]
        best = checkpoint.state["best"]
        self._best = None if best is None else (best[0], best[1])

    def _order(self) -> list[str]:
        """Names of the optimizer's parameters, in its own order, which depends on what is sharded."""
        names = {id(parameter): name for name, parameter in self._policy.named_parameters()}
        return [names[id(p)] for group in self._trainer.optimizer.param_groups for p in group["params"]]

    def _load_optimizer(self, moments: Mapping[int, Any], order: Sequence[str]) -> None:
        """Moments by the number of their parameter in `order`. Settings of groups cannot change in a run."""
        optimizer, own = self._trainer.optimizer, {name: number for number, name in enumerate(self._order())}
        state = {own[order[number]]: of_parameter for number, of_parameter in moments.items()}
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _misfit(checkpoint: Checkpoint, what: str) -> UserError:
    return UserError(
        f"Checkpoint {checkpoint.model_path.parent} does not fit the model ({what}): use the versions of transformers "
        "and peft that it was written with, or start another run from its model/ folder."
    )


class _Placed(Mapping[str, Tensor]):
    """The tensors of a checkpoint, laid out as the optimizer that gets them wants them.

    A moment of a sharded parameter is sharded like it, and only this rank's rows are read; all else is whole.
    """

    def __init__(self, checkpoint: Checkpoint, parameters: Sequence[Tensor]) -> None:
        """`parameters` are the optimizer's, in the order of the process that saved."""
        self._tensors, self._shards, self._parameters = checkpoint.tensors, checkpoint.shards, parameters

    def __getitem__(self, name: str) -> Tensor:
        found = re.fullmatch(r"state/optimizer/state/(\d+)/exp_avg(?:_sq)?", name)
        parameter = self._parameters[int(found[1])] if found else None
        source = self._shards if name in self._shards else self._tensors
        if parameter is None or not is_sharded(parameter):
            return source[name]
        first, end = row_range(parameter)
        rows = self._shards.rows(name, first, end) if name in self._shards else self._tensors[name][first:end]
        return sharded_like(parameter, rows)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._tensors, **dict.fromkeys(self._shards)})

    def __len__(self) -> int:
        return len(self._tensors) + len(self._shards)


def load_weights(policy: Policy, checkpoint: Checkpoint) -> None:
    """Copy the checkpoint's weights into the policy's own tensors, which engine and optimizer share."""
    sharded = {
        name: p for name, p in policy.named_parameters() if is_sharded(p) and f"{WEIGHTS}{name}" in checkpoint.shards
    }
    for name, parameter in sharded.items():  # only this rank's rows are read
        if (shape := checkpoint.shards.shape(f"{WEIGHTS}{name}")) != parameter.shape:
            raise _misfit(checkpoint, f"{name} has the shape {list(shape)}")
        own_rows(parameter).copy_(checkpoint.shards.rows(f"{WEIGHTS}{name}", *row_range(parameter)))
    if not sharded:
        policy.load_weights(checkpoint.model_path)
    if policy.value_head is not None:
        prefix = "value_head/"
        head = {n.removeprefix(prefix): t for n, t in checkpoint.tensors.items() if n.startswith(prefix)}
        policy.value_head.load_state_dict(head)
