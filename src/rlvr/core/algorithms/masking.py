"""Which tokens are in the loss."""

import torch
from torch import Tensor

from rlvr.types import TokenBatch


def keep(x: Tensor, mask: Tensor) -> Tensor:
    """`x` where `mask`, else 0. `where`, not a product: what stands at a masked token may be inf or NaN."""
    return torch.where(mask, x, 0.0)


def sampled_tokens(batch: TokenBatch) -> Tensor:
    """[B, T] bool: tokens the policy sampled, in rows whose verifier gave a verdict."""
    return batch.loss_mask & batch.valid[:, None]


def over_episode(x: Tensor, episodes: Tensor) -> Tensor:
    """The sum of x [B] over the rows of each row's episode [B]. x 1 2 3, episodes 0 0 1 -> 3 3 3."""
    _, index = torch.unique(episodes, return_inverse=True)
    return x.new_zeros(len(x)).index_add(0, index, x)[index]


def longest_turn(mask: Tensor, episodes: Tensor) -> Tensor:
    """Sampled tokens of the longest turn of each row's episode [B]: the longest run of True. `0 1 1 0 1` -> 2."""
    count = mask.long().cumsum(1)
    before = torch.where(mask, 0, count).cummax(1).values
    _, index = torch.unique(episodes, return_inverse=True)
    return index.new_zeros(len(index)).scatter_reduce(0, index, (count - before).amax(1), "amax")[index]


def trained_tokens(batch: TokenBatch, *, truncated: str) -> Tensor:
    """[B, T] bool: the tokens in the loss. `truncated="mask"` leaves out rows that stopped for length.

    Such a row keeps its place in its group's mean and std: it is a sample with a reward, only not one to learn from.
    The flag is the row's stop reason; a row that stops by itself on the last allowed token is not truncated.
    """
    mask = sampled_tokens(batch)
    return mask & ~batch.truncated[:, None] if truncated == "mask" else mask
