"""More made runs: what a run begins with and is judged by, rewards that do not arrive, weights that are left out."""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from rlvr.report.diagnosis.record import Record
from rlvr.tracking.rollouts import CallRecord, EpisodeRecord
from rlvr.types import TraceStep
from tests.unit.report.diagnosis.made import ANSWERS, WEIGHTS, episode, record

DEAD = {"rollout/zero_advantage_share": 1.0, "policy/trained_token_share": 0.0}
RISING = {"reward/mean": [0.1 * step for step in range(10)]}


def groups(make: Callable[[int, int, str], EpisodeRecord], answers: Sequence[str] = ANSWERS) -> list[EpisodeRecord]:
    return [make(group, number, answer) for group in range(8) for number, answer in enumerate(answers)]


@cache
def tokenized() -> tempfile.TemporaryDirectory[str]:
    """A run folder whose tokenizer calls token 1 its end."""
    folder = tempfile.TemporaryDirectory()
    (Path(folder.name) / "final").mkdir()
    said = json.dumps({"added_tokens": [{"id": 1, "content": "<eos>"}]})
    (Path(folder.name) / "final/tokenizer.json").write_text(said)
    return folder


def in_folder(made: Record, folder: Path) -> Record:
    return Record(replace(made.history, folder=folder), made.rollouts, made.weights)


def stopped_inside(right_too: bool = False) -> Record:
    """Every other completion ends at token 9."""

    def one(group: int, number: int, answer: str) -> EpisodeRecord:
        if number % 2 == 0:
            return episode(group, number, answer, float(answer == "7"))
        said = "7" if right_too else answer
        return episode(group, number, said, float(said == "7"), ids=(20 + number, 9))

    return in_folder(record(episodes=groups(one)), Path(tokenized().name))


def searched(group: int, number: int, answer: str, reply: str) -> EpisodeRecord:
    """Two documents that support the answer were found."""
    found = episode(group, number, answer, 0.0)
    documents = [TraceStep(kind="document", text=text, ok=True) for text in ("first", "second")]
    last = replace(found.turns[0], reply=reply)
    return replace(found, trace=[*documents, TraceStep(kind="answer", text=answer, ok=False)], turns=[last])


def called(group: int, number: int, name: str, reply: str) -> EpisodeRecord:
    one = episode(group, number, "3", 0.0, diagnostics={"tool_calls": 1.0})
    call = CallRecord(name="search", arguments={"name": name}, problem=None)
    return replace(one, turns=[replace(one.turns[0], calls=(call,), reply=reply), *one.turns])


def evaluated(made: Record, count: float = 200.0) -> Record:
    for row in (made.history.rows[0], made.history.rows[-1]):
        row["eval/made/num_examples"] = count
    return made


def surprised(by: float, **settings: dict[str, object]) -> Record:
    """Sampled tokens have this much more surprise than the policy's entropy, 0.6 nats."""

    def one(group: int, number: int, answer: str) -> EpisodeRecord:
        found = episode(group, number, answer, float(answer == "7"))
        drawn: list[float | None] = [0.0, 0.0, *(-0.6 - by + 0.1 * (number - 1.5) for _ in range(3))]
        return replace(found, rows=[replace(found.rows[0], behavior_logprobs=drawn, trainer_logprobs=drawn)])

    return record(episodes=groups(one), settings=settings)


MORE: dict[str, Callable[[], Record]] = {
    "untrained": lambda: record(weights=replace(WEIGHTS, fresh=0.8)),
    "evaluation_stands_still": lambda: evaluated(record(RISING)),
    "ends_early": stopped_inside,
    "other_gold": lambda: record(episodes=groups(lambda g, n, a: searched(g, n, "3", "o7 is in 3."))),
    "paid_by_question": lambda: record(DEAD, episodes=groups(lambda g, n, a: episode(g, n, a, float(g % 2)))),
    "unusual_setting": lambda: record(settings={"algorithm": {"name": "ppo", "gamma": 0.1}}),
    "frozen": lambda: record(weights=replace(WEIGHTS, still=1.0)),
    "unlike_held_out": lambda: record(RISING, episodes=groups(lambda g, n, a: episode(g, n, "7", 1.0))),
}
