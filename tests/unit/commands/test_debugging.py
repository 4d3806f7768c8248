"""What a run says of its rewards."""

from pathlib import Path

import pytest

from rlvr.config.compose import load_config
from rlvr.core.world import ALONE
from rlvr.records.history import History
from rlvr.run.assemble import _part_weights
from rlvr.run.opened import _console
from rlvr.settings import dumped
from rlvr.types import Example

pytestmark = pytest.mark.slow

HF = ("model=hf", "model.name_or_path=somewhere")
SHORT = "reward.parts.short={type: length, weight: 1.0, free_tokens: 10, max_tokens: 20}"
MIX = ("task=mix", *HF, f"task.parts={{gsm8k: {{set: ['{SHORT}']}}, finqa: 1}}")


def test_shown_weights_are_those_of_the_reward() -> None:
    def weights(*lines: str, task: str = "rpn") -> dict[str, float]:
        return dict(_part_weights(load_config(lines), Example(id="e", messages=(), answer="", metadata={"task": task})))

    assert weights() == {"boxed": 0.0, "correct": 1.0}
    assert weights("reward=rpn_combined", "reward.parts.boxed.weight=0.25") == {"boxed": 0.25, "correct": 0.7}
    assert "short" in weights(*MIX, task="gsm8k")
    assert "short" not in weights(*MIX, task="finqa")


def test_penalties_of_a_mix_are_known() -> None:
    for lines, found in (((*HF, "task=gsm8k", SHORT), {"short"}), ((*HF, "task=gsm8k"), set()), (MIX, {"short"})):
        config = load_config(lines)
        assert _console(config, ALONE)._penalties == found
        assert History(rows=[], folder=Path(), text="", settings=dumped(config), notes=[]).penalties == found
