"""Checks of the size of a step."""

import torch

from rlvr.checks.patient import Patient, logprobs, verdict
from rlvr.tracking.checks import Check
from rlvr.tracking.signals import SIGNALS

MOST_MOVED = 1.0  # nats of a token in one step
SMALL_KL = 0.1  # nats of a token


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


def reward_outweighs_kl(patient: Patient) -> Check:
    """Advantages are about 1 in size; a policy that learns moves by tenths of a nat a token."""
    coef = patient.config.algorithm.kl_coef
    return verdict(
        coef * SMALL_KL > 1,
        f"algorithm.kl_coef={coef:g}: moving by {SMALL_KL} nats a token costs {coef * SMALL_KL:.3g}, more than "
        "an advantage of 1 pays: the policy stays what it is",
        f"moving by {SMALL_KL} nats a token costs {coef * SMALL_KL:.2g}, and advantages are about 1",
        "lower algorithm.kl_coef: 0 to 0.1 are usual",
        kl_coef=coef,
    )


CHECKS = (step_is_sized, reward_outweighs_kl)
