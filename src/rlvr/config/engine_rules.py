"""Rules of engines that are not in this process; `rules.py` includes the table."""

from rlvr.config.rule import Rule
from rlvr.config.schema import Config, PretrainedModel, VllmEngine

LEAST_TEMPERATURE = 0.01
"""vLLM 0.32: `vllm.sampling_params._MAX_TEMP`."""


def _vllm(c: Config) -> VllmEngine | None:
    return c.engine if isinstance(c.engine, VllmEngine) else None


def _hf(c: Config) -> PretrainedModel | None:
    return c.model if isinstance(c.model, PretrainedModel) else None


ENGINE_RULES = (
    Rule(
        lambda c: (
            (e := _vllm(c)) is not None and len({url.rstrip("/").removesuffix("/v1") for url in e.urls}) < len(e.urls)
        ),
        "engine.urls: names a server twice; name each once.",
    ),
    Rule(
        lambda c: _vllm(c) is not None and c.rollout.temperature < LEAST_TEMPERATURE,
        f"rollout.temperature={{c.rollout.temperature}}: vLLM samples at {LEAST_TEMPERATURE} where less is asked for, "
        f"and the trainer would score at another one; choose at least {LEAST_TEMPERATURE}.",
    ),
    *(
        Rule(
            lambda c, key=key: _vllm(c) is not None and (m := _hf(c)) is not None and getattr(m, key),
            f"model.{key}=true: engine=vllm would sample from the model as it was saved, which is not the quantized "
            "one that is trained; choose engine=local, or model.dtype=bfloat16.",
        )
        for key in ("load_in_4bit", "load_in_8bit")
    ),
    Rule(
        lambda c: (
            (e := _vllm(c)) is not None and e.sync == "adapter" and not ((m := _hf(c)) is not None and m.lora.enabled)
        ),
        "engine.sync=adapter: there is no adapter to push; choose engine.sync=folder, or set model.lora.enabled=true.",
    ),
    Rule(
        lambda c: (e := _vllm(c)) is not None and e.sync == "broadcast" and e.weights_dir is not None,
        "engine.weights_dir: has no effect with engine.sync=broadcast, which writes no files; leave it out.",
    ),
    Rule(
        lambda c: (e := _vllm(c)) is not None and e.sync != "broadcast" and e.broadcast_host is not None,
        "engine.broadcast_host: has no effect without engine.sync=broadcast; set that, or leave it out.",
    ),
)
