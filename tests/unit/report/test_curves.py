import math

from rlvr.report.curves import MAX_POINTS, sections, series

ROWS = [
    {"step": 0, "eval/rpn/accuracy": 0.2, "eval/rpn/accuracy_low": 0.1, "eval/rpn/accuracy_high": 0.3},
    {"step": 1, "reward/mean": 0.1, "rollout/error_share": 0.0, "made/up": 1.0},
    {"step": 2, "reward/mean": math.nan, "rollout/error_share": 0.0, "made/up": 2.0},
    {"step": 3, "eval/rpn/accuracy": 0.9, "eval/rpn/accuracy_low": 0.8, "eval/rpn/accuracy_high": 1.0}
    | {"reward/mean": 0.4},
]


def test_every_number_is_in_one_section_and_bands_in_none() -> None:
    found = sections([ROWS])
    names = [name for section in found for name in section["names"] + section["still"]]
    assert sorted(names) == ["eval/rpn/accuracy", "made/up", "reward/mean", "rollout/error_share"]
    assert found[0]["names"] == ["eval/rpn/accuracy", "reward/mean"]
    assert next(section for section in found if "made/up" in section["names"])["title"] == "Other numbers"


def test_what_changes_in_no_run_is_no_curve() -> None:
    assert [name for section in sections([ROWS]) for name in section["still"]] == ["rollout/error_share"]
    moving = [{"step": 1, "rollout/error_share": 0.1}, {"step": 2, "rollout/error_share": 0.0}]
    assert [name for section in sections([ROWS, moving]) for name in section["still"]] == []


def test_accuracy_and_reward_are_drawn_when_they_are_flat() -> None:
    flat = {"eval/rpn/accuracy": 0.1, "reward/mean": 0.5, "rollout/turns_mean": 1.0}
    first, *others = sections([[{"step": step, **flat} for step in range(9)]])
    assert first["names"] == ["eval/rpn/accuracy", "reward/mean"]
    assert first["still"] == []
    assert [name for section in others for name in section["names"]] == []


def test_values_stand_under_their_steps() -> None:
    found = series(ROWS)
    assert found["steps"] == [0, 1, 2, 3]
    assert found["series"]["reward/mean"] == [None, 0.1, None, 0.4]
    assert found["series"]["eval/rpn/accuracy_low"] == [0.1, None, None, 0.8]


def test_long_runs_are_thinned_but_no_evaluation_is_left_out() -> None:
    rows: list[dict[str, float]] = [{"step": step, "reward/mean": 1.0} for step in range(9000)]
    for row in rows[1::1000]:
        row["eval/t/accuracy"] = 0.5
    steps = series(rows)["steps"]
    assert len(steps) <= MAX_POINTS + 10
    assert set(range(1, 9000, 1000)) <= set(steps)
    assert steps[-1] == 8999
