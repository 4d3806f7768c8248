"""Which trials run, and what is said of them; `commands/test_search.py` runs real processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

from rlvr.search import manager
from rlvr.search.manager import Search, interval, said
from rlvr.search.settings import SweepSettings
from rlvr.search.space import read_space
from rlvr.search.trials import Trial, write_trials

WORDS = ("algorithm=grpo,rloo",)


class Brief:
    """A process that ends when it is asked for the third time."""

    live, most, code = 0, 0, 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        assert options["start_new_session"], "Ctrl-C would reach it"
        self.polls: Iterator[int | None] = iter((None, None, self.code))
        Brief.live += 1
        Brief.most = max(Brief.most, Brief.live)

    def poll(self) -> int | None:
        found = next(self.polls)
        Brief.live -= found is not None
        return found

    def terminate(self) -> None:
        raise AssertionError("none is asked to end")


def trial(number: int, **changes: Any) -> Trial:
    point = {"algorithm": ("grpo", "rloo")[number % 2]}
    about: dict[str, Any] = {"state": "running", "params": point, "overrides": (f"algorithm={point['algorithm']}",)}
    return Trial(**{"number": number, "folder": f"trial-{number}", "command": "rlvr train", **about, **changes})


def search(folder: Path, trials: int, said: list[str], **settings: Any) -> Search:
    found = SweepSettings(trials=trials, prune=False, **settings)
    return Search(
        folder=folder,
        space=read_space(WORDS),
        settings=found,
        name="eval/rpn/accuracy",
        base=["train"],
        more=[],
        say=said.append,
    )


@pytest.mark.parametrize("jobs", [1, 2])
def test_trials_that_were_left_run_as_many_at_a_time_as_asked(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager.subprocess, "Popen", Brief)
    monkeypatch.setattr(manager, "POLL_S", 0.0)
    monkeypatch.setattr(Brief, "most", 0)
    write_trials(tmp_path, {number: trial(number) for number in range(3)})
    search(tmp_path, 3, [], jobs=jobs).run(lambda: False)
    assert (Brief.live, Brief.most) == (0, jobs)


@pytest.mark.parametrize("code", [-15, 143])
def test_a_trial_that_something_else_ended_is_no_failure(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status is the signal's, or what a shell makes of that."""
    monkeypatch.setattr(manager.subprocess, "Popen", Brief)
    monkeypatch.setattr(manager, "POLL_S", 0.0)
    monkeypatch.setattr(Brief, "code", code)
    write_trials(tmp_path, {0: trial(0)})
    notes = list[str]()
    found = search(tmp_path, 1, notes)
    found.run(lambda: False)
    assert found.interrupted == {0}
    assert notes[-1] == "trial 0: ended by SIGTERM, not by this command"
    assert found.trials[0].state == "running"


@pytest.mark.parametrize(("state", "reason"), [("failed", "its loss is not finite"), ("done", "")])
def test_a_point_that_comes_again_has_the_result_and_the_reason_that_it_had(
    state: str, reason: str, tmp_path: Path
) -> None:
    """Both points are known, so any proposal is one of them."""
    notes = list[str]()
    found = search(tmp_path, 3, notes)
    found.trials = {number: trial(number, state=state, reason=reason, score=0.25, step=4) for number in range(2)}
    again = found._next()
    assert (again.number, again.state, again.score, again.step) == (2, state, 0.25, 4)
    assert notes == [f"trial 2: the point of {again.folder.replace('-', ' ')} again"]
    assert again.reason == (reason or f"as {again.folder.replace('-', ' ')}")


def test_what_is_said_of_a_trial() -> None:
    """Its interval where it has one."""
    assert interval(trial(0)) == "-"
    assert interval(trial(0, score=0.25)) == interval(trial(0, score=0.25, low=0.2)) == "0.250"
    assert interval(trial(0, score=0.25, high=0.3)) == "0.250"
    assert said(trial(0, state="done", score=0.25, low=0.2, high=0.3)) == "done, 0.250 (0.200 to 0.300)"
    assert said(trial(0, state="pruned", reason="too low", score=0.25)) == "pruned: too low"
    assert said(trial(0, state="failed", reason="no data")) == "failed: no data"
