"""Estimators of KL(policy || reference) from sampled tokens; J. Schulman, joschu.net/blog/kl-approx.html.

`log_ratio` is log pi(token) - log pi_ref(token), for tokens sampled from pi. What each one does when it is
differentiated is another matter than what it estimates; see docs/algorithms.md and arXiv:2512.21852:

    in the loss    k1: nothing in expectation, E[grad log pi] = 0.
                   k2: the gradient of KL(pi || ref).
                   k3: the gradient of the other KL, KL(ref || pi); near pi = ref the same to first order, else biased.
    in the reward  k1: the gradient of KL(pi || ref), through the policy gradient.
                   k2, k3: biased.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def k1(log_ratio: Tensor) -> Tensor:
    """log r. Unbiased, noisy, negative at times. [b, T] -> [b, T]"""
    return log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """(log r)^2 / 2. Biased, little noise, never negative. [b, T] -> [b, T]"""
    return 0.5 * log_ratio.square()


def k3(log_ratio: Tensor) -> Tensor:
    """1 / r - 1 + log r. Unbiased, little noise, never negative. [b, T] -> [b, T]"""
    return torch.expm1(-log_ratio) + log_ratio


ESTIMATORS: Mapping[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
