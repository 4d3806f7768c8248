"""What a verifier is, and the contract that every score must meet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from rlvr.errors import UserError
from rlvr.types import Attempt, Score


class RewardError(UserError):
    """A verifier returned something that is not one finite score: a bug in the verifier, which ends the run."""


class Verifier(Protocol):
    """Scores one attempt at one example."""

    @property
    def name(self) -> str:
        """What errors and metrics call it."""
        ...

    async def verify(self, attempt: Attempt) -> Score:
        """The verdict; it must not raise for any completion, and must not block: what is slow runs in a pool."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """What one part of a reward found, before weights: `Grade(value=1.0)`, `Grade(value=0.0, status="invalid")`.

    The states are those of `Score`: `error` says that the part itself failed, its `value` is NaN, and `message` tells
    what happened, in words that can be counted (`timed out after 5 s`); `bad_data` that the example is at fault.
    """

    value: float
    status: Literal["scored", "invalid", "error"] = "scored"
    message: str = ""
    bad_data: bool = False


class Part(Protocol):
    """One named, weighted part of a reward."""

    async def grade(self, attempt: Attempt) -> Grade:
        """The finding; it must not raise for any completion, and must not block: what is slow runs in a pool."""
        ...


def checked(name: str, score: object) -> Score:
    """`score` itself if it is one finite verdict (NaN for `error`), else RewardError naming the reward.

    A list, a bare number, NaN or infinity would otherwise be broadcast over a group or poison its mean in silence.
    """
    if not isinstance(score, Score):
        raise RewardError(f"reward {name!r} returned {type(score).__name__} {score!r:.80} instead of one Score.")
    numbers = {"value": score.value, **score.parts} if score.status != "error" else dict(score.parts)
    for key, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise RewardError(f"reward {name!r} returned {key}={number!r}, which is not a finite number.")
    if score.status == "error" and not math.isnan(score.value):
        raise RewardError(f"reward {name!r} returned value={score.value!r} with status 'error', which must be NaN.")
    return score


async def run_verifier(verifier: Verifier, attempt: Attempt) -> Score:
    """The checked verdict; an exception of the verifier is `error` (left out of the group), never a wrong answer."""
    try:
        score = await verifier.verify(attempt)
    except RewardError:
        raise  # a broken contract is the verifier's, not the completion's
    except Exception as error:
        return Score(value=math.nan, status="error", diagnostics={"error": f"{type(error).__name__}: {error}"[:500]})
    return checked(verifier.name, score)
