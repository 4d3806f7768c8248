"""Our functions beside recorded numbers of verl's and OpenRLHF's (`record_peers.py`): what is equal, and what is not.

The differences are those of docs/algorithms.md.
"""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.algorithms.advantages import token_returns
from rlvr.algorithms.losses import clipped_value_loss, kl_estimate
from rlvr.types import TokenBatch
from tests.unit.algorithms.cases import algorithm, loss_of
from tests.unit.algorithms.record_peers import BETWEEN, DUAL, HIGH, LOW, RECORDED

FOUND = json.loads(RECORDED.read_text())
BATCHES = FOUND["batches"]
CLIP = {"clip_low": LOW, "clip_high": HIGH, "aggregation": "token_mean"}
GSPO = CLIP | {"aggregation": "sequence_mean", "num_minibatches": 1}
CAP = {"mismatch_cap": BETWEEN[1]}
LOSSES: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "verl": {
        "clip, token_mean": ("grpo", CLIP | {"dual_clip": DUAL}),
        "clip, sequence_mean": ("grpo", CLIP | {"dual_clip": DUAL, "aggregation": "sequence_mean"}),
        "clip, sequence_sum": ("grpo", CLIP | {"dual_clip": DUAL, "aggregation": "sequence_sum"}),
        "gspo": ("gspo", GSPO),
        "cispo": ("cispo", {"clip_high": HIGH, "aggregation": "token_mean"}),
    },
    "OpenRLHF": {
        "clip, token_mean": ("grpo", CLIP | {"dual_clip": DUAL}),
        "clip, sequence_mean": ("grpo", CLIP | {"aggregation": "sequence_mean"}),
        "gspo": ("gspo", GSPO),
        "tis": ("grpo", CLIP | {"mismatch_correction": "truncate"} | CAP),
        "icepop": ("grpo", CLIP | {"mismatch_correction": "icepop"} | CAP),
        "seq-mask-tis": ("grpo", CLIP | {"mismatch_correction": "geometric_mask_tokens"} | CAP),
    },
}
kinds = pytest.mark.parametrize("kind", ["plain", "tools"])


def array(x: Any) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def inputs(kind: str) -> dict[str, Tensor]:
    return {name: array(x) for name, x in BATCHES[kind]["inputs"].items()}


def batch(kind: str) -> TokenBatch:
    """A token of a prompt before each row: a completion cannot begin a row."""
    x = {name: torch.nn.functional.pad(y, (1, 0)) if y.dim() == 2 else y for name, y in inputs(kind).items()}
    rows, width = x["mask"].shape
    return TokenBatch(
        ids=torch.zeros(rows, width, dtype=torch.long),
        lengths=(width - x["mask"].flip(1).argmax(1)).long(),
        prompt_lengths=torch.ones(rows, dtype=torch.long),
        loss_mask=x["mask"].bool(),
        behavior_logprobs=x["behavior"],
        rewards=x["rewards"],
        groups=torch.arange(rows) // 4,
        episodes=torch.arange(rows),
        valid=torch.ones(rows, dtype=torch.bool),
        truncated=torch.zeros(rows, dtype=torch.bool),
        columns={"old_logprobs": x["old"], "reference_logprobs": x["reference"], "values": x["old_values"]},
        advantages=x["advantages"] * x["mask"],
    )


def check(found: Tensor, expected: Any, mask: Tensor | None = None, *, rtol: float = 1e-6) -> None:
    """Recorded to 9 digits."""
    wanted = array(expected)
    found = found.double() if mask is None else torch.where(mask, found.double(), 0.0)[:, 1:]
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=1e-8)


def test_the_numbers_name_where_they_are_from() -> None:
    assert {name: len(one["commit"]) for name, one in FOUND["commits"].items()} == {"verl": 40, "OpenRLHF": 40}


@kinds
@pytest.mark.parametrize(("peer", "name"), [(peer, name) for peer, names in LOSSES.items() for name in names])
def test_losses_and_gradients(peer: str, name: str, kind: str) -> None:
    chosen, settings = LOSSES[peer][name]
    x, recorded = batch(kind), BATCHES[kind][peer][name]
    if name == "gspo":
        x = replace(x, advantages=(x.rewards - 0.5)[:, None] * x.loss_mask)
    current = torch.nn.functional.pad(inputs(kind)["current"], (1, 0)).requires_grad_()
    loss = loss_of(algorithm(chosen, **settings), x, current).loss
    loss.backward()
    assert current.grad is not None
    check(loss, recorded["loss"])
    check(current.grad, recorded["gradient"], x.loss_mask)


@kinds
@pytest.mark.parametrize("peer", ["verl", "OpenRLHF"])
def test_the_critic_s_loss(peer: str, kind: str) -> None:
    x, recorded = inputs(kind), BATCHES[kind][peer]["value"]
    mask, values = x["mask"], x["values"].requires_grad_()
    loss = clipped_value_loss(values, x["old_values"], x["advantages"], value_clip=0.2)
    ((loss * mask).sum() / mask.sum()).backward()
    assert values.grad is not None
    check((loss * mask).sum() / mask.sum(), recorded["loss"])
    check(values.grad, recorded["gradient"])


@kinds
@pytest.mark.parametrize(
    ("name", "ours", "rtol"),
    [
        ("grpo", {"std_normalization": "sample"}, 5e-3),  # their epsilon is 1e-6, ours 1e-4
        ("grpo without std", {"std_normalization": "none"}, 1e-6),
    ],
)
def test_advantages_of_groups(name: str, ours: dict[str, Any], rtol: float, kind: str) -> None:
    x = batch(kind)
    found = algorithm("grpo", **ours).advantages(x).advantages
    assert found is not None
    check(found, BATCHES[kind]["verl"][name], x.loss_mask, rtol=rtol)


@kinds
def test_rloo(kind: str) -> None:
    x = batch(kind)
    found = algorithm("rloo").advantages(x).advantages
    assert found is not None
    check(found, BATCHES[kind]["verl"]["rloo"], x.loss_mask)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_estimators_of_the_kl(estimator: str) -> None:
    x = inputs("plain")
    check(kl_estimate(x["current"] - x["reference"], estimator), BATCHES["plain"]["verl"][f"kl {estimator}"])


def gae(kind: str) -> tuple[Tensor, Tensor, TokenBatch]:
    x = batch(kind)
    return *token_returns(x, torch.zeros_like(x.behavior_logprobs), x.columns["values"], 0.99, 0.95), x


@kinds
def test_generalized_advantages_skip_tool_tokens_as_verl_does(kind: str) -> None:
    _, returns, x = gae(kind)
    check(returns, BATCHES[kind]["verl"]["gae returns"], x.loss_mask)


def test_openrlhf_counts_tool_tokens_as_steps() -> None:
    advantages, _, x = gae("plain")
    check(advantages, BATCHES["plain"]["OpenRLHF"]["gae before whitening"], x.loss_mask)
    advantages, _, x = gae("tools")
    theirs = array(BATCHES["tools"]["OpenRLHF"]["gae before whitening"])
    differs = ((advantages * x.loss_mask)[:, 1:] - theirs).abs().amax(1) > 1e-3
    has_tools = (~x.loss_mask[:, 1:]).logical_and(torch.arange(10) < x.lengths[:, None] - 1).any(1)
    assert has_tools.any()
    assert not has_tools.all()
    assert torch.equal(differs, has_tools)


def test_verl_s_reinforce_pp_forgets_the_reward_before_a_tool_s_reply() -> None:
    """It resets the return at every masked token, as if the episode had ended there."""
    for kind in ("plain", "tools"):
        x = batch(kind)
        returns, _ = token_returns(x, torch.zeros_like(x.behavior_logprobs), None, 0.99, 1.0)
        theirs = array(BATCHES[kind]["verl"]["reinforce++ returns"])
        if kind == "plain":
            check(returns, theirs.tolist(), x.loss_mask)
            continue
        first, late = x.loss_mask[:, 1] & ~x.loss_mask[:, 2], x.rewards > 0
        assert (first & late).any()
        assert (theirs[first, 0] == 0).all()  # the token before the reply
        assert (returns[first & late, 1] > 0.1 * x.rewards[first & late]).all()
