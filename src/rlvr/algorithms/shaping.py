"""Potential-based reward shaping, Ng, Harada and Russell, ICML 1999: the only kind that moves no optimum.

    F(s, s') = gamma Phi(s') - Phi(s)        Phi is 0 after the end

Over the rest of an episode F adds up to -Phi(s), whatever is done: returns are lower by what was there already, and the
difference between two actions stays. So an environment may say how far an episode is (the share of the supporting
documents found, say), and a policy cannot earn anything by going back and forth.

    potentials   0  0  .  .  1  1  .  1  1      two turns before half of the way was found, `.` was not sampled
    shaping      0  1  .  .  0  0  .  0 -1      gamma = 1

It acts where tokens have returns of their own (ppo, reinforce_pp). Algorithms that compare whole episodes add it up to
the same -Phi(start) for every episode of a group, so for them it is nothing.
"""

from torch import Tensor
from torch.nn.functional import pad

from rlvr.algorithms.gae import squeeze, squeeze_order, unsqueeze


def potential_shaping(potentials: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """gamma Phi_{t+1} - Phi_t over the masked tokens of each row [B, T]; 0 elsewhere."""
    order = squeeze_order(mask)
    before = squeeze(potentials, mask, order)
    return unsqueeze(gamma * pad(before[:, 1:], (0, 1)) - before, order)
