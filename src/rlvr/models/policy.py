"""The policy: a transformers causal LM, its tokenizer and, for PPO, a value head on the same trunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlvr.models.attention import attention_mask

LOGITS_PER_CHUNK = 1 << 24
"""Logits held at once (64 MiB in fp32); longer selections are computed chunk by chunk and recomputed in backward."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What is trained. The model is always in eval mode: dropout would make a ratio out of noise."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    value_head: nn.Linear | None = None

    def parameters(self) -> Iterator[nn.Parameter]:
        """Everything that is trained, the model's first."""
        yield from (p for p in self.model.parameters() if p.requires_grad)
        if self.value_head is not None:
            yield from self.value_head.parameters()

    @property
    def num_parameters(self) -> int:
        """Trainable numbers, tied ones once."""
        return sum(p.numel() for p in self.parameters())

    def hidden(self, ids: Tensor, positions: Tensor | None = None, allowed: Tensor | None = None) -> Tensor:
        """Last hidden states [R, L, D] of ids [R, L].

        `positions` [R, L] and `allowed` [R, L, L] (query q sees key k if allowed[r, q, k]) lay out packed lines;
        without them every row is one right-padded sequence.
        """
        layout: dict[str, Any] = {}  # nothing is passed for plain rows: not every architecture knows these arguments
        if allowed is not None and positions is not None:
            device = ids.device.type
            dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.dtype
            mask = attention_mask(self.model.config, allowed[:, None], positions, positions, dtype)
            layout = {"position_ids": positions, "attention_mask": mask}
        # use_cache=False: with a cache transformers takes packed lines for one growing sequence
        output = self.model.base_model(input_ids=ids, use_cache=False, **layout)
        return output.last_hidden_state

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the weights."""
        return next(self.model.parameters()).dtype

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] in fp32 of hidden states [..., D]."""
        head = self.model.get_output_embeddings()
        assert head is not None, "a causal LM has an output head"
        logits = head(hidden).float()
        config = self.model.config.get_text_config()
        logits = (
            logits * getattr(config, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0)
        )  # Cohere, Granite
        if cap := getattr(config, "final_logit_softcapping", None):  # Gemma
            logits = torch.tanh(logits / cap) * cap
        return logits

    def token_scores(
        self, hidden: Tensor, targets: Tensor, temperature: float, *, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Logprob and entropy [N] fp32 of targets [N] under softmax(logits / temperature) after hidden [N, D]."""
        chunk = max(1, LOGITS_PER_CHUNK // int(self.model.config.vocab_size))
        if len(targets) <= chunk:
            return self._token_scores(hidden, targets, temperature, entropy_grad)
        parts: list[tuple[Tensor, Tensor]] = [
            checkpoint(self._token_scores, h, t, temperature, entropy_grad, use_reentrant=False)  # pyright: ignore[reportAssignmentType]
            for h, t in zip(hidden.split(chunk), targets.split(chunk), strict=True)
        ]
        return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])

    def _token_scores(
        self, hidden: Tensor, targets: Tensor, temperature: float, entropy_grad: bool
    ) -> tuple[Tensor, Tensor]:
        log_probs = torch.log_softmax(self.logits(hidden) / temperature, dim=-1)  # [N, V]
        chosen = log_probs.gather(1, targets[:, None])[:, 0]
        source = log_probs if entropy_grad else log_probs.detach()
        return chosen, -(source.exp() * source).sum(-1)

    def save(self, folder: Path) -> None:
        """Write model and tokenizer in Hub format; the value head, which is no part of the model, stays out."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
