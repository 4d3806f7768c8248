"""The tokens in the loss, and their weights.

This file, `advantages.py` and `losses.py` use tensors by their methods alone and import no torch: the settings classes
import them, and settings are checked before torch is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, assert_never

from rlvr.types import TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

Mode = Literal["token_mean", "sequence_mean", "prompt_mean", "sequence_sum", "fixed_length"]  # of aggregation


def within(x: Tensor, mask: Tensor) -> Tensor:
    """`x` where `mask`, else 0. Not a product: masked-out entries may be inf or NaN."""
    return x.masked_fill(~mask, 0.0)


def sampled_tokens(batch: TokenBatch) -> Tensor:
    """[B, T] bool: sampled tokens in rows without a verifier error."""
    return batch.loss_mask & batch.valid[:, None]


def trained_tokens(batch: TokenBatch, *, truncated: str) -> Tensor:
    """[B, T] bool: the tokens in the loss. `truncated="mask"` leaves out rows that stopped for length.

    Such a row still counts in the mean and std of its group. A row that stops by itself on the last allowed token is
    not truncated.
    """
    mask = sampled_tokens(batch)
    return mask & ~batch.truncated[:, None] if truncated == "mask" else mask


def loss_weights(
    mask: Tensor, episodes: Tensor, groups: Tensor, aggregation: Mode, max_completion_tokens: int
) -> Tensor:
    """Weights [B, T] of the tokens in the loss, `mask` [B, T], of a whole minibatch; 0 elsewhere.

    The weights carry the minibatch's denominator, so the loss is a plain sum, `(weights * per_token).sum()`,
    independent of row order, packing, microbatches and ranks. Denominators exclude tool tokens, verifier errors and
    masked truncated rows. An episode counts once, also if a rewritten history gives it several rows (same number in
    `episodes` [B]); `groups` [B] are the prompts.

    Two episodes with 1 and 3 trained tokens, max_completion_tokens = 4:

        token_mean     1/4     1/4  1/4  1/4     1 / tokens; DAPO, arXiv:2503.14476, eq. 12
        sequence_mean  1/2     1/6  1/6  1/6     1 / (episodes x the episode's tokens); GRPO, arXiv:2402.03300, eq. 3
        sequence_sum   1/2     1/2  1/2  1/2     1 / episodes, the plain policy gradient; RLOO, arXiv:2402.14740
        fixed_length   1/8     1/8  1/8  1/8     1 / (episodes x max_completion_tokens); Dr. GRPO, arXiv:2503.20783
        prompt_mean    1/2     1/6  1/6  1/6     1 / (prompts x the prompt's tokens), if they answer two prompts; of one
                                                 prompt 1/4 each; ScaleRL, arXiv:2510.13786
    """
    match aggregation:
        case "token_mean":
            return mask / mask.sum().clamp(min=1)
        case "sequence_mean":
            return mask / sum_within(mask.sum(1), episodes).clamp(min=1)[:, None] / num_within(mask, episodes)
        case "prompt_mean":
            return mask / sum_within(mask.sum(1), groups).clamp(min=1)[:, None] / num_within(mask, groups)
        case "sequence_sum":
            return mask / num_within(mask, episodes)
        case "fixed_length":
            return mask / (num_within(mask, episodes) * max_completion_tokens)
        case _:
            assert_never(aggregation)


def num_within(mask: Tensor, sets: Tensor) -> Tensor:
    """Episodes (or groups) `sets` [B] with a token in the loss, at least 1: []."""
    return sets.new_tensor(len(sets[mask.any(1)].unique())).clamp(min=1)


def sum_within(x: Tensor, sets: Tensor) -> Tensor:
    """Sum of x [B] over the rows of each row's episode (or group) [B]. x 1 2 3, sets 0 0 1 -> 3 3 3."""
    _, index = sets.unique(return_inverse=True)
    return x.new_zeros(len(x)).index_add(0, index, x)[index]


def longest_turn(mask: Tensor, episodes: Tensor) -> Tensor:
    """Sampled tokens of the longest turn of each row's episode [B]: the longest run of True. `0 1 1 0 1` -> 2."""
    count = mask.long().cumsum(1)
    before = count.masked_fill(mask, 0).cummax(1).values
    _, index = episodes.unique(return_inverse=True)
    return index.new_zeros(len(index)).scatter_reduce(0, index, (count - before).amax(1), "amax")[index]
