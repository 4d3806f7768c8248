"""Loss weights: how per-token losses become one number.

A mode turns the mask of the tokens in the loss [B, T] and the episode of each row [B], of a whole minibatch, into
per-token weights [B, T] that carry its denominator. The loss is then a plain sum, `(weights * per_token).sum()`, which
does not care how rows are ordered, packed, cut into microbatches or spread over ranks. Denominators count what is in
the loss and nothing else: rows without a trained token (verifier errors, masked truncated rows) and tool tokens appear
nowhere.

A row is an episode, but where a template rewrote history: there an episode has several rows, which count as one.

Two episodes with 1 and 3 trained tokens, max_completion_tokens = 4:

    token_mean     1/4                 1/4  1/4  1/4       1 / tokens
    sequence_mean  1/2                 1/6  1/6  1/6       1 / (episodes x the episode's tokens)
    sequence_sum   1/2                 1/2  1/2  1/2       1 / episodes
    fixed_length   1/8                 1/8  1/8  1/8       1 / (episodes x max_completion_tokens)
"""

from collections.abc import Callable, Mapping

from torch import Tensor, int64

from rlvr.core.algorithms.masking import over_episode


def token_mean(mask: Tensor, episodes: Tensor, max_completion_tokens: int) -> Tensor:
    """Every token of the minibatch weighs the same; DAPO, arXiv:2503.14476, eq. 12."""
    return mask / mask.sum().clamp(min=1)


def sequence_mean(mask: Tensor, episodes: Tensor, max_completion_tokens: int) -> Tensor:
    """Every episode weighs the same, so a token of a long one weighs less; GRPO, arXiv:2402.03300, eq. 3."""
    return mask / over_episode(mask.sum(1), episodes).clamp(min=1)[:, None] / num_episodes(mask, episodes)


def sequence_sum(mask: Tensor, episodes: Tensor, max_completion_tokens: int) -> Tensor:
    """Mean over episodes of the sum over tokens: the plain policy gradient; RLOO, arXiv:2402.14740."""
    return mask / num_episodes(mask, episodes)


def fixed_length(mask: Tensor, episodes: Tensor, max_completion_tokens: int) -> Tensor:
    """`sequence_sum` over a constant, free of length bias; Dr. GRPO, arXiv:2503.20783, section 3.2."""
    return mask / (num_episodes(mask, episodes) * max_completion_tokens)


def num_episodes(mask: Tensor, episodes: Tensor) -> Tensor:
    """Episodes with at least one token in the loss, at least 1: []."""
    return mask.new_tensor(len(episodes[mask.any(1)].unique()), dtype=int64).clamp(min=1)


AGGREGATIONS: Mapping[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
    "fixed_length": fixed_length,
}
