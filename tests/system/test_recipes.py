"""The recipes for a real pretrained model, `rlvr train --config-name tools` and others, here with little training."""

import json
from pathlib import Path

import pytest

from tests.system.harness import metrics, run_train, split

SMALL = split("""
    model=scratch_bpe model.hidden_size=32 model.num_layers=1 model.num_heads=2 model.intermediate_size=48
    model.vocabulary_size=400 model.max_context_tokens=1500 warm_start.num_steps=2 warm_start.batch_size=2
    warm_start.final_phase_steps=0 warm_start.warmup_steps=1
""")
FEW = split("""
    rollout.prompts_per_step=2 rollout.group_size=2 rollout.max_completion_tokens=4 trainer.max_steps=1
    trainer.num_threads=1 evaluation.num_examples=2 tracker.console=none
""")
RECIPES = {"dates": "dates", "read_made": "musique", "tools": "musique"}  # with their tasks


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_without_data_and_without_real_weights(name: str, tmp_path: Path) -> None:
    rows = metrics(run_train(tmp_path / "run", *SMALL, *FEW, name=name).folder)
    assert [f"eval/{RECIPES[name]}/accuracy" in row for row in rows] == [True, True]


@pytest.mark.real
@pytest.mark.parametrize("name", ["dates", "read_made"])  # `tools` takes minutes: prompts of 420 tokens, several turns
def test_a_recipe_makes_a_step_with_real_weights(name: str, smollm2: Path, tmp_path: Path) -> None:
    """By its path alone: `model=hf` would choose a section without the recipe's adapters."""
    ran = run_train(tmp_path / "run", *FEW, f"model.name_or_path={smollm2}", name=name)
    first, *_, last = [json.loads(line)["loss"] for line in (ran.folder / "warm_start.jsonl").read_text().splitlines()]
    assert ran.result.finished
    assert last < first
    assert (ran.folder / "final" / "adapter_model.safetensors").is_file()
