"""Settings and batches for the tests of the algorithms."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr import imports, registry
from rlvr.algorithms.objective import LossTerms, Objective
from rlvr.settings import validated
from rlvr.types import Predictions, TokenBatch

ROOT = Path(__file__).resolve().parents[3]
MAX_COMPLETION_TOKENS = 16
NAMES = ("grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "gspo", "cispo", "ppo")
OWN_NAME = "my_algorithm:Reinforce"  # examples/own/my_algorithm.py
MODES = ("token_mean", "sequence_mean", "prompt_mean", "sequence_sum", "fixed_length")
CORRECTIONS = ("auto", "none", "truncate", "mask", "icepop", "sequence_truncate", "sequence_mask", "geometric_mask")
CORRECTIONS += ("geometric_mask_tokens",)
SHARED = {"aggregation": "token_mean", "kl_estimator": "k3", "kl_placement": "loss"}
SHARED |= {"num_epochs": 2, "num_minibatches": 1}
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
OWN: dict[str, dict[str, Any]] = {
    "dapo": CLIP | {"std_normalization": "population", "overlong_buffer_tokens": 4},
    "cispo": {"clip_high": 0.28},
    "ppo": CLIP | {"gae_lambda": 0.95, "value_coef": 0.5},
    OWN_NAME: {},
}

imports.look_in(str(ROOT / "examples" / "own"))


def algorithm(name: str, **overrides: Any) -> Objective:
    """The algorithm `name` with test settings, some of them replaced."""
    settings = validated(registry.find("algorithm", name), SHARED | OWN.get(name, CLIP) | overrides)
    return Objective(algorithm=settings, max_completion_tokens=MAX_COMPLETION_TOKENS, temperature=1.0)


def batch_of(mask: list[list[int]], rewards: list[float], **overrides: Any) -> TokenBatch:
    """A float64 batch with one group and log-probabilities of -1 everywhere."""
    loss_mask = torch.tensor(mask, dtype=torch.bool)
    num_rows, num_tokens = loss_mask.shape
    constant = torch.full((num_rows, num_tokens), -1.0, dtype=torch.float64)
    return changed(
        TokenBatch(
            ids=torch.zeros(num_rows, num_tokens, dtype=torch.long),
            lengths=torch.full((num_rows,), num_tokens),
            prompt_lengths=torch.ones(num_rows, dtype=torch.long),
            loss_mask=loss_mask,
            behavior_logprobs=torch.where(loss_mask, constant, 0.0),
            rewards=torch.tensor(rewards, dtype=torch.float64),
            groups=torch.zeros(num_rows, dtype=torch.long),
            episodes=torch.arange(num_rows),
            valid=torch.ones(num_rows, dtype=torch.bool),
            truncated=torch.zeros(num_rows, dtype=torch.bool),
            columns={
                "old_logprobs": constant.clone(),
                "reference_logprobs": constant.clone(),
                "values": torch.zeros_like(constant),
            },
        ),
        **overrides,
    )


def ragged_batch(seed: int = 0, num_ids: int = 5) -> TokenBatch:
    """Eight rows in two groups: ragged, tool spans in some, row 2 without a grade, row 5 truncated."""
    draw = torch.Generator().manual_seed(seed)
    num_rows, num_tokens = 8, 14
    lengths = torch.tensor([14, 9, 12, 6, 14, 14, 4, 11])
    position = torch.arange(num_tokens)
    loss_mask = (position >= 2) & (position < lengths[:, None])
    loss_mask[0, 5:8] = False  # a tool's reply
    loss_mask[4, 4] = False

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(num_rows, num_tokens, generator=draw, dtype=torch.float64)

    old = -1.0 + noise(0.3)
    return TokenBatch(
        ids=torch.randint(0, num_ids, (num_rows, num_tokens), generator=draw),
        lengths=lengths,
        prompt_lengths=torch.full((num_rows,), 2),
        loss_mask=loss_mask,
        behavior_logprobs=torch.where(loss_mask, old + noise(0.4), 0.0),
        rewards=torch.tensor([1.0, 0.0, 0.0, 0.3, 0.0, 1.0, 0.5, 0.0], dtype=torch.float64),
        groups=torch.tensor([7, 7, 7, 7, 3, 3, 3, 3]),
        episodes=torch.arange(8),
        valid=torch.tensor([True, True, False, True, True, True, True, True]),
        truncated=torch.tensor([False] * 5 + [True] + [False] * 2),
        columns={"old_logprobs": old, "reference_logprobs": old + noise(0.3), "values": noise(0.5)},
    )


def changed(batch: TokenBatch, **arrays: Tensor) -> TokenBatch:
    """The batch with other arrays, fields and columns alike."""
    fields_of_it = {name: arrays.pop(name) for name in tuple(arrays) if name in TokenBatch.__dataclass_fields__}
    return replace(batch, **fields_of_it).with_columns(**arrays)


def without(batch: TokenBatch, name: str) -> TokenBatch:
    """The batch without a column."""
    return replace(batch, columns={other: x for other, x in batch.columns.items() if other != name})


def take(batch: TokenBatch, rows: Tensor) -> TokenBatch:
    """Some rows of a batch, in the given order."""
    columns = {name: x[rows] for name, x in batch.columns.items()}
    arrays = {f.name: x for f in fields(batch) if isinstance(x := getattr(batch, f.name), Tensor)}
    return replace(batch, columns=columns, **{name: x[rows] for name, x in arrays.items()})


def noisy(batch: TokenBatch, seed: int = 1) -> Predictions:
    """Current logprobs, entropy and values near the batch's old ones, all leaves with gradient."""
    draw = torch.Generator().manual_seed(seed)

    def near(x: Tensor) -> Tensor:
        return (x + 0.3 * torch.randn(x.shape, generator=draw, dtype=x.dtype)).requires_grad_()

    values = batch.columns["values"]
    return Predictions(near(batch.columns["old_logprobs"]), near(torch.ones_like(values)), near(values))


def rows_of(predicted: Predictions, rows: Tensor) -> Predictions:
    return predicted.map(lambda x: x[rows])


def current(batch: TokenBatch) -> Tensor:
    """The old logprobs as the current policy's."""
    return batch.columns["old_logprobs"].clone().requires_grad_()


def loss_of(chosen: Objective, scored: TokenBatch, predicted: Predictions | Tensor | None = None) -> LossTerms:
    """The loss of a batch that has advantages; logprobs alone have entropy 1, and without any they are the old ones."""
    if not isinstance(predicted, Predictions):
        now = current(scored) if predicted is None else predicted
        predicted = Predictions(now, torch.ones_like(now), scored.columns.get("values"))
    return chosen.loss(scored, chosen.loss_weights(scored), predicted)
