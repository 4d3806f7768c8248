"""The section `reward`."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import model_validator

from rlvr.rewards.base import Part
from rlvr.settings import PositiveFloat, PositiveInt, Settings, Share, chosen, setting, wrong

_SANDBOX = "uses_sandbox or task.metric_uses_sandbox  # a part or a metric that runs in a separate process"

METRICS = ("mean", "std", "within_group_std")  # `reward/...` metrics other than the parts


class RewardSettings(Settings):
    """The weighted sum of named parts; without parts, the task's environment scores its episodes itself."""

    parts: Mapping[str, Annotated[Part, chosen("reward")]] = setting({}, "parts by name")
    max_error_share: Share = setting(0.2, "a larger share of verifier failures in a step stops the run")
    timeout_s: PositiveFloat = setting(
        5.0, "time limit of verifiers in separate processes, in seconds", only_if=_SANDBOX
    )
    num_workers: PositiveInt = setting(2, "processes for verifiers that can hang", only_if=_SANDBOX)
    max_memory_mb: PositiveInt = setting(4096, "address space per process, in MB", only_if=_SANDBOX)

    @property
    def uses_sandbox(self) -> bool:
        """Whether a part runs in a separate process."""
        return any(not part.in_process for part in self.parts.values())

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if taken := [name for name in self.parts if name in METRICS]:
            raise wrong("parts", f"reward/{taken[0]} is a metric of the whole reward; give the part another name")
        if self.parts and not any(part.weight for part in self.parts.values()):
            raise wrong("parts", "have weights of 0 only, so every reward would be 0; give one part a weight")
        return self
