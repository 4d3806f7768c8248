"""What `rlvr replay` prints; tests/system/test_replay.py replays runs."""

import pytest

from rlvr.commands.replay import _beside, _strongest
from rlvr.commands.replay.influence import Influence
from rlvr.commands.replay.what_if import WhatIf


def episodes(num: int) -> list[Influence]:
    """Their changes are 0, 7, 14, ... modulo the number."""
    return [
        Influence(episode=n, group=n // 4, sample_index=n % 4, reward=0.5, change=7.0 * n % num, share=0.1)
        for n in range(num)
    ]


@pytest.mark.parametrize(("num", "shown"), [(8, range(8)), (10, range(10)), (12, [0, 1, 2, 3, 4, 7, 8, 9, 10, 11])])
def test_the_strongest_episodes_of_both_ends_are_shown(num: int, shown: list[int]) -> None:
    found = sorted(episodes(num), key=lambda one: one.change, reverse=True)
    rows = [line.split() for line in _strongest(episodes(num)).splitlines()[2:]]
    assert [row[0] for row in rows] == [str(found[place].episode) for place in shown]
    assert rows[0][1:] == [f"{found[0].group}.{found[0].sample_index}", "0.5", f"+{num - 1}", "+10.0%"]


def test_what_would_have_been_stands_beside_what_was() -> None:
    recorded = {"loss": 0.5, "was": 1.0, "never": 0.0}
    changed = {"loss": 0.25, "was": 0.0, "never": 0.0, "new": 2.0}
    lines = _beside(WhatIf(changes=["drop=3", "reward.2=1"], recorded=recorded, changed=changed)).splitlines()
    assert lines[0].split() == ["update", "as", "it", "was", "drop=3", "reward.2=1"]
    assert [line.split() for line in lines[2:]] == [["loss", "0.5", "0.25"], ["was", "1", "0"], ["new", "nan", "2"]]
