"""The contents of a run's checkpoint, and the schedule of checkpoints."""

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr.core.devices import accelerator
from rlvr.core.rollout import RolloutSchedule
from rlvr.core.trainer import Trainer
from rlvr.core.world import ALONE, World
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.scale.sharding import is_sharded, own_rows, row_range
from rlvr.scale.shards import sharded_like
from rlvr.training.checkpoint import Checkpoint, Contents, prune, save_checkpoint
from rlvr.training.settings import TrainingSettings

WEIGHTS, HEAD, COPY = "parameters/", "value_head/", "copy/"
"""Prefixes: of weights among the tensors of `shards/`, of the critic's among the others, and of frozen copies'."""
MOMENTS = "state/optimizer/state/"


@dataclass(kw_only=True)
class CheckpointSchedule:
    """Saves every `checkpoint_every` steps and at the end; keeps the newest ones and the best.

    All ranks save at the same steps; rank 0 decides which to keep.
    """

    folder: Path
    settings: TrainingSettings
    policy: HubPolicy
    trainer: Trainer
    rollouts: RolloutSchedule
    headline: str
    before_save: Callable[[], None]
    world: World = ALONE
    _best: tuple[float, int] | None = field(default=None, init=False)

    def save_if_due(self, step: int, metrics: dict[str, float], *, now: bool) -> None:
        """Save after `step` updates if due or `now`. The best is the best among the saved ones."""
        every = self.settings.checkpoint_every
        if not now and (every is None or step % every):
            return
        accuracy = metrics.get(self.headline)
        if accuracy is not None and (self._best is None or accuracy > self._best[0]):
            self._best = (accuracy, step)
        if self.world.is_first:
            self.before_save()  # metrics must reach the disk before the checkpoint
        tensors: dict[str, Tensor] = {}
        tree = {"optimizer": self.trainer.optimizer.state_dict(), "random": random_state()}
        state = {
            "structure": flatten(tree, "state", tensors),
            "parameters": self._order(),
            "rollouts": self.rollouts.state(),
            "best": self._best,
            "bf16": self.trainer.parallel.bf16,  # auto is resolved once: another machine must not change the numbers
        }
        if self.policy.value_head is not None:
            tensors |= {f"{HEAD}{name}": t for name, t in self.policy.value_head.state_dict().items()}
        tensors |= {f"{WEIGHTS}{name}": p for name, p in self.policy.named_parameters() if is_sharded(p)}
        tensors |= self._copies()
        save_model = partial(self.policy.save, writes=self.world.is_first)
        contents = Contents(save_model=save_model, tensors=tensors, state=state)
        save_checkpoint(self.folder, step, contents, self.world)
        self._prune()

    def _prune(self) -> None:
        if self.world.is_first:
            keep = self._best[1] if self._best and self.settings.keep_best else None
            prune(self.folder, self.settings.keep_last, keep)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state of the checkpoint, with any number of processes.

        UserError if it belongs to another model.
        """
        order = checkpoint.state.get("parameters", self._order())  # older versions did not write it
        parameters = dict(self.policy.named_parameters())
        _check_fits(checkpoint, order, parameters)
        load_weights(self.policy, checkpoint)
        tree = unflatten(checkpoint.state["structure"], partial(_read, checkpoint, [parameters[n] for n in order]))
        self._load_optimizer(tree["optimizer"]["state"], order)
        for name, weight in self._copies().items():
            own_rows(weight).copy_(_rows(checkpoint, name, *(row_range(weight) if is_sharded(weight) else ())))
        set_random_state(tree["random"])
        self.rollouts.restore(checkpoint.state["rollouts"])
        self.trainer.parallel.set_precision(checkpoint.state["bf16"])
        self._best = (best := checkpoint.state["best"]) and (best[0], best[1])
        self._prune()  # a process may have been killed between its save and this

    def _copies(self) -> dict[str, Tensor]:
        """Weights of the copies of the policy that follow it at a distance; those of the start need not be saved."""
        copies = {one.refresh_every: copy for one, copy in self.trainer.frozen.items() if one.refresh_every}
        return {
            f"{COPY}{every}/{name}": weight for every, copy in copies.items() for name, weight in copy.weights().items()
        }

    def _order(self) -> list[str]:
        """Names of the optimizer's parameters, in its own order, which depends on sharding."""
        names = {id(parameter): name for name, parameter in self.policy.named_parameters()}
        return [names[id(p)] for group in self.trainer.optimizer.param_groups for p in group["params"]]

    def _load_optimizer(self, moments: Mapping[int, Any], order: Sequence[str]) -> None:
        optimizer, own = self.trainer.optimizer, {name: number for number, name in enumerate(self._order())}
        state = {own[order[number]]: of_parameter for number, of_parameter in moments.items()}
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _check_fits(checkpoint: Checkpoint, order: Sequence[str], parameters: Mapping[str, Tensor]) -> None:
    """UserError if the checkpoint has other parameters, or moments of other shapes: torch's fused AdamW would write out
    of bounds."""
    wrong = sorted(set(order) ^ set(parameters))
    for number, name in enumerate(order if not wrong else ()):
        keys = [f"{WEIGHTS}{name}", *(f"{MOMENTS}{number}/{moment}" for moment in ("exp_avg", "exp_avg_sq"))]
        shapes = {checkpoint.shards.shape(key) for key in keys if key in checkpoint.shards}
        shapes |= {checkpoint.tensors.shape(key) for key in keys if key in checkpoint.tensors}
        wrong += [name] if shapes - {tuple(parameters[name].shape)} else []
    if wrong:
        raise UserError(
            f"Checkpoint {checkpoint.model_path.parent} does not fit the model ({wrong[0]}): use the versions of "
            "transformers and peft that it was written with, or start another run from its model/ folder."
        )


def _read(checkpoint: Checkpoint, parameters: Sequence[Tensor], name: str) -> Tensor:
    """A tensor of a checkpoint in the optimizer's layout; `parameters` in saved order.

    Moments lie where their parameter does, so that they are not all held twice. Those of a sharded one are sharded
    like it, and only this rank's rows are read; others are whole.
    """
    moment = re.fullmatch(rf"{MOMENTS}(\d+)/exp_avg(?:_sq)?", name)
    if not moment:
        return _rows(checkpoint, name)
    parameter = parameters[int(moment[1])]
    if not is_sharded(parameter):
        return _rows(checkpoint, name).to(parameter.device)
    return sharded_like(parameter, _rows(checkpoint, name, *row_range(parameter)))


def _rows(checkpoint: Checkpoint, name: str, first: int = 0, end: int | None = None) -> Tensor:
    if name in checkpoint.shards:
        return checkpoint.shards.rows(name, first, end)
    return checkpoint.tensors[name] if end is None else checkpoint.tensors.rows(name, first, end)


def load_weights(policy: HubPolicy, checkpoint: Checkpoint) -> None:
    """Copy the checkpoint's weights into the policy's own tensors, which engine and optimizer share."""
    sharded = {f"{WEIGHTS}{name}": p for name, p in policy.named_parameters() if is_sharded(p)}
    sharded = {name: p for name, p in sharded.items() if name in checkpoint.shards}
    for name, parameter in sharded.items():  # read only this rank's rows
        own_rows(parameter).copy_(checkpoint.shards.rows(name, *row_range(parameter)))
    if not sharded:
        policy.load_weights(checkpoint.model_path)
    if policy.value_head is not None:
        head = {n.removeprefix(HEAD): t for n, t in checkpoint.tensors.items() if n.startswith(HEAD)}
        policy.value_head.load_state_dict(head)


def flatten(tree: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Convert a tree of dicts (int or str keys), lists, tuples, tensors and scalars to JSON; tensors go into `tensors`.

    flatten({"lr": 0.1, "betas": (0.9, 0.99), 0: tensor}, "optimizer", tensors)
    -> structure {"dict": [["lr", 0.1], ["betas", {"tuple": [0.9, 0.99]}], [0, {"tensor": "optimizer/0"}]]}
       tensors   {"optimizer/0": tensor}
    """
    if isinstance(tree, Tensor):
        tensors[name] = tree.detach()
        return {"tensor": name}
    if isinstance(tree, Mapping):
        return {"dict": [[key, flatten(value, f"{name}/{key}", tensors)] for key, value in tree.items()]}
    if isinstance(tree, (list, tuple)):
        items = [flatten(value, f"{name}/{index}", tensors) for index, value in enumerate(tree)]
        return {"tuple": items} if isinstance(tree, tuple) else items
    if isinstance(tree, float) and not math.isfinite(tree):
        return {"float": repr(tree)}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise TypeError(f"{name} holds a {type(tree).__name__}, which JSON and safetensors cannot hold")


def unflatten(structure: Any, read: Callable[[str], Tensor]) -> Any:
    if isinstance(structure, list):
        return [unflatten(item, read) for item in structure]
    if not isinstance(structure, dict):
        return structure
    [(kind, content)] = structure.items()
    match kind:
        case "tensor":
            return read(content).clone()
        case "dict":
            return {key: unflatten(value, read) for key, value in content}
        case "tuple":
            return tuple(unflatten(item, read) for item in content)
        case "float":
            return float(content)
    raise ValueError(f"a state holds a {kind}, which this version does not know")


def random_state() -> dict[str, Any]:
    """The state of every global random generator that rlvr may use; flatten it to save it."""
    module = accelerator()
    devices = [] if module is None else [module.get_rng_state(number) for number in range(module.device_count())]
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "devices": devices}


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore the state of `random_state`. Those of devices are restored only if as many exist."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    devices = state["devices"] if "devices" in state else state["cuda"]  # as 0.2.0 wrote it
    if devices and len(devices) == torch.accelerator.device_count():
        for number, device in enumerate(devices):
            accelerator().set_rng_state(device, number)
