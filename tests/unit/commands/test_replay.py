"""What `rlvr replay` prints; tests/system/test_replay.py replays runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr.commands.replay import _beside, _strongest, lines
from rlvr.commands.replay.body import Replay, influence_path
from rlvr.records.differences import Difference
from rlvr.research.influence import Influence
from rlvr.research.what_if import WhatIf
from tests.unit.cli.conftest import Rlvr


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
    table = _beside(WhatIf(changes=["drop=3", "reward.2=1"], recorded=recorded, changed=changed)).splitlines()
    assert table[0].split() == ["update", "as", "it", "was", "drop=3", "reward.2=1"]
    assert [line.split() for line in table[2:]] == [["loss", "0.5", "0.25"], ["was", "1", "0"], ["new", "nan", "2"]]


SAME = Replay(
    run="runs/x",
    step=12,
    start=8,
    equal=True,
    differences=[],
    num_episodes=16,
    num_recorded=8,
    num_metrics=40,
    notes=["some are\x07 not recorded"],
)
OTHER = replace(
    SAME,
    start=0,
    equal=False,
    differences=[Difference(stage="sampling", name="token_ids", episode=3, recorded=7, replayed=8)],
    num_recorded=0,
    changed=["seed was 1"],
    what_if=WhatIf(changes=["drop=3"], recorded={"loss": 0.5}, changed={"loss": 0.25}),
    influence=episodes(2),
)


def test_an_equal_step_has_two_lines() -> None:
    assert list(lines(SAME)) == [
        "step 12 of runs/x, from checkpoint 8: equal",
        "compared: 8 episodes by token, 40 metrics",
    ]


def test_what_has_changed_comes_first_and_what_was_asked_for_last() -> None:
    said = list(lines(OTHER))
    assert said[:3] == [
        "changed since the run: seed was 1",
        "step 12 of runs/x, from the first weights: different",
        "compared: 40 metrics",
    ]
    assert said[3] == f"first difference in {OTHER.differences[0]}"
    first, second = (place for place, line in enumerate(said) if not line)
    assert said[first + 1].split() == ["update", "as", "it", "was", "drop=3"]
    assert said[second + 1].split() == ["episode", "group", "reward", "loss", "without", "it", "share"]
    assert (first, len(said) - second) == (4, 5)


@pytest.mark.parametrize(("found", "code"), [(SAME, 0), (OTHER, 1)])
def test_the_exit_status_says_whether_they_are_equal(
    found: Replay, code: int, tmp_path: Path, rlvr: Rlvr, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlvr.commands.replay.body.replay", lambda run, step, *, changes, influence: found)
    ran = rlvr("replay", tmp_path / "x", "--step", 12)
    assert (ran.code, ran.out) == (code, "".join(f"{line}\n" for line in lines(found)))
    assert ran.err == "note: some are\\x07 not recorded\n"
    asked = rlvr("replay", tmp_path / "x", "--step", 12, "--json", "--influence")
    (line,) = map(json.loads, asked.out.splitlines())
    assert (asked.code, asked.err, line["equal"], line["start"]) == (code, "", not code, found.start)
    written = json.loads((tmp_path / "x.influence" / "step_000012.json").read_text())
    assert (written["run"], written["step"]) == ("x", 12)
    assert [one["episode"] for one in written["episodes"]] == [one.episode for one in found.influence or ()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--output", "f.json"), "--output: nothing is written; add --influence."),
        (("--influence", "--output", "{}/x/f.json"), "/x/f.json: is inside the run, which is only read; choose"),
        (("--influence", "--output", "{}/x"), "/x: is inside the run, which is only read; choose"),
    ],
)
def test_influence_is_written_beside_the_run(words: tuple[str, ...], said: str, tmp_path: Path, rlvr: Rlvr) -> None:
    ran = rlvr("replay", tmp_path / "x", "--step", 1, *(word.format(tmp_path) for word in words))
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert influence_path(str(tmp_path / "x"), 7, None) == tmp_path / "x.influence" / "step_000007.json"
    assert influence_path(str(tmp_path / "x"), 7, str(tmp_path / "xy.json")) == tmp_path / "xy.json"
