"""The policy: a transformers causal LM and, for PPO, a value head on the same trunk."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlvr.core.attention import attention_mask
from rlvr.core.packing import Microbatch
from rlvr.types import Predictions

T = TypeVar("T")

LOGITS_PER_CHUNK = 1 << 24
"""Logits held at once (64 MiB in fp32); longer selections are chunked, and recomputed in backward."""

GPU_LOGITS_PER_CHUNK = 1 << 27
"""The same on a GPU (512 MiB): each chunk reads all weights of the head and writes their gradients."""


GATHERED = "_rlvr_gathered"
"""Attribute of a sharded model: a function that calls another with the weights gathered (`rlvr.scale.fsdp`)."""


def logits_per_chunk(device: torch.device) -> int:
    return LOGITS_PER_CHUNK if device.type == "cpu" else GPU_LOGITS_PER_CHUNK


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The trained model. It stays in eval mode: dropout would add noise to the ratio."""

    model: PreTrainedModel
    value_head: nn.Linear | None = None

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Trained parameters, tied ones once; the critic's are named `value_head.*`."""
        yield from ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)
        if self.value_head is not None:
            yield from self.value_head.named_parameters(prefix="value_head")

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from (parameter for _, parameter in self.named_parameters())

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """`function(*arguments)` with the weights of a sharded model gathered, as `hidden` and `logits` need them.

        Collective if the model is sharded. Tensors in a returned tuple have a gradient.
        """
        gathered = getattr(self.model, GATHERED, None)
        return function(*arguments) if gathered is None else gathered(function, *arguments)

    def hidden(self, ids: Tensor, positions: Tensor | None = None, allowed: Tensor | None = None) -> Tensor:
        """Last hidden states [R, L, D] of ids [R, L]; for a sharded model only inside `run`.

        `positions` [R, L] and `allowed` [R, L, L] (query q sees key k if allowed[r, q, k]) lay out packed lines;
        without them each row is one right-padded sequence.
        """
        layout: dict[str, Any] = {}  # empty for plain rows: not every architecture accepts these arguments
        if allowed is not None and positions is not None:
            device = ids.device.type
            dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.dtype
            mask = attention_mask(self.model.config, allowed[:, None], positions, positions, dtype)
            layout = {"position_ids": positions, "attention_mask": mask}
        # use_cache=False: with a cache transformers treats packed lines as one growing sequence
        return self.model.base_model(input_ids=ids, use_cache=False, **layout).last_hidden_state

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the weights."""
        return next(self.model.parameters()).dtype

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] in fp32 of hidden states [..., D]."""
        head = self.model.get_output_embeddings()
        assert head is not None, "a causal LM has an output head"
        config = self.model.config.get_text_config()
        scale, divisor = getattr(config, "logit_scale", 1.0), getattr(config, "logits_scaling", 1.0)  # Cohere, Granite
        logits = head(hidden).float()
        if (scale, divisor) != (1, 1):  # a pass over a large vocabulary
            logits = logits * scale / divisor
        if cap := getattr(config, "final_logit_softcapping", None):  # Gemma
            logits = torch.tanh(logits / cap) * cap
        return logits

    def predict(
        self, hidden: Tensor, targets: Tensor, temperature: float, *, entropy_grad: bool = False
    ) -> Predictions:
        """Predictions for targets [N] under softmax(logits / temperature) after hidden [N, D], without values."""
        chunk = max(1, logits_per_chunk(hidden.device) // self.model.config.get_text_config().vocab_size)
        if len(targets) <= chunk:
            return self._predict(hidden, targets, temperature, entropy_grad)
        with _without_cast_cache():
            parts: list[Any] = [
                checkpoint(self._predict, h, t, temperature, entropy_grad, use_reentrant=False)
                for h, t in zip(hidden.split(chunk), targets.split(chunk), strict=True)
            ]
        logprobs, entropy, _ = zip(*parts, strict=True)
        return Predictions(torch.cat(logprobs), torch.cat(entropy))

    def _predict(self, hidden: Tensor, targets: Tensor, temperature: float, entropy_grad: bool) -> Predictions:
        logits = self.logits(hidden)  # [N, V]
        if temperature != 1:
            logits = logits / temperature
        log_probs = torch.log_softmax(logits, dim=-1)
        del logits  # as large as all other memory of a small pass
        chosen = log_probs.gather(1, targets[:, None])[:, 0]
        if entropy_grad:
            return Predictions(logprobs=chosen, entropy=-(log_probs.exp() * log_probs).sum(-1))
        source = log_probs.detach()
        return Predictions(logprobs=chosen, entropy=-source.exp().mul_(source).sum(-1))

    def freeze(self, *, moves: bool = False) -> Frozen:
        """A frozen copy of the current policy; `moves`: it will be refreshed.

        Freeze before sharding, and shard the copy separately.
        """
        frozen = replace(self, model=copy.deepcopy(self.model).requires_grad_(False), value_head=None)
        return Frozen(lambda: nullcontext(frozen), lambda: dict(frozen.model.named_parameters()))


@dataclass(frozen=True)
class Frozen:
    """An earlier state of a policy: `with frozen() as reference:`; use the reference inside the block only."""

    enter: Callable[[], AbstractContextManager[Policy]]
    weights: Callable[[], Mapping[str, Tensor]]
    """The weights that differ from the policy's, by the policy's names. A function: sharding replaces the tensors."""

    def __call__(self) -> AbstractContextManager[Policy]:
        return self.enter()

    @torch.no_grad()
    def refresh(self, policy: Policy) -> None:
        """Become the policy as it is now."""
        now = dict(policy.model.named_parameters())
        for name, weight in self.weights().items():
            weight.copy_(now[name])


def forward(policy: Policy, microbatch: Microbatch, temperature: float, entropy_grad: bool = False) -> Predictions:
    """One pass over packed lines; head and critic run on the predicting positions only. Called by `Policy.run`.

    Microbatch and result are on the CPU, like the batch; only this function moves tensors to the model's device.
    """
    home, microbatch = microbatch.ids.device, microbatch.to(policy.model.device)
    allowed = microbatch.allowed()
    positions = None if allowed is None else microbatch.positions
    hidden = policy.hidden(microbatch.ids, positions, allowed)
    before = hidden.flatten(0, 1).index_select(0, microbatch.predictors)  # [N, D]
    predicted = policy.predict(before, microbatch.targets, temperature, entropy_grad=entropy_grad)
    with torch.autocast(before.device.type, enabled=False):  # bf16 is too coarse for the critic's targets
        values = None if policy.value_head is None else policy.value_head(before.float())[:, 0]
    # clone: FSDP's hooks can be lost on views
    return predicted._replace(values=values).map(lambda x: x.to(home).clone())


@contextmanager
def _without_cast_cache() -> Iterator[None]:
    """Autocast without its cached bfloat16 weights: with the cache, gradients of all chunks are summed in bfloat16 and
    lose small terms; with one copy per chunk they are summed in float32."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
