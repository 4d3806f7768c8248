"""The first difference between two records of a step in each stage of it, down to the token."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STAGES = ("sampling", "scores", "logprobs", "advantages", "update", "evaluation")
"""Of a step, in order: a difference of one stage causes those of the later ones."""

OF_ROWS = {
    "trainer_logprobs": "logprobs",
    "reference_logprobs": "logprobs",
    "values": "logprobs",
    "advantages": "advantages",
    "returns": "advantages",
}
OF_EPISODES = {
    "advantage": "advantages",
    **dict.fromkeys(["answer", "reward", "reward_parts", "score_status", "diagnostics", "trace"], "scores"),
}
OF_METRICS = {
    "rollout/zero_advantage_share": "scores",
    "rollout/invalid_share": "scores",
    "rollout/error_share": "scores",
    "rollout/": "sampling",
    "reward/": "scores",
    "episode/": "scores",
    "task/": "scores",
    "eval/": "evaluation",
    "": "update",
}
"""Stage by the beginning of a metric's name; the first that fits."""

NOT_COMPARED = ("time/", "system/")  # depend on the clock and the machine


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`Difference(stage="advantages", name="advantages", episode=3, part="row 0", token=17, recorded=0.5, ...)`"""

    stage: str
    name: str  # of a field of rollouts/ or of a metric
    recorded: Any
    replayed: Any
    episode: int | None = None  # line of the rollout file, from 0; None for a metric
    part: str = ""  # "turn 0" or "row 0" of the episode
    token: int | None = None  # place in the list of that name, from 0

    def __str__(self) -> str:
        place = "" if self.episode is None else f"episode {self.episode}, "
        place += f"{self.part}, " if self.part else ""
        place += f"token {self.token}, " if self.token is not None else ""
        values = (json.dumps(value, ensure_ascii=False) for value in (self.recorded, self.replayed))
        recorded, replayed = (text if len(text) <= 80 else f"{text[:80]}..." for text in values)
        return f"{self.stage}: {place}{self.name}: recorded {recorded}, replayed {replayed}"


def first_differences(found: Sequence[Difference]) -> list[Difference]:
    """The first of each stage, stages in order."""
    by_stage = {one.stage: one for one in reversed(found)}
    return [by_stage[stage] for stage in STAGES if stage in by_stage]


def record_differences(recorded: Sequence[bytes], replayed: Sequence[bytes]) -> list[Difference]:
    """The first difference of each stage between lines of rollout files. Fields that an older version did not write are
    not compared."""
    differences = list[Difference]()
    if len(recorded) != len(replayed):
        differences.append(
            Difference(stage="sampling", name="episodes", recorded=len(recorded), replayed=len(replayed), token=None)
        )
    for number, (old, new) in enumerate(zip(recorded, replayed, strict=False)):
        if old != new:
            differences += _of_episode(number, json.loads(old), json.loads(new))
    return first_differences(differences)


def _of_episode(number: int, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """All fields that differ, those with a value for each token first: they say where."""
    pairs = [pair for pair in _fields(old, new) if not _same(*pair[3:])]
    for stage, part, name, value, other in sorted(pairs, key=lambda pair: not isinstance(pair[3], list)):
        token = None
        if isinstance(value, list) and isinstance(other, list):
            places = enumerate(zip(value, other, strict=False))
            token = next((place for place, (a, b) in places if not _same(a, b)), min(len(value), len(other)))
            value, other = (_at(one, token) for one in (value, other))
        yield Difference(stage=stage, name=name, recorded=value, replayed=other, episode=number, part=part, token=token)


def _fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Any, Any]]:
    """Stage, part, name and both values of each field."""
    for kind in ("turns", "rows"):
        if len(old[kind]) != len(new[kind]):
            yield "sampling", "", f"number of {kind}", len(old[kind]), len(new[kind])
        for place, (before, after) in enumerate(zip(old[kind], new[kind], strict=False)):
            for name, value in before.items():
                stage = OF_ROWS.get(name, "sampling") if kind == "rows" else "sampling"
                yield stage, f"{kind[:-1]} {place}", name, value, after.get(name)
    for name in old.keys() - {"turns", "rows"}:
        yield OF_EPISODES.get(name, "sampling"), "", name, old[name], new.get(name)


def _at(values: Sequence[Any], place: int) -> Any:
    return values[place] if place < len(values) else None


def _same(a: Any, b: Any) -> bool:
    """Whether both are the same bytes as JSON: 0.0 is not -0.0."""
    return a is b or json.dumps(a) == json.dumps(b)


def metric_differences(recorded: Mapping[str, float], replayed: Mapping[str, float]) -> list[Difference]:
    """The first difference of each stage between lines of metrics.jsonl; NaN equals NaN."""
    names = [name for name in sorted(recorded.keys() | replayed.keys()) if not name.startswith(NOT_COMPARED)]
    return first_differences(
        [
            Difference(stage=stage_of(name), name=name, recorded=recorded.get(name), replayed=replayed.get(name))
            for name in names
            if repr(recorded.get(name)) != repr(replayed.get(name))
        ]
    )


def stage_of(metric: str) -> str:
    return next(stage for start, stage in OF_METRICS.items() if metric.startswith(start))
