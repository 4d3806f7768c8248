"""Models: from scratch or pretrained, and the warm start."""

from typing import Annotated, Literal

from pydantic import Field

from rlvr.config.schema.base import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section, Share


class ScratchModel(Section):
    """A Llama-architecture model with random weights and a word-level tokenizer made from the task's vocabulary."""

    name: Literal["scratch"]
    hidden_size: PositiveInt = Field(description="width of the residual stream")
    num_layers: PositiveInt = Field(description="decoder blocks")
    num_heads: PositiveInt = Field(description="attention heads; divides hidden_size")
    head_dim: PositiveInt | None = Field(
        description="width of an attention head, an even number; null: hidden_size / num_heads"
    )
    intermediate_size: PositiveInt = Field(description="width of the gated MLP")
    init_std: PositiveFloat = Field(description="standard deviation of the initial weights")
    rope_theta: PositiveFloat = Field(description="base of the rotary embedding; small for short contexts")
    max_context_tokens: PositiveInt = Field(description="context; holds the longest prompt plus completion")


class ScratchBpeModel(ScratchModel):
    """A Llama-architecture model with random weights and a byte-level BPE tokenizer trained on the task's text."""

    name: Literal["scratch_bpe"]  # pyright: ignore[reportIncompatibleVariableOverride]
    vocabulary_size: Annotated[int, Field(ge=300)] = Field(description="tokens of the vocabulary, markers included")
    tie_embeddings: bool = Field(description="one matrix for input and output embeddings")
    embedding_init_std: PositiveFloat = Field(description="standard deviation of the initial embeddings")


class Lora(Section):
    """Low-rank adapters, arXiv:2106.09685, by peft. Their dropout is 0: it would make a ratio out of noise."""

    enabled: bool = Field(description="train adapters and leave the model's own weights as they are")
    r: PositiveInt = Field(description="rank")
    alpha: PositiveInt = Field(description="the adapter's output is scaled by alpha / r")
    target_modules: tuple[str, ...] = Field(description="names of the layers that get an adapter; [all-linear]: all")
    merge_final: bool = Field(description="final/ is the merged model in float32; false: final/ is the adapter")


class PretrainedModel(Section):
    """Any causal LM of transformers, by folder or Hub id."""

    name: Literal["hf"]
    name_or_path: Annotated[str, Field(min_length=1)] = Field(description="folder or Hub id of the model")
    trust_remote_code: bool = Field(description="run code that comes with the model")
    dtype: Literal["float32", "bfloat16"] = Field(
        description="numbers of the weights; what is trained is float32 always, so bfloat16 needs adapters"
    )
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = Field(
        description="attention of transformers; flash_attention_2 needs a GPU and the package flash-attn"
    )
    gradient_checkpointing: bool = Field(description="recompute activations in backward: less memory, more time")
    load_in_4bit: bool = Field(description="bitsandbytes nf4 weights; needs adapters and the extra rlvr[quantization]")
    load_in_8bit: bool = Field(description="bitsandbytes int8 weights; needs adapters and the extra rlvr[quantization]")
    lora: Lora


ModelConfig = Annotated[ScratchModel | ScratchBpeModel | PretrainedModel, Field(discriminator="name")]


class WarmStart(Section):
    """Supervised training on the task's demonstrations before RL; only for models made from scratch."""

    enabled: bool = Field(description="false: RL starts from random weights")
    loss_on: Literal["completion", "all"] = Field(
        description="completion: only what follows the prompt; all: the prompt too, as in pretraining"
    )
    num_steps: PositiveInt = Field(description="optimizer steps in all")
    batch_size: PositiveInt = Field(description="fresh demonstrations per step")
    learning_rate: PositiveFloat = Field(description="peak of the linear schedule")
    warmup_steps: NonNegativeInt = Field(description="steps of linear warm-up")
    final_learning_rate_share: Share = Field(description="learning rate of the last step, as a share of the peak")
    weight_decay: NonNegativeFloat = Field(description="AdamW weight decay")
    worked_share: Share = Field(description="share of demonstrations that write the intermediate steps")
    final_phase_steps: NonNegativeInt = Field(description="the last so many steps use final_worked_share instead")
    final_worked_share: Share = Field(description="worked_share of the final phase: what RL has to win back")
