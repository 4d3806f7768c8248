"""Values of the states of recorded episodes, beside those of another answer."""

from __future__ import annotations

import math
import random
import re
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from rlvr.cli.model_arguments import note
from rlvr.core.value import State, states
from rlvr.errors import UserError
from rlvr.evaluation.intervals import Interval, bootstrap
from rlvr.progress import progress
from rlvr.records.files import write_atomically, writing
from rlvr.records.jsonl import to_line
from rlvr.records.rollouts import EpisodeRecord, episode_from, rollout_lines
from rlvr.report.rollouts import RolloutFile, rollout_files, spread
from rlvr.research.opened import Opened, kept_steps, open_run
from rlvr.run.sources import run_of
from rlvr.types import Completion, Episode, Example, Group, Score, StopReason, Turn

STATES_OF_ONE_TURN = 16
AT_ONCE = 32
"""Episodes that are sampled from at a time."""

MIN_RISE = 0.05
"""A smaller rise of P(gold) decides nothing."""


@dataclass(frozen=True, kw_only=True)
class Valued:
    """A recorded episode: P(gold) at each of its states, and of `count` samples from there how many were right."""

    group: int
    sample_index: int
    states: Sequence[tuple[int, int]]  # turn, tokens of its completion
    gold: Sequence[float]
    right: Sequence[int] | None
    count: int | None
    decisive: int | None
    """The turn after which P(gold) rose most; None if it nowhere rose by `MIN_RISE`."""


@dataclass(frozen=True, kw_only=True)
class StateMeans:
    """Means over the episodes that have this state; P(right) over their examples, with its interval."""

    state: str
    count: int
    gold: float
    other: float
    right: str | None


@dataclass(frozen=True, kw_only=True)
class Explained:
    run: str
    step: int
    weights_step: int
    episodes: Sequence[Valued]
    table: Sequence[StateMeans]
    decisive: str | None
    """In how many episodes P(gold) rose most where a reply first named the answer; None if none of them has one."""
    decisive_other: float
    decisive_random: float
    seconds: float  # for P(gold), on this machine
    notes: Sequence[str]


def explain(
    source: str, *, step: int | None = None, episodes: int = 256, every: int | None = None, samples: int | None = None
) -> Explained:
    """See `rlvr explain`. UserError for a folder without recorded episodes, or weights, or a task whose answers have no
    known format."""
    root = run_of(Path(source))
    if root is None:
        raise UserError(f"{source} is no run folder: name one.")
    file = _file(root, step)
    weights_step = _nearest(root, file.step)
    with open_run(root, step=weights_step) as run:
        records = _records(file, episodes)
        every = every or _auto(records)
        groups = [_group(record) for record in records]
        places = [states(group.episodes[0], every) for group in groups]
        note(f"P(gold) at {sum(map(len, places)):,} states of {len(records)} episodes")  # a minute on a small machine
        started = time.perf_counter()
        with progress(f"P(gold) of {len(records)} episodes"):
            gold = run.gold_logprobs(groups, every=every)
        seconds = time.perf_counter() - started
        others = _other_answers([record.answer for record in records])
        measured = StateValues(
            records=records,
            places=places,
            gold=_chances(gold),
            other=_chances(run.gold_logprobs(groups, every=every, answers=others)) if others else None,
            right=_sampled(run, groups, every, samples, file.step) if samples else None,
            count=samples,
        )
    return _explained(root, file.step, weights_step, measured, seconds)


@dataclass(frozen=True, kw_only=True)
class StateValues:
    """Of each episode P(gold) at its places, P(another answer), and how many of `count` samples were right."""

    records: Sequence[EpisodeRecord]
    places: Sequence[Sequence[State]]
    gold: Sequence[Sequence[float]]
    other: Sequence[Sequence[float]] | None
    right: Sequence[Sequence[int]] | None
    count: int | None


def _file(root: Path, step: int | None) -> RolloutFile:
    files = {file.step: file for file in rollout_files(root / "rollouts", 0)}
    if not files:
        raise UserError(f"{root} has no recorded episodes (tracker.rollouts_every).")
    chosen = max(files) if step is None else step
    if chosen not in files:
        raise UserError(f"{root / 'rollouts'} has steps {[*files]}, not {step}: tracker.rollouts_every says which.")
    return files[chosen]


def _nearest(root: Path, step: int) -> int:
    """The newest kept weights not after the step; 0: those before the first update."""
    return max((kept for kept in kept_steps(root) if kept <= step), default=0)


def _records(file: RolloutFile, count: int) -> list[EpisodeRecord]:
    try:
        lines = rollout_lines(file.path)
        if not lines:
            raise ValueError("it holds no episode")
        return [episode_from(lines[place]) for place in spread(len(lines), min(count, len(lines)))]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f"{file.path} is damaged ({error}): take another step with --step.") from error


def _auto(records: Sequence[EpisodeRecord]) -> int | None:
    """Tokens between states: none within episodes of several turns."""
    if any(len(record.turns) > 1 for record in records):
        return None
    return max(1, max(len(turn.completion_ids) for record in records for turn in record.turns) // STATES_OF_ONE_TURN)


def _group(record: EpisodeRecord) -> Group:
    """The record's episode alone, as a group."""
    turns = tuple(
        Turn(
            prompt_ids=tuple(turn.prompt_ids),
            completion=Completion(
                token_ids=tuple(turn.completion_ids),
                behavior_logprobs=_numbers(turn.behavior_logprobs),
                sampling_logprobs=_numbers(turn.sampling_logprobs),
                stop_reason=StopReason(turn.stop_reason),
                policy_version=turn.policy_version,
            ),
        )
        for turn in record.turns
    )
    episode = Episode(
        example_id=record.example_id,
        sample_index=record.sample_index,
        seed=record.seed,
        turns=turns,
        score=Score(value=math.nan if record.reward is None else record.reward),
        stop_reason=StopReason(record.stop_reason),
    )
    return Group(example=Example(id=record.example_id, messages=(), answer=record.answer), episodes=(episode,))


def _numbers(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else value for value in values)


def _other_answers(answers: Sequence[str]) -> list[str] | None:
    """For each episode an answer of another one, drawn with a fixed seed; None if all are equal."""
    rng, known = random.Random(0), sorted({*answers})
    return [rng.choice([other for other in known if other != answer]) for answer in answers] if known[1:] else None


# ------------------------------------------------------------------------------------------------------- P(right)


def _sampled(run: Opened, groups: Sequence[Group], every: int | None, count: int, step: int) -> list[list[int]]:
    """How many of `count` new episodes from each state the metric calls right."""
    examples = _examples(run, {group.example.id for group in groups}, step)

    async def right(example: Example, found: Sequence[Episode]) -> int:
        grades = [await run.task.grade(example, one.texts) for one in found]
        return sum(grade.correct for grade in grades)

    counted = []
    with progress(f"P(right) of {len(groups)} episodes") as show:
        for start in range(0, len(groups), AT_ONCE):
            part = [(examples[group.example.id], group.episodes[0]) for group in groups[start : start + AT_ONCE]]
            places = [(*one, state) for one in part for state in states(one[1], every)]
            again = iter(run.resample(places, count))
            counted += [[run.run(right(one[0], next(again))) for _ in states(one[1], every)] for one in part]
            show(len(counted), len(groups))
    return counted


def _examples(run: Opened, wanted: set[str], step: int) -> Mapping[str, Example]:
    """The examples by id: those that training has drawn come early in its stream."""
    examples: dict[str, Example] = {}
    for index in range(8 * step * run.config.rollout.prompts_per_step + 1000):
        example = run.task.train_example(index)
        if example.id in wanted:
            examples[example.id] = example
            if len(examples) == len(wanted):
                return examples
    missing = min(wanted - examples.keys())
    raise UserError(f"--samples: example {missing} of the recorded step is not in the training data any more.")


# -------------------------------------------------------------------------------------------------------- together


def _chances(logprobs: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[math.exp(value) for value in values] for values in logprobs]


def _explained(root: Path, step: int, weights_step: int, measured: StateValues, seconds: float) -> Explained:
    named = [_first_named(record) for record in measured.records]
    judged = [
        number for number, turn in enumerate(named) if turn is not None and len(measured.records[number].turns) > 1
    ]

    def hits(values: Sequence[Sequence[float]]) -> list[float]:
        return [float(decisive(measured.places[number], values[number]) == named[number]) for number in judged]

    chance = math.fsum(1 / (len(measured.records[number].turns) - 1) for number in judged) / max(1, len(judged))
    late = f"the weights of step {step} were not kept: those of step {weights_step} are the nearest before it"
    return Explained(
        run=str(root),
        step=step,
        weights_step=weights_step,
        episodes=[_valued(measured, number) for number in range(len(measured.records))],
        table=_table(measured),
        decisive=_share(measured, judged, hits(measured.gold)) if judged else None,
        decisive_other=math.nan if measured.other is None or not judged else fmean(hits(measured.other)),
        decisive_random=chance if judged else math.nan,
        seconds=seconds,
        notes=[] if weights_step == step else [late],
    )


def _valued(measured: StateValues, number: int) -> Valued:
    record, places, gold = measured.records[number], measured.places[number], measured.gold[number]
    return Valued(
        group=record.group,
        sample_index=record.sample_index,
        states=[(state.turn, state.tokens) for state in places],
        gold=gold,
        right=None if measured.right is None else measured.right[number],
        count=measured.count,
        decisive=decisive(places, gold),
    )


def decisive(places: Sequence[State], chances: Sequence[float]) -> int | None:
    """The turn in which P(gold) rose most; None if it nowhere rose by `MIN_RISE`."""
    rises = [after - before for before, after in pairwise(chances)]
    best = max(range(len(rises)), key=rises.__getitem__, default=None)
    return None if best is None or rises[best] < MIN_RISE else places[best].turn


def _first_named(record: EpisodeRecord) -> int | None:
    """The turn whose reply is the first to name the gold answer, as whole words."""
    answer = re.compile(rf"(?<!\w){re.escape(record.answer)}(?!\w)", re.IGNORECASE)
    if not record.answer or answer.search(record.turns[0].prompt):
        return None
    found = (number for number, turn in enumerate(record.turns) if turn.reply and answer.search(turn.reply))
    return next(found, None)


def _share(found: StateValues, judged: Sequence[int], hits: Sequence[float]) -> str:
    share = _over_examples(found, zip(judged, hits, strict=True))
    said = f"by question {share.value:.2f}, 95 % interval {share.low:.2f} to {share.high:.2f}"
    return f"{sum(hits):.0f} of {len(hits)} episodes ({said})"


def _over_examples(measured: StateValues, values: Iterable[tuple[int, float]]) -> Interval:
    """Of values of episodes, by number: those of one example are alike, and count together."""
    by_example: defaultdict[str, list[float]] = defaultdict(list)
    for number, value in values:
        by_example[measured.records[number].example_id].append(value)
    return bootstrap(list(map(fmean, by_example.values())))


def _table(measured: StateValues) -> list[StateMeans]:
    at: defaultdict[State, list[tuple[int, int]]] = defaultdict(list)  # episode, place
    for number, places in enumerate(measured.places):
        for place, state in enumerate(places):
            at[state].append((number, place))

    def mean(values: Sequence[Sequence[float]] | None, where: Sequence[tuple[int, int]]) -> float:
        return math.nan if values is None else math.fsum(values[i][k] for i, k in where) / len(where)

    rows = []
    for state, where in sorted(at.items()):
        right = None
        if measured.right is not None and measured.count:
            share = _over_examples(measured, [(i, measured.right[i][k] / measured.count) for i, k in where])
            right = f"{share.value:.3f} [{share.low:.3f}, {share.high:.3f}]"
        name = f"turn {state.turn + 1}" + (f", after {state.tokens} tokens" if state.tokens else "")
        gold, other = mean(measured.gold, where), mean(measured.other, where)
        rows.append(StateMeans(state=name, count=len(where), gold=gold, other=other, right=right))
    return rows


def values_path(run: str, step: int) -> Path:
    """Beside the run, which is only read: `RUN.explain/step_000010.json`; `rlvr report` reads it."""
    root = Path(run).resolve()
    return root.with_name(f"{root.name}.explain") / f"step_{step:06d}.json"


def write_values(path: Path, explained: Explained) -> None:
    """UserError if it cannot be written."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, to_line(explained))
