"""The update that a step would have made with other episodes, rewards, masks or settings, from the same samples."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from rlvr.algorithms.columns import teachers_of
from rlvr.config import Config
from rlvr.core.batch import to_batch
from rlvr.core.loop import TrainingRun
from rlvr.errors import ConfigError
from rlvr.research.influence import left_out
from rlvr.research.repeat import Recorded, Repeated, assembled
from rlvr.run.ranks import quiet
from rlvr.run.run_folder import changed_settings
from rlvr.run.sources import own_config, with_absolute_model
from rlvr.types import TokenBatch

HOW = "drop=3, reward.3=0, mask.3=all, mask.3=4..9, or a setting such as algorithm.clip_high=0.3"
OF_UPDATE = ("loss/", "policy/", "critic/")  # beginnings of metrics


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Episodes are numbered as the lines of the rollout file, from 0; tokens as in its rows."""

    drop: Sequence[int] = ()
    rewards: Mapping[int, float] = field(default_factory=dict)
    masks: Mapping[int, tuple[int, int] | None] = field(default_factory=dict)  # first and last token; None: all
    settings: Sequence[str] = ()  # overrides
    config: Config | None = None  # with these settings

    @property
    def episodes(self) -> set[int]:
        return {*self.drop, *self.rewards, *self.masks}


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Metrics of the update as it was and as it would have been. `probability_change/...`: of a sampled token, by the
    update: `rewarded` in episodes with more than the mean reward, `unrewarded` in the others, `changed` in those that
    are named."""

    changes: Sequence[str]
    recorded: Mapping[str, float]
    changed: Mapping[str, float]


def read_changes(lines: Sequence[str], source: str, config: Config) -> Changes:
    """ConfigError for an unknown change, or a setting that has no effect on the update or changes what is sampled."""
    drop, rewards, masks, settings = list[int](), dict[int, float](), dict[int, tuple[int, int] | None](), list[str]()
    for line in lines:
        if match := re.fullmatch(r"drop=\[?(\d+(?:,\s*\d+)*)\]?", line):
            drop += map(int, match[1].split(","))
        elif match := re.fullmatch(r"reward\.(\d+)=([-+.\deE]+)", line):
            rewards[int(match[1])] = _number(line, match[2])
        elif match := re.fullmatch(r"mask\.(\d+)='?(?:(all)|(\d+)(?:\.\.(\d+))?)'?", line):
            masks[int(match[1])] = bounds = None if match[2] else (int(match[3]), int(match[4] or match[3]))
            if bounds is not None and bounds[0] > bounds[1]:
                raise ConfigError(f"--what-if {line}: the first token comes before the last: say mask.N=FIRST..LAST.")
        elif re.match(r"(algorithm|trainer)\.\w+=", line):
            settings.append(line)
        else:
            raise ConfigError(f"--what-if {line}: changes nothing that an update is made from; say {HOW}.")
    if not settings:
        return Changes(drop=drop, rewards=rewards, masks=masks)
    changed = own_config(source, settings)
    assert changed is not None, "the run was found before"
    if not changed_settings(config, changed):
        raise ConfigError(f"--what-if {' '.join(settings)}: the update of the run was made so.")
    if _copied(config) != _copied(changed):
        raise ConfigError(f"--what-if {' '.join(settings)}: earlier steps would have copied another policy.")
    return Changes(drop=drop, rewards=rewards, masks=masks, settings=settings, config=changed)


def _copied(config: Config) -> set[int | None]:
    """After how many updates each teacher becomes the policy of then."""
    return {one.refresh_every for one in teachers_of(config.algorithm.columns().values())} - {None}


def _number(line: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"--what-if {line}: {text} is no number.") from None
    if not math.isfinite(value):
        raise ConfigError(f"--what-if {line}: {text} is no finite number.")
    return value


def changed_batch(batch: TokenBatch, changes: Changes) -> TokenBatch:
    """An unscored batch with its changes. ConfigError for an episode or token that it does not have."""
    num_episodes = int(batch.episodes.max()) + 1
    if absent := sorted(number for number in changes.episodes if number >= num_episodes):
        raise ConfigError(f"--what-if: the step has episodes 0 to {num_episodes - 1}, not {absent[0]}.")
    rewards, loss_mask = batch.rewards.clone(), batch.loss_mask.clone()
    for number, reward in changes.rewards.items():
        rewards[batch.episodes == number] = reward
    for number, bounds in changes.masks.items():
        places = list(_tokens(batch, number))
        first, last = bounds or (0, len(places) - 1)
        chosen = [place for place in places[first : last + 1] if loss_mask[place]]
        if not chosen:
            raise ConfigError(f"--what-if mask.{number}={first}..{last}: none of these tokens was sampled.")
        for place in chosen:
            loss_mask[place] = False
    batch = replace(batch, rewards=rewards, loss_mask=loss_mask)
    for number in changes.drop:
        batch = left_out(batch, number)
    return batch


def _tokens(batch: TokenBatch, episode: int) -> Iterator[tuple[int, int]]:
    """Row and column of each token of an episode; several rows are counted on."""
    for row in (batch.episodes == episode).nonzero()[:, 0].tolist():
        yield from ((row, column) for column in range(int(batch.lengths[row])))


def what_if(made: Repeated, recorded: Recorded, changes: Changes, lines: Sequence[str]) -> WhatIf:
    """Both updates, from the same weights and samples."""
    batch = to_batch(made.sampled.groups)
    changed = changed_batch(batch, changes)
    run = made.run
    if changes.config is not None:
        run = assembled(replace(made.opened, config=quiet(with_absolute_model(changes.config))), recorded)
    parts = _parts(batch, changes)
    return WhatIf(
        changes=lines,
        recorded=_update(made.run, made, batch, parts),
        changed=_update(run, made, changed, parts),
    )


def _parts(batch: TokenBatch, changes: Changes) -> dict[str, Tensor]:
    """Sampled tokens [B, T] of the episodes that are told apart."""
    rewards = {number: reward for number, reward in zip(batch.episodes.tolist(), batch.rewards.tolist(), strict=True)}
    valid = batch.episodes[batch.valid].unique().tolist()  # an episode of two rows counts once
    above = batch.rewards > sum(rewards[number] for number in valid) / max(len(valid), 1)
    named = sum((batch.episodes == number for number in changes.episodes), batch.episodes < 0)
    rows = {"rewarded": above & batch.valid, "unrewarded": ~above & batch.valid, "changed": named}
    masks = {name: batch.loss_mask & of_part[:, None] for name, of_part in rows.items()}
    return {name: mask for name, mask in masks.items() if mask.any()}


def _update(run: TrainingRun, made: Repeated, batch: TokenBatch, parts: Mapping[str, Tensor]) -> dict[str, float]:
    """Metrics of the update with a batch that is not scored yet."""
    trainer, samples = run.trainer, to_batch(made.sampled.groups)
    made.before.restore(trainer, made.step)
    before = trainer.predict(trainer.policy, samples).logprobs
    metrics, _ = trainer.update(run.objective.advantages(trainer.score(batch, made.sampled.groups)), made.step - 1)
    change = trainer.predict(trainer.policy, samples).logprobs - before
    metrics = {name: value for name, value in metrics.items() if name.startswith(OF_UPDATE)}
    moved = {name: math.expm1(change[mask].double().mean().item()) for name, mask in parts.items()}
    return metrics | {f"probability_change/{name}": value for name, value in moved.items()}
