"""What several causes look at, and how it is said."""

from collections.abc import Sequence
from itertools import takewhile
from statistics import fmean

from rlvr.report.diagnosis.judge import Found, weight
from rlvr.report.diagnosis.record import Group, Record, sampled
from rlvr.tracking.rollouts import EpisodeRecord
from rlvr.tracking.signals import SIGNALS

QUOTED = 160  # characters of a completion
NOTHING = Found(strength=0.0)


def quote(episode: EpisodeRecord, step: int) -> str:
    """`step 1, group 3: "4 1 + = 5" earned 0, gold 5`."""
    text = " ".join(episode.turns[-1].completion.split())
    cut = text if len(text) <= QUOTED else f"{text[:QUOTED]} ..."
    return f'step {step}, group {episode.group}: "{cut}" earned {episode.reward:g}, gold {episode.answer}'


def quotes(record: Record, wanted: Sequence[EpisodeRecord], limit: int = 2) -> list[str]:
    steps = {id(one): step for step, episodes in record.rollouts.items() for one in episodes}
    return [quote(one, steps[id(one)]) for one in wanted[:limit] if one.reward is not None]


def same_share(groups: Sequence[Group]) -> float | None:
    """How much of two completions of a group is the same from their start on, mean over pairs: 1 if they are equal."""
    found = [
        _common(sampled(one), sampled(other))
        for group in groups
        for number, one in enumerate(group)
        for other in group[:number]
    ]
    return fmean(found) if found else None


def _common(one: Sequence[int], other: Sequence[int]) -> float:
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return same / max(len(one), len(other), 1)


def about_the_metric(record: Record) -> list[str]:
    share = record.right_share([group for _, group in record.groups])
    found = [] if share is None else [f"the metric calls {share:.0%} of the recorded completions right"]
    if record.evaluations:
        last = record.evaluations[-1]
        found.append(f"held-out {record.headline.replace('_', ' ')} {last.value:.3f} in step {last.step}")
    return found


def about_dead_groups(record: Record) -> str:
    share = record.dead_share(record.early_rows)
    return f"{share:.0%} of the groups in the first steps had equal rewards"


def starved(record: Record) -> float:
    """How few groups teach anything, in the first steps and in all. Sound runs have begun with one in twenty."""
    alive = 1 - min(record.dead_share(record.early_rows), record.dead_share(record.updates))
    return weight("common", "starved", alive)


def not_solved(record: Record, groups: Sequence[Group]) -> float:
    return weight("common", "unsolved", record.right_share(groups) or 0.0)


def alike_share(groups: Sequence[Group], dead: float) -> float:
    """Completions are the same, and with them the rewards."""
    return weight("common", "same_share", same_share(groups)) * SIGNALS["rollout/zero_advantage_share"].weight(dead)


def about_sameness(record: Record, groups: Sequence[Group]) -> list[str]:
    same = same_share(groups) or 0.0
    shown = quotes(record, list(groups[0]))
    return [
        record.span("rollout/entropy"),
        f"completions of a question share {same:.0%} of their tokens from the start on",
        *shown,
    ]


def about_engine(record: Record) -> list[str]:
    settings = {key: record.history.setting(key) for key in ("rollout.max_staleness", "engine.name", "engine.dtype")}
    return [", ".join(f"{key}={value}" for key, value in settings.items())]


def back_to_usual(record: Record) -> list[str]:
    """Overrides that let the engine sample with the trained weights themselves."""
    setting = record.history.setting
    half = {"bf16": "bfloat16", "fp16": "float16"}.get(str(setting("trainer.precision")))  # what `auto` may become
    usual = {"rollout.max_staleness": (0,), "engine.dtype": ("auto", "float32", half)}
    return [f"{key}={fine[0]}" for key, fine in usual.items() if setting(key) not in (*fine, None)]
