"""Adapters in real runs on a small checkpoint of Qwen2's architecture: what moves, what is saved, what goes on."""

import json
import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlvr.config import Config
from rlvr.models.policy import HubPolicy
from rlvr.run.inference import open_inference
from rlvr.run.sources import inference_config
from rlvr.run.tasks import Tasks
from tests.system.harness import Cli, check_equal, num_lines, numbers, outcome, rlvr, run_train, split
from tests.system.small_qwen import save_questions, save_small_qwen
from tests.unit.models.checkpoints import frozen_bytes
from tests.variants import variants

KINDS: dict[str, tuple[str, ...]] = {
    "bfloat16": ("trainer.learning_rate=0.001",),  # the default dtype
    "4bit": ("model.load_in_4bit=true", "model.dtype=float32", "algorithm.kl_coef=0.05"),
    "8bit_bfloat16": ("model.load_in_8bit=true", "model.dtype=bfloat16"),
    "recomputed": ("model.dtype=float32", "model.gradient_checkpointing=true", "algorithm.num_epochs=2"),
}
SHORT = split("""
    task=jsonl reward=numeric prompt=boxed
    +reward.parts.words={type:repetition,weight:1,ngram_size:1}
    model.lora.enabled=true model.lora.r=4
    trainer.max_steps=4 trainer.learning_rate=0.01 trainer.warmup_steps=0 trainer.checkpoint_every=null
    rollout.prompts_per_step=4 rollout.group_size=6 rollout.max_completion_tokens=48
    evaluation.num_examples=4 evaluation.every=100 tracker.console=none
""")
"""A random model is never right, but repeats itself."""


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("small")
    model, questions = save_small_qwen(folder / "qwen"), save_questions(folder / "sums.jsonl")
    return (*SHORT, f"model.name_or_path={model}", f"task.path={questions}")


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[HubPolicy, dict[str, bytes]]]:
    """The policies that runs load, each with the bytes of its frozen weights before the first step."""
    loaded: list[tuple[HubPolicy, dict[str, bytes]]] = []
    module = import_module("rlvr.run.opened")
    real = module.open_model

    def load(config: Config, tasks: Tasks) -> HubPolicy:
        policy = real(config, tasks)
        loaded.append((policy, frozen_bytes(policy)))
        return policy

    monkeypatch.setattr(module, "open_model", load)
    return loaded


@pytest.mark.parametrize("kind", variants(KINDS))
def test_pitfall_32_only_adapters_move_and_resume_is_exact(
    kind: str, overrides: tuple[str, ...], policies: list[tuple[HubPolicy, dict[str, bytes]]], tmp_path: Path
) -> None:
    more = ("model.lora.merge_final=true", "tracker.rollouts_every=1", "trainer.max_steps=2")
    words = (*overrides, *KINDS[kind], *more)
    folder, parts = run_train(tmp_path / "run", *words, name="gsm8k").folder, tmp_path / "parts"
    [(policy, before)] = policies
    assert frozen_bytes(policy) == before  # bit for bit, after sampling, training, saving and merging
    assert {name.partition(".lora_")[1] for name, p in policy.model.named_parameters() if p.requires_grad} == {".lora_"}
    assert all(p.any() for name, p in policy.model.named_parameters() if "lora_B" in name)
    steps = numbers(folder)[1:]
    assert [row["policy/changed_weight_share"] > 0.4 for row in steps] == [True] * 2
    mismatch = 1e-2 if "bfloat16" in kind else 1e-6  # the engine has the adapters of each step
    measured = [row["policy/mismatch_kl"] for row in steps if row["rollout/zero_advantage_share"] < 1]
    assert measured
    assert max(measured) < mismatch
    written = {path.name for path in (folder / "checkpoints/step_000002").rglob("*.safetensors")}
    assert written == {"adapter_model.safetensors", "tensors.safetensors"}  # nothing of the base
    merged = AutoModelForCausalLM.from_pretrained(folder / "final")
    assert {p.dtype for p in merged.parameters()} == {torch.float32}
    first = run_train(parts, *words, name="gsm8k", stopped=lambda: num_lines(parts) > 1)
    assert first.result.num_steps == 1
    run_train(parts, *words, "resume=true", name="gsm8k")
    check_equal(outcome(parts), outcome(folder))


@pytest.mark.long
def test_a_run_with_adapters_can_be_measured_everywhere(overrides: tuple[str, ...], tmp_path: Path) -> None:
    words = (*overrides, "model.load_in_4bit=true", "trainer.checkpoint_every=2")
    folder = run_train(tmp_path / "run", *words, name="gsm8k").folder
    names = {path.name for path in (folder / "checkpoints/step_000004/model").iterdir()}
    assert "adapter_model.safetensors" in names
    assert "model.safetensors" not in names
    ids = torch.tensor([[5, 9, 30, 7]])
    logits = []
    for place in (".", "final", "checkpoints/step_000004"):
        name = str(folder / place)
        with open_inference(name, inference_config(name, [])) as inference, torch.no_grad():
            logits.append(inference.loaded.model.model(ids).logits)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@pytest.mark.long
def test_the_command_says_what_is_trainable(overrides: tuple[str, ...], tmp_path: Path) -> None:
    words = (*overrides, "model.load_in_4bit=true", "tracker.console=plain", "run_dir=run")
    trained = rlvr("train", "--config-name", "gsm8k", *words, cwd=tmp_path)
    assert trained.code == 0, trained.err
    assert "trainable: 4,096 of " in trained.err + trained.out
    assert "LoRA r=4 alpha=32 on q_proj, k_proj" in trained.err + trained.out
    done = rlvr("eval", "run", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert json.loads(done.out)["eval/jsonl/num_examples"] == 4


def test_a_layer_that_is_not_there_is_one_sentence(overrides: tuple[str, ...], tmp_path: Path, cli: Cli) -> None:
    words = (*overrides, "model.lora.target_modules=[c_attn]", f"run_dir={tmp_path / 'run'}")
    sentence = "model.lora.target_modules: 'c_attn' is no linear layer of Qwen2ForCausalLM"
    cli.refuses(2, ["train", "--config-name", "gsm8k", *words], sentence)
    assert not (tmp_path / "run").exists()


def test_a_base_that_is_gone_is_named_with_its_adapter(overrides: tuple[str, ...], tmp_path: Path, cli: Cli) -> None:
    base, run = tmp_path / "base", tmp_path / "run"
    given = next(line for line in overrides if line.startswith("model.name_or_path="))
    shutil.copytree(given.partition("=")[2], base)
    short = ("trainer.max_steps=1", "evaluation.every=null", f"model.name_or_path={base}")
    run_train(run, *[line for line in overrides if line != given and "evaluation" not in line], *short, name="gsm8k")
    shutil.rmtree(base)
    said = f"the adapter {run / 'final'} was trained on {base}, which is gone: put it back, or name its new place as"
    cli.refuses(1, ["eval", run], said)
    cli.refuses(1, ["eval", run / "final", "--task", "rpn"], said)
