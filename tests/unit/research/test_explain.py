"""What `rlvr explain` makes of measured values; tests/system/test_explain.py measures them on a run."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.commands.explain import lines, samples
from rlvr.config.compose import load_config
from rlvr.core.value import State
from rlvr.errors import UserError
from rlvr.evaluation.intervals import bootstrap
from rlvr.records.rollouts import EpisodeRecord, rollouts_path, write_rollouts
from rlvr.research import explain
from rlvr.research.explain import Explained, StateMeans, StateValues, decisive
from rlvr.research.opened import kept_steps, weights_at
from rlvr.types import Example, StopReason
from tests.unit.report.runs import episode


def turns(*replies: str | None, example: str = "x", prompt: str = "where", answer: str = "Paris") -> EpisodeRecord:
    """An episode with these replies; None after the last turn."""
    one = episode(example=example, prompt=prompt)
    return replace(one, answer=answer, turns=[replace(one.turns[0], reply=reply) for reply in replies])


def places(count: int) -> list[State]:
    return [State(turn=number) for number in range(count)]


@pytest.mark.parametrize(
    ("chances", "turn"),
    [
        ([], None),
        ([0.9], None),
        ([0.1, 0.2, 0.9, 0.8], 1),
        ([0.1, 0.5, 0.3, 0.7], 0),  # the first of equal ones
        ([0.5, 0.55 + 1e-9], 0),
        ([0.5, 0.55 - 1e-9], None),
        ([0.9, 0.5], None),
    ],
)
def test_the_decisive_turn_is_that_of_the_largest_rise(chances: list[float], turn: int | None) -> None:
    assert decisive(places(len(chances)), chances) == turn


def test_a_rise_of_exactly_the_least_decides() -> None:
    assert decisive(places(2), [0.0, explain.MIN_RISE]) == 0


def test_a_rise_inside_of_a_completion_is_that_of_its_turn() -> None:
    inside = [State(turn=2), State(turn=2, tokens=4), State(turn=3)]
    assert decisive(inside, [0.1, 0.2, 0.9]) == 2


@pytest.mark.parametrize(
    ("record", "turn"),
    [
        (turns("no", "in PARIS, of course", "Paris", None), 1),
        (turns("Parisian", "paris2", None), None),  # no whole word
        (turns("Paris", None, prompt="Paris or Rome?"), None),  # named before the first turn
        (turns(None), None),
        (turns("", None, answer=""), None),
        (turns("a+b (c)", None, answer="+b (c"), None),  # inside of words
        (turns("it is +b (c .", None, answer="+b (c"), 0),
    ],
)
def test_the_answer_is_first_named_by_a_reply(record: EpisodeRecord, turn: int | None) -> None:
    assert explain._first_named(record) == turn


def test_another_answer_is_never_the_own_one() -> None:
    answers = ["a", "b", "c", "a", "b"] * 8
    found = explain._other_answers(answers)
    assert found is not None
    assert not [one for one, other in zip(answers, found, strict=True) if one == other]
    assert {*found} == {"a", "b", "c"}
    assert explain._other_answers(answers) == found
    assert explain._other_answers(["a", "b"]) == ["b", "a"]
    assert explain._other_answers(["a", "a"]) is None


@pytest.mark.parametrize(("length", "every"), [(1, 1), (16, 1), (31, 1), (32, 2), (160, 10)])
def test_a_completion_has_about_sixteen_states(length: int, every: int) -> None:
    one = turns(None)
    long = replace(one, turns=[replace(one.turns[0], completion_ids=[5] * length)])
    assert explain._auto([one, long]) == every
    assert explain._auto([long, turns("reply", None)]) is None


def test_an_episode_is_read_with_the_numbers_that_are_missing() -> None:
    record = episode(reward=None, behavior=(-0.5, None), stop="length")
    group = explain._group(record)
    (one,) = group.episodes
    assert math.isnan(one.score.value)
    said = one.turns[0].completion
    assert (said.behavior_logprobs[0], said.stop_reason) == (-0.5, StopReason.LENGTH)
    assert math.isnan(said.behavior_logprobs[1])
    assert (one.seed, one.sample_index, group.example.answer) == (2**62 + 1, 0, "7")
    assert explain._group(episode(reward=0.25)).episodes[0].score.value == 0.25


def measured(**values: Any) -> StateValues:
    """Four episodes of two questions; a reply names the answer in two of them, and an episode has one turn only."""
    records = [
        turns("no", "Paris", None, example="a"),
        turns("Paris", None, example="a"),
        turns(None, example="b"),
        turns("no", "no", None, example="b"),
    ]
    gold = [[0.1, 0.2, 0.9], [0.2, 0.21], [0.5], [0.3, 0.3, 0.3]]
    other = [[0.0, 0.5, 0.6], [0.0, 0.5], [0.5], [0.1, 0.1, 0.1]]
    found = {
        "records": records,
        "places": [places(len(one)) for one in gold],
        "gold": gold,
        "other": other,
        "right": [[0, 1, 4], [2, 2], [4], [0, 0, 4]],
        "count": 4,
    }
    return StateValues(**{**found, **values})


def explained(found: StateValues, *, step: int = 10, weights_step: int = 10) -> Explained:
    return explain._explained(Path("run"), step, weights_step, found, 1.5)


def test_states_have_means_over_episodes_and_intervals_over_questions() -> None:
    found = explained(measured())
    right = [bootstrap([0.25, 0.5]), bootstrap([0.375, 0.0]), bootstrap([1.0, 1.0])]
    texts = [f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in right]
    gold = [(0.1 + 0.2 + 0.5 + 0.3) / 4, (0.2 + 0.21 + 0.3) / 3, (0.9 + 0.3) / 2]
    other = [(0.5 + 0.1) / 4, (0.5 + 0.5 + 0.1) / 3, (0.6 + 0.1) / 2]
    assert [(row.state, row.count, row.right) for row in found.table] == [
        *(("turn 1", 4, texts[0]), ("turn 2", 3, texts[1]), ("turn 3", 2, texts[2])),
    ]
    assert [row.gold for row in found.table] == pytest.approx(gold)
    assert [row.other for row in found.table] == pytest.approx(other)


def test_states_inside_of_a_completion_are_named_by_their_tokens() -> None:
    inside = [[State(turn=0), State(turn=0, tokens=4)]]
    found = measured(records=[turns(None)], places=inside, gold=[[0.1, 0.2]], other=None, right=None, count=None)
    table = explained(found).table
    assert [(row.state, row.gold, row.right) for row in table] == [
        *(("turn 1", 0.1, None), ("turn 1, after 4 tokens", 0.2, None)),
    ]
    assert all(math.isnan(row.other) for row in table)


def test_the_decisive_turn_is_compared_with_controls() -> None:
    """Of the two episodes in which a reply names the answer P(gold) rose most in one where it was named: turn 2 of the
    first; the other's rose too little. A turn at random is right in a half, and always."""
    found = explained(measured())
    share = bootstrap([0.5])
    assert found.decisive == f"1 of 2 episodes (by question 0.50, 95 % interval {share.low:.2f} to {share.high:.2f})"
    assert found.decisive_random == (1 / 2 + 1) / 2
    assert found.decisive_other == 0.5  # of the second episode
    assert math.isnan(explained(measured(other=None)).decisive_other)
    assert [one.decisive for one in found.episodes] == [1, None, None, None]
    assert [one.right for one in found.episodes] == [[0, 1, 4], [2, 2], [4], [0, 0, 4]]
    assert found.episodes[0].states == [(0, 0), (1, 0), (2, 0)]


def test_without_an_episode_that_names_the_answer_there_is_no_share() -> None:
    one = measured()
    kept = {name: list(getattr(one, name)[2:]) for name in ("records", "places", "gold", "other")}
    found = explained(measured(**kept, right=None, count=None))
    assert found.decisive is None
    assert math.isnan(found.decisive_other)
    assert math.isnan(found.decisive_random)
    assert [one.right for one in found.episodes] == [None, None]
    lone = measured(records=[turns("Paris")], places=[places(1)], gold=[[0.1]], other=None, right=None, count=None)
    assert explained(lone).decisive is None  # the reply to an only turn decides nothing


def test_weights_of_another_step_are_noted() -> None:
    assert explained(measured()).notes == []
    assert explained(measured(), weights_step=8).notes == [
        "the weights of step 10 were not kept: those of step 8 are the nearest before it"
    ]


def run_of(step: int, *, group: int = 1, ids: Sequence[str] = ("q0", "q1")) -> tuple[Any, list[int]]:
    """An opened run of 2 prompts a step, whose training stream ends with these examples; the indices asked for."""
    asked: list[int] = []

    def train_example(index: int) -> Example:
        asked.append(index)
        names = {8 * step * 2 + 999 - place: name for place, name in enumerate(ids)}
        return Example(id=names.get(index, f"other {index}"), messages=(), answer="")

    config = SimpleNamespace(rollout=SimpleNamespace(prompts_per_step=2))
    return SimpleNamespace(task=SimpleNamespace(train_example=train_example), config=config), asked


def test_examples_of_a_step_are_looked_for_early_in_the_training_stream() -> None:
    run, asked = run_of(3)
    assert {*explain._examples(run, {"q0", "q1"}, 3)} == {"q0", "q1"}
    assert asked == [*range(8 * 3 * 2 + 1000)]
    run, asked = run_of(3)
    assert {*explain._examples(run, {"q1"}, 3)} == {"q1"}
    assert len(asked) == 8 * 3 * 2 + 999  # found, and no further
    run, asked = run_of(4)
    with pytest.raises(UserError, match=r"--samples: example q0 of the recorded step is not in the training data"):
        explain._examples(run, {"q0", "q1"}, 3)
    assert len(asked) == 8 * 3 * 2 + 1000


class Graded:
    """A run that samples `count` answers of each state, of which as many are right as the episode's number says."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.task = self

    def resample(self, where: Sequence[tuple[Example, Any, State]], count: int) -> list[list[Any]]:
        self.asked.append(len(where))
        return [[SimpleNamespace(texts=number < int(one.id)) for number in range(count)] for one, _, _ in where]

    async def grade(self, example: Example, right: bool) -> Any:
        return SimpleNamespace(correct=right)

    def run(self, work: Any) -> Any:
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError


def test_samples_of_many_episodes_are_counted_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seventy episodes of one or two turns, 32 at a time."""
    groups = [explain._group(turns(*["reply"] * (number % 2), None, example=f"{number % 6}")) for number in range(70)]
    monkeypatch.setattr(explain, "_examples", lambda run, wanted, step: {g.example.id: g.example for g in groups})
    run: Any = Graded()
    found = explain._sampled(run, groups, None, 4, 1)
    assert found == [[min(4, number % 6)] * (1 + number % 2) for number in range(70)]
    assert run.asked == [48, 48, 9]


def save(root: Path, *steps: int, count: int = 6) -> None:
    for step in steps:
        write_rollouts(rollouts_path(root / "rollouts", step), [episode(sample=number) for number in range(count)])


def test_a_recorded_step_is_the_last_one_or_that_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no recorded episodes \(tracker.rollouts_every\)"):
        explain._file(tmp_path, None)
    save(tmp_path, 2, 10, 9)
    assert explain._file(tmp_path, None).step == 10
    assert explain._file(tmp_path, 2).step == 2
    with pytest.raises(UserError, match=r"rollouts has steps \[2, 9, 10\], not 3: tracker.rollouts_every says which"):
        explain._file(tmp_path, 3)
    assert len(explain._records(explain._file(tmp_path, 9), 4)) == 4
    assert len(explain._records(explain._file(tmp_path, 9), 7)) == 6
    save(tmp_path, 11, count=0)
    with pytest.raises(UserError, match=r"is damaged \(it holds no episode\): take another step"):
        explain._records(explain._file(tmp_path, 11), 4)


def weights(root: Path, *steps: int, last: int | None = None, warm: bool = False) -> Path:
    """A run with these checkpoints; `last`: finished after that step; `warm`: with the weights before the first one."""
    folders = (
        [f"checkpoints/step_{step:06d}" for step in steps] + ["final"] * (last is not None) + ["warm_start"] * warm
    )
    for folder in ("", *folders):
        (root / folder).mkdir(parents=True)
    (root / "config.yaml").write_text("")
    (root / "metrics.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in range((last or 5) + 1)))
    return root


SCRATCH, PRETRAINED = [], ["model=hf", "model.name_or_path=some/model"]


def test_kept_steps_are_the_checkpoints_and_the_last_of_a_finished_run(tmp_path: Path) -> None:
    assert kept_steps(weights(tmp_path / "a", 4, 2)) == [2, 4]
    assert kept_steps(weights(tmp_path / "b", 4, 2, last=7)) == [2, 4, 7]
    assert kept_steps(weights(tmp_path / "c", 4, last=4)) == [4]
    (tmp_path / "c/metrics.jsonl").write_text("")
    assert kept_steps(tmp_path / "c") == [4]


@pytest.mark.parametrize(("step", "nearest"), [(1, 0), (2, 2), (3, 2), (4, 4), (9, 7)])
def test_the_nearest_weights_are_none_of_a_later_step(step: int, nearest: int, tmp_path: Path) -> None:
    assert explain._nearest(weights(tmp_path / "run", 2, 4, last=7), step) == nearest


@pytest.mark.parametrize(
    ("settings", "step", "folder"),
    [
        (SCRATCH, None, "RUN/final"),
        (SCRATCH, 2, "RUN/checkpoints/step_000002"),
        (SCRATCH, 7, "RUN/final"),
        (SCRATCH, 0, "RUN/warm_start"),
        (PRETRAINED, 0, "RUN/warm_start"),
        (PRETRAINED, 2, "RUN/checkpoints/step_000002"),
    ],
)
def test_weights_of_a_step_are_where_they_were_kept(
    settings: list[str], step: int | None, folder: str, tmp_path: Path
) -> None:
    run = weights(tmp_path / "run", 2, 4, last=7, warm=True)
    assert weights_at(run, step, load_config(settings)) == folder.replace("RUN", str(run))


@pytest.mark.parametrize(
    ("settings", "step", "there"),
    [
        (SCRATCH, 0, "2"),
        (SCRATCH, 3, "2"),
        (PRETRAINED, 3, "0, 2"),
        ([*PRETRAINED, "warm_start.enabled=true"], 0, "2"),  # the model's own weights are not those of step 0
    ],
)
def test_weights_that_were_not_kept_are_an_error_that_says_which_were(
    settings: list[str], step: int, there: str, tmp_path: Path
) -> None:
    run = weights(tmp_path / "run", 2)
    with pytest.raises(
        UserError, match=rf"keeps no weights of step {step}: there are {there} \(trainer.checkpoint_every"
    ):
        weights_at(run, step, load_config(settings))


def test_a_pretrained_model_is_its_own_start(tmp_path: Path) -> None:
    assert weights_at(weights(tmp_path / "run", 2), 0, load_config(PRETRAINED)) == "some/model"
    with pytest.raises(UserError, match="there are none"):
        weights_at(weights(tmp_path / "empty"), 1, load_config(SCRATCH))


def row(**values: Any) -> StateMeans:
    return StateMeans(**{"state": "turn 1", "count": 3, "gold": 0.5, "other": 0.25, "right": None, **values})


def test_the_table_has_samples_only_where_there_are_any() -> None:
    found = replace(explained(measured()), table=[row(), row(state="turn 2", right="0.500 [0.1, 0.9]")])
    text = [*lines(found)]
    assert text[0] == "step 10 of run, weights of step 10: 4 episodes in 1.50 s"
    assert text[1].split() == ["state", "episodes", "P(gold)", "P(another", "answer)", "P(right)"]
    assert text[3].split() == ["turn", "1", "3", "0.500", "0.250", "-"]
    assert text[4].split()[-3:] == ["0.500", "[0.1,", "0.9]"]
    assert text[5].startswith("largest rise of P(gold) where a reply first named the answer: 1 of 2 episodes")
    assert text[6] == "controls: another answer 0.50, a random turn 0.75"
    text = [*lines(replace(found, table=[row()], decisive=None))]
    assert "P(right)" not in text[1]
    assert len(text) == 4


def test_up_to_a_thousand_samples_are_drawn() -> None:
    assert (samples("1"), samples("1000")) == (1, 1000)
    with pytest.raises(argparse.ArgumentTypeError, match="1001 is more than 1,000, which no interval needs"):
        samples("1001")
