"""What a run recorded, as numbers that links are measured by: metrics, evaluations, sampled episodes, weights."""

import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev

from rlvr import registry
from rlvr.core.settings import RolloutSettings, TrainerSettings
from rlvr.errors import ConfigError, UserError
from rlvr.records.history import History, headline_of
from rlvr.records.rollouts import EpisodeRecord, read_rollouts
from rlvr.settings import Settings
from rlvr.tracking.signals import between
from rlvr.trust.weights import WeightChange, read_weights

QUOTED = 160  # characters of a text
Metrics = dict[str, float]
Group = tuple[EpisodeRecord, ...]

MAX_GROUPS = 32  # of a file
MAX_FILES = 6  # rollout files that are read: the first, the last, and some between
EARLY_EPISODES = 64  # at least as many show what the run was like before it learned anything
LATE_STEPS = 5
CERTAIN = (1.6, 3.0)  # standard errors by which a curve rises: chance, and certainly not
ENOUGH = 1 / 3  # of what there was to gain: the curve is not flat


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place of a link: the share that passes, what was seen there, what it means, and what to do. `signals` measure
    the same place, less well."""

    passes: float
    seen: Sequence[str]
    says: str
    remedy: str
    overrides: Sequence[str] = ()
    signals: Sequence[str] = ()


@dataclass(frozen=True)
class Evaluation:
    step: int
    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """The standard error behind its 95 % interval."""
        return max(self.high - self.low, 1e-3) / (2 * 1.96)


class Record:
    """`Record(Path("runs/latest"))`: `early("rollout/truncated_share")`, `groups`, `evaluations`, ..."""

    def __init__(
        self, history: History, rollouts: dict[int, list[EpisodeRecord]], weights: WeightChange | None
    ) -> None:
        self.history, self.rollouts, self.weights = history, rollouts, weights
        self.updates = updates_of(history)

    # ---------------------------------------------------------------------------------------------------- settings

    def setting(self, key: str, usual: float = 0.0) -> float:
        value = self.history.setting(key)
        return float(value) if isinstance(value, int | float) else usual

    @property
    def sections(self) -> dict[str, type[Settings]]:
        """The classes of the sections that shape an update; those of components that are not here are left out."""
        classes: dict[str, type[Settings]] = {"rollout": RolloutSettings, "trainer": TrainerSettings}
        for group in ("algorithm", "model"):
            with suppress(ConfigError):
                classes[group] = registry.find(group, str(self.history.setting(f"{group}.name")))
        return classes

    @property
    def compares_groups(self) -> bool:
        """True if equal rewards in a group teach nothing."""
        with suppress(ConfigError):
            name = self.history.setting("algorithm.name")
            return bool(registry.find("algorithm", str(name)).compares_groups)
        return self.setting("rollout.group_size", 1.0) > 1

    @property
    def headline(self) -> str:
        """`accuracy`, or a part of the reward that the run is judged by: `sampled_part_format`."""
        return str(self.history.setting("evaluation.headline") or "accuracy")

    # ---------------------------------------------------------------------------------------------------- metrics

    @cached_property
    def early_rows(self) -> list[Metrics]:
        """The first updates: what is wrong there was not brought about by training."""
        episodes, rows = 0.0, list[Metrics]()
        for row in self.updates:
            if episodes < EARLY_EPISODES:
                rows.append(row)
            episodes += row.get("rollout/episodes", 0.0)
        return rows

    def early(self, name: str) -> float | None:
        return mean_of(self.early_rows, name)

    def late(self, name: str) -> float | None:
        return mean_of(self.updates[-LATE_STEPS:], name)

    def always(self, name: str) -> float | None:
        return mean_of(self.updates, name)

    def span(self, name: str) -> str:
        """`rollout/truncated_share: 0.98 in step 1, 0.91 in step 10`."""
        rows = [row for row in self.updates if math.isfinite(row.get(name, math.nan))]
        if not rows:
            return f"{name}: not recorded"
        first, last = rows[0], rows[-1]
        text = f"{name}: {first[name]:.3g} in step {first['step']:g}"
        return text if len(rows) == 1 else f"{text}, {last[name]:.3g} in step {last['step']:g}"

    def dead_share(self, rows: Sequence[Metrics]) -> float:
        """Groups whose completions earned the same, of those sampled; replaced ones count too."""
        if not self.compares_groups:
            return fmean([float(row.get("reward/std", 1.0) == 0) for row in rows]) if rows else 0.0
        size, dead, total = max(self.setting("rollout.group_size", 1.0), 1.0), 0.0, 0.0
        for row in rows:
            kept = row.get("rollout/episodes", 0.0) / size
            gone = row.get("rollout/refilled_groups", 0.0) + row.get("rollout/dropped_groups", 0.0)
            dead += kept * row.get("rollout/zero_advantage_share", 0.0) + gone
            total += kept + gone
        return dead / total if total else 0.0

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """The evaluations of the run's own task (of a mix: the first one's), by its headline metric."""
        headline = headline_of(self.history.settings)
        names = {
            name
            for row in self.history.rows
            for name in row
            if re.fullmatch(rf"eval/[^/]+/{re.escape(self.headline)}", name)
        }
        if not names:
            return []
        name, evaluations = min(names, key=lambda name: (name != headline, name)), list[Evaluation]()
        for row in self.history.rows:
            value = row.get(name, math.nan)
            low, high = row.get(f"{name}_low", value), row.get(f"{name}_high", value)
            if all(map(math.isfinite, (value, low, high))):
                evaluations.append(Evaluation(int(row["step"]), value, low, high))
        return evaluations

    @cached_property
    def rise_of_metric(self) -> float | None:
        """Whether the held-out metric rises, from 0 to 1: by more than chance, and by a part of what there was to gain;
        None with fewer than two evaluations."""
        if len(self.evaluations) < 2:
            return None
        first, last = self.evaluations[0], self.evaluations[-1]
        return _rise(last.value - first.value, math.hypot(first.error, last.error), 1 - first.value)

    @cached_property
    def rise_of_reward(self) -> float:
        """The same of the reward, from the first third of the steps to the last; 0 below 6 steps."""
        values = [row["reward/mean"] for row in self.updates if math.isfinite(row["reward/mean"])]
        third = len(values) // 3
        if third < 2:
            return 0.0
        first, last = values[:third], values[-third:]
        error = max(math.sqrt((stdev(first) ** 2 + stdev(last) ** 2) / third), 1e-3)
        best = max((one.reward or 0.0 for one in self.episodes), default=fmean(last))
        return _rise(fmean(last) - fmean(first), error, best - fmean(first))

    # ---------------------------------------------------------------------------------------------------- episodes

    @cached_property
    def groups(self) -> list[tuple[int, Group]]:
        """Groups of recorded episodes with a reward, each with its step."""
        return [
            (step, group)
            for step, episodes in self.rollouts.items()
            for _, members in groupby(episodes, key=lambda episode: episode.group)
            if (group := tuple(episode for episode in members if episode.reward is not None))
        ]

    @cached_property
    def comparable(self) -> list[Group]:
        """Completions that a reward tells apart: those of a question, or of a step where no groups are compared."""
        return [group for _, group in self.groups] if self.compares_groups else self._of_steps(self.groups)

    @property
    def first_comparable(self) -> list[Group]:
        """The same of the first recorded step."""
        first = self.groups[0][0] if self.groups else 0
        return self.first_groups if self.compares_groups else self._of_steps([g for g in self.groups if g[0] == first])

    @staticmethod
    def _of_steps(groups: Sequence[tuple[int, Group]]) -> list[Group]:
        return [tuple(one for _, group in some for one in group) for _, some in groupby(groups, key=lambda one: one[0])]

    @cached_property
    def first_groups(self) -> list[Group]:
        return [group for step, group in self.groups if step == self.groups[0][0]]

    def right(self, episode: EpisodeRecord) -> bool:
        """True if the metric, not the reward, calls an episode right; without its word, if the gold answer stands in
        the last turn."""
        part = self.headline.removeprefix("sampled_")
        if part.startswith("part_"):
            return (episode.reward_parts.get(part.removeprefix("part_")) or 0.0) >= 1.0
        answers = [step for step in episode.trace if step.kind == "answer"]
        if answers and answers[-1].ok is not None:
            return answers[-1].ok
        if self.traces_answers:
            return bool(answers) and words(episode.answer) == words(answers[-1].text)
        return contains(episode.turns[-1].completion, episode.answer)

    def is_read(self, episode: EpisodeRecord) -> bool:
        """True if reward or metric could read the answer."""
        return episode.score_status != "invalid" or any(step.kind == "answer" for step in episode.trace)

    @cached_property
    def traces_answers(self) -> bool:
        """True if the task says what it read as the answer; an episode without one then has none."""
        return any(step.kind == "answer" for episode in self.episodes for step in episode.trace)

    def right_share(self, groups: Sequence[Group]) -> float | None:
        flags = [self.right(episode) for group in groups for episode in group]
        return fmean(flags) if flags else None

    @cached_property
    def episodes(self) -> list[EpisodeRecord]:
        return [episode for episodes in self.rollouts.values() for episode in episodes]


def _rise(gained: float, error: float, possible: float) -> float:
    share = between(gained / possible, 0.0, ENOUGH) if possible > 0 else 1.0
    return between(gained / error, *CERTAIN) * share


def sampled(episode: EpisodeRecord) -> tuple[int, ...]:
    """All sampled tokens, turn by turn."""
    return tuple(token for turn in episode.turns for token in turn.completion_ids)


def quotes(record: Record, wanted: Sequence[EpisodeRecord]) -> list[str]:
    """`step 1, group 3: "4 1 + = 5" earned 0, gold 5`."""
    steps = {id(one): step for step, episodes in record.rollouts.items() for one in episodes}
    return [
        f'step {steps[id(one)]}, group {one.group}: "{" ".join(one.turns[-1].completion.split())[:QUOTED]}" earned '
        f"{one.reward:g}, gold {one.answer}"
        for one in wanted
        if one.reward is not None
    ]


def words(text: str) -> list[str]:
    return text.casefold().split()


WORD = re.compile(r"[^\W_]+")


def plain(text: str) -> str:
    """The words of a text alone, in lower case, one space between them."""
    return " ".join(WORD.findall(text.casefold()))


def contains(text: str, answer: str) -> bool:
    """True if the words of the answer stand in the text, in a row."""
    inside, wanted = words(text), words(answer)
    return any(inside[start : start + len(wanted)] == wanted for start in range(len(inside) - len(wanted) + 1))


ENDS = re.compile(r"<\|?(/s|eos|eoe|eot|eot_id|im_end|end|endoftext|end_of_text|end_of_turn)\|?>", re.IGNORECASE)


def end_tokens(history: History) -> set[int]:
    """Tokens that the files of the run's model call the end, or whose name does, such as `<eos>` and `<|im_end|>`."""
    named = history.setting("model.name_or_path")
    folders = [history.folder / "final", history.folder / "warm_start", *([Path(named)] if named else [])]
    folder = next((path for path in folders if (path / "tokenizer.json").is_file()), None)
    if folder is None:
        return set()
    ids = set[int]()
    with suppress(OSError, ValueError, KeyError, TypeError):
        tokens = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        ids |= {int(token["id"]) for token in tokens if ENDS.fullmatch(token["content"])}
    with suppress(OSError, ValueError, KeyError, TypeError):
        end = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
        ids |= {int(number) for number in (end if isinstance(end, list) else [end])}
    return ids


def stop_words(history: History) -> tuple[str, ...]:
    """Words of the run's task that end a completion."""
    with suppress(ConfigError):
        return tuple(getattr(registry.find("task", str(history.setting("task.name"))), "stop_words", ()))
    return ()


def mean_of(rows: Sequence[Metrics], name: str) -> float | None:
    values = [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]
    return fmean(values) if values else None


def updates_of(history: History) -> list[Metrics]:
    """The rows of steps that trained."""
    return [row for row in history.rows if "reward/mean" in row]


def read_record(
    history: History, *, with_weights: bool = True, on_note: Callable[[str], None] = lambda text: None
) -> Record:
    """Read the rest of a run folder as far as possible: damaged files are notes."""
    folder = history.folder
    for text in history.notes:
        on_note(text)
    files = sorted((folder / "rollouts").glob("step_*.jsonl.gz"))
    if len(files) > MAX_FILES:
        files = [files[round(place * (len(files) - 1) / (MAX_FILES - 1))] for place in range(MAX_FILES)]
    rollouts: dict[int, list[EpisodeRecord]] = {}
    for path in files:
        try:
            episodes = read_rollouts(path)
            step = int(path.name[5:].partition(".")[0])
            rollouts[step] = [episode for episode in episodes if episode.group < MAX_GROUPS]
        except (UserError, OSError, ValueError) as error:
            on_note(str(error))
    return Record(history, rollouts, read_weights(folder, history) if with_weights else None)
