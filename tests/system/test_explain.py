"""`rlvr explain` and `rlvr.open`: what the states of a run's episodes were worth."""

import gzip
import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

import rlvr
from rlvr.core.value import State
from rlvr.errors import UserError
from rlvr.evaluation.intervals import Interval, bootstrap
from rlvr.records.rollouts import read_rollouts
from rlvr.report.rollouts import rollout_files
from rlvr.research.explain import Explained, explain
from tests.system.harness import Cli
from tests.unit.report.runs import chunk_of

pytestmark = pytest.mark.slow


@pytest.fixture
def run(two_hop_run: Path, tmp_path: Path) -> Path:
    """A copy, beside which something may be written."""
    return Path(shutil.copytree(two_hop_run, tmp_path / "run"))


def means(found: Explained) -> list[float]:
    return [row.gold for row in found.table]


def over_questions(run: Path, found: Explained, values: list[float]) -> Interval:
    """Of values of the episodes; those of one question are one value."""
    records = read_rollouts(run / f"rollouts/step_{found.step:06d}.jsonl.gz")
    asked = {(one.group, one.sample_index): one.example_id for one in records}
    by_question: defaultdict[str, list[float]] = defaultdict(list)
    for one, value in zip(found.episodes, values, strict=True):
        by_question[asked[one.group, one.sample_index]].append(value)
    assert len(by_question) < len(found.episodes) / 1.4
    return bootstrap(list(map(fmean, by_question.values())))


def test_the_search_that_finds_the_city_is_the_decisive_turn(run: Path) -> None:
    found = explain(str(run), step=8)
    records = {(one.group, one.sample_index): one for one in read_rollouts(run / "rollouts/step_000008.jsonl.gz")}
    second = []  # whether the decisive turn is the one that found the second fact, by the trace of the environment
    for one in found.episodes:
        trace = records[one.group, one.sample_index].trace
        facts = [step.turn for step in trace if step.kind == "document" and step.ok and "located-in" in step.text]
        if facts and len(one.states) > facts[0] + 1:
            second.append(one.decisive == facts[0])
    assert len(second) > 60
    assert np.mean(second) >= 0.95
    assert found.decisive is not None
    hits, _, named, *_ = found.decisive.split()  # the city may also be named by another organization's fact
    assert len(second) <= int(named) <= len(second) + 5
    assert int(hits) >= 0.95 * int(named)
    assert found.decisive_other <= 0.05
    assert found.decisive_random == pytest.approx(0.5, abs=0.05)
    first, searched, both = means(found)[:3]
    assert first == pytest.approx(1 / 6, abs=0.05)  # a guess among six cities
    assert searched == pytest.approx(1 / 6, abs=0.1)
    assert both > 0.6  # some searched for something else
    assert found.weights_step == 8


def test_weights_that_were_not_kept_are_the_nearest_before(run: Path) -> None:
    found = explain(str(run), step=3, episodes=4)
    assert (found.step, found.weights_step) == (3, 0)
    assert found.notes == ["the weights of step 3 were not kept: those of step 0 are the nearest before it"]


def test_samples_say_what_the_policy_makes_of_a_state(run: Path) -> None:
    found = explain(str(run), step=8, episodes=24, samples=4)
    rights = [one.right for one in found.episodes if one.right is not None]
    assert list(map(len, rights)) == [len(one.states) for one in found.episodes]
    first, last = np.mean([one[0] / 4 for one in rights]), np.mean([one[2] / 4 for one in rights if len(one) > 2])
    assert last > max(0.7, first)
    share = over_questions(run, found, [one[0] / 4 for one in rights])
    assert found.table[0].right == f"{share.value:.3f} [{share.low:.3f}, {share.high:.3f}]"
    again = explain(str(run), step=8, episodes=24, samples=4)
    assert [one.right for one in again.episodes] == rights


def test_the_report_shows_the_values(run: Path, cli: Cli) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != "report.html"}
    said = cli("explain", run, "--step", 8, "--episodes", 16)
    assert said.code == 0, said.err
    assert "turn 3" in said.out
    values = json.loads((run.with_name("run.explain") / "step_000008.json").read_text())
    assert len(values["episodes"]) == 16
    index = chunk_of((run / "report.html").read_text(), "index")
    rises = [value for value in index["columns"]["rise"] if value is not None]
    assert len(rises) == 16
    assert max(rises) > 0.5
    details = [
        detail
        for number in range(len(index["details"]))
        for detail in chunk_of((run / "report.html").read_text(), f"detail-{number}")
        if "values" in detail
    ]
    assert len(details) == 16
    for detail in details:  # the tokens of a turn have the change of P(gold) in it, those of the last one none
        gold, (row,) = detail["values"]["gold"], detail["rows"]
        assert len(row["gains"]) == len(row["behavior"])
        assert row["gains"][-1] is None
        if len(gold) > 1:
            assert row["gains"][0] == pytest.approx(gold[1] - gold[0], abs=1e-5)
    assert {path: path.stat().st_mtime_ns for path in before} == before  # the run itself is only read
    as_json = cli("explain", run, "--step", 8, "--episodes", 4, "--json")
    assert [row["state"] for row in json.loads(as_json.out)["table"]][:2] == ["turn 1", "turn 2"]


def test_states_inside_of_one_completion(first_run: Path, tmp_path: Path, cli: Cli) -> None:
    run = shutil.copytree(first_run, tmp_path / "run")
    said = cli("explain", run, "--every", 2, "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    lengths = {tuple(state) for one in found["episodes"] for state in one["states"]}
    assert {(0, 0), (0, 2)} <= lengths
    assert all(tokens % 2 == 0 for _, tokens in lengths)
    assert found["decisive"] is None  # no reply could name an answer


def test_a_damaged_file_of_values_is_named(run: Path, cli: Cli) -> None:
    folder = run.with_name("run.explain")
    folder.mkdir()
    (folder / "step_000008.json").write_text('{"episodes": [{"group": 1}]}')
    said = cli("report", run)
    assert said.code == 0
    assert "step_000008.json is damaged and left out" in said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "nothing is no run folder: name one"),
        (["RUN", "--step", 9], "has steps [1, 2, 3, 4, 5, 6, 7, 8], not 9"),
        (["RUN", "--episodes", 0], "--episodes"),
    ],
)
def test_what_cannot_be_explained_is_said(run: Path, cli: Cli, words: list[object], sentence: str) -> None:
    said = cli("explain", *(run if word == "RUN" else word for word in words))
    assert said.code != 0
    assert sentence in said.err
    assert not run.with_name("run.explain").exists()


def test_the_final_weights_are_those_of_the_last_step(run: Path) -> None:
    found = explain(str(run), step=8, episodes=16)
    shutil.rmtree(run / "checkpoints")
    again = explain(str(run), step=8, episodes=16)
    assert (again.weights_step, again.notes) == (8, [])
    assert [one.gold for one in again.episodes] == [one.gold for one in found.episodes]


@pytest.mark.parametrize("damage", [lambda data: data[:2000], lambda data: b"garbage", lambda data: b""])
def test_a_damaged_record_is_named(run: Path, damage: Callable[[bytes], bytes]) -> None:
    file = run / "rollouts/step_000008.jsonl.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=r"step_000008.jsonl.gz .*take another step with --step"):
        explain(str(run), step=8)


@pytest.mark.parametrize("state", [State(turn=9), State(turn=-1), State(turn=0, tokens=99)])
def test_a_place_outside_of_an_episode_is_refused(run: Path, state: State) -> None:
    with rlvr.open(run) as opened:
        group = opened.sample(opened.task.eval_examples(1), 1)[0]
        with pytest.raises(UserError, match="is no state of an episode"):
            opened.resample([(group.example, group.episodes[0], state)], 1)


def test_a_recorded_example_that_is_gone_is_named(run: Path) -> None:
    (file,) = [file for file in rollout_files(run / "rollouts", 0) if file.step == 8]
    lines = gzip.decompress(file.path.read_bytes()).splitlines()
    record = json.loads(lines[0]) | {"example_id": "never drawn"}
    file.path.write_bytes(gzip.compress(json.dumps(record).encode() + b"\n"))
    with pytest.raises(UserError, match="example never drawn of the recorded step is not in the training data"):
        explain(str(run), step=8, samples=1)


# ------------------------------------------------------------------------------------------------------ rlvr.open


def test_a_run_opened_in_python(run: Path) -> None:
    with rlvr.open(run, step=0) as start, rlvr.open(run) as end:
        assert start.weights.endswith("warm_start")
        assert end.weights.endswith("final")
        assert set(end.rewards) == {"two_hop"}
        examples = end.task.eval_examples(12)
        groups = [opened.sample(examples, 4, seed=1) for opened in (start, end)]
        before, after = (np.mean([e.score.value for group in part for e in group.episodes]) for part in groups)
        assert before < after - 0.2
        assert after > 0.6
        values = end.gold_logprobs(groups[1])
        assert len(values) == 48
        assert np.mean([np.exp(one[2]) for one in values if len(one) > 2]) > 0.6
        wrong = end.gold_logprobs(
            groups[1], answers=["c5" if g.example.answer != "c5" else "c4" for g in groups[1] for _ in range(4)]
        )
        assert np.mean([np.exp(one[2]) for one in wrong if len(one) > 2]) < 0.2
        group, one = next((group, e) for group in groups[1] for e in group.episodes if len(e.turns) > 1)
        (on,) = end.resample([(group.example, one, State(turn=1))], 3)
        assert [again.turns[0] for again in on] == [one.turns[0]] * 3
        assert end.sample(examples, 4, seed=1) == groups[1]  # the same seed, the same tokens


def test_weights_that_were_not_kept_are_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keeps no weights of step 3: there are 0, 8"):
        rlvr.open(run, step=3)
    with pytest.raises(UserError, match="is a folder of runs: name one of them"):
        rlvr.open(tmp_path)
