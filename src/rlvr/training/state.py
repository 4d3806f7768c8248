"""What a checkpoint of a run holds, and the schedule it is written on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlvr.config.schema import Trainer as TrainerSettings
from rlvr.models.policy import Policy
from rlvr.rollout.schedule import RolloutSchedule
from rlvr.training.checkpoint import Checkpoint, prune, save_checkpoint
from rlvr.training.checkpoint_state import flatten, random_state, set_random_state, unflatten
from rlvr.training.trainer import Trainer


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
    ) -> None:
        self._folder, self._settings = folder, settings
        self._policy, self._trainer, self._rollouts = policy, trainer, rollouts
        self._headline, self._before_save = headline, before_save
        self._best: tuple[float, int] | None = None

    def save_if_due(self, step: int, metrics: dict[str, float], *, now: bool) -> None:
        """Save after `step` updates if the schedule says so, or `now`. The best is the best among the saved."""
        every = self._settings.checkpoint_every
        if not now and (every is None or step % every):
            return
        accuracy = metrics.get(self._headline)
        if accuracy is not None and (self._best is None or accuracy > self._best[0]):
            self._best = (accuracy, step)
        self._before_save()  # a checkpoint must not outlive the lines before it
        structure, tensors = flatten(
            {"optimizer": self._trainer.optimizer.state_dict(), "random": random_state()}, "state"
        )
        if self._policy.value_head is not None:
            tensors |= {f"value_head/{name}": t for name, t in self._policy.value_head.state_dict().items()}
        state = {
            "structure": structure,
            "rollouts": self._rollouts.state(),
            "best": self._best,
            "bf16": self._trainer.bf16,  # precision=auto is decided once: another machine must not change the numbers
        }
        save_checkpoint(self._folder, step, model_saver=self._policy.save, tensors=tensors, state=state)
        keep = self._best[1] if self._best and self._settings.keep_best else None
        prune(self._folder, self._settings.keep_last, keep)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put everything back as it was when the checkpoint was written."""
        load_weights(self._policy, checkpoint)
        tree = unflatten(checkpoint.state["structure"], checkpoint.tensors)
        self._trainer.optimizer.load_state_dict(tree["optimizer"])
        set_random_state(tree["random"])
        self._rollouts.restore(checkpoint.state["rollouts"])
        self._trainer.bf16 = checkpoint.state["bf16"]
        best = checkpoint.state["best"]
        self._best = None if best is None else (best[0], best[1])


def load_weights(policy: Policy, checkpoint: Checkpoint) -> None:
    """Copy the checkpoint's weights into the policy's own tensors, which engine and optimizer share."""
    policy.load_weights(checkpoint.model_path)
    if policy.value_head is not None:
        prefix = "value_head/"
        head = {n.removeprefix(prefix): t for n, t in checkpoint.tensors.items() if n.startswith(prefix)}
        policy.value_head.load_state_dict(head)
