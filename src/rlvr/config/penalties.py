"""Which parts of a reward are 0 where all is well."""

from rlvr.config.schema import Config, LengthPart, PartsReward, RepetitionPart


def penalties(config: Config) -> frozenset[str]:
    """The parts of all rewards that are 0 where all is well."""
    rewards = [config.reward, *(part.reward for part in getattr(config.task, "parts", {}).values())]
    parts = [item for reward in rewards if isinstance(reward, PartsReward) for item in reward.parts.items()]
    return frozenset(name for name, part in parts if isinstance(part, LengthPart | RepetitionPart))
