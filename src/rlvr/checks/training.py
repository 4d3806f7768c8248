"""Checks of precision, weights on their way, checkpoints and resume."""

import os
import shutil
from dataclasses import replace
from math import isfinite

from rlvr.algorithms.losses import kl_estimate, mismatch_log_weight
from rlvr.checks.patient import Patient, difference, logprobs, skip, verdict
from rlvr.core.batch import to_batch
from rlvr.errors import UserError
from rlvr.models.devices import half_dtype
from rlvr.models.loading import load_policy
from rlvr.records.checks import Check
from rlvr.run.assemble import make_rollouts
from rlvr.tracking.signals import SIGNALS
from rlvr.training.checkpoint import latest_checkpoint, load_checkpoint
from rlvr.training.memory import size_text
from rlvr.training.state import CheckpointSchedule

SAME = 1e-5  # nats between two models' logprobs
LARGE_STEP = 1e-2  # a learning rate that every logprob shows


def dtypes(patient: Patient) -> Check:
    config, policy = patient.as_run.config, patient.policy
    half = half_dtype(config.trainer.precision, policy.model)
    trained = {str(p.dtype).removeprefix("torch.") for p in policy.parameters()}
    sampled = config.engine.sampling_dtype(policy, config) if config.engine.in_process else "the server's"
    names = {
        "weights": str(policy.dtype).removeprefix("torch."),
        "trained": sorted(trained),
        "products": "float32" if half is None else str(half).removeprefix("torch."),
        "sampled_with": str(sampled).removeprefix("torch."),
    }
    return verdict(
        trained != {"float32"},
        f"trained weights are {', '.join(sorted(trained)) or 'none'}: a step of 1e-6 would be rounded away",
        f"trained weights are float32, products {names['products']}, sampling in {names['sampled_with']}",
        "set model.dtype=float32, or train adapters",
        **names,
    )


def mismatch(patient: Patient) -> Check:
    """Sampler against trainer in the run's own precision and engine."""
    run = patient.as_run
    try:
        sampled = run.sample(run.config.rollout.temperature)
    except UserError as error:
        settings = f"engine.dtype={getattr(run.config.engine, 'dtype', '')}, trainer.precision="
        settings += str(run.config.trainer.precision)
        return verdict(
            True,
            f"in the run's own precision ({settings}) it cannot be sampled: {error}",
            "",
            "in float32 it can (see engine_is_trainer): set engine.dtype=float32 or bfloat16; float16 ends at 65,504",
        )
    batch = to_batch(sampled)
    old = logprobs(run.trainer(), batch)
    log_weight, _ = mismatch_log_weight(old, batch.behavior_logprobs)
    kl = float(kl_estimate(-log_weight, "k3")[batch.loss_mask].mean())
    gap, where = difference(batch, batch.behavior_logprobs, old)
    return verdict(
        SIGNALS["policy/mismatch_kl"].is_wrong(kl) or not isfinite(kl),
        f"sampler and trainer differ by {kl:.2g} nats a token in the run's own precision (largest {gap:.2g})",
        f"sampler and trainer differ by {kl:.1g} nats a token in the run's own precision (largest {gap:.1g})",
        "set trainer.precision=fp32 and engine.dtype=float32 to see whether it is rounding; if so, "
        "algorithm.mismatch_correction=truncate",
        mismatch_kl=kl,
        **where,
    )


def weights_reach_engine(patient: Patient) -> Check:
    run = patient.as_run
    engine, before = run.engine, patient.scored  # made before the update: one kind of engine copies the weights
    with patient.unchanged():
        trainer = run.trainer(epochs=1, learning_rate=LARGE_STEP)
        batch = patient.batch
        trainer.update(patient.judged(trainer), 0)
        engine.load_weights(1)
        fresh = to_batch(run.sample(1.0))
        gap, where = difference(fresh, fresh.behavior_logprobs, logprobs(run.trainer(1.0), fresh))
        allowed = run.tolerance_in(fresh)
        moved, _ = difference(batch, before, logprobs(patient.trainer(layout="rows"), batch))
    engine.load_weights(0)
    return verdict(
        gap > min(allowed, moved / 2) or not moved > 0,
        f"after an update that moved logprobs by {moved:.2g}, engine and trainer differ by {gap:.2g}",
        f"after an update that moved logprobs by {moved:.2g}, engine and trainer agree (largest difference {gap:.1g})",
        "the engine samples with old weights: some tensors have other names or are not trained where they are used",
        **where,
    )


def saves_and_loads(patient: Patient) -> Check:
    """What a checkpoint and `final/` give back."""
    folder, batch = patient.root / "saved", patient.batch
    if why := _no_room(patient):
        return skip(why)
    patient.policy.save(folder)
    settings = patient.config.model.pretrained
    assert settings is not None, "what doctor examines is loaded"
    again = load_policy(settings.model_copy(update={"name_or_path": str(folder)}), seed=0, device=patient.model.device)
    other = Patient(patient.run, replace(again, value_head=None))
    gap, where = difference(batch, patient.scored, logprobs(other.trainer(layout="rows"), batch))
    shutil.rmtree(folder)
    return verdict(
        gap > patient.noise,
        f"saved and loaded again, the model's logprobs differ by {gap:.2g}",
        "saved and loaded again, the model has the same logprobs",
        "config.json contradicts the weights: tie_word_embeddings=true with a head of its own, or tensors that the "
        "model's class does not save",
        **where,
    )


def resume_is_equal(patient: Patient) -> Check:
    """A step after a checkpoint, and the same step after loading it."""
    if why := _no_room(patient):
        return skip(why)
    root, policy = patient.root / "resumed", patient.policy
    config = patient.config
    rollouts = make_rollouts(patient.run, policy, patient.engine, patient.chat)

    def schedule() -> CheckpointSchedule:
        trainer = patient.trainer(epochs=1)
        return CheckpointSchedule(
            folder=root / "checkpoints",
            settings=config.trainer,
            policy=replace(policy, value_head=trainer.policy.value_head),
            trainer=trainer,
            rollouts=rollouts,
            headline="",
            before_save=lambda: None,
        )

    def step(run: CheckpointSchedule, number: int) -> float:
        """The share of the weights that it changed."""
        trainer = run.trainer
        metrics, _ = trainer.update(patient.judged(trainer), number)
        return metrics["policy/changed_weight_share"]

    with patient.unchanged():
        first, second = schedule(), schedule()  # both have the reference of the start, as a resumed run
        step(first, 0)
        first.save_if_due(1, {}, now=True)
        moved = step(first, 1)
        straight = [parameter.detach().clone() for parameter in policy.parameters()]
        del first  # its moments are twice the weights
        path = latest_checkpoint(root / "checkpoints")
        assert path is not None
        second.restore(load_checkpoint(path))
        step(second, 1)
        gap = max(float((a - b.detach()).abs().max()) for a, b in zip(straight, policy.parameters(), strict=True))
    shutil.rmtree(root)
    return verdict(
        gap > 0 or not moved > 0,
        f"a step after a checkpoint and the same step after loading it differ by {gap:.2g} in a weight",
        f"a step after a checkpoint and the same step after loading it are equal (it moved {moved:.0%} of the weights)",
        "something that training depends on is not saved: a buffer, a tied weight, or a random state of the model's",
        difference=gap,
        changed_share=moved,
    )


def _no_room(patient: Patient) -> str | None:
    """Why a checkpoint cannot be tried: weights, moments and gradients, and a second time what is read back."""
    weights = sum(p.nbytes for p in patient.model.parameters())
    trained = sum(p.nbytes for p in patient.policy.parameters())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    disk = shutil.disk_usage(patient.root).free
    for what, need, there in (("disk", weights + 2 * trained, disk), ("memory", weights + 10 * trained, memory)):
        if need > there:
            return f"a checkpoint and its resume need {size_text(need)} of {what}, and there are {size_text(there)}"
    return None


def teacher_differs(patient: Patient) -> Check:
    """What a teacher says beyond what the policy knows."""
    algorithm = patient.config.algorithm
    if "teacher" not in algorithm.columns() or getattr(algorithm, "reward_coef", 1) > 0:
        return skip("the run does not learn from a teacher alone")
    column = patient.trainer(epochs=1).score(patient.batch, patient.groups).columns["teacher"]
    gap, _ = difference(patient.batch, column, patient.scored)
    return verdict(
        gap < SAME,
        f"the teacher {getattr(algorithm, 'teacher', '')} gives every token the policy's own probability: there is "
        "nothing to learn from it",
        f"the teacher's logprobs differ from the policy's by up to {gap:.2g} nats",
        "name another model as algorithm.teacher, or add a reward: algorithm.reward_coef=1",
        gap=gap,
    )


CHECKS = (teacher_differs, dtypes, mismatch, weights_reach_engine, saves_and_loads, resume_is_equal)
