"""The choices of `engine=...`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.run_view import RunView
from rlvr.settings import Component, NonNegativeInt, PositiveFloat, PositiveInt, Text, setting, wrong

MAX_WAIT_S = 604_800.0  # one week: sockets cannot wait forever
LEAST_TEMPERATURE = 0.01  # vLLM 0.32: `vllm.sampling_params._MAX_TEMP`


if TYPE_CHECKING:
    import torch

    from rlvr.core.engine.base import Engine
    from rlvr.core.world import World
    from rlvr.models.policy import HubPolicy


@dataclass(frozen=True, kw_only=True)
class EngineContext:
    """What an engine is opened with."""

    policy: HubPolicy  # model, tokenizer and device; its weights change with every update
    run: RunView
    folder: Path  # of the run
    max_context_tokens: int  # of the model
    max_batch_size: int | None  # what memory allows, if that is less than the engine's own
    world: World
    note: Callable[[str], None]  # tells the user a sentence
    stopped: Callable[[], bool]  # whether the run was asked to stop; callable in any thread


class EngineSettings(Component, ABC):
    """What samples."""

    group: ClassVar[str] = "engine"
    in_process: ClassVar[bool] = False  # its work and memory are this process's; False: another's
    max_batch_size: PositiveInt = setting(256, "completions decoded at the same time; the rest wait")

    @property
    def samples_in_half(self) -> bool:
        """Whether it is told to use 16 bits, whatever trains."""
        return False

    @abstractmethod
    def open(self, context: EngineContext) -> Engine:
        """The engine of a run. UserError if it cannot sample for the policy."""

    def check(self, policy: HubPolicy | None) -> None:
        """Raise UserError if it could not be opened, for this policy if it is known; called before work is spent."""

    def fitted(self, policy: HubPolicy, run: RunView) -> Self:
        """The settings with `auto` resolved for a policy."""
        return self

    def sampling_dtype(self, policy: HubPolicy, run: RunView) -> torch.dtype:
        """Data type of the weights that an engine in this process samples with."""
        return policy.dtype


@register("engine", "local")
class LocalEngineSettings(EngineSettings):
    """In-process continuous batching over the policy's own weights."""

    in_process: ClassVar[bool] = True
    max_batch_size: Annotated[int, Field(ge=1, le=65_536)] = setting(
        256, "completions decoded at the same time; the rest wait"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto",
        "weights that sample while float32 ones are trained; bfloat16: a copy with half the memory traffic, refreshed "
        "after every update; float16: the same, rounded less, for activations below 65,504; "
        "auto: bfloat16 where training computes in it and no adapters are trained (on a CPU from a "
        "hidden size of 512 on), else float32",
    )

    @property
    def samples_in_half(self) -> bool:
        return self.dtype in ("bfloat16", "float16")

    def check_run(self, run: RunView) -> None:
        model, own = run.model, run.model.weights_dtype
        if self.dtype != "auto" and (model.bits or own not in ("float32", self.dtype)):
            frozen = f"load_in_{model.bits}bit=true" if model.bits else f"dtype={own}"
            raise ConfigError(
                f"engine.dtype={self.dtype}: with model.{frozen} the frozen weights sample as they are; leave it out."
            )

    def fitted(self, policy: HubPolicy, run: RunView) -> Self:
        """Frozen 16-bit weights sample as they are, whatever is said here."""
        if self.dtype != "auto" or run.model.bits or run.model.weights_dtype != "float32":
            return self
        return self.model_copy(update={"dtype": str(self.sampling_dtype(policy, run)).removeprefix("torch.")})

    def sampling_dtype(self, policy: HubPolicy, run: RunView) -> torch.dtype:
        from rlvr.models.devices import half_dtype, sampling_dtype

        half = half_dtype(run.trainer.precision, policy.model)
        return sampling_dtype(self.dtype, policy.model, half=half, adapted=policy.adapters is not None)

    def open(self, context: EngineContext) -> Engine:
        """On the policy's own weights; on a copy if sampling overlaps training or weights are sharded (fsdp2: open it
        before the trainer shards them)."""
        import torch

        from rlvr.core.engine import LocalEngine
        from rlvr.models.devices import frozen_copy, half_dtype

        policy, run = context.policy, context.run
        dtype = self.sampling_dtype(policy, run)
        alone = run.rollout.max_staleness == 0 and run.trainer.strategy != "fsdp2" and dtype == policy.dtype
        # all weights of a pretrained model lie on the grid of their 16-bit file, which small updates do not leave when
        # they are rounded
        on_grid = not (run.model.from_scratch or run.model.adapted)
        if dtype != policy.dtype:
            context.note(f"sampling from a {str(dtype).removeprefix('torch.')} copy of the weights (engine.dtype)")
        elif dtype == torch.float32 and half_dtype(run.trainer.precision, policy.model) is not None and on_grid:
            context.note(
                "engine.dtype=float32 samples with all digits of the weights, and training rounds them to 16 bits in "
                "each pass: the two drift apart (policy/mismatch_kl); trainer.precision=fp32 trains what is sampled"
            )
        return LocalEngine(
            policy.model if alone else frozen_copy(policy.model, dtype),
            max_batch_size=context.max_batch_size or self.max_batch_size,
            max_context_tokens=context.max_context_tokens,
            weights=None if alone else policy.trained_weights,
            on_note=context.note,
            prompts=policy.prompts,
        )


@register("engine", "vllm")
class VllmEngineSettings(EngineSettings):
    """vLLM servers, which get the policy's weights after every update (docs/vllm.md)."""

    urls: Annotated[tuple[Annotated[str, Field(pattern=r"^https?://", max_length=500)], ...], Field(min_length=1)] = (
        setting(("http://127.0.0.1:8000",), "addresses of the servers; the least busy one gets the next completion")
    )
    sync: Literal["folder", "adapter", "broadcast"] = setting(
        "folder",
        "folder: all weights go to the servers as files, adapters merged; adapter: only the adapter, replacing the "
        "last one (needs model.lora.enabled and servers with --enable-lora); broadcast: all "
        "weights over the network, for servers that share no folder with the trainer",
    )
    broadcast_host: Annotated[str, Field(min_length=1, max_length=255)] | None = setting(
        None,
        "address of the trainer's network interface for NCCL; null: NCCL's own choice",
        only_if="sync == 'broadcast'",
    )
    weights_dir: Text | None = setting(
        None,
        "folder of the weight files, readable by servers under the same path; null: weights/ in the run folder",
        only_if="sync != 'broadcast'",
    )
    timeout_s: Annotated[float, Field(gt=0, le=MAX_WAIT_S)] = setting(
        600.0,
        "read timeout: a request or weight push fails after this silence, however long all of it takes; a server's "
        "first requests are slow",
    )
    wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S)] = setting(
        600.0, "how long to wait for a server when none is left; then the run ends and can be resumed"
    )
    max_retries: NonNegativeInt = setting(5, "further attempts for a completion, with the same seed")
    max_logprob_gap: PositiveFloat | None = setting(
        None,
        "largest difference between a server's logprobs and the trainer's, checked after every push; null: 1e-4 if "
        "both compute in float32, else 0.25, or what the model's own rounding moves them by, if that is more",
    )

    @model_validator(mode="after")
    def _servers_differ(self) -> Self:
        if len({url.rstrip("/").removesuffix("/v1") for url in self.urls}) < len(self.urls):
            raise wrong("urls", "names a server twice; name each once")
        return self

    def check_run(self, run: RunView) -> None:
        if run.rollout.temperature < LEAST_TEMPERATURE:  # vLLM would clamp it, the trainer not
            raise ConfigError(
                f"rollout.temperature={run.rollout.temperature}: vLLM needs at least {LEAST_TEMPERATURE}."
            )
        if run.model.bits:
            raise ConfigError(
                f"model.load_in_{run.model.bits}bit=true: engine=vllm would sample from the model as it was saved, "
                "which is not the quantized one that is trained; choose engine=local, or model.dtype=bfloat16."
            )
        if self.sync == "adapter" and not run.model.adapted:
            raise ConfigError(
                "engine.sync=adapter: there is no adapter to push; choose engine.sync=folder, or set "
                "model.lora.enabled=true."
            )

    def check(self, policy: HubPolicy | None) -> None:
        from rlvr.engines.vllm import check_servers, expect
        from rlvr.records.files import writing

        if self.weights_dir is not None:
            with writing(Path(self.weights_dir)):
                Path(self.weights_dir).mkdir(parents=True, exist_ok=True)
        expected = None if policy is None else expect(policy, sync=self.sync)
        check_servers(self.urls, expected, timeout_s=self.timeout_s)

    def open(self, context: EngineContext) -> Engine:
        from rlvr.engines.vllm import VllmEngine

        weights = context.folder / "weights"
        if self.weights_dir is not None:
            weights = Path(self.weights_dir) / context.folder.name
        return VllmEngine(
            context.policy,
            self,
            weights,
            max_context_tokens=context.max_context_tokens,
            world=context.world,
            on_note=context.note,
            stopped=context.stopped,
        )
