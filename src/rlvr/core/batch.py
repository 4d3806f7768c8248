"""Episodes to token rows: what was sampled is what is trained on, id for id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import nan

import torch

from rlvr.types import Episode, Group, StopReason, TokenBatch, Turn


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    """One token sequence with its sampled spans; arrays are as long as ids."""

    ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    behavior_logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]
    potentials: tuple[float, ...]

    @property
    def prompt_length(self) -> int:
        """Tokens before the first sampled one."""
        return self.loss_mask.index(True) if any(self.loss_mask) else len(self.ids)


def _append(row: TokenRow | None, turn: Turn, potential: float) -> TokenRow:
    """The row with the turn's new prompt tokens (mask 0) and its completion (mask 1) behind it."""
    row = row or TokenRow(ids=(), loss_mask=(), behavior_logprobs=(), policy_versions=(), potentials=())
    fresh = turn.prompt_ids[len(row.ids) :]
    sampled = turn.completion.token_ids
    return TokenRow(
        ids=row.ids + fresh + sampled,
        loss_mask=row.loss_mask + (False,) * len(fresh) + (True,) * len(sampled),
        behavior_logprobs=row.behavior_logprobs + (0.0,) * len(fresh) + turn.completion.behavior_logprobs,
        policy_versions=row.policy_versions + (-1,) * len(fresh) + turn.completion.policy_versions,
        potentials=row.potentials + (0.0,) * len(fresh) + (potential,) * len(sampled),
    )


def episode_rows(episode: Episode) -> Iterator[TokenRow]:
    """Merge turns into as few rows as the tokens allow.

    Turns (P1 C1), (P1 C1 R1 C2), (Q C3): the second prompt extends the first turn, so they share the row
    P1 C1 R1 C2 with mask 0 1 0 1; the third starts over (a template rewrote history), so it is a row of its own.
    """
    potentials = episode.score.potentials or (0.0,) * len(episode.turns)
    row: TokenRow | None = None
    for turn, potential in zip(episode.turns, potentials, strict=True):
        if row is not None and turn.prompt_ids[: len(row.ids)] != row.ids:
            yield row
            row = None
        row = _append(row, turn, potential)
    if row is not None:
        yield row


def _with_tool_tokens(row: TokenRow) -> TokenRow:
    """Everything after the first prompt counts as sampled, with unknown probability."""
    first = row.prompt_length
    return replace(
        row,
        loss_mask=tuple(index >= first for index in range(len(row.ids))),
        behavior_logprobs=tuple(
            nan if index >= first and not sampled else logprob
            for index, (sampled, logprob) in enumerate(zip(row.loss_mask, row.behavior_logprobs, strict=True))
        ),
    )


def to_batch(groups: Sequence[Group], *, train_on_tool_tokens: bool = False) -> TokenBatch:
    """Rows of all episodes in order, right-padded with id 0. An episode's reward stands on each of its rows.

    `train_on_tool_tokens` is wrong, and there to show what it does (docs/tools.md).
    """
    rows: list[TokenRow] = []
    owners: list[tuple[int, int, Episode]] = []
    numbered = [(index, episode) for index, group in enumerate(groups) for episode in group.episodes]
    for number, (index, episode) in enumerate(numbered):
        for row in episode_rows(episode):
            rows.append(_with_tool_tokens(row) if train_on_tool_tokens else row)
            owners.append((index, number, episode))
    width = max(len(row.ids) for row in rows)

    def padded(name: str, filling: float, dtype: torch.dtype) -> torch.Tensor:
        lines = [getattr(row, name) + (filling,) * (width - len(row.ids)) for row in rows]
        return torch.tensor(lines, dtype=dtype)

    episodes = [episode for _, _, episode in owners]
    valid = [episode.score.status != "error" for episode in episodes]
    shaped = any(episode.score.potentials for episode in episodes)
    return TokenBatch(
        ids=padded("ids", 0, torch.int64),
        lengths=torch.tensor([len(row.ids) for row in rows]),
        prompt_lengths=torch.tensor([row.prompt_length for row in rows]),
        loss_mask=padded("loss_mask", False, torch.bool),
        behavior_logprobs=padded("behavior_logprobs", 0.0, torch.float32),
        policy_versions=padded("policy_versions", -1, torch.int64),
        rewards=torch.tensor([e.score.value if ok else 0.0 for e, ok in zip(episodes, valid, strict=True)]).float(),
        groups=torch.tensor([index for index, _, _ in owners]),
        episodes=torch.tensor([number for _, number, _ in owners]),
        valid=torch.tensor(valid),
        truncated=torch.tensor([episode.stop_reason is StopReason.LENGTH for episode in episodes]),
        potentials=padded("potentials", 0.0, torch.float32) if shaped else None,
    )
