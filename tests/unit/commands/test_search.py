"""A search: its proposals, its processes, what is left after a kill, and its table. Training is a small script."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("optuna")

from rlvr.commands.train.search import _tied, summary
from rlvr.search import manager
from rlvr.search.settings import SweepSettings
from rlvr.search.space import read_space
from rlvr.search.trials import Trial, _frozen, propose, read_trials
from tests.unit.cli.conftest import Rlvr

SCRIPT = textwrap.dedent(
    """
    import fcntl, json, os, pathlib, signal, sys, time

    given = dict(word.split("=", 1) for word in sys.argv if "=" in word and not word.startswith("-"))
    folder, rate = pathlib.Path(given["run_dir"]), float(given["trainer.learning_rate"])
    act = json.loads(os.environ["ACT"]).get(folder.name, "")
    with open(folder.parent / "calls.txt", "a") as calls:
        calls.write(f"{folder.name} {' '.join(sys.argv[1:])}\\n")
    if act == "refuse" and "resume=true" not in sys.argv:
        sys.exit("rlvr: error: there is no data.")
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("name: rpn\\ntask:\\n  name: rpn\\nevaluation:\\n  headline: accuracy\\n")
    lock = (folder / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    if act == "wait" and "resume=true" not in sys.argv:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(143))
        (folder / "waits").touch()
        time.sleep(60)
    score = 1 - abs(rate - 0.5)
    rows = [{"step": step, "eval/rpn/accuracy": score * step / 4, "eval/rpn/accuracy_low": score * step / 4 - 0.01,
             "eval/rpn/accuracy_high": score * step / 4 + 0.01} for step in (0, 2, 4)]
    if act == "fail":
        (folder / "error.txt").write_text("its loss is not finite.\\n")
    if act == "prune":
        (folder / "pruned.txt").write_text("too low\\n")
    rows = rows[:2] if act in ("fail", "prune") else rows
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
    if act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(act == "fail")
    """
)
SEARCH = ("train", "-m", "trainer.learning_rate=interval(0.1,1)", "run_dir=out")


@pytest.fixture(autouse=True)
def acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`acts(**{"trial-1": "fail"})`: what becomes of trials; the others end well."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setattr(manager, "PROGRAM", (sys.executable, "-S", str(tmp_path / "script.py")))
    monkeypatch.setattr(manager, "POLL_S", 0.005)

    def set_acts(**given: str) -> None:
        monkeypatch.setenv("ACT", json.dumps(given))

    set_acts()
    return set_acts


def trials() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("out/trials.jsonl").read_text().splitlines()]


def calls() -> list[str]:
    return [line.split()[0] for line in Path("out/calls.txt").read_text().splitlines()]


def test_trials_in_order_of_their_score_with_the_best_as_a_command(rlvr: Rlvr) -> None:
    ran = rlvr(*SEARCH, "sweep.trials=4", "trainer.max_steps=4", "tracker.console=none")
    assert (ran.code, calls()) == (0, ["trial-0", "trial-1", "trial-2", "trial-3"])
    table, best, _ = ran.out.split("\n\n")
    scores = [float(line.split()[1]) for line in table.splitlines()[1:]]
    assert scores == sorted(scores, reverse=True)
    (first,) = [one for one in trials() if one["score"] == max(one["score"] for one in trials())]
    assert best.splitlines()[1] == f"  {first['command']}"
    assert first["command"] == (
        "rlvr train --config-name rpn trainer.max_steps=4 tracker.console=none "
        f"trainer.learning_rate={first['params']['trainer.learning_rate']}"
    )


def test_the_table_has_the_metric_that_trials_are_judged_by(rlvr: Rlvr) -> None:
    """The script does not measure this one."""
    judged = ("evaluation.headline=sampled_accuracy", "evaluation.samples_per_example=2")
    ran = rlvr(*SEARCH, "sweep.trials=1", *judged)
    assert ran.out.startswith("trial  sampled accuracy  step  ")


def done(number: int, score: float, low: float | None, high: float | None, rate: float, **more: Any) -> Trial:
    given = {"state": "done", "overrides": (), "folder": "f", "command": "c", "step": 4} | more
    return Trial(number=number, params={"rate": rate}, score=score, low=low, high=high, **given)  # type: ignore[arg-type]


def test_trials_that_tie_with_the_best_one_are_named() -> None:
    best = done(2, 0.9, 0.87, 0.93, 0.1)
    others = [done(0, 0.88, 0.84, 0.91, 0.2), done(5, 0.86, 0.83, 0.87, 0.3), done(7, 0.85, 0.81, 0.869, 0.4)]
    assert _tied(best, [best, *others]) == "trials 0 and 5"
    assert _tied(best, [best, *others[1:]]) == "trial 5"
    same_point, pruned = done(8, 0.9, 0.87, 0.93, 0.1), done(9, 0.9, 0.87, 0.93, 0.5, state="pruned")
    assert _tied(best, [best, same_point, pruned, done(3, 0.9, None, None, 0.6)]) == ""
    assert _tied(done(4, 0.9, None, None, 0.7), [best]) == ""


def searched(*trials: Trial, wanted: int = 3, hopeless: str = "") -> str:
    """What is printed of a search with these trials, the last of which comes first."""
    found: Any = SimpleNamespace(
        trials={one.number: one for one in reversed(trials)},
        name="eval/rpn/sampled_accuracy",
        settings=SimpleNamespace(trials=wanted),
        hopeless=hopeless,
        folder=Path("a sweep"),
    )
    return summary(found)


def test_trials_are_ordered_by_state_then_score_then_number() -> None:
    printed = searched(
        done(0, 0.5, 0.4, 0.6, 0.1, state="failed", reason="no data"),
        done(1, 0.9, None, None, 0.1, state="running", reason="lost"),
        done(2, 0.9, None, None, 0.2, state="pruned", reason="too low"),
        done(3, 0.5, 0.4, 0.6, 0.3, overrides=("a=1", "b=2")),
        replace(done(4, 0.0, None, None, 0.4, state="failed", step=0), score=None),
        done(5, -0.25, None, None, 0.5, command="rlvr train x"),
        done(6, 0.5, 0.4, 0.6, 0.6),
        wanted=8,
    )
    table, best, left, files = printed.split("\n\n")
    assert [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()] == [
        ["trial", "sampled accuracy", "step", "state", "settings"],
        ["3", "0.500 (0.400 to 0.600)", "4", "done", "a=1 b=2"],
        ["6", "0.500 (0.400 to 0.600)", "4", "done"],
        ["5", "-0.250", "4", "done"],
        ["2", "0.900", "4", "pruned"],
        ["1", "0.900", "4", "stopped (lost)"],
        ["0", "0.500 (0.400 to 0.600)", "4", "failed (no data)"],
        ["4", "-", "0", "failed"],
    ]
    assert best.splitlines() == [
        "best: trial 3, 0.500 (0.400 to 0.600); train it again with",
        "  c",
        "tied with it: trial 6, whose 95 % intervals overlap its own; more held-out examples "
        "(evaluation.num_examples), or several seeds of each, would tell",
    ]
    assert left == "2 of 8 trials have not ended; the same command goes on"
    assert files == "all of them: a sweep/trials.jsonl, rlvr runs 'a sweep', rlvr report 'a sweep'"


def test_a_search_says_what_is_left_of_it() -> None:
    failed = done(0, 0.5, None, None, 0.1, state="failed")
    assert "best:" not in searched(failed)
    assert "2 of 3 trials have not ended" in searched(failed)
    assert "have not ended" not in searched(failed, wanted=1)
    assert "tied" not in searched(done(0, 0.5, None, None, 0.1), wanted=1)
    given_up = searched(failed, hopeless="there is no data.")
    assert "gave up: 3 trials failed and none came through, the last one with: there is no data.\n" in given_up
    assert "have not ended" not in given_up
    assert searched(wanted=0).splitlines()[0].split() == ["trial", "sampled", "accuracy", "step", "state", "settings"]


def test_the_table_says_that_trials_tie(rlvr: Rlvr) -> None:
    """The script's intervals are 0.02 wide: of these rates two lie in each other's, the third one does not."""
    rates = "trainer.learning_rate=0.5,0.495,0.3,0.9"
    ran = rlvr("train", "-m", rates, "run_dir=out", "sweep.trials=3", "sweep.sampler=random", "sweep.seed=3")
    assert "tied with it: trial " in ran.out


def test_a_point_depends_on_the_seed_and_on_what_is_stored_of_the_trials_before(rlvr: Rlvr) -> None:
    """So a search that is interrupted tries the same points. Those after the tenth depend on the scores."""
    rlvr(*SEARCH, "sweep.trials=12")
    space, found = read_space(SEARCH[2:3]), read_trials(Path("out"))
    for number, trial in found.items():
        before = {one: found[one] for one in range(number)}
        assert propose(space, before, number, SweepSettings(trials=99)) == trial.params
    assert propose(space, {}, 0, SweepSettings(trials=1, seed=1)) != found[0].params
    others = {number: replace(trial, score=1 - (trial.score or 0.0)) for number, trial in found.items()}
    proposals = [propose(space, one, 12, SweepSettings(trials=99)) for one in (found, others)]
    assert proposals[0] != proposals[1]


def test_finished_trials_are_not_run_again_and_more_can_be_asked_for(rlvr: Rlvr) -> None:
    rlvr(*SEARCH, "sweep.trials=2")
    again = rlvr(*SEARCH, "sweep.trials=3", "sweep.jobs=2", "resume=true")
    assert (again.code, calls()) == (0, ["trial-0", "trial-1", "trial-2"])


def test_a_torn_last_line_is_that_trial_again(rlvr: Rlvr) -> None:
    rlvr(*SEARCH, "sweep.trials=3")
    file, before = Path("out/trials.jsonl"), trials()
    file.write_bytes(file.read_bytes()[:-20])
    again = rlvr(*SEARCH, "sweep.trials=3")
    assert (again.code, trials(), calls()[3:]) == (0, before, ["trial-2"])
    assert "trials.jsonl: its last line is torn and is left out; its trial goes on in its folder" in again.err

    whole = file.read_bytes()
    file.write_bytes(whole.removesuffix(b"\n"))  # only the line's end is lost
    assert (rlvr(*SEARCH, "sweep.trials=3").code, len(calls())) == (0, 4)
    file.write_bytes(whole[:20] + whole[30:])
    assert "trials.jsonl is damaged" in rlvr(*SEARCH, "sweep.trials=3").error


def test_a_failed_trial_and_a_pruned_one_do_not_end_the_search(acts: Any, rlvr: Rlvr) -> None:
    acts(**{"trial-0": "fail", "trial-2": "prune"})
    ran = rlvr(*SEARCH, "sweep.trials=4")
    assert ran.code == 0
    found = [(one["state"], one["step"], one["reason"]) for one in trials()]
    assert found == [
        ("failed", 2, "its loss is not finite."),
        ("done", 4, ""),
        ("pruned", 2, "too low"),
        ("done", 4, ""),
    ]
    order = [line.split()[0] for line in ran.out.splitlines()[1:5]]
    assert (order[2:], "failed (its loss is not finite.)" in ran.out) == (["2", "0"], True)
    listed = [one["state"] for one in rlvr("runs", "out", "--json", "--sort", "name").lines]
    assert (listed[0], listed[2]) == ("failed", "pruned")
    rlvr(*SEARCH, "sweep.trials=4")
    assert len(calls()) == 4  # neither is tried again


def test_three_failures_at_the_start_end_the_search_and_the_same_command_tries_them_again(
    acts: Any, rlvr: Rlvr
) -> None:
    acts(**{f"trial-{number}": "refuse" for number in range(9)})
    ran = rlvr(*SEARCH, "sweep.trials=9")
    assert (ran.code, calls()) == (1, ["trial-0", "trial-1", "trial-2"])
    assert "gave up: 3 trials failed and none came through, the last one with: there is no data." in ran.out
    acts()
    assert rlvr(*SEARCH, "sweep.trials=3").code == 0
    assert [one["state"] for one in trials()] == ["done"] * 3


def test_points_that_fail_in_training_do_not_end_the_search_for_good(acts: Any, rlvr: Rlvr) -> None:
    acts(**{f"trial-{number}": "fail" for number in range(3)})
    assert rlvr(*SEARCH, "sweep.trials=5").code == 1
    assert rlvr(*SEARCH, "sweep.trials=5").code == 0
    assert [one["state"] for one in trials()] == ["failed"] * 3 + ["done"] * 2


def test_a_search_may_be_moved(acts: Any, rlvr: Rlvr) -> None:
    acts(**{"trial-0": "kill"})
    rlvr(*SEARCH, "sweep.trials=1")
    Path("out").rename("moved")
    acts()
    assert rlvr(*SEARCH[:-1], "run_dir=moved", "sweep.trials=2").code == 0
    found = [json.loads(line) for line in Path("moved/trials.jsonl").read_text().splitlines()]
    assert [(one["state"], one["folder"]) for one in found] == [("done", "moved/trial-0"), ("done", "moved/trial-1")]


def test_a_trial_killed_from_elsewhere_goes_on_with_the_same_command(acts: Any, rlvr: Rlvr) -> None:
    acts(**{"trial-1": "kill"})
    ran = rlvr(*SEARCH, "sweep.trials=3")
    assert (ran.code, "trial 1: ended by SIGKILL" in ran.err) == (1, True)
    assert "1 of 3 trials have not ended; the same command goes on" in ran.out
    acts()
    assert rlvr(*SEARCH, "sweep.trials=3").code == 0
    assert calls() == ["trial-0", "trial-1", "trial-2", "trial-1"]
    assert "resume=true" in Path("out/calls.txt").read_text().splitlines()[-1]


def test_a_signal_ends_the_trials_that_run_and_nothing_is_lost(acts: Any, rlvr: Rlvr) -> None:
    acts(**{"trial-1": "wait", "trial-2": "wait"})

    def send() -> None:
        while not (Path("out/trial-1/waits").exists() and Path("out/trial-2/waits").exists()):
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    ran = rlvr(*SEARCH, "sweep.trials=3", "sweep.jobs=2")
    sender.join()
    assert ran.code == 143
    assert [one["state"] for one in trials()] == ["done", "running", "running"]
    assert ran.out.count("stopped") == 2
    assert rlvr(*SEARCH, "sweep.trials=3").code == 0
    assert [one["state"] for one in trials()] == ["done"] * 3


def test_a_folder_that_is_still_written_is_waited_for(acts: Any, rlvr: Rlvr) -> None:
    """After a kill of the command alone its trials may need a while to end."""
    acts(**{"trial-0": "kill"})
    rlvr(*SEARCH, "sweep.trials=1")
    acts()
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); time.sleep(0.2)"
    with subprocess.Popen([sys.executable, "-c", code, "out/trial-0/.lock"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert rlvr(*SEARCH, "sweep.trials=1").code == 0
        assert holder.wait() == 0
    assert [one["state"] for one in trials()] == ["done"]


def test_trials_share_the_cores(rlvr: Rlvr, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    rlvr(*SEARCH, "sweep.trials=1", "sweep.jobs=3")
    rlvr(*SEARCH[:-1], "run_dir=mine", "sweep.trials=1", "sweep.jobs=3", "trainer.num_threads=5")
    rlvr(*SEARCH[:-1], "run_dir=alone", "sweep.trials=1")
    given = [Path(folder, "calls.txt").read_text() for folder in ("out", "mine", "alone")]
    found = [[word for word in one.split() if "num_threads" in word] for one in given]
    assert found == [["trainer.num_threads=2"], ["trainer.num_threads=5"], []]


@pytest.mark.trackers
def test_trackers_group_the_trials_unless_the_user_has_set_a_group(rlvr: Rlvr) -> None:
    words = (*SEARCH[:-1], "sweep.trials=1", "tracker.report_to=[tensorboard]")
    rlvr(*words, "run_dir=out")
    rlvr(*words, "run_dir=mine", "tracker.group=ours")
    rlvr(*SEARCH[:-1], "sweep.trials=1", "run_dir=alone")
    given = [Path(folder, "calls.txt").read_text() for folder in ("out", "mine", "alone")]
    found = [[word for word in one.split() if "tracker.group" in word] for one in given]
    assert found == [["tracker.group=out"], ["tracker.group=ours"], []]


def test_a_point_that_comes_again_is_not_trained_again(rlvr: Rlvr) -> None:
    words = ("train", "-m", "trainer.learning_rate=0.1,0.2", "rollout.group_size=2,4,8", "run_dir=out")
    ran = rlvr(*words, "sweep.trials=5", "sweep.sampler=random")
    assert ran.code == 0
    points = [tuple(one["params"].values()) for one in trials()]
    assert len(points) == 5 > len(set(points)) == len(calls())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["run_dir=out", "trainer.max_steps=7"], "other overrides (none there, trainer.max_steps=7 here)"),
        (["run_dir=out", "sweep.seed=3"], "other sweep.seed (0 there, 3 here)"),
        (["run_dir=out", "resume=false"], "goes on with what its folder holds"),
        (["run_dir=taken"], "holds no search"),
        (["run_dir=a,b"], "run_dir=a,b: a search has one folder"),
        (["evaluation.every=null"], "no held-out scores"),
        (["evaluation.headline=part_correct"], "no interval to prune by"),
        (["rollout.group_size=interval(2,8)"], "write rollout.group_size=int(interval(2,8))"),
        (["rollout.group_size=8,x"], "rollout.group_size=x"),
        (["trainer.lerning_rate=interval(0,1)"], "did you mean trainer.learning_rate"),
    ],
)
def test_what_is_refused_before_anything_starts(words: list[str], reason: str, rlvr: Rlvr) -> None:
    rlvr(*SEARCH, "sweep.trials=1")
    Path("taken").mkdir()
    Path("taken/config.yaml").touch()
    ran = rlvr("train", "-m", SEARCH[2], *words, "sweep.trials=2")
    assert ran.code == 2
    assert reason in ran.error
    assert (len(calls()), os.listdir("taken")) == (1, ["config.yaml"])


def test_a_small_space_and_a_search_without_multirun(rlvr: Rlvr) -> None:
    assert "the space has 2 points" in rlvr("train", "-m", "algorithm=grpo,rloo", "sweep.trials=2").error
    wrong = rlvr("train", "-m", "algorithm=grpo,nope", "sweep.trials=3").error  # before the number of points
    assert "algorithm=nope: there is no such algorithm; there are cispo, dapo, " in wrong
    assert "add --multirun" in rlvr("train", "sweep.trials=2").error
    assert "sweep.trials=20" in rlvr(*SEARCH).error
    assert "is for a single run" in rlvr(*SEARCH, "--prune-against", "out").error
    assert "there is no such folder" in rlvr("train", "run_dir=one", "--prune-against", "nowhere").error
    assert "add run_dir=FOLDER" in rlvr("train", "--prune-against", ".").error


def test_without_optuna_the_extra_is_named(rlvr: Rlvr, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.commands.train.multirun.find_spec", lambda name: None)
    error = rlvr(*SEARCH, "sweep.trials=2").error
    assert ".[optuna]" in error
    assert "without sweep.trials, work without" in error


def test_a_damaged_file_of_trials_is_named(rlvr: Rlvr) -> None:
    rlvr(*SEARCH, "sweep.trials=1")
    Path("out/trials.jsonl").write_text('{"number": 0}\n')
    assert "trials.jsonl is damaged" in rlvr(*SEARCH, "sweep.trials=1").error


def test_good_points_draw_the_proposals() -> None:
    """With the tree-structured Parzen estimator later points lie where scores were high; at random they do not."""
    space = read_space(["a.b=interval(0,1)"])

    def distance(sampler: Any) -> float:
        settings, found = SweepSettings(trials=40, sampler=sampler), dict[int, Trial]()
        for number in range(40):
            point = propose(space, found, number, settings)
            score = 1 - abs(float(point["a.b"]) - 0.3)
            found[number] = Trial(
                number=number, state="done", params=point, overrides=(), folder="", command="", score=score
            )
        return sum(1 - (trial.score or 0.0) for number, trial in found.items() if number >= 20) / 20

    assert distance("tpe") < 0.5 * distance("random")


@pytest.mark.parametrize(("state", "value"), [("done", 0.3), ("pruned", 0.3), ("failed", None), ("running", None)])
def test_a_pruned_trial_counts_with_its_last_score(state: Any, value: float | None) -> None:
    space = read_space(["a.b=interval(0,1)"])
    trial = Trial(number=0, state=state, params={"a.b": 0.5}, overrides=(), folder="", command="", score=0.3)
    assert _frozen(space, trial).value == value


def test_what_is_written_is_read_back(rlvr: Rlvr) -> None:
    rlvr(*SEARCH, "sweep.trials=2")
    found = read_trials(Path("out"))
    assert [(one.number, one.state, one.scores[0]) for one in found.values()] == [
        (0, "done", (0, 0.0)),
        (1, "done", (0, 0.0)),
    ]


def test_the_configuration_that_is_shown_is_that_of_the_first_trial(rlvr: Rlvr) -> None:
    """Nothing is trained, and no folder made."""
    shown = rlvr(*SEARCH, "sweep.trials=2", "--cfg", "job")
    assert shown.code == 0, shown.err
    assert not Path("out").exists()
    first = propose(read_space(SEARCH[2:3]), {}, 0, SweepSettings(trials=2))
    assert f"learning_rate: {first['trainer.learning_rate']}\n" in shown.out
