"""Records what functions of verl and OpenRLHF make of random batches, in peers.json beside this file.

    git clone https://github.com/volcengine/verl; git clone https://github.com/OpenRLHF/OpenRLHF
    python -m tests.unit.algorithms.record_peers verl OpenRLHF

Only the functions named here are executed, each taken out of its file as it stands at HEAD; nothing is installed. Two
batches: with replies of tools inside the completions ("tools") and without ("plain").
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor, nn

RECORDED = Path(__file__).with_name("peers.json")
ROWS, WIDTH, DIGITS = 8, 10, 9
LOW, HIGH, DUAL = 0.2, 0.3, 3.0
BETWEEN = (1 / 1.1, 1.1)  # of rows' mean weights and, cubed, of tokens' weights
VERL = "verl/trainer/ppo/core_algos.py"
OPENRLHF = "openrlhf/models/loss.py"


def batch(seed: int, *, tools: bool) -> dict[str, Tensor]:
    """float64 arrays [ROWS, WIDTH] and the rewards [ROWS] of two groups of four."""
    draw = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(ROWS, WIDTH, generator=draw, dtype=torch.float64)

    lengths = torch.randint(3, WIDTH + 1, (ROWS,), generator=draw)[:, None]
    place = torch.arange(WIDTH)
    mask = place < lengths
    if tools:  # two tokens in the middle of every other row
        mask &= ~((place >= 1) & (place < 3) & (torch.arange(ROWS)[:, None] % 2 == 0) & (lengths > 3))
    old = noise(0.5) - 1.5
    return {
        "mask": mask.double(),
        "old": old,
        "current": old + noise(0.4),
        "behavior": old + noise(0.15),
        "reference": old + noise(0.3),
        "values": noise(0.5),
        "old_values": noise(0.5),
        "advantages": noise(1.0),
        "rewards": torch.rand(ROWS, generator=draw, dtype=torch.float64),
    }


def taken(checkout: str, file: str, names: set[str], known: dict[str, Any]) -> dict[str, Any]:
    """The functions, methods and classes of a file, without its imports and decorators."""
    text = subprocess.check_output(["git", "-C", checkout, "show", f"HEAD:{file}"], text=True)
    kinds = (ast.FunctionDef, ast.ClassDef)
    chosen = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and node.name in names]
    assert {node.name for node in chosen} == names, file
    for node in chosen:
        node.decorator_list = []
    space = {
        "torch": torch,
        "nn": nn,
        "np": np,
        "defaultdict": defaultdict,
        "Optional": Optional,
        "Tuple": tuple,
        "Any": Any,
    } | known
    code = compile(ast.Module(body=list(chosen), type_ignores=[]), file, "exec", dont_inherit=True)
    exec(code, space)
    return space


def with_gradient(loss: Any, current: Tensor) -> dict[str, Any]:
    """The loss of logprobs (or values), and its gradient."""
    moving = current.clone().requires_grad_()
    value = loss(moving)
    value.backward()
    assert moving.grad is not None
    return {"loss": numbers(value), "gradient": numbers(moving.grad)}


def numbers(x: Tensor) -> Any:
    return np.round(x.detach().double().numpy(), DIGITS).tolist()


def of_rows(x: dict[str, Tensor]) -> Tensor:
    """[ROWS, WIDTH]: one advantage a row, as a ratio of sequences has it."""
    return (x["rewards"] - 0.5)[:, None].expand(ROWS, WIDTH)


def at_the_end(rewards: Tensor, mask: Tensor) -> Tensor:
    """[ROWS, WIDTH]: the reward at the last sampled token."""
    last = WIDTH - 1 - mask.flip(1).argmax(1, keepdim=True)
    return torch.zeros_like(mask).scatter(1, last, rewards[:, None])


def of_verl(checkout: str, x: dict[str, Tensor]) -> dict[str, Any]:
    class Settings(SimpleNamespace):
        def get(self, name: str, default: Any) -> Any:
            return getattr(self, name, default)

    helpers = {"masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"}
    masked = taken(checkout, "verl/utils/torch_functional.py", helpers, {})
    names = {"compute_gae_advantage_return", "compute_grpo_outcome_advantage", "compute_rloo_outcome_advantage"}
    names |= {"compute_reinforce_plus_plus_outcome_advantage", "compute_value_loss", "kl_penalty_forward", "agg_loss"}
    names |= {f"compute_policy_loss_{name}" for name in ("vanilla", "gspo", "cispo")}
    kinds = {"AlgoConfig": type("AlgoConfig", (), {}), "ActorConfig": Settings, "DictConfig": dict}
    f = taken(checkout, VERL, names, {"verl_F": SimpleNamespace(**masked), **kinds})
    mask, rewards = x["mask"], at_the_end(x["rewards"], x["mask"])
    index = np.arange(ROWS) // 4
    clip = {
        "clip_ratio": LOW,
        "clip_ratio_low": LOW,
        "clip_ratio_high": HIGH,
        "clip_ratio_c": DUAL,
    }

    def policy_loss(name: str, mode: str, **changes: Any) -> dict[str, Any]:
        config = Settings(global_batch_info={}, **clip | changes)
        function = f[f"compute_policy_loss_{name}"]
        advantages = of_rows(x) if name == "gspo" else x["advantages"]
        arguments = (advantages, mask, mode, config)
        return with_gradient(lambda now: function(x["old"], now, *arguments)[0], x["current"])

    grpo = partial(f["compute_grpo_outcome_advantage"], rewards, mask, index)
    advantages, returns = f["compute_gae_advantage_return"](rewards, x["old_values"], mask, 0.99, 0.95)
    return {
        "grpo": numbers(grpo()[0]),
        "grpo without std": numbers(grpo(norm_adv_by_std_in_grpo=False)[0]),
        "rloo": numbers(f["compute_rloo_outcome_advantage"](rewards, mask, index)[0]),
        "gae": numbers(advantages * mask),
        "gae returns": numbers(returns * mask),
        "reinforce++ returns": numbers(
            f["compute_reinforce_plus_plus_outcome_advantage"](rewards, mask, Settings(gamma=0.99))[1] * mask
        ),
        "clip, token_mean": policy_loss("vanilla", "token-mean"),
        "clip, sequence_mean": policy_loss("vanilla", "seq-mean-token-mean"),
        "clip, sequence_sum": policy_loss("vanilla", "seq-mean-token-sum"),
        "gspo": policy_loss("gspo", "seq-mean-token-mean"),
        "cispo": policy_loss("cispo", "token-mean", clip_ratio_low=1.0),  # a lower bound of 0: none
        "value": with_gradient(
            lambda now: f["compute_value_loss"](now, x["advantages"], x["old_values"], mask, 0.2)[0], x["values"]
        ),
        **{
            f"kl {name}": numbers(f["kl_penalty_forward"](x["current"], x["reference"], name))
            for name in ("k1", "k2", "k3")
        },
    }


def of_openrlhf(checkout: str, x: dict[str, Tensor]) -> dict[str, Any]:
    mean = taken(checkout, "openrlhf/models/utils.py", {"masked_mean"}, {})["masked_mean"]
    f = taken(checkout, OPENRLHF, {"aggregate_loss", "PolicyLoss", "ValueLoss"}, {"masked_mean": mean})
    maker = taken(checkout, "openrlhf/trainer/ppo_utils/experience_maker.py", {"get_advantages_and_returns"}, {})
    mask, rewards = x["mask"], at_the_end(x["rewards"], x["mask"])
    advantages, _ = maker["get_advantages_and_returns"](None, x["old_values"], rewards, mask, 0.99, 0.95)

    def policy_loss(**settings: Any) -> dict[str, Any]:
        function = f["PolicyLoss"](LOW, HIGH, **settings)
        advantages = of_rows(x) if settings.get("policy_loss_type") == "gspo" else x["advantages"]
        return with_gradient(
            lambda now: function(now, x["old"], advantages, mask, rollout_log_probs=x["behavior"])[0], x["current"]
        )

    def corrected(kind: str, low: float, high: float) -> dict[str, Any]:
        bounds = {"vllm_is_truncated_threshold": [low, high], "vllm_is_correction_type": kind}
        return policy_loss(enable_vllm_is_correction=True, **bounds)

    return {
        "gae before whitening": numbers(advantages * mask),
        "clip, token_mean": policy_loss(dual_clip=DUAL),
        "clip, sequence_mean": policy_loss(token_level_loss=False),
        "gspo": policy_loss(policy_loss_type="gspo"),
        "tis": corrected("tis", 0.0, BETWEEN[1]),
        "icepop": corrected("icepop", *BETWEEN),
        "seq-mask-tis": corrected("seq-mask-tis", *BETWEEN),
        "value": with_gradient(
            lambda now: f["ValueLoss"](0.2)(now, x["old_values"], x["advantages"], mask), x["values"]
        ),
    }


def main(verl: str, openrlhf: str) -> None:
    found: dict[str, Any] = {"commits": {}, "batches": {}}
    for name, checkout, file in (("verl", verl, VERL), ("OpenRLHF", openrlhf, OPENRLHF)):
        commit = subprocess.check_output(["git", "-C", checkout, "rev-parse", "HEAD"], text=True).strip()
        found["commits"][name] = {"commit": commit, "file": file}
    for seed, tools in enumerate((False, True)):
        x = batch(seed, tools=tools)
        found["batches"]["tools" if tools else "plain"] = {
            "inputs": {key: numbers(value) for key, value in x.items()},
            "verl": of_verl(verl, x),
            "OpenRLHF": of_openrlhf(openrlhf, x),
        }
    RECORDED.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
