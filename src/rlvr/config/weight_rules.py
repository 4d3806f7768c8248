"""Rules between the ways to keep a pretrained model's weights and to train it; `rules.py` includes the table."""

from rlvr.config.rule import Rule
from rlvr.config.schema import Config, Lora, PretrainedModel

LORA_KEYS = tuple(f"model.lora.{name}" for name in Lora.model_fields if name != "enabled")


def _hf(c: Config) -> PretrainedModel | None:
    return c.model if isinstance(c.model, PretrainedModel) else None


def _whole(c: Config) -> PretrainedModel | None:
    """The model's settings if the model itself is trained."""
    model = _hf(c)
    return None if model is None or model.lora.enabled else model


WEIGHT_RULES = (
    Rule(
        lambda c: (m := _hf(c)) is not None and m.load_in_4bit and m.load_in_8bit,
        "model.load_in_4bit=true and model.load_in_8bit=true: choose one of them.",
    ),
    Rule(
        lambda c: (m := _whole(c)) is not None and m.load_in_4bit,
        "model.load_in_4bit=true: weights of 4 bits cannot be trained; set model.lora.enabled=true.",
    ),
    Rule(
        lambda c: (m := _whole(c)) is not None and m.load_in_8bit,
        "model.load_in_8bit=true: weights of 8 bits cannot be trained; set model.lora.enabled=true.",
    ),
    Rule(
        lambda c: (m := _whole(c)) is not None and m.dtype == "bfloat16",
        "model.dtype=bfloat16: most updates of bfloat16 weights would be rounded away; set model.lora.enabled=true, or "
        "model.dtype=float32 (trainer.precision=bf16 computes in bfloat16 then).",
    ),
    Rule(
        lambda c: (m := _hf(c)) is not None and m.dtype == "bfloat16" and c.trainer.precision == "fp32",
        "trainer.precision=fp32: model.dtype=bfloat16 computes in bfloat16; set one of them to the other.",
    ),
    Rule(
        lambda c: (
            (m := _hf(c)) is not None and m.attn_implementation == "flash_attention_2" and c.trainer.device == "cpu"
        ),
        "model.attn_implementation=flash_attention_2: needs a GPU, and trainer.device=cpu; choose sdpa or eager.",
    ),
    Rule(
        lambda c: (
            (m := _hf(c)) is not None
            and m.attn_implementation == "flash_attention_2"
            and c.trainer.precision == "fp32"
            and m.dtype == "float32"
        ),
        "trainer.precision=fp32: model.attn_implementation=flash_attention_2 computes in bfloat16; set "
        "trainer.precision=bf16, or choose sdpa or eager.",
    ),
    Rule(
        lambda c: _whole(c) is not None,
        "with model.lora.enabled=false; set it to true",
        idle=LORA_KEYS,
    ),
)
