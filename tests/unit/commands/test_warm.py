"""How long a warm start takes, by some of its steps."""

import pytest

from rlvr.commands.plan import warm


@pytest.mark.parametrize(
    ("num_steps", "told"), [(3, []), (4, ["lengths are those after 3 of the 4 steps of the warm start"])]
)
def test_steps_that_were_not_made_take_as_long_as_those_that_were(
    num_steps: int, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, which is slow, does not count."""
    times = iter([0.0, 5.0, 6.0, 7.5])
    monkeypatch.setattr(warm.time, "perf_counter", lambda: next(times))
    watch, notes = warm.WarmWatch(patience_s=7.0), list[str]()
    assert [watch.stopped() for _ in range(4)] == [False, False, False, True]
    assert watch.whole(num_steps, notes) == num_steps * 1.25
    assert notes == told


@pytest.mark.parametrize(("times", "seconds"), [([0.0, 5.0], 20.0), ([0.0, 5.0, 6.0], 4.0)])
def test_an_only_step_is_the_slow_one_and_counts(
    times: list[float], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter(times)
    monkeypatch.setattr(warm.time, "perf_counter", lambda: next(told))
    watch = warm.WarmWatch(patience_s=5.0)
    assert [watch.stopped() for _ in times] == [False, False, True][: len(times)]
    assert watch.whole(4, []) == seconds
