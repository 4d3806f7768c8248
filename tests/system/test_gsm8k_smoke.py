"""`rlvr train --config-name gsm8k_smoke`: a BPE model from scratch learns the marker format by RL alone."""

import os
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlvr.config.compose import load_config
from tests.system.harness import DATA, check_equal, metrics, num_lines, outcome, rlvr, run_train, split

RATE = "eval/gsm8k/sampled_part_format"
FEW = (
    f"task.path={DATA / 'gsm8k'}",
    *split("""
        model.hidden_size=48 model.num_layers=2 model.num_heads=2 model.intermediate_size=64
        model.vocabulary_size=400 model.max_context_tokens=144 task.max_prompt_tokens=96
        warm_start.num_steps=120 warm_start.batch_size=8 warm_start.learning_rate=1e-2 warm_start.warmup_steps=5
        warm_start.worked_share=0.6 rollout.prompts_per_step=4 rollout.group_size=4
        trainer.max_steps=4 trainer.checkpoint_every=2 trainer.num_threads=1
        evaluation.every=2 tracker.console=none tracker.rollouts_every=1
    """),
)
"""The recipe on a handful of rows, with 80k weights, which soon know them by heart: three seconds."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_train(tmp_path_factory.mktemp("whole") / "run", *FEW, name="gsm8k_smoke").folder


def test_a_run_reports_the_held_out_format_rate(whole: Path) -> None:
    rows = metrics(whole)
    assert [row["step"] for row in rows if RATE in row] == [0, 2, 4]
    for row in rows[1:]:
        assert row["reward/mean"] == row["reward/format"]  # nothing else is paid for
        assert 0.0 <= row["reward/correct"] <= 1.0
    for row in rows[::2]:
        assert 0.0 <= row[f"{RATE}_low"] <= row[RATE] <= row[f"{RATE}_high"] <= 1.0
    assert all(0 < row["reward/mean"] < 1 for row in rows[1:]), "a gradient in each step"


def test_the_model_and_its_tokenizer_are_ordinary_ones(whole: Path) -> None:
    for folder in (whole / "warm_start", whole / "final"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.vocab_size == len(tokenizer) <= 400
        text = "How many?\n<start_working_out>2*3 = 6<end_working_out><SOLUTION>6</SOLUTION><eos>"
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert set(range(len(tokenizer) - 4, len(tokenizer))) < set(ids)
        assert ids[-1] == tokenizer.eos_token_id == model.generation_config.eos_token_id


@pytest.mark.usefixtures("warm_starts")
def test_pitfall_37_stop_and_resume_equals_the_uninterrupted_run(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    first = run_train(folder, *FEW, name="gsm8k_smoke", stopped=lambda: num_lines(folder) > 3)
    assert (first.result.finished, first.result.num_steps) == (False, 3)
    assert run_train(folder, *FEW, "resume=true", name="gsm8k_smoke").result.finished
    check_equal(outcome(folder), outcome(whole))


def test_the_command_repeats_the_run_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    """In a process of its own: neither hashes nor threads move the tokenizer, the weights or the samples."""
    done = rlvr("train", "--config-name", "gsm8k_smoke", *FEW, "run_dir=run", cwd=tmp_path)
    assert done.code == 0, done.err
    check_equal(outcome(tmp_path / "run"), outcome(whole))
    tokenizers = [folder / "warm_start" / "tokenizer.json" for folder in (whole, tmp_path / "run")]
    assert tokenizers[0].read_bytes() == tokenizers[1].read_bytes()


@pytest.mark.long
def test_on_the_real_prompts_the_format_is_learnt(tmp_path: Path) -> None:
    """The recipe as it is, up to the first evaluation that has arrived: one to two minutes."""
    if "RLVR_DATA" not in os.environ:
        pytest.skip("RLVR_DATA is not set: there are no real prompts to learn on")
    config = load_config([], config_name="gsm8k_smoke")
    assert (config.rollout.temperature, config.evaluation.num_examples) == (1.0, 64)
    folder = tmp_path / "run"

    def rates() -> list[float]:
        return [row[RATE] for row in metrics(folder) if RATE in row] if num_lines(folder) else []

    run_train(folder, "tracker.console=none", name="gsm8k_smoke", stopped=lambda: max(rates(), default=0.0) >= 0.9)
    assert rates()[0] <= 0.2
    assert rates()[-1] >= 0.9
    assert metrics(folder)[-1]["step"] <= config.trainer.max_steps
