"""Checks of the size of a step, and of the settings that it follows from."""

import torch

from rlvr.checks.patient import Patient, logprobs, verdict
from rlvr.config.sections import unusual_settings
from rlvr.records.checks import Check
from rlvr.tracking.signals import SIGNALS

MOST_MOVED = 1.0  # nats of a token in one step


def step_is_sized(patient: Patient) -> Check:
    """The first step at the run's own learning rate: it changes weights, and leaves the policy what it was."""
    rate = patient.config.trainer.learning_rate
    with patient.unchanged():
        trainer = patient.trainer(epochs=1)
        metrics, _ = trainer.update(patient.judged(trainer), 0)
        after = logprobs(patient.trainer(layout="rows"), patient.batch)
    share, mask = metrics["policy/changed_weight_share"], patient.batch.loss_mask
    moved = float((after - patient.scored)[mask].abs().nan_to_num(torch.inf).mean())
    small = SIGNALS["policy/changed_weight_share"].is_wrong(share)
    says = f"one step at trainer.learning_rate={rate:g} moves the logprob of a token by {moved:.2g} nats"
    return verdict(
        small or moved > MOST_MOVED,
        f"a step at trainer.learning_rate={rate:g} changes {share:.2g} of the weights: the rest are rounded back"
        if small
        else f"{says}: it destroys the model",
        says,
        ("raise" if small else "lower")
        + " trainer.learning_rate: auto is 1e-6 for a pretrained model, 1e-5 for adapters",
        moved=moved,
        changed_weight_share=share,
    )


def settings_are_usual(patient: Patient) -> Check:
    """The run's values within the usual ranges of their settings."""
    unusual = unusual_settings(patient.as_run.config)
    return verdict(
        bool(unusual),
        "; ".join(map(str, unusual)),
        "the settings are within their usual ranges",
        f"set {' '.join(f'{one.key}={one.default:g}' for one in unusual)}, their defaults",
        values={one.key: one.value for one in unusual},
    )


CHECKS = (step_is_sized, settings_are_usual)
