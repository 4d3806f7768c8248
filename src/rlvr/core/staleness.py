"""How old the tokens of a batch are when they are trained on."""

from rlvr.types import TokenBatch


def check_staleness(batch: TokenBatch, step: int, max_staleness: int) -> dict[str, float]:
    """The ages of the sampled tokens, as metrics; nothing where all of them have to be 0.

    The age of a token is the number of updates between the weights that sampled it and those that it is trained on,
    which `step` updates have made. With versions `3 3 4` a batch of step 4 has ages `1 1 0`.

    Raises:
        RuntimeError: a token is older than `max_staleness`, or of weights that do not exist yet. That is a bug: the
            bound is a matter of which batch is issued when, and no setting of the user can break it.
    """
    assert batch.policy_versions is not None
    sampled = batch.loss_mask & ~batch.behavior_logprobs.isnan()  # not what a tool wrote, see to_batch
    versions = batch.policy_versions[sampled]
    if not len(versions):
        return {}
    oldest, newest = int(versions.min()), int(versions.max())
    if oldest < max(0, step - max_staleness) or newest > step:
        raise RuntimeError(
            f"step {step} would train on tokens sampled with weights of versions {oldest} to {newest}; "
            f"rollout.max_staleness={max_staleness} allows {max(0, step - max_staleness)} to {step}"
        )
    if max_staleness == 0:
        return {}
    return {
        "rollout/staleness_mean": step - versions.double().mean().item(),
        "rollout/staleness_max": float(step - oldest),
    }
