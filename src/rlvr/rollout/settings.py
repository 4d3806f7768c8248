"""Settings of sampling for training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlvr.settings import NonNegativeInt, PositiveFloat, PositiveInt, Settings, setting
from rlvr.types import SamplingParams


class RolloutSettings(Settings):
    """How completions are sampled for training."""

    prompts_per_step: PositiveInt = setting(
        32, "examples per step; a step samples group_size completions of each", debug=2, le=10**6
    )
    group_size: PositiveInt = setting(8, "completions of one example, compared with each other", debug=4, le=10**5)
    max_staleness: NonNegativeInt = setting(
        0,
        "updates that the weights which sampled a token may be behind those that train on it; 0: sampling and training "
        "take turns, k: the next k batches are sampled while the trainer works",
    )
    max_completion_tokens: PositiveInt = setting(24, "longest completion; longer ones are truncated")
    temperature: PositiveFloat = setting(1.0, "sampling temperature; the trainer's logprobs use it too")
    top_p: Annotated[float, Field(gt=0, le=1)] = setting(1.0, "nucleus sampling; 1 turns it off")
    top_k: NonNegativeInt = setting(0, "sample from the k likeliest tokens; 0 turns it off")
    min_p: Annotated[float, Field(ge=0, lt=1)] = setting(
        0.0, "leave out tokens less likely than min_p x the likeliest; 0 turns it off"
    )

    @property
    def truncates(self) -> bool:
        """Whether sampling leaves out part of the vocabulary."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    def params(self, stop_ids: frozenset[int]) -> SamplingParams:
        """Of every draw, but for its seed."""
        return SamplingParams(
            max_tokens=self.max_completion_tokens,
            stop_ids=stop_ids,
            seed=0,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
        )
