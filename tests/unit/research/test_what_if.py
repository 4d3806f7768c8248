"""A what-if is the update made by hand: the fourth of a schedule, two minibatches and epochs, a clip, a KL, decay."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlvr.core.batch import to_batch
from rlvr.errors import ConfigError
from rlvr.research.what_if import Changes, WhatIf, changed_batch, read_changes, what_if
from tests.unit.research.replayed import ByHand, Case, made_step

CONFIG: Any = None  # only settings are compared with it


@pytest.fixture(scope="module")
def case() -> Case:
    return made_step()


def found(case: Case, *lines: str) -> WhatIf:
    changes = read_changes(lines, "run", CONFIG)
    return what_if(case.made, CONFIG, changes, lines)


def drop(*numbers: int) -> Callable[[ByHand], None]:
    def change(hand: ByHand) -> None:
        hand.rows = [replace(row, valid=row.valid and row.episode not in numbers) for row in hand.rows]

    return change


def reward(number: int, value: float) -> Callable[[ByHand], None]:
    def change(hand: ByHand) -> None:
        hand.rows = [replace(row, reward=value if row.episode == number else row.reward) for row in hand.rows]

    return change


def mask(number: int, first: int, last: int) -> Callable[[ByHand], None]:
    """Tokens are counted on from an episode's first row to its second."""

    def change(hand: ByHand) -> None:
        place = 0
        for index, row in enumerate(hand.rows):
            if row.episode == number:
                kept = [token for token in row.trained if not first <= token + place <= last]
                hand.rows[index] = replace(row, trained=kept)
                place += len(row.ids)

    return change


def both(*changes: Callable[[ByHand], None]) -> Callable[[ByHand], None]:
    def change(hand: ByHand) -> None:
        for one in changes:
            one(hand)

    return change


CHANGES: dict[str, tuple[tuple[str, ...], set[int], Callable[[ByHand], None]]] = {
    "an episode": (("drop=2",), {2}, drop(2)),
    "two, and one that failed": (("drop=[1, 4]", "drop=10"), {1, 4, 10}, drop(1, 4, 10)),
    "one of two rows": (("drop=6",), {6}, drop(6)),
    "a reward": (("reward.3=-2.5e0",), {3}, reward(3, -2.5)),
    "a reward of two rows": (("reward.6=4",), {6}, reward(6, 4.0)),
    "two rewards": (("reward.0=0", "reward.11=1"), {0, 11}, both(reward(0, 0.0), reward(11, 1.0))),
    "a whole mask": (("mask.1=all",), {1}, mask(1, 0, 99)),
    "a token": (("mask.0=5",), {0}, mask(0, 5, 5)),
    "a range with the tool's words inside": (("mask.1=6..11",), {1}, mask(1, 6, 11)),
    "a range over two rows": (("mask.6='7..12'",), {6}, mask(6, 7, 12)),
    "all kinds": (("drop=5", "reward.2=1", "mask.9=all"), {5, 2, 9}, both(drop(5), reward(2, 1.0), mask(9, 0, 99))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_as_by_hand(name: str, case: Case) -> None:
    lines, episodes, change = CHANGES[name]
    shown = found(case, *lines)
    plain, hand = ByHand(case), ByHand(case)
    change(hand)
    parts = {"changed": [n for n, row in enumerate(plain.rows) if row.episode in episodes]}
    rewards = {row.episode: row.reward for row in plain.rows if row.valid}
    mean = sum(rewards.values()) / len(rewards)
    parts["rewarded"] = [n for n, row in enumerate(plain.rows) if row.valid and row.reward > mean]
    parts["unrewarded"] = [n for n, row in enumerate(plain.rows) if row.valid and row.reward <= mean]
    assert shown.changes == lines
    for one, values in ((plain, shown.recorded), (hand, shown.changed)):
        wanted = one.run() | {f"probability_change/{part}": one.change(rows) for part, rows in parts.items()}
        for metric, value in wanted.items():
            assert values[metric] == pytest.approx(value, rel=2e-4, abs=1e-6), metric
    assert shown.changed["policy/grad_norm"] != pytest.approx(shown.recorded["policy/grad_norm"], rel=1e-3) or name == (
        "a token"
    )


def test_the_recorded_update_is_the_one_of_the_run(case: Case) -> None:
    """To the last digit, also after other what-ifs of the same step."""
    for _ in range(2):
        shown = found(case, "drop=2")
        of_update = {name: value for name, value in shown.recorded.items() if not name.startswith("probability")}
        assert of_update == {
            name: value for name, value in case.metrics.items() if name.startswith(("loss/", "policy/", "critic/"))
        }
        assert list(shown.recorded) == list(shown.changed)


def test_no_changes_change_nothing(case: Case) -> None:
    rewards = [e.score.value for group in case.made.sampled.groups for e in group.episodes]
    shown = found(case, f"reward.2={rewards[2]}", "drop=10")
    assert shown.changed == shown.recorded


def test_only_what_is_named_changes_in_the_batch(case: Case) -> None:
    batch = to_batch(case.made.sampled.groups)
    row = int((batch.episodes == 1).nonzero()[0, 0])
    _, first, last, *_ = batch.loss_mask[row].nonzero()[:, 0].tolist()
    changed = changed_batch(batch, Changes(drop=[3], rewards={5: 2.0}, masks={1: (first, last)}))
    differs = {
        name
        for name in batch.__dataclass_fields__
        if isinstance(getattr(batch, name), torch.Tensor) and not getattr(batch, name).equal(getattr(changed, name))
    }
    assert differs == {"rewards", "loss_mask", "valid"}
    assert (batch.rewards != changed.rewards).nonzero()[:, 0].tolist() == (batch.episodes == 5).nonzero()[:, 0].tolist()
    assert (batch.valid != changed.valid).nonzero()[:, 0].tolist() == (batch.episodes == 3).nonzero()[:, 0].tolist()
    assert (batch.loss_mask != changed.loss_mask).nonzero().tolist() == [[row, first], [row, last]]


READ = {
    "drop=3": Changes(drop=[3]),
    "drop=[1, 2,30]": Changes(drop=[1, 2, 30]),
    "reward.12=-1.5e-1": Changes(drop=[], rewards={12: -0.15}),
    "mask.3=all": Changes(drop=[], masks={3: None}),
    "mask.3=4": Changes(drop=[], masks={3: (4, 4)}),
    "mask.3='4..9'": Changes(drop=[], masks={3: (4, 9)}),
}


@pytest.mark.parametrize("line", READ)
def test_changes_are_read(line: str) -> None:
    assert read_changes([line], "run", CONFIG) == READ[line]


REFUSED = {
    "dorp=3": "changes nothing that an update is made from",
    "drop=-1": "changes nothing",
    "drop=": "changes nothing",
    "reward.3=1e": "1e is no number",
    "reward.3=1e999": "1e999 is no finite number",
    "reward.x=1": "changes nothing",
    "mask.3=9..4": "the first token comes before the last",
    "mask.3=4..": "changes nothing",
    "rollout.temperature=2": "changes nothing",
    "seed=4": "changes nothing",
}


@pytest.mark.parametrize("line", REFUSED)
def test_other_changes_are_refused(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_changes([line], "run", CONFIG)
    assert str(caught.value).startswith(f"--what-if {line}: ")
    assert REFUSED[line] in str(caught.value)


ABSENT = {
    "drop=12": "episodes 0 to 11, not 12",
    "reward.40=1": "episodes 0 to 11, not 40",
    "mask.12=all": "episodes 0 to 11, not 12",
    "mask.0=0": "mask.0=0..0: none of these tokens was sampled",
    "mask.0=90..99": "mask.0=90..99: none of these tokens was sampled",
}


@pytest.mark.parametrize("line", ABSENT)
def test_what_the_step_does_not_have_is_refused(line: str, case: Case) -> None:
    with pytest.raises(ConfigError) as caught:
        found(case, line)
    assert ABSENT[line] in str(caught.value)
