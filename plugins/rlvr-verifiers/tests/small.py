"""Small models and short runs."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlvr.config.compose import load_config
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_tokenizer
from tests.system.harness import split
from tests.system.qwen import show

WORDS = ("<pad>", "<boe>", "<eoe>", "<call>", "</call>", "peek", "ask", "1", "yes", "no")

RUN = split("""
    task=verifiers task.env_id=rlvr-test-environments
    rollout.prompts_per_step=8 rollout.group_size=8 rollout.max_completion_tokens=12
    trainer.max_steps=8 trainer.learning_rate=0.02 trainer.warmup_steps=0 trainer.checkpoint_every=null
    evaluation.every=8 evaluation.num_examples=8 evaluation.samples_per_example=1
    tracker.console=none tracker.rollouts_every=1
""")
TINY = split("""
    model=scratch_bpe model.vocabulary_size=300 model.hidden_size=32 model.num_layers=1 model.num_heads=2
    warm_start.enabled=false
""")


class Demonstrator:
    """Half of the time the model looks before it answers."""

    stop_words = ()

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        return ("ask", "<call> peek ask </call>", "1", "yes") if index % 2 else ("ask", "no")


def model_of_ten_words(folder: Path) -> Path:
    tokenizer = build_tokenizer(WORDS)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=64, **size, **ids)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = HubPolicy(model=LlamaForCausalLM(config).eval(), tokenizer=tokenizer)
    show(policy, Demonstrator(), load_config(["warm_start.num_steps=40", "warm_start.final_phase_steps=0"]), 4096)
    policy.save(folder)
    return folder
