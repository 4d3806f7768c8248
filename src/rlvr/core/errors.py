"""What ends a step: facts, without the name of a setting. Who runs the loop says what to change (`rlvr.run.errors`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlvr.errors import StepError


@dataclass(eq=False)
class NonFiniteError(StepError):
    """Loss or gradient is NaN or infinite, raised on all ranks; `rows` are the batch rows of the microbatch."""

    what: str
    rows: Sequence[int]
    text = "{what} is not finite"


@dataclass(eq=False)
class LockstepMemoryError(StepError):
    """A pass does not fit, and other ranks wait in it, so that it cannot be repeated with `fewer` tokens."""

    tokens: int
    fewer: int
    reason: str
    text = "out of memory at {tokens:,} tokens per microbatch ({reason}), where other processes wait in the same pass"


@dataclass(eq=False)
class LineMemoryError(StepError):
    """The longest row does not fit."""

    tokens: int
    reason: str
    text = "a line of {tokens:,} tokens does not fit into memory, even alone ({reason})"


@dataclass(eq=False)
class SamplingMemoryError(StepError):
    """The keys and values of `completions` sampled together do not fit."""

    completions: int
    reason: str
    text = "out of memory with up to {completions} completions sampled together ({reason})"


class NonFiniteLogitsError(StepError, FloatingPointError):
    """No token can be sampled."""

    text = "the model's logits are not finite: its weights hold NaN or have grown too large"


@dataclass(eq=False)
class VerifierError(StepError):
    """Verifiers failed on a larger share of a step's episodes than allowed; `first` is the first one's message."""

    errors: int
    episodes: int
    max_error_share: float
    first: str
    text = (
        "the verifier failed on {errors} of {episodes} episodes of this step, more than "
        "max_error_share={max_error_share} (first: {first})"
    )


@dataclass(eq=False)
class LargeRewardError(StepError):
    """A reward that float32 cannot square and add up."""

    example: str
    value: float
    largest: float
    text = "the reward of example {example!r} is {value:g}, and an update squares it in float32"
