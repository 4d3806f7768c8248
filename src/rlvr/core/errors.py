"""What ends a step: facts, without the name of a setting. Who runs the loop says what to change (`rlvr.run.errors`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlvr.errors import UserError


class NonFiniteError(Exception):
    """Loss or gradient is NaN or infinite, raised on all ranks; `rows` are the batch rows of the microbatch."""

    def __init__(self, what: str, rows: Sequence[int]) -> None:
        super().__init__(f"{what} is not finite")
        self.what, self.rows = what, list(rows)


@dataclass(eq=False)
class StepError(UserError):
    """A problem outside the program that ends the run."""

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())  # for pickle: all ranks raise it


@dataclass(eq=False)
class LockstepMemoryError(StepError):
    """A pass of `tokens` does not fit, and other ranks wait in it, so that it cannot be repeated with `fewer`."""

    tokens: int
    fewer: int
    reason: str

    def __str__(self) -> str:
        said = f"out of memory at {self.tokens:,} tokens per microbatch ({self.reason})"
        return f"{said}, where other processes wait in the same pass"


@dataclass(eq=False)
class LineMemoryError(StepError):
    """The longest row does not fit into memory."""

    tokens: int
    reason: str

    def __str__(self) -> str:
        return f"a line of {self.tokens:,} tokens does not fit into memory, even alone ({self.reason})"


@dataclass(eq=False)
class SamplingMemoryError(StepError):
    """So many completions, sampled together, do not fit into memory."""

    completions: int
    reason: str

    def __str__(self) -> str:
        return f"out of memory with up to {self.completions} completions sampled together ({self.reason})"


class NonFiniteLogitsError(StepError, FloatingPointError):
    """No token can be sampled."""

    def __str__(self) -> str:
        return "the model's logits are not finite: its weights hold NaN or have grown too large"


@dataclass(eq=False)
class VerifierError(StepError):
    """Verifiers failed on a larger share of a step's episodes than allowed; `first` is the first one's message."""

    errors: int
    episodes: int
    max_error_share: float
    first: str

    def __str__(self) -> str:
        said = f"the verifier failed on {self.errors} of {self.episodes} episodes of this step"
        return f"{said}, more than max_error_share={self.max_error_share} (first: {self.first})"


@dataclass(eq=False)
class AlgorithmError(StepError):
    """A method of the user's algorithm raised, or returned what it must not."""

    algorithm: str
    method: str
    problem: str

    def __str__(self) -> str:
        return f"algorithm {self.algorithm}: its method {self.method} {self.problem}"
