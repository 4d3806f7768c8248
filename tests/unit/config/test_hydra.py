"""What is kept from one composition to the next."""

from pathlib import Path

import pytest

from rlvr.config.compose import load_config
from rlvr.errors import ConfigError


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    for steps in (3, 4):  # as long as before, and perhaps in the same tick of the clock
        (tmp_path / "mine.yaml").write_text(f"defaults: [rpn, _self_]\ntrainer: {{max_steps: {steps}}}\n")
        assert load_config([], config_name="mine", config_dir=str(tmp_path)).trainer.max_steps == steps


def test_a_composition_changes_nothing_for_the_next() -> None:
    before = load_config([])
    changed = load_config(["task.modulus=7", "warm_start.num_steps=500"])
    assert (changed.task.modulus, changed.warm_start.num_steps) == (7, 500)  # type: ignore[union-attr]
    assert load_config([]) == before


@pytest.mark.parametrize(
    ("text", "seed"),
    [
        ("${rollout.group_size}", 8),  # a default, of a section that nothing else names
        ("${oc.select:rollout.group_size,3}", 8),
        ("${oc.select:rollout.group_siez,3}", 3),
        ("${trainer.max_steps}", 40),  # of a file
        ("${${name}.group_size}", 8),  # a name that is a value itself
        ("${nowhere.${name}}", None),
    ],
)
def test_interpolations_find_what_is_not_said(text: str, seed: int | None, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"defaults: [rpn, _self_]\nname: rollout\nseed: {text}\n")
    if seed is None:
        with pytest.raises(ConfigError, match="nowhere"):
            load_config([], config_name="mine", config_dir=str(tmp_path))
    else:
        assert load_config([], config_name="mine", config_dir=str(tmp_path)).seed == seed
