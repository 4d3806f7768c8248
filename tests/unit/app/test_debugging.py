"""What a debug run says of its rewards."""

from rlvr.app.debugging import part_weights
from rlvr.config.compose import load_config
from rlvr.config.penalties import penalties

HF = ("model=hf", "model.name_or_path=somewhere", "task=gsm8k")


def test_the_weights_are_those_that_the_reward_is_made_with() -> None:
    assert part_weights(load_config(["reward.type=correct"]).reward) == {"boxed": 0.0, "correct": 1.0}
    combined = load_config(["reward.type=combined", "reward.boxed_weight=0.25"]).reward
    assert part_weights(combined)["boxed"] == 0.25
    parts = load_config([*HF, "reward=numeric"]).reward
    assert part_weights(parts) == {name: part.weight for name, part in getattr(parts, "parts", {}).items()}
    assert part_weights(None) == {}


def test_parts_that_are_zero_where_all_is_well_are_known_in_a_mix_too() -> None:
    short = "+reward.parts.short={type: length, weight: 1.0, free_tokens: 10, max_tokens: 20}"
    assert penalties(load_config([*HF, short])) == {"short"}
    assert penalties(load_config(HF)) == frozenset()
    mix = ["task=mix", *HF[:2], f"task.parts={{gsm8k: {{set: ['{short}']}}}}"]
    assert penalties(load_config(mix)) == {"short"}
