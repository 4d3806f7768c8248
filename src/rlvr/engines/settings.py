"""The choices of `engine=...`."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.run_view import RunView
from rlvr.settings import Component, NonNegativeInt, PositiveFloat, PositiveInt, Text, setting, wrong

MAX_WAIT_S = 604_800.0  # one week: sockets cannot wait forever
LEAST_TEMPERATURE = 0.01  # vLLM 0.32: `vllm.sampling_params._MAX_TEMP`


class EngineSettings(Component):
    """What samples."""

    group: ClassVar[str] = "engine"
    in_process: ClassVar[bool] = False
    max_batch_size: PositiveInt = setting(256, "completions decoded at the same time; the rest wait")

    @property
    def samples_in_half(self) -> bool:
        """Whether it is told to use 16 bits, whatever trains."""
        return False


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
