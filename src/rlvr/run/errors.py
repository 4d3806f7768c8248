"""The errors of core in the user's words: which key to change, and how to go on."""

from collections.abc import Iterator
from contextlib import contextmanager

from rlvr.algorithms.objective import AlgorithmError
from rlvr.core.errors import (
    LargeRewardError,
    LineMemoryError,
    LockstepMemoryError,
    NonFiniteLogitsError,
    SamplingMemoryError,
    VerifierError,
)
from rlvr.errors import StepError, UserError
from rlvr.imports import described


@contextmanager
def in_the_users_words() -> Iterator[None]:
    """An error of core inside the block becomes a UserError that names the keys."""
    try:
        yield
    except StepError as error:
        raise UserError(with_keys(error)) from error


def with_keys(error: StepError) -> str:
    """What happened, and what to change."""
    match error:
        case LockstepMemoryError():
            return f"{error}: go on with resume=true trainer.microbatch_tokens={error.fewer}"
        case LineMemoryError():
            return (
                f"{error}: lower rollout.max_completion_tokens, set model.gradient_checkpointing=true, or train "
                "adapters with model.lora.enabled=true"
            )
        case SamplingMemoryError():
            return f"{error}: lower rollout.max_completion_tokens, or train a smaller model"
        case NonFiniteLogitsError():
            return f"{error}; use another model, or train again with a lower trainer.learning_rate."
        case VerifierError():
            more = ", or give it more reward.timeout_s," if "timed out" in error.first else ""
            share = f"more than reward.max_error_share={error.max_error_share}"
            return (
                f"the verifier failed on {error.errors} of {error.episodes} episodes of this step, {share} (first: "
                f"{error.first}); correct it{more} and go on with resume=true"
            )
        case LargeRewardError():
            return f"{error}; keep rewards within +-{error.largest:g} and go on with resume=true"
        case AlgorithmError():
            problem = f"raised {described(error.__cause__)}" if error.__cause__ else error.problem  # with file and line
            said = f"algorithm={error.algorithm}: its method {error.method} {problem}"
            return f"{said}; correct it, then go on with resume=true."
    return str(error)
