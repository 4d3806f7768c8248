"""Rules between the ways to spread training over processes and what is trained; `rules.py` includes the table."""

from rlvr.config.rule import Rule
from rlvr.config.schema import Config, PretrainedModel


def _shards(c: Config, bits: int) -> bool:
    """Whether a model kept in so many bits is to be cut into rows."""
    if c.trainer.strategy != "fsdp2" or not isinstance(c.model, PretrainedModel):
        return False
    return c.model.load_in_4bit if bits == 4 else c.model.load_in_8bit


PARALLEL_RULES = (
    Rule(
        lambda c: _shards(c, 4),
        "model.load_in_4bit=true: packed weights cannot be cut into rows; set trainer.strategy=ddp, or "
        "model.load_in_4bit=false.",
    ),
    Rule(
        lambda c: _shards(c, 8),
        "model.load_in_8bit=true: packed weights cannot be cut into rows; set trainer.strategy=ddp, or "
        "model.load_in_8bit=false.",
    ),
    Rule(
        lambda c: c.trainer.strategy != "fsdp2",
        "with trainer.strategy={c.trainer.strategy}; set trainer.strategy=fsdp2",
        idle=("trainer.cpu_offload",),
    ),
)
