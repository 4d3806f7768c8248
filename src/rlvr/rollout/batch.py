"""Episodes to token rows: what was sampled is what is trained on, id for id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from rlvr.types import Episode, Group, StopReason, TokenBatch, Turn


@dataclass(frozen=True, kw_only=True)
class Row:
    """One token sequence with its sampled spans; arrays are as long as ids."""

    ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    behavior_logprobs: tuple[float, ...]

    @property
    def prompt_length(self) -> int:
        """Tokens before the first sampled one."""
        return self.loss_mask.index(True) if any(self.loss_mask) else len(self.ids)


def _append(row: Row | None, turn: Turn) -> Row:
    """The row with the turn's new prompt tokens (mask 0) and its completion (mask 1) behind it."""
    known = len(row.ids) if row else 0
    fresh = turn.prompt_ids[known:]
    sampled = turn.completion.token_ids
    return Row(
        ids=(row.ids if row else ()) + fresh + sampled,
        loss_mask=(row.loss_mask if row else ()) + (False,) * len(fresh) + (True,) * len(sampled),
        behavior_logprobs=(row.behavior_logprobs if row else ())
        + (0.0,) * len(fresh)
        + turn.completion.behavior_logprobs,
    )


def episode_rows(episode: Episode) -> Iterator[Row]:
    """Merge turns into as few rows as the tokens allow.

    Turns (P1 C1), (P1 C1 R1 C2), (Q C3): the second prompt extends the first turn, so they share the row
    P1 C1 R1 C2 with mask 0 1 0 1; the third starts over (a template rewrote history), so it is a row of its own.
    """
    row: Row | None = None
    for turn in episode.turns:
        if row is not None and turn.prompt_ids[: len(row.ids)] != row.ids:
            yield row
            row = None
        row = _append(row, turn)
    if row is not None:
        yield row


def to_batch(groups: Sequence[Group]) -> TokenBatch:
    """Rows of all episodes in order, right-padded with id 0. An episode's reward stands on each of its rows."""
    rows: list[Row] = []
    owners: list[tuple[int, Episode]] = []
    for index, group in enumerate(groups):
        for episode in group.episodes:
            for row in episode_rows(episode):
                rows.append(row)
                owners.append((index, episode))
    width = max(len(row.ids) for row in rows)

    def padded(name: str, filling: float, dtype: torch.dtype) -> torch.Tensor:
        lines = [getattr(row, name) + (filling,) * (width - len(row.ids)) for row in rows]
        return torch.tensor(lines, dtype=dtype)

    valid = [episode.score.status != "error" for _, episode in owners]
    return TokenBatch(
        ids=padded("ids", 0, torch.int64),
        lengths=torch.tensor([len(row.ids) for row in rows]),
        prompt_lengths=torch.tensor([row.prompt_length for row in rows]),
        loss_mask=padded("loss_mask", False, torch.bool),
        behavior_logprobs=padded("behavior_logprobs", 0.0, torch.float32),
        rewards=torch.tensor([e.score.value if ok else 0.0 for (_, e), ok in zip(owners, valid, strict=True)]).float(),
        groups=torch.tensor([index for index, _ in owners]),
        valid=torch.tensor(valid),
        truncated=torch.tensor([episode.stop_reason is StopReason.LENGTH for _, episode in owners]),
    )
