"""Lays out the rows of a batch without padding.

The rows of a group share their prompt. It is laid out once, followed by each row's tail; a tail attends to the prompt
and itself, not to other tails. Two rows `[p q a b]` and `[p q c]` become one line of 5 tokens:

    ids        p  q  a  b  c
    positions  0  1  2  3  2
    segment    0  0  1  1  2      a token sees earlier tokens of its own segment ...
    parent     0  0  0  0  0      ... and of its parent segment, the prompt

The logits at q predict both a and c; those at a predict b.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rlvr.core.devices import first_line, free, is_out_of_memory
from rlvr.core.errors import LineMemoryError, LockstepMemoryError
from rlvr.core.world import ALONE, World
from rlvr.types import TokenBatch

Layout = Literal["shared", "packed", "rows", "alone"]
"""shared: as above; packed: several rows per line, prompts not shared; rows: one right-padded row per line, for models
that do not accept our attention mask; alone: one row per pass, for models whose numbers depend on its longest row."""

MIN_LINE_TOKENS = 128
"""Minimum line length where the batch fills it: short lines waste less attention, long ones less padding."""


@dataclass(kw_only=True)
class Packing:
    """How rows are cut into forward passes: `Packing(layout="shared", max_tokens=2048)`.

    The gradient does not depend on it, so out of memory halves `max_tokens` and repeats the pass.
    """

    layout: Layout = "shared"
    max_tokens: int = 2048  # of a microbatch; a single line may have more
    columns: int | None = None  # attended ones that cost as much as the rest of a token; None: lines stay short
    note: Callable[[str], None] = logging.getLogger(__name__).warning

    def attempts(self, *, longest: int, repeatable: bool = True) -> Iterator[AbstractContextManager[None]]:
        """`for attempt in packing.attempts(longest=200): with attempt: ...` repeats the block with half the tokens
        after each out-of-memory error.

        `longest` is the longest row in tokens. Raises LineMemoryError if a single line does not fit, and
        LockstepMemoryError if other ranks wait in the same pass (`repeatable=False`).
        """
        reasons: list[str] = []

        @contextmanager
        def attempt() -> Iterator[None]:
            try:
                yield
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reasons.append(first_line(error))

        yield attempt()
        while reasons:
            free()  # outside of the block and its `except`: no traceback holds the tensors of the failed pass
            reason, tokens, half = reasons.pop(), self.max_tokens, max(MIN_LINE_TOKENS, self.max_tokens // 2)
            if not repeatable:
                raise LockstepMemoryError(tokens, half, reason)
            if tokens <= max(longest, MIN_LINE_TOKENS):  # no smaller cut is possible: a line is never cut
                raise LineMemoryError(longest, reason)
            self.max_tokens = half
            event = f"out of memory at {tokens:,} tokens per microbatch"
            self.note(f"{event}: going on with {half:,}, which changes no result")
            yield attempt()


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """R lines of L tokens with the source of each of their N predicted tokens. Shapes in brackets."""

    ids: Tensor  # [R, L] int64
    positions: Tensor  # [R, L] int64
    segments: Tensor  # [R, L] int64, -1 for padding
    parents: Tensor  # [R, L] int64
    predictors: Tensor  # [N] index into the R * L flattened tokens whose hidden state predicts the token
    rows: Tensor  # [N] row of the predicted token in the batch that was packed
    columns: Tensor  # [N] its index in that row
    targets: Tensor  # [N] the predicted token's id
    layout: Layout
    is_plain: bool  # each line is one row from its start

    def allowed(self) -> Tensor | None:
        """[R, L, L] bool: query may see key; None for plain causal rows, whose masked half kernels then leave out.

        Padding attends to itself, so that no softmax is empty.
        """
        if self.is_plain:
            return None
        query, key = self.segments[:, :, None], self.segments[:, None, :]
        same = (key == query) | (key == self.parents[:, :, None])
        length = self.ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.ids.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=self.ids.device)
        return (same & causal & (query >= 0)) | itself

    def to(self, device: torch.device) -> Microbatch:
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: value.to(device) for name, value in tensors.items()})


def microbatches(
    batch: TokenBatch, chosen: Sequence[int], packing: Packing, world: World = ALONE, *, in_lockstep: bool = False
) -> Iterator[Microbatch]:
    """Lay out this rank's share of the chosen rows in microbatches of at most packing.max_tokens tokens, at least one
    line.

    Ranks get whole units with about equal token counts, determined by the arguments alone. With `in_lockstep` all ranks
    get the same number of microbatches; missing ones are empty.
    """
    if not chosen:
        return
    rows, layout = _rows(batch, chosen), packing.layout
    line_tokens = max(max(len(row.ids) for row in rows), min(MIN_LINE_TOKENS, packing.max_tokens))
    units = _units(rows, line_tokens) if layout == "shared" else [[row] for row in rows]
    if packing.columns is not None and layout == "shared" and world.size == 1:  # long units would not share out well
        whole = _units(rows, packing.max_tokens)  # groups, where the short lines may have a prompt for each row
        longer = max(line_tokens, *map(_num_tokens, whole))
        if _cost(whole, longer, packing.columns) < _cost(units, line_tokens, packing.columns):
            units, line_tokens = whole, longer
    shares, max_tokens = share_out([_num_tokens(unit) for unit in units], world.size), packing.max_tokens
    if layout == "alone":
        max_tokens = 0  # each line is over it
    plans = {
        rank: list(_budgeted(_lines([units[i] for i in share], line_tokens, layout), max_tokens))
        for rank, share in enumerate(shares)
        if in_lockstep or rank == world.rank
    }
    # a token without a prediction: the rank takes part in collectives and adds nothing
    empty = [[[_Row(number=0, ids=[0], mask=[False], prompt_length=1, group=0)]]]
    missing = max(map(len, plans.values())) - len(plans[world.rank])
    for lines in plans[world.rank] + [empty] * missing:
        yield _stack(lines, layout)


class _Row(NamedTuple):
    """A row as plain lists: cheaper to cut than tensors."""

    number: int  # in the batch
    ids: list[int]  # without padding
    mask: list[bool]
    prompt_length: int
    group: int


_Unit = list[_Row]
"""Rows that share one copy of their prompt; never cut."""


def _rows(batch: TokenBatch, chosen: Sequence[int]) -> list[_Row]:
    part = batch.take(chosen)
    ids, masks, lengths = part.ids.tolist(), part.loss_mask.tolist(), part.lengths.tolist()
    prompt_lengths, groups = part.prompt_lengths.tolist(), part.groups.tolist()
    return [
        _Row(number=number, ids=ids[:length], mask=mask, prompt_length=prompt_length, group=group)
        for number, ids, mask, length, prompt_length, group in zip(
            chosen, ids, masks, lengths, prompt_lengths, groups, strict=True
        )
    ]


def _units(rows: Sequence[_Row], line_tokens: int) -> list[_Unit]:
    """Groups rows with the same prompt into units of at most line_tokens (or one row), with few prompt copies."""
    same_prompt: dict[tuple[int, ...], list[_Row]] = {}
    for row in rows:
        same_prompt.setdefault((row.group, *row.ids[: row.prompt_length]), []).append(row)
    units = []
    for members in same_prompt.values():
        prompt_length = members[0].prompt_length
        tails = [len(row.ids) - prompt_length for row in members]
        units += [[members[i] for i in bin_] for bin_ in first_fit(tails, line_tokens - prompt_length)]
    return units


def _cost(units: Sequence[_Unit], line_tokens: int, columns: int) -> float:
    """The cost of a pass over the units in lines of this length, in tokens without attention: a group of 4 rows with a
    prompt of 96 and tails of 64 is 352 tokens in one line, or 640 in four, and each token attends to its whole line."""
    num_lines = len(first_fit([_num_tokens(unit) for unit in units], line_tokens))
    return num_lines * line_tokens * (1 + line_tokens / columns)


def _num_tokens(unit: _Unit) -> int:
    return sum(len(row.ids) for row in unit) - (len(unit) - 1) * unit[0].prompt_length


def _lines(units: Sequence[_Unit], line_tokens: int, layout: Layout) -> list[list[_Unit]]:
    if layout in ("rows", "alone"):
        return [[unit] for unit in sorted(units, key=_num_tokens)]  # by length: little padding
    return [[units[i] for i in bin_] for bin_ in first_fit([_num_tokens(unit) for unit in units], line_tokens)]


def _budgeted(lines: Sequence[list[_Unit]], max_tokens: int) -> Iterator[list[list[_Unit]]]:
    """Consecutive lines whose padded size (number x longest) stays within the budget."""
    part: list[list[_Unit]] = []
    longest = 0
    for line in lines:
        length = sum(map(_num_tokens, line))
        if part and (len(part) + 1) * max(longest, length) > max_tokens:
            yield part
            part, longest = [], 0
        part.append(line)
        longest = max(longest, length)
    if part:
        yield part


def first_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of `sizes` in bins of `capacity`, each size in the first bin with room, largest first; ties in order.

    An item above the capacity gets its own bin. `first_fit([3, 5, 2], 5)` is `[[1], [0, 2]]`.
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
    """Indices of `sizes` in shares of about equal sums: largest first, each to the smallest share, ties to the first.
    `share_out([3, 5, 2, 1], 2)` is `[[1, 3], [0, 2]]`; indices within a share are sorted."""
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    sums = [0] * num_shares
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = sums.index(min(sums))
        shares[least].append(index)
        sums[least] += sizes[index]
    return [sorted(share) for share in shares]


def _stack(lines: Sequence[list[_Unit]], layout: Layout) -> Microbatch:
    """Lines as tensors: for each unit its prompt, then the tails of its rows."""
    length = max(sum(map(_num_tokens, line)) for line in lines)
    ids, positions, segments, parents = (list[int]() for _ in range(4))  # R * L places, line after line
    predictors, rows, columns, targets = (list[int]() for _ in range(4))  # N predicted tokens

    def lay(part: list[int], *, first: int, segment: int, parent: int) -> int:
        """Append the part, whose first token is at position `first` of its rows; returns its offset."""
        ids.extend(part)
        positions.extend(range(first, first + len(part)))
        segments.extend([segment] * len(part))
        parents.extend([parent] * len(part))
        return len(ids) - len(part)

    for number, line in enumerate(lines, start=1):
        segment = 0
        for unit in line:
            start, prompt = unit[0].prompt_length, segment
            prompt_end = lay(unit[0].ids[:start], first=0, segment=prompt, parent=prompt) + start - 1
            for segment, row in enumerate(unit, start=prompt + 1):
                shift = lay(row.ids[start:], first=start, segment=segment, parent=prompt) - start
                sampled = [token for token in range(start, len(row.ids)) if row.mask[token]]
                predictors.extend([shift + token - 1 if token > start else prompt_end for token in sampled])
                rows.extend([row.number] * len(sampled))
                columns.extend(sampled)
                targets.extend([row.ids[token] for token in sampled])
            segment += 1
        num_padding = number * length - len(ids)
        for places, filling in ((ids, 0), (positions, 0), (segments, -1), (parents, -1)):
            places.extend([filling] * num_padding)
    return Microbatch(
        ids=torch.tensor(ids).view(-1, length),
        positions=torch.tensor(positions).view(-1, length),
        segments=torch.tensor(segments).view(-1, length),
        parents=torch.tensor(parents).view(-1, length),
        predictors=torch.tensor(predictors, dtype=torch.int64),
        rows=torch.tensor(rows, dtype=torch.int64),
        columns=torch.tensor(columns, dtype=torch.int64),
        targets=torch.tensor(targets, dtype=torch.int64),
        layout=layout,
        is_plain=all(len(line) == len(line[0]) == 1 for line in lines),
    )
