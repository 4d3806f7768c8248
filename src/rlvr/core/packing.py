"""Rows of a batch laid out without padding, so that no forward pass is spent on nothing.

The rows of a group share their prompt. It is laid out once, and each row's tail follows it; a tail sees the prompt and
itself, never another tail. Two rows `[p q a b]` and `[p q c]` become one line of 5 tokens:

    ids        p  q  a  b  c
    positions  0  1  2  3  2
    segment    0  0  1  1  2      a token sees earlier tokens of its own segment ...
    parent     0  0  0  0  0      ... and of its parent segment, the prompt

The logits at q predict both a and c; those at a predict b.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from rlvr.core.world import ALONE, World
from rlvr.types import TokenBatch

Layout = Literal["shared", "packed", "rows"]
"""shared: as above; packed: several rows a line, prompts not shared; rows: one right-padded row a line, for models that
do not take a mask of ours."""

MIN_LINE_TOKENS = 128
"""Lines are at least this long where the batch fills them: short lines waste less attention, long ones less filling."""


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """R lines of L tokens, and for each of its N predicted tokens where it came from. Shapes in brackets."""

    ids: Tensor  # [R, L] int64
    positions: Tensor  # [R, L] int64
    segments: Tensor  # [R, L] int64, -1 for filling
    parents: Tensor  # [R, L] int64
    layout: Layout
    predictors: Tensor  # [N] index into the R * L flattened tokens whose hidden state predicts the token
    rows: Tensor  # [N] row of the predicted token in the batch that was packed
    tokens: Tensor  # [N] its index in that row
    targets: Tensor  # [N] the predicted token's id

    def allowed(self) -> Tensor | None:
        """[R, L, L] bool: query may see key; None for plain causal rows.

        Filling sees itself only, so that no softmax is empty.
        """
        if self.layout == "rows":
            return None
        query, key = self.segments[:, :, None], self.segments[:, None, :]
        same = (key == query) | (key == self.parents[:, :, None])
        length = self.ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.ids.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=self.ids.device)
        return (same & causal & (query >= 0)) | itself

    def to(self, device: torch.device) -> Microbatch:
        """The same on another device."""
        names = (name for name in self.__dataclass_fields__ if name != "layout")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """A batch as plain lists, which cost less than tensors to take apart."""

    ids: list[list[int]]
    loss_mask: list[list[bool]]
    lengths: list[int]
    prompt_lengths: list[int]
    groups: list[int]


@dataclass(frozen=True, kw_only=True)
class _Unit:
    """A prompt and the tails of some rows that follow it: the smallest thing that is not cut."""

    rows: tuple[int, ...]
    num_tokens: int


@dataclass(kw_only=True)
class _Line:
    """A line under construction, with the lists that become one row of a microbatch."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    predictors: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)

    def add_segment(self, ids: list[int], first_position: int, parent: int | None) -> int:
        """Append a prompt (parent None) or a tail; returns its segment number."""
        segment = self.segments[-1] + 1 if self.segments else 0
        self.ids += ids
        self.positions += range(first_position, first_position + len(ids))
        self.segments += [segment] * len(ids)
        self.parents += [segment if parent is None else parent] * len(ids)
        return segment

    def add_unit(self, unit: _Unit, rows: _Rows) -> None:
        """Append a prompt and its tails."""
        first = unit.rows[0]
        prompt_length = rows.prompt_lengths[first]
        prompt = self.add_segment(rows.ids[first][:prompt_length], 0, None)
        prompt_end = len(self.ids) - 1
        for row in unit.rows:
            tail_start, ids, mask = len(self.ids), rows.ids[row], rows.loss_mask[row]
            self.add_segment(ids[prompt_length : rows.lengths[row]], prompt_length, prompt)
            predicted = [token for token in range(prompt_length, rows.lengths[row]) if mask[token]]
            before = [tail_start + token - prompt_length - 1 for token in predicted]
            if predicted and predicted[0] == prompt_length:
                before[0] = prompt_end
            self.predictors += before
            self.rows += [row] * len(predicted)
            self.tokens += predicted
            self.targets += [ids[token] for token in predicted]


def microbatches(
    batch: TokenBatch,
    chosen: Sequence[int],
    *,
    budget_tokens: int,
    layout: Layout = "shared",
    world: World = ALONE,
    in_lockstep: bool = False,
) -> Iterator[Microbatch]:
    """Lay out this rank's share of the chosen rows in microbatches of at most budget_tokens tokens (at least one line
    each).

    Every rank gets whole units, about as many tokens as the others; which ones is a function of the arguments. With
    `in_lockstep` it also gets as many microbatches: the missing ones are empty.
    """
    if not chosen:
        return
    rows = _Rows(**{name: getattr(batch, name).tolist() for name in _Rows.__dataclass_fields__})
    longest = max(rows.lengths[row] for row in chosen)
    line_tokens = max(longest, min(MIN_LINE_TOKENS, budget_tokens))
    units = _units(rows, chosen, line_tokens, layout)
    shares = share_out([unit.num_tokens for unit in units], world.size)
    plans = {
        rank: list(_budgeted(_lines([units[i] for i in share], line_tokens, layout), budget_tokens))
        for rank, share in enumerate(shares)
        if in_lockstep or rank == world.rank
    }
    for part in plans[world.rank]:
        lines = [_Line() for _ in part]
        for line, of_line in zip(lines, part, strict=True):
            for unit in of_line:
                line.add_unit(unit, rows)
        yield _stack(lines, layout)
    # one token that nothing is predicted from: a pass over it takes part in what the ranks do together, no more
    empty = _Line(ids=[0], positions=[0], segments=[0], parents=[0])
    for _ in range(max(map(len, plans.values())) - len(plans[world.rank])):
        yield _stack([empty], layout)


def _units(rows: _Rows, chosen: Sequence[int], line_tokens: int, layout: Layout) -> list[_Unit]:
    """The chosen rows as units of at most line_tokens (or of one row).

    With `shared`, the tails of rows with one prompt are spread over as few copies of it as fit.
    """
    if layout != "shared":
        return [_Unit(rows=(row,), num_tokens=rows.lengths[row]) for row in chosen]
    same_prompt: dict[tuple[int, ...], list[int]] = {}
    for row in chosen:
        prompt = (rows.groups[row], *rows.ids[row][: rows.prompt_lengths[row]])
        same_prompt.setdefault(prompt, []).append(row)
    units = []
    for members in same_prompt.values():
        prompt_length = rows.prompt_lengths[members[0]]
        tails = [rows.lengths[row] - prompt_length for row in members]
        for bin_ in first_fit(tails, line_tokens - prompt_length):
            size = prompt_length + sum(tails[i] for i in bin_)
            units.append(_Unit(rows=tuple(members[i] for i in bin_), num_tokens=size))
    return units


def _lines(units: Sequence[_Unit], line_tokens: int, layout: Layout) -> list[list[_Unit]]:
    if layout == "rows":
        return [[unit] for unit in sorted(units, key=lambda u: u.num_tokens)]  # by length: little padding
    bins = first_fit([unit.num_tokens for unit in units], line_tokens)
    return [[units[i] for i in bin_] for bin_ in bins]


def _budgeted(lines: Sequence[list[_Unit]], budget_tokens: int) -> Iterator[list[list[_Unit]]]:
    """Consecutive lines whose rectangle, number x longest, stays within the budget."""
    part: list[list[_Unit]] = []
    longest = 0
    for line in lines:
        length = sum(unit.num_tokens for unit in line)
        if part and (len(part) + 1) * max(longest, length) > budget_tokens:
            yield part
            part, longest = [], 0
        part.append(line)
        longest = max(longest, length)
    if part:
        yield part


def first_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of `sizes` in bins of `capacity`, each size in the first bin with room, largest first; ties in order.

    A size above the capacity gets a bin of its own. `first_fit([3, 5, 2], 5)` is `[[1], [0, 2]]`.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        place = next((i for i, free in enumerate(room) if free >= sizes[index]), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(capacity)
        bins[place].append(index)
        room[place] -= sizes[index]
    return bins


def share_out(sizes: Sequence[int], num_shares: int) -> list[list[int]]:
    """Indices of `sizes` in shares of about equal sums: largest first, each to the share that has least, ties to the
    first of them. `share_out([3, 5, 2, 1], 2)` is `[[1, 3], [0, 2]]`; within a share they keep their order."""
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    sums = [0] * num_shares
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = sums.index(min(sums))
        shares[least].append(index)
        sums[least] += sizes[index]
    return [sorted(share) for share in shares]


def _stack(lines: Sequence[_Line], layout: Layout) -> Microbatch:
    length = max(len(line.ids) for line in lines)

    def padded(name: str, filling: int) -> Tensor:
        return torch.tensor([getattr(line, name) + [filling] * (length - len(line.ids)) for line in lines])

    def joined(name: str, stride: int = 0) -> Tensor:
        values = [v + i * stride for i, line in enumerate(lines) for v in getattr(line, name)]
        return torch.tensor(values, dtype=torch.int64)

    return Microbatch(
        ids=padded("ids", 0),
        positions=padded("positions", 0),
        segments=padded("segments", -1),
        parents=padded("parents", -1),
        layout=layout,
        predictors=joined("predictors", stride=length),
        rows=joined("rows"),
        tokens=joined("tokens"),
        targets=joined("targets"),
    )
