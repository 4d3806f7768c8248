"""Pruning by intervals: which runs a run is compared with, and where the line is."""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from rlvr.evaluation.intervals import Interval, wilson
from rlvr.search.pruning import Pruner, median_above, scores

NAME = "eval/rpn/accuracy"
Curve = Mapping[int, tuple[float, float, float]]


def interval(low: float, value: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


@pytest.mark.parametrize(
    ("own", "other", "is_below"),
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
    own: tuple[float, float, float], other: tuple[float, float, float], is_below: bool
) -> None:
    assert interval(*own).is_below(interval(*other)) == is_below
    assert (median_above(interval(*own), dict.fromkeys("abc", interval(*other))) is not None) == is_below


def test_the_median_is_the_middle_score_and_the_lower_one_of_two() -> None:
    others = {"best": interval(0.8, 0.9, 1.0), "low": interval(0.0, 0.05, 0.1), "middle": interval(0.4, 0.5, 0.6)}
    own = interval(0.1, 0.2, 0.3)
    assert median_above(own, others) == "middle"
    assert median_above(interval(0.4, 0.5, 0.6), others) is None  # below the best alone
    assert median_above(own, others | {"wide": interval(0.3, 0.45, 0.9)}) is None  # the lower one of two touches it
    assert median_above(own, others | {"high": interval(0.7, 0.75, 0.8)}) == "middle"
    others.pop("low")
    assert median_above(own, others) is None  # of two there is no median worth the name


def test_with_many_examples_less_is_a_difference() -> None:
    """25 of 50 beside 40 of 50, and the same shares of 20: Wilson's intervals of 20 overlap."""
    assert median_above(wilson(25, 50), dict.fromkeys("abc", wilson(40, 50))) is not None
    assert median_above(wilson(10, 20), dict.fromkeys("abc", wilson(16, 20))) is None


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


def others(folder: Path, curve: Curve, num: int = 3) -> list[Path]:
    return [make(folder / f"trial-{number}", curve) for number in range(num)]


def test_a_run_is_compared_at_its_own_step_alone(tmp_path: Path) -> None:
    others(tmp_path, {2: LOW, 4: HIGH})
    own = make(tmp_path / "trial-9", {2: LOW})
    assert scores(own, NAME) == {2: interval(*LOW)}
    asked = pruner(own)
    assert not asked()  # the others were as low then
    assert not asked.pruned
    shutil.rmtree(own)
    make(own, {2: LOW, 4: LOW})
    assert asked()
    assert asked.pruned  # the trainer's record of it
    said = (own / "pruned.txt").read_text()
    assert said == (
        "held-out accuracy 0.200 (0.100 to 0.300) at step 4 lies below 0.800 (0.700 to 0.900) of trial-1, the median "
        "of 3\n"
    )


@pytest.mark.parametrize("step", [0, 8])
def test_the_first_and_the_last_evaluation_prune_nothing(step: int, tmp_path: Path) -> None:
    others(tmp_path, {step: HIGH})
    own = make(tmp_path / "trial-9", {step: LOW})
    assert not pruner(own)()
    assert not (own / "pruned.txt").exists()


def test_which_runs_count(tmp_path: Path) -> None:
    """Not itself, not one that failed later, not one whose file is damaged; a pruned one does."""
    other, *_ = others(tmp_path, {4: HIGH})
    own = make(tmp_path / "trial-9", {4: LOW})
    (other / "error.txt").write_text("its loss is not finite\n")
    assert not pruner(own)()
    (other / "error.txt").rename(other / "pruned.txt")
    text = (other / "metrics.jsonl").read_text()
    (other / "metrics.jsonl").write_text("{]\n")
    assert not pruner(own)()
    (other / "metrics.jsonl").write_text(text)
    assert pruner(own)()


def test_a_run_is_judged_where_it_evaluates_and_once(tmp_path: Path) -> None:
    folders = others(tmp_path, {4: LOW})
    own = make(tmp_path / "trial-9", {4: LOW})
    asked = pruner(own)
    assert not asked()
    for folder in folders:
        shutil.rmtree(folder)
    others(tmp_path, {4: HIGH})
    assert not asked()  # the same step again
    with (own / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 5}\n')
    assert not pruner(own)()
