"""Our losses beside those of TRL's own function, on random batches with tool tokens: values and gradients.

`GRPOTrainer._compute_loss` of the installed TRL computes theirs; only the object around it is ours.
"""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.types import TokenBatch
from tests.unit.algorithms.cases import MAX_COMPLETION_TOKENS, algorithm, loss_of

pytestmark = pytest.mark.long  # TRL's imports take 8 s

LOW, HIGH, CAP = 0.2, 0.3, 2.0
CLIP = {"clip_low": LOW, "clip_high": HIGH, "aggregation": "token_mean"}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sequence_mean": ("grpo", CLIP | {"aggregation": "sequence_mean"}, {"loss_type": "grpo"}),
    "token_mean": ("grpo", CLIP, {"loss_type": "dapo"}),
    "fixed_length": ("dr_grpo", CLIP | {"aggregation": "fixed_length"}, {"loss_type": "dr_grpo"}),
    "cispo": (
        "cispo",
        {"clip_high": HIGH, "aggregation": "token_mean"},
        {"loss_type": "cispo", "epsilon_high": 1 + HIGH},
    ),
    "gspo": (
        *("gspo", CLIP | {"aggregation": "sequence_mean", "num_minibatches": 1}),
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    "dual clip": ("grpo", CLIP | {"dual_clip": 1.5}, {"loss_type": "dapo", "delta": 1.5}),
    "KL": ("grpo", CLIP | {"kl_coef": 0.1}, {"loss_type": "dapo", "beta": 0.1}),
    "unbiased KL": (
        *("grpo", CLIP | {"kl_coef": 0.1, "kl_unbiased": True}),
        {"loss_type": "dapo", "beta": 0.1, "use_bias_correction_kl": True},
    ),
    "truncated importance sampling": (
        *("grpo", CLIP | {"mismatch_correction": "truncate", "mismatch_cap": CAP}),
        {"loss_type": "dapo", "use_vllm": True},
    ),
}


def random_batch(seed: int) -> TokenBatch:
    """12 completions of 3 prompts, of 1 to 15 tokens behind a prompt of one, with replies of tools inside."""
    draw = torch.Generator().manual_seed(seed)
    rows, width = 12, MAX_COMPLETION_TOKENS

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(rows, width, generator=draw, dtype=torch.float64)

    lengths = torch.randint(2, width + 1, (rows,), generator=draw)
    place = torch.arange(width)
    mask = (place >= 1) & (place < lengths[:, None]) & ~((place == 3) & (torch.arange(rows)[:, None] % 2 == 0))
    old = noise(0.5) - 1.5
    return TokenBatch(
        ids=torch.zeros(rows, width, dtype=torch.long),
        lengths=lengths,
        prompt_lengths=torch.ones(rows, dtype=torch.long),
        loss_mask=mask,
        behavior_logprobs=torch.where(mask, old + noise(0.6), 0.0),
        rewards=torch.rand(rows, generator=draw, dtype=torch.float64),
        groups=torch.arange(rows) // 4,
        episodes=torch.arange(rows),
        valid=torch.ones(rows, dtype=torch.bool),
        truncated=torch.zeros(rows, dtype=torch.bool),
        columns={"old_logprobs": old, "reference_logprobs": old + noise(0.4)},
    )


def theirs(batch: TokenBatch, logprobs: Tensor, settings: dict[str, Any]) -> Tensor:
    """TRL's loss of one accumulation window."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    assert batch.advantages is not None
    old, mask = batch.columns["old_logprobs"], batch.loss_mask[:, 1:].long()
    args = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1} | settings
    own = {"importance_sampling_level": "token", "beta": 0.0, "epsilon_high": HIGH, "use_vllm": False} | settings
    trainer: Any = SimpleNamespace(
        **{**own, "epsilon_low": LOW, "args": SimpleNamespace(**args)},
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        model=SimpleNamespace(training=False),
        max_completion_length=MAX_COMPLETION_TOKENS,
        current_gradient_accumulation_steps=1,
        vllm_importance_sampling_correction=True,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs[:, 1:], torch.ones_like(logprobs[:, 1:]), None),
    )
    inputs = {
        "prompt_ids": batch.ids[:, :1],
        "prompt_mask": torch.ones_like(batch.ids[:, :1]),
        "completion_ids": batch.ids[:, 1:],
        "completion_mask": (torch.arange(MAX_COMPLETION_TOKENS) < batch.lengths[:, None])[:, 1:].long(),
        "tool_mask": mask,
        "advantages": batch.advantages[:, 1:],
        "old_per_token_logps": old[:, 1:],
        "ref_per_token_logps": batch.columns["reference_logprobs"][:, 1:],
        "num_items_in_batch": mask.sum(),
        "importance_sampling_ratio": (old - batch.behavior_logprobs)[:, 1:].exp().clamp(max=CAP),
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs)


@pytest.mark.filterwarnings("ignore")  # of TRL's imports
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_trl_s(case: str) -> None:
    name, ours, settings = CASES[case]
    chosen = algorithm(name, **ours)
    for seed in range(20):
        batch = chosen.advantages(random_batch(seed))
        draw = torch.Generator().manual_seed(100 + seed)
        moved = 0.3 * torch.randn(batch.ids.shape, generator=draw, dtype=torch.float64)
        mine, other = ((batch.columns["old_logprobs"] + moved).requires_grad_() for _ in range(2))
        found, expected = loss_of(chosen, batch, mine).loss, theirs(batch, other, settings)
        torch.testing.assert_close(found, expected)
        found.backward()
        expected.backward()
        assert other.grad is not None
        assert other.grad.abs().max() > 1e-4
        torch.testing.assert_close(mine.grad, other.grad)
