"""Scores with intervals, costs and paired comparisons of evaluation records, as computed by `rlvr eval`."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

from rlvr.errors import ConfigError
from rlvr.evaluation.compare import Comparison, compare
from rlvr.evaluation.intervals import Interval, holm
from rlvr.evaluation.summary import graded_greedily, measure, samples_by_example
from rlvr.records.graded import EvaluationRecord
from rlvr.types import StopReason


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """The greedily graded examples with one tag: `Kind(tag="2_hops", num_examples=120, accuracy=Interval(...))`."""

    tag: str
    num_examples: int
    accuracy: Interval
    numbers: Mapping[str, float]  # parts of the reward and facts of the verifier


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Means over all episodes, greedy and sampled. `seconds` is wall time with concurrent episodes."""

    prompt_tokens: float
    completion_tokens: float
    turns: float
    tool_calls: float
    seconds: float
    tokens_per_right: float  # prompt and completion tokens of all episodes per right answer; NaN without one


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One model on one task with one retriever."""

    name: str  # unique among the cells of the task
    model: str
    task: str
    split: str
    retriever: str | None
    settings: str
    variant: str  # `#3f2a1b`, a short hash of the settings if the model has several on this task
    num_examples: int  # graded greedily
    samples_per_example: int
    scores: Mapping[str, Interval]  # accuracy, if there are greedy grades, then the sampled ones
    numbers: Mapping[str, float]  # the other metrics of `eval`
    kinds: tuple[Kind, ...]
    cost: Cost
    best: tuple[EvaluationRecord, ...]  # right greedy completions with the highest reward
    worst: tuple[EvaluationRecord, ...]  # wrong ones with the lowest


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """Cells in the order of their first records, and all comparisons."""

    cells: tuple[Cell, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

    @property
    def tasks(self) -> tuple[tuple[str, str], ...]:
        return tuple(dict.fromkeys((cell.task, cell.split) for cell in self.cells))

    def of_task(self, task: str, split: str) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if (cell.task, cell.split) == (task, split))


def analyze(records: Iterable[EvaluationRecord], *, baseline: str | None = None, num_shown: int = 3) -> Analysis:
    """Group the records by task, split, model, retriever and settings; summarize and compare the groups.

    Duplicate measurements count once; completions of a user's prompts without a known answer do not count. Compares
    models with the same retriever, and retrievers of the same model; with `baseline` only that model with the others.
    ConfigError if there is no record of `baseline`.
    """
    groups, notes = _group(records)
    firsts = [of_one[0] for of_one in groups]
    models = list(dict.fromkeys(one.model for one in firsts))
    if baseline is not None and baseline not in models:
        raise ConfigError(f"--baseline {baseline}: no record is of this model; there are {', '.join(models)}.")
    places = Counter((one.task, one.split, one.model, one.retriever) for one in firsts)
    cells = []
    for of_one, one in zip(groups, firsts, strict=True):
        several = places[one.task, one.split, one.model, one.retriever] > 1
        cells.append(_cell(of_one, f"#{one.settings[:6]}" if several else "", num_shown))
    compared: list[Comparison] = []
    for (one, first), (two, second) in combinations(zip(cells, groups, strict=True), 2):
        if two.model == baseline != one.model:  # put the baseline first
            one, first, two, second = two, second, one, first
        if not _comparable(one, two, baseline):
            continue
        comparison = compare(first, second, names=(one.name, two.name), num_shown=num_shown)
        if comparison is not None:
            compared.append(comparison)
        notes += _caveats(one, two, comparison, (first[0].conditions, second[0].conditions))
    adjusted = holm([one.p_value for one in compared])
    comparisons = [
        replace(one, adjusted_p_value=p, num_comparisons=len(compared))
        for one, p in zip(compared, adjusted, strict=True)
    ]
    return Analysis(cells=tuple(cells), comparisons=tuple(comparisons), notes=tuple(notes))


def _group(records: Iterable[EvaluationRecord]) -> tuple[list[list[EvaluationRecord]], list[str]]:
    """The records of each group, and notes about duplicate, ungradable and incomplete ones."""
    groups: dict[tuple[str, ...], dict[tuple[str, int], EvaluationRecord]] = {}
    num_twice = num_different = num_unknown = 0
    for record in records:
        if record.split == "prompts" and not record.expected:
            num_unknown += 1
            continue
        where = (record.task, record.split, record.model, record.retriever or "", record.settings)
        known, key = groups.setdefault(where, {}), (record.example_id, record.sample_index)
        num_twice += key in known
        num_different += known.setdefault(key, record).correct != record.correct
    notes = []
    if num_unknown:
        notes.append(f"{num_unknown:,} answers to prompts without a known right answer are not counted.")
    if num_twice:
        notes.append(
            f"{num_twice:,} records are there twice ({num_different:,} with another grade): the first one counts."
        )
    grouped = []
    for of_one in groups.values():
        kept = _with_all_samples(list(of_one.values()))
        if len(kept) < len(of_one):
            notes.append(
                f"{kept[0].model} on {kept[0].task}: of some examples there are fewer samples than of others; left "
                f"out: {len(of_one) - len(kept):,}."
            )
        grouped.append(kept)
    return grouped, notes


def _with_all_samples(records: list[EvaluationRecord]) -> list[EvaluationRecord]:
    """The greedy records and the first k samples of each example with at least k; k keeps the most samples, and is
    the larger one at a tie.

    An evaluation interrupted while growing from 4 to 8 samples has 4 of most examples and 8 of a few.
    """
    samples = samples_by_example(sorted(records, key=lambda record: record.sample_index))
    counts = Counter(map(len, samples.values()))
    size = max(counts, key=lambda k: (k * sum(num for count, num in counts.items() if count >= k), k), default=0)
    kept = {record.key for of_one in samples.values() if len(of_one) >= size for record in of_one[:size]}
    return [record for record in records if record.sample_index == 0 or record.key in kept]


def _cell(records: Sequence[EvaluationRecord], variant: str, num_shown: int) -> Cell:
    first, greedy = records[0], list(graded_greedily(records).values())
    retriever = "" if first.retriever is None else f" + {first.retriever}"
    scores: defaultdict[str, dict[str, Interval]] = defaultdict(dict)  # by tag
    numbers: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for (name, tag), value in measure(records).items():
        if isinstance(value, Interval):
            scores[tag][name] = value
        elif name not in ("num_examples", "samples_per_example"):
            numbers[tag][name] = value
    kinds = [
        Kind(
            tag=tag,
            num_examples=sum(tag in record.tags for record in greedy),
            accuracy=scores[tag]["accuracy"],
            numbers=numbers[tag],
        )
        for tag in scores
        if tag
    ]
    right = sorted((r for r in greedy if r.correct), key=lambda r: (-_reward(r), r.num_completion_tokens, r.example_id))
    wrong = sorted(
        (r for r in greedy if not r.correct), key=lambda r: (_reward(r), -r.num_completion_tokens, r.example_id)
    )
    return Cell(
        name=f"{first.model}{retriever} {variant}".rstrip(),
        model=first.model,
        task=first.task,
        split=first.split,
        retriever=first.retriever,
        settings=first.settings,
        variant=variant,
        num_examples=len(greedy),
        samples_per_example=max(map(len, samples_by_example(records).values()), default=0),
        scores=scores[""],
        numbers=numbers[""],
        kinds=tuple(kinds),
        cost=_cost(records),
        best=tuple(right[:num_shown]),
        worst=tuple(wrong[:num_shown]),
    )


def _reward(record: EvaluationRecord) -> float:
    return 0.0 if math.isnan(record.reward) else record.reward


def _cost(records: Sequence[EvaluationRecord]) -> Cost:
    num_right = sum(record.correct for record in records)
    num_tokens = sum(record.num_prompt_tokens + record.num_completion_tokens for record in records)
    return Cost(
        prompt_tokens=fmean(record.num_prompt_tokens for record in records),
        completion_tokens=fmean(record.num_completion_tokens for record in records),
        turns=fmean(len(record.turns) for record in records),
        tool_calls=fmean(map(_num_calls, records)),
        seconds=fmean(record.time_s for record in records),
        tokens_per_right=num_tokens / num_right if num_right else math.nan,
    )


def _num_calls(record: EvaluationRecord) -> float:
    """Executed calls, as counted by the environment: calls of a cut-off completion were not executed."""
    counted = record.diagnostics.get("tool_calls")
    if isinstance(counted, int | float):
        return counted
    return sum(len(turn.calls) for turn in record.turns[: -1 if record.stop_reason is StopReason.LENGTH else None])


def _comparable(first: Cell, second: Cell, baseline: str | None) -> bool:
    """Whether they have the same examples and differ in one thing: model, retriever or settings."""
    is_same_model, is_same_retriever = first.model == second.model, first.retriever == second.retriever
    if baseline is not None and (first.model != baseline or is_same_model or not is_same_retriever):
        return False
    return (first.task, first.split) == (second.task, second.split) and (is_same_model or is_same_retriever)


def _caveats(first: Cell, second: Cell, comparison: Comparison | None, conditions: tuple[str, str]) -> list[str]:
    """Caveats of a comparison; records of other programs may have no `conditions`."""
    both = f"{first.name} and {second.name}"
    if comparison is None:
        return [f"{both} have no example of {first.task} in common that was graded greedily."]
    notes = []
    if first.model != second.model and "" not in conditions and conditions[0] != conditions[1]:
        notes.append(
            f"{both} were not asked {first.task} in the same way (prompt, settings of the task, or "
            "rollout.max_completion_tokens): their difference is not due to the models alone."
        )
    if comparison.num_common < max(first.num_examples, second.num_examples):
        changed = f", and {comparison.num_changed:,} have other gold answers" if comparison.num_changed else ""
        notes.append(
            f"{both}: only {comparison.num_common:,} examples of {first.task} are in both ({first.num_examples:,} and "
            f"{second.num_examples:,}{changed}); compare their difference, not their accuracies."
        )
    return notes
