"""Pruning by intervals: which runs a run is compared with, and where the line is."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from rlvr.commands.train.search.pruning import Pruner, beaten_by, scores
from rlvr.evaluation.intervals import Interval, wilson

NAME = "eval/rpn/accuracy"
Curve = Mapping[int, tuple[float, float, float]]


def interval(low: float, value: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


@pytest.mark.parametrize(
    ("own", "best", "is_below"),
    [
        ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), True),
        ((0.1, 0.2, 0.4), (0.4, 0.5, 0.6), False),  # they touch
        ((0.1, 0.2, math.nextafter(0.4, 0)), (0.4, 0.5, 0.6), True),
        ((0.1, 0.45, 0.5), (0.4, 0.6, 0.7), False),
        ((0.7, 0.8, 0.9), (0.4, 0.5, 0.6), False),  # better, and as far from it
        ((math.nan, 0.1, math.nan), (0.4, 0.5, 0.6), False),  # no interval
        ((0.1, 0.2, 0.3), (math.nan, 0.5, math.nan), False),
    ],
)
def test_an_interval_lies_wholly_below_another(
    own: tuple[float, float, float], best: tuple[float, float, float], is_below: bool
) -> None:
    assert (beaten_by(interval(*own), {"best": interval(*best)}) == "best") == is_below


def test_the_best_is_the_one_with_the_highest_score() -> None:
    others = {"narrow": interval(0.5, 0.55, 0.6), "wide": interval(0.3, 0.6, 0.9)}
    assert beaten_by(interval(0.1, 0.2, 0.4), others) is None  # below the narrow one, not below the best
    assert beaten_by(interval(0.1, 0.2, 0.25), others) == "wide"
    assert beaten_by(interval(0.1, 0.2, 0.3), {}) is None


def test_with_many_examples_less_is_a_difference() -> None:
    """25 of 50 beside 40 of 50, and the same shares of 20: Wilson's intervals of 20 overlap."""
    assert beaten_by(wilson(25, 50), {"best": wilson(40, 50)}) == "best"
    assert beaten_by(wilson(10, 20), {"best": wilson(16, 20)}) is None


def make(folder: Path, curve: Curve) -> Path:
    folder.mkdir(parents=True)
    rows = [
        {"step": step, NAME: value, f"{NAME}_low": low, f"{NAME}_high": high}
        for step, (low, value, high) in curve.items()
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [{"step": 1}, *rows]))
    return folder


def pruner(folder: Path) -> Pruner:
    return Pruner(folder=folder, beside=folder.parent, name=NAME, max_steps=8)


HIGH, LOW = (0.7, 0.8, 0.9), (0.1, 0.2, 0.3)


def test_a_run_is_compared_at_its_own_step_alone(tmp_path: Path) -> None:
    make(tmp_path / "trial-0", {2: LOW, 4: HIGH})
    own = make(tmp_path / "trial-1", {2: LOW})
    assert scores(own, NAME) == {2: interval(*LOW)}
    asked = pruner(own)
    assert not asked()  # the other one was as low then
    (own / "metrics.jsonl").write_bytes((tmp_path / "trial-0" / "metrics.jsonl").read_bytes().replace(b"0.8", b"0.1"))
    (own / "metrics.jsonl").write_bytes((own / "metrics.jsonl").read_bytes().replace(b"0.9", b"0.15"))
    assert asked()
    said = (own / "pruned.txt").read_text()
    assert said == "held-out accuracy 0.100 (0.700 to 0.150) at step 4 lies below 0.800 (0.700 to 0.900) of trial-0\n"


@pytest.mark.parametrize("step", [0, 8])
def test_the_first_and_the_last_evaluation_prune_nothing(step: int, tmp_path: Path) -> None:
    make(tmp_path / "trial-0", {step: HIGH})
    own = make(tmp_path / "trial-1", {step: LOW})
    assert not pruner(own)()
    assert not (own / "pruned.txt").exists()


def test_which_runs_count(tmp_path: Path) -> None:
    """Not itself, not one that failed later; a pruned one does."""
    other, own = make(tmp_path / "trial-0", {4: HIGH}), make(tmp_path / "trial-1", {4: LOW})
    (other / "error.txt").write_text("its loss is not finite\n")
    assert not pruner(own)()
    (other / "error.txt").rename(other / "pruned.txt")
    assert pruner(own)()


def test_a_run_is_judged_where_it_evaluates_and_once(tmp_path: Path) -> None:
    other, own = make(tmp_path / "trial-0", {4: LOW}), make(tmp_path / "trial-1", {4: LOW})
    asked = pruner(own)
    assert not asked()
    (other / "metrics.jsonl").write_text((other / "metrics.jsonl").read_text().replace("0.1", "0.7"))
    assert not asked()  # the same step again
    with (own / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 5}\n')
    assert not pruner(own)()


def test_another_runs_damaged_file_prunes_and_fails_nothing(tmp_path: Path) -> None:
    other, own = make(tmp_path / "trial-0", {4: HIGH}), make(tmp_path / "trial-1", {4: LOW})
    (other / "metrics.jsonl").write_text("{]\n")
    assert not pruner(own)()
