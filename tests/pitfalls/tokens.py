"""Pitfalls 1 to 7: tokens, masks and positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from rlvr.core.batch import TokenRow
from tests.pitfalls.planting import Planted, around

LOCAL = "tests/unit/core/engine/test_engine.py::test_pitfall_"
PACKING = "tests/unit/core/test_packing.py::test_pitfall_"
BATCH = "tests/unit/core/test_batch.py::test_pitfall_"
CHAT = "tests/unit/chat/test_episodes.py::test_pitfall_"
WEIGHTS = "tests/unit/algorithms/test_weights.py::test_pitfall_"
EXACT = LOCAL + "01_logprobs_equal_a_plain_forward"
PACKED = PACKING + "02_packed_logprobs_equal_single_rows"


def left_padded(original: Callable[..., tuple[Tensor, Tensor]], *arguments: Any) -> tuple[Tensor, Tensor]:
    ids, lengths = original(*arguments)
    return torch.stack([row.roll(len(row) - int(length)) for row, length in zip(ids, lengths, strict=True)]), lengths


def running_on(original: Callable[..., Tensor], policy: Any, ids: Tensor, positions: Any = None, *rest: Any) -> Tensor:
    return original(policy, ids, positions if positions is None else torch.arange(ids.shape[1]).expand_as(ids), *rest)


def leaking(original: Callable[..., Tensor | None], microbatch: Any) -> Tensor | None:
    allowed = original(microbatch)
    return None if allowed is None else torch.ones_like(allowed).tril()


def without_end(original: Callable[..., Iterator[TokenRow]], episode: Any) -> list[TokenRow]:
    return [replace(row, loss_mask=(*row.loss_mask[:-1], False)) for row in original(episode)]


def stop_ids_stay(original: Callable[..., None], rows: Any, *arguments: Any) -> None:
    before = [request.sampling for request in rows.requests]
    original(rows, *arguments)
    for request, sampling in zip(rows.requests, before, strict=False):
        request.sampling = sampling


def replies_trained_on(original: Callable[..., Iterator[TokenRow]], episode: Any) -> list[TokenRow]:
    rows = list(original(episode))
    return [replace(row, loss_mask=tuple(accumulate(row.loss_mask, max))) for row in rows]


def encoded_again(original: Callable[..., tuple[int, ...]], chat: Any, *arguments: Any) -> tuple[int, ...]:
    return tuple(chat._tokenizer.encode(chat.decode(original(chat, *arguments)), add_special_tokens=False))


BUGS = [
    Planted(
        pitfall=1,
        name="prompts are padded on the left",
        plant=around("rlvr.core.engine.runner:right_padded", left_padded),
        caught_by=EXACT,
    ),
    Planted(
        pitfall=1,
        name="a row that moves leaves its keys and values behind",
        plant=around("rlvr.core.engine.cache:Slots.move", lambda original, *arguments: None),
        caught_by=EXACT,
    ),
    Planted(
        pitfall=2,
        name="attention leaks into the next packed row",
        plant=around("rlvr.core.packing:Microbatch.allowed", leaking),
        caught_by=PACKED,
    ),
    Planted(
        pitfall=2,
        name="positions run on over packed rows",
        plant=around("rlvr.core.policy:Policy.hidden", running_on),
        caught_by=PACKED,
    ),
    Planted(
        pitfall=3,
        name="the sampled end token is not trained on",
        plant=around("rlvr.core.batch:episode_rows", without_end),
        caught_by=BATCH + "03_the_sampled_end_token_is_trained_on",
    ),
    Planted(
        pitfall=3,
        name="the end tokens of the model's configuration are ignored",
        plant=around("rlvr.chat.rendering:end_ids", lambda original, tokenizer, model: original(tokenizer, None)),
        caught_by="tests/unit/chat/test_rendering.py::test_pitfall_03_every_end_token_stops",
    ),
    Planted(
        pitfall=3,
        name="a row that moves gets the end tokens of the row it replaces",
        plant=around("rlvr.core.engine.rows:Rows.leave", stop_ids_stay),
        caught_by="tests/unit/core/engine/test_scheduler.py::test_pitfall_03_a_row_that_moves_keeps_its_limits",
    ),
    Planted(
        pitfall=4,
        name="headers are trained on",
        plant=around("rlvr.core.batch:episode_rows", replies_trained_on),
        caught_by=BATCH + "04_only_sampled_ids_are_trained_on",
    ),
    Planted(
        pitfall=4,
        name="the header of the next completion is repeated",
        plant=around("rlvr.chat.rendering:Chat.encode_reply", lambda original, *a, **k: 2 * original(*a, **k)),
        caught_by=CHAT + "04_turns_with_a_tool_are_not_trained_on",
    ),
    Planted(
        pitfall=5,
        name="masked positions enter the loss",
        plant=around("rlvr.algorithms.weights:within", lambda original, x, mask: x),
        caught_by="tests/unit/algorithms/test_objective.py::test_pitfall_05_masked_positions_change_no_term",
    ),
    Planted(
        pitfall=5,
        name="tool output is trained on",
        plant=around("rlvr.core.batch:episode_rows", replies_trained_on),
        caught_by="tests/unit/core/test_tool_episodes.py::test_pitfall_05_tool_replies_are_not_in_the_mask",
    ),
    Planted(
        pitfall=6,
        name="turns are decoded and encoded again",
        plant=around("rlvr.chat.rendering:Chat.next_prompt", encoded_again),
        caught_by=CHAT + "06_ids_that_encode_otherwise_stay_as_they_are",
    ),
    Planted(
        pitfall=7,
        name="a rewritten history is not noticed",
        plant=around("rlvr.chat.history:RewriteFinder.rewritten", lambda original, *arguments: False),
        caught_by=CHAT + "07_taken_back_reasoning_begins_a_new_row",
    ),
    Planted(
        pitfall=7,
        name="an episode of two rows counts twice",
        plant=around("rlvr.algorithms.weights:num_within", lambda original, mask, sets: mask.any(1).sum()),
        caught_by=WEIGHTS + "07_two_rows_of_an_episode_count_as_one",
    ),
]
