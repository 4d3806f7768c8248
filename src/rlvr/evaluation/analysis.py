"""What records of evaluations say: scores with intervals, where they come from, what they cost, and who is better.

Pure functions; the numbers are those of `rlvr eval`, by the same code.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

from rlvr.config.messages import nearest
from rlvr.errors import ConfigError
from rlvr.evaluation.compare import Comparison, compare, judged_greedily
from rlvr.evaluation.intervals import Interval
from rlvr.evaluation.paired import holm
from rlvr.evaluation.summary import summarize
from rlvr.tracking.evaluations import EvaluationRecord

SEED = 0
"""Of all resampling: the same records give the same intervals."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """The examples with one tag, judged greedily: `Kind(tag="2_hops", num_examples=120, accuracy=Interval(...))`."""

    tag: str
    num_examples: int
    accuracy: Interval
    numbers: Mapping[str, float]  # parts of the reward and facts of the verifier


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Means over all episodes, greedy and sampled; `tokens_per_right` is NaN where nothing is right.

    `seconds` is from an episode's first prompt to its verdict, while others ran beside it: it shrinks with the load.
    """

    prompt_tokens: float
    completion_tokens: float
    turns: float
    tool_calls: float
    seconds: float
    tokens_per_right: float  # tokens read and written by all episodes, over the number of right answers


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One model on one task with one retriever; `name` tells it from the others of the task.

    `scores`: accuracy (not there if nothing was judged greedily), then what was sampled. `numbers`: shares of
    invalid, truncated and failed answers, parts of the reward and everything else that `eval` prints, by its name.
    `best` and `worst` are greedy answers: right ones of the highest reward, and wrong ones of the lowest.
    """

    name: str
    model: str
    task: str
    split: str
    retriever: str | None
    settings: str
    variant: str  # `#3f2a1b`, the settings in short, where a model has several on this task; else empty
    num_examples: int  # judged greedily
    samples_per_example: int
    scores: Mapping[str, Interval]
    numbers: Mapping[str, float]
    kinds: tuple[Kind, ...]
    cost: Cost
    best: tuple[EvaluationRecord, ...]
    worst: tuple[EvaluationRecord, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """Cells in the order of their first records, and every two of them that can be compared."""

    cells: tuple[Cell, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

    @property
    def tasks(self) -> tuple[tuple[str, str], ...]:
        """Task and split of the cells, each once."""
        return tuple(dict.fromkeys((cell.task, cell.split) for cell in self.cells))

    def of_task(self, task: str, split: str) -> tuple[Cell, ...]:
        """The cells of one task and split."""
        return tuple(cell for cell in self.cells if (cell.task, cell.split) == (task, split))


def analyze(
    records: Iterable[EvaluationRecord], *, baseline: str | None = None, num_shown: int = 3, seed: int = SEED
) -> Analysis:
    """Everything about the records. Those of different tasks, splits, retrievers, models or settings are kept apart.

    A measurement that is there twice counts once; an answer to a prompt of the user's own, whose right answer nobody
    knows, does not count. With `baseline` every other model is compared with that one only;
    without it every two models (with the same retriever), and every two retrievers (of the same model).

    Raises:
        ConfigError: there is no record of `baseline`.
    """
    groups, notes = _group(records)
    firsts = [of_one[0] for of_one in groups]
    if baseline is not None:
        _check_baseline(baseline, [one.model for one in firsts])
    cells = [_cell(of_one, variant, num_shown, seed) for of_one, variant in zip(groups, _variants(firsts), strict=True)]
    notes += [
        f"{cell.name} on {cell.task}: no greedy answer could be judged."
        for cell, of_one in zip(cells, groups, strict=True)
        if not cell.num_examples and any(record.sample_index == 0 for record in of_one)
    ]
    comparisons, remarks = _compare_all(cells, groups, baseline, num_shown, seed)
    adjusted = holm([one.p_value for one in comparisons])
    corrected = [
        replace(one, adjusted_p_value=p, num_comparisons=len(comparisons))
        for one, p in zip(comparisons, adjusted, strict=True)
    ]
    return Analysis(cells=tuple(cells), comparisons=tuple(corrected), notes=(*notes, *remarks))


def _group(records: Iterable[EvaluationRecord]) -> tuple[list[list[EvaluationRecord]], list[str]]:
    """The records of each model, task, split, retriever and settings; and what is odd about them."""
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
        notes.append(f"{num_unknown:,} answers to prompts whose right answer is not known are in no number.")
    if num_twice:
        notes.append(
            f"{num_twice:,} {'records are' if num_twice > 1 else 'record is'} there twice and counted once"
            + (f" ({num_different:,} with another verdict: the first one counts)." if num_different else ".")
        )
    found = []
    for of_one in groups.values():
        kept = _with_all_samples(list(of_one.values()))
        if len(kept) < len(of_one):
            one = kept[0]
            notes.append(
                f"{one.model} on {one.task}: of some examples there are fewer samples than of others; left out: "
                f"{len(of_one) - len(kept):,}."
            )
        found.append(kept)
    return found, notes


def _with_all_samples(records: list[EvaluationRecord]) -> list[EvaluationRecord]:
    """With the first k samples of each example that has as many; k is such that the fewest samples are left out.

    An evaluation that is interrupted while it grows from 4 samples to 8 has 4 of most examples and 8 of a few.
    """
    samples: dict[str, list[EvaluationRecord]] = {}
    for record in sorted(records, key=lambda record: record.sample_index):
        if record.sample_index > 0:
            samples.setdefault(record.example_id, []).append(record)
    counts = Counter(map(len, samples.values()))
    size = max(counts, key=lambda k: (k * sum(num for count, num in counts.items() if count >= k), k), default=0)
    kept = {record.key for of_one in samples.values() if len(of_one) >= size for record in of_one[:size]}
    return [record for record in records if record.sample_index == 0 or record.key in kept]


def _variants(firsts: Sequence[EvaluationRecord]) -> list[str]:
    """`#3f2a1b` for each that differs from another one in its settings only."""
    places = [(one.task, one.split, one.model, one.retriever) for one in firsts]
    return [
        f"#{one.settings[:6]}" if places.count(place) > 1 else "" for one, place in zip(firsts, places, strict=True)
    ]


def _check_baseline(baseline: str, models: Sequence[str]) -> None:
    if baseline not in models:
        near = nearest(baseline, models)
        raise ConfigError(
            f"--baseline {baseline}: no record is of this model; "
            + (f"did you mean {near}?" if near else f"there are {', '.join(dict.fromkeys(models))}.")
        )


def _cell(records: Sequence[EvaluationRecord], variant: str, num_shown: int, seed: int) -> Cell:
    one, greedy = records[0], list(judged_greedily(records).values())
    retriever = "" if one.retriever is None else f" + {one.retriever}"
    metrics = summarize(one.task, records, seed=seed)
    values = {name.removeprefix(f"eval/{one.task}/"): value for name, value in metrics.items()}
    intervals = {
        name: Interval(value=value, low=values[f"{name}_low"], high=values[f"{name}_high"])
        for name, value in values.items()
        if f"{name}_low" in values
    }
    tags = sorted({tag for record in greedy for tag in record.tags})
    kinds = [_kind(tag, [record for record in greedy if tag in record.tags], values, intervals) for tag in tags]
    of_kinds = {f"{number}_{kind.tag}" for kind in kinds for number in ("accuracy", *kind.numbers)}
    bounds = {f"{name}_{end}" for name in intervals for end in ("low", "high")}
    counts = {"num_examples", "samples_per_example"}
    right = sorted((r for r in greedy if r.correct), key=lambda r: (-_reward(r), r.num_completion_tokens, r.example_id))
    wrong = sorted(
        (r for r in greedy if not r.correct), key=lambda r: (_reward(r), -r.num_completion_tokens, r.example_id)
    )
    return Cell(
        name=f"{one.model}{retriever} {variant}".rstrip(),
        model=one.model,
        task=one.task,
        split=one.split,
        retriever=one.retriever,
        settings=one.settings,
        variant=variant,
        num_examples=len(greedy),
        samples_per_example=max(Counter(r.example_id for r in records if r.sample_index > 0).values(), default=0),
        scores={name: interval for name, interval in intervals.items() if name not in of_kinds},
        numbers={name: v for name, v in values.items() if name not in {*of_kinds, *intervals, *bounds, *counts}},
        kinds=tuple(kinds),
        cost=_cost(records),
        best=tuple(right[:num_shown]),
        worst=tuple(wrong[:num_shown]),
    )


def _reward(record: EvaluationRecord) -> float:
    """0 where the reward failed."""
    return 0.0 if math.isnan(record.reward) else record.reward


def _kind(
    tag: str, records: Sequence[EvaluationRecord], values: Mapping[str, float], intervals: Mapping[str, Interval]
) -> Kind:
    ending = f"_{tag}"
    bases = [name.removesuffix(ending) for name in values if name.endswith(ending) and name not in intervals]
    return Kind(
        tag=tag,
        num_examples=len(records),
        accuracy=intervals[f"accuracy{ending}"],
        numbers={base: values[base + ending] for base in bases if base in values},
    )


def _cost(records: Sequence[EvaluationRecord]) -> Cost:
    num_right = sum(record.correct for record in records)
    num_tokens = sum(record.num_prompt_tokens + record.num_completion_tokens for record in records)
    return Cost(
        prompt_tokens=fmean(record.num_prompt_tokens for record in records),
        completion_tokens=fmean(record.num_completion_tokens for record in records),
        turns=fmean(len(record.turns) for record in records),
        tool_calls=fmean(sum(len(turn.calls) for turn in record.turns) for record in records),
        seconds=fmean(record.time_s for record in records),
        tokens_per_right=num_tokens / num_right if num_right else math.nan,
    )


def _compare_all(
    cells: Sequence[Cell],
    records: Sequence[Sequence[EvaluationRecord]],
    baseline: str | None,
    num_shown: int,
    seed: int,
) -> tuple[list[Comparison], list[str]]:
    """Every pair that answers a question, and a sentence for each that shares no example."""
    found: list[Comparison] = []
    notes: list[str] = []
    for (one, first), (two, second) in combinations(zip(cells, records, strict=True), 2):
        if two.model == baseline != one.model:  # the baseline comes first
            one, first, two, second = two, second, one, first
        if not _comparable(one, two, baseline):
            continue
        comparison = compare(first, second, names=(one.name, two.name), seed=seed, num_shown=num_shown)
        if comparison is None:
            notes.append(f"{one.name} and {two.name} have no example of {one.task} in common that was judged greedily.")
            continue
        found.append(comparison)
        if one.model != two.model and _asked_otherwise(first[0], second[0]):
            notes.append(
                f"{one.name} and {two.name} were not asked {one.task} in the same way (prompt, settings of the task, "
                "or rollout.max_completion_tokens): their difference is not that of the models alone."
            )
        if comparison.num_changed:
            notes.append(
                f"{one.name} and {two.name}: {comparison.num_changed:,} examples of {one.task} have other gold answers "
                "in one than in the other; they are left out of the comparison."
            )
        if comparison.num_common < max(one.num_examples, two.num_examples):
            notes.append(
                f"{one.name} and {two.name}: only {comparison.num_common:,} examples of {one.task} are in both "
                f"({one.num_examples:,} and {two.num_examples:,}); compare their difference, not their accuracies."
            )
    return found, notes


def _asked_otherwise(one: EvaluationRecord, two: EvaluationRecord) -> bool:
    """Whether two models had other conditions; records of another program may not tell theirs."""
    return "" not in (one.conditions, two.conditions) and one.conditions != two.conditions


def _comparable(one: Cell, two: Cell, baseline: str | None) -> bool:
    """The same examples, and one thing that differs: the model, the retriever or the settings."""
    if (one.task, one.split) != (two.task, two.split):
        return False
    if baseline is not None:
        return one.model == baseline and two.model != baseline and one.retriever == two.retriever
    return one.model == two.model or one.retriever == two.retriever
