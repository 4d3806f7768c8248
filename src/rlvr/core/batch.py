"""Episodes to token rows, without re-tokenization; the staleness bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from rlvr.types import Episode, Group, StopReason, TokenBatch, Turn


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    """One token sequence with its sampled spans; arrays are as long as ids."""

    ids: tuple[int, ...] = ()
    loss_mask: tuple[bool, ...] = ()
    behavior_logprobs: tuple[float, ...] = ()
    policy_versions: tuple[int, ...] = ()
    potentials: tuple[float, ...] = ()

    def extended(self, turn: Turn, potential: float) -> TokenRow:
        """The row extended by the turn's new prompt tokens (mask 0) and its completion (mask 1)."""
        fresh = turn.prompt_ids[len(self.ids) :]
        sampled = turn.completion.token_ids
        return TokenRow(
            ids=self.ids + fresh + sampled,
            loss_mask=self.loss_mask + (False,) * len(fresh) + (True,) * len(sampled),
            behavior_logprobs=self.behavior_logprobs + (0.0,) * len(fresh) + turn.completion.behavior_logprobs,
            policy_versions=self.policy_versions + (-1,) * len(fresh) + turn.completion.policy_versions,
            potentials=self.potentials + (0.0,) * len(fresh) + (potential,) * len(sampled),
        )


def episode_rows(episode: Episode) -> Iterator[TokenRow]:
    """Merge turns into as few rows as the tokens allow.

    Turns (P1 C1), (P1 C1 R1 C2), (Q C3): the second prompt extends the first turn, so both share the row P1 C1 R1 C2
    with mask 0 1 0 1. The third does not (a template rewrote history), so it starts a new row.
    """
    potentials = episode.score.potentials or (0.0,) * len(episode.turns)
    row = TokenRow()
    for turn, potential in zip(episode.turns, potentials, strict=True):
        if turn.prompt_ids[: len(row.ids)] != row.ids:
            yield row
            row = TokenRow()
        row = row.extended(turn, potential)
    if row.ids:
        yield row


def to_batch(groups: Sequence[Group]) -> TokenBatch:
    """Rows of all episodes in order, right-padded with id 0. Each row carries its episode's reward."""
    numbered = [(index, episode) for index, group in enumerate(groups) for episode in group.episodes]
    owners = [(row, n) for n, (_, episode) in enumerate(numbered) for row in episode_rows(episode)]
    rows, numbers = [row for row, _ in owners], [n for _, n in owners]
    episodes = [numbered[n][1] for n in numbers]
    width = max(len(row.ids) for row in rows)

    def padded(name: str, filling: float, dtype: torch.dtype) -> torch.Tensor:
        lines = [getattr(row, name) + (filling,) * (width - len(row.ids)) for row in rows]
        return torch.tensor(lines, dtype=dtype)

    valid = [episode.score.status != "error" for episode in episodes]
    shaped = any(episode.score.potentials for episode in episodes)
    return TokenBatch(
        ids=padded("ids", 0, torch.int64),
        lengths=torch.tensor([len(row.ids) for row in rows]),
        prompt_lengths=torch.tensor([[*row.loss_mask, True].index(True) for row in rows]),
        loss_mask=padded("loss_mask", False, torch.bool),
        behavior_logprobs=padded("behavior_logprobs", 0.0, torch.float32),
        policy_versions=padded("policy_versions", -1, torch.int64),
        rewards=torch.tensor([e.score.value if ok else 0.0 for e, ok in zip(episodes, valid, strict=True)]).float(),
        groups=torch.tensor([numbered[n][0] for n in numbers]),
        episodes=torch.tensor(numbers),
        valid=torch.tensor(valid),
        truncated=torch.tensor([episode.stop_reason is StopReason.LENGTH for episode in episodes]),
        potentials=padded("potentials", 0.0, torch.float32) if shaped else None,
    )


def check_staleness(batch: TokenBatch, step: int, max_staleness: int) -> dict[str, float]:
    """Staleness metrics of the sampled tokens; empty if `max_staleness` is 0.

    The age of a token is the number of updates between the weights that sampled it and the current ones, after `step`
    updates. With versions `3 3 4` a batch of step 4 has ages `1 1 0`.

    Raises:
        RuntimeError: a token is older than `max_staleness` or from a future version: a bug in the rollout schedule.
    """
    assert batch.policy_versions is not None
    versions = batch.policy_versions[batch.loss_mask]
    if not len(versions):
        return {}
    oldest, newest = int(versions.min()), int(versions.max())
    if oldest < max(0, step - max_staleness) or newest > step:
        raise RuntimeError(
            f"step {step} would train on tokens sampled with weights of versions {oldest} to {newest}; "
            f"max_staleness={max_staleness} allows {max(0, step - max_staleness)} to {step}"
        )
    if max_staleness == 0:
        return {}
    return {
        "rollout/staleness_mean": step - versions.double().mean().item(),
        "rollout/staleness_max": float(step - oldest),
    }
