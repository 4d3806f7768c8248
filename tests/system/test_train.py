"""`rlvr train` end to end: what a run leaves behind, that it repeats, and that it learns."""

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlvr.core.supervised import train_supervised
from rlvr.records.rollouts import EpisodeRecord, read_rollouts
from rlvr.tracking.signals import undocumented
from tests.system.conftest import shared
from tests.system.harness import (
    ADAMW,
    SCRATCH,
    SMALL,
    TASK,
    Cli,
    Ran,
    check_equal,
    metrics,
    numbers,
    once,
    outcome,
    pretrained,
    python_rlvr,
    run_train,
    split,
)

ALGORITHMS = ["grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "gspo", "cispo", "ppo"]


def records(folder: Path, step: int = 1) -> list[EpisodeRecord]:
    return read_rollouts(folder / "rollouts" / f"step_{step:06d}.jsonl.gz")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def command_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from scratch by the real command, with checkpoints, as a user would start it."""
    return shared(tmp_path_factory, "command", train_by_command) / "run"


def train_by_command(folder: Path) -> None:
    overrides = [*SMALL, *SCRATCH, "trainer.max_steps=4", "trainer.checkpoint_every=2", "tracker.rollouts_every=2"]
    done = python_rlvr("train", *overrides, "evaluation.every=2", "tracker.console=plain", "run_dir=run", cwd=folder)
    assert done.code == 0, done.err
    assert done.out.startswith("rpn: held-out accuracy 0."), "results go to stdout, progress to stderr"
    assert "Warning" not in done.err
    assert "Traceback" not in done.err


def test_rpn_test_shows_learning_in_its_seconds(tmp_path: Path) -> None:
    """With its own seed: "it works here" is what the preset is for."""
    rewards = [row["reward/mean"] for row in metrics(run_train(tmp_path / "run", name="rpn_test").folder)[1:]]
    assert len(rewards) == 15
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1


def test_the_run_folder_holds_what_is_promised_and_nothing_else(command_run: Path) -> None:
    promised = {"config.yaml", "metrics.jsonl", "rollouts", "checkpoints", "warm_start", "final", "report.html"}
    promised |= {"starts.jsonl"}
    assert names_in(command_run) - {".lock", "warm_start.jsonl"} == promised  # the latter without the cache
    checkpoints = names_in(command_run / "checkpoints")
    assert max(checkpoints) == "step_000004"
    assert len(checkpoints) <= 3  # the newest two and the best
    assert names_in(command_run / "rollouts") == {f"step_{step:06d}.jsonl.gz" for step in (1, 2, 4)}
    for folder in ("final", "warm_start"):
        files = names_in(command_run / folder)
        assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= files
        assert {Path(name).suffix for name in files} <= {".json", ".safetensors"}


def test_metrics_start_with_an_evaluation(command_run: Path) -> None:
    rows = metrics(command_run)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    evaluated = [row["step"] for row in rows if "eval/rpn/accuracy" in row]
    assert evaluated == [0, 2, 4]
    assert not any(name.startswith(("loss/", "reward/")) for name in rows[0])
    for row in rows[1:]:
        assert any(name.startswith("loss/") for name in row)
        assert 0 <= row["reward/mean"] <= 1
    for row in rows:
        if "eval/rpn/accuracy" in row:
            assert row["eval/rpn/accuracy_low"] <= row["eval/rpn/accuracy"] <= row["eval/rpn/accuracy_high"]


def test_what_every_run_shows_is_there_and_documented(command_run: Path) -> None:
    assert undocumented(sorted({name for row in metrics(command_run) for name in row})) == []
    wanted = {
        *split("""
        reward/within_group_std rollout/zero_advantage_share rollout/truncated_share rollout/invalid_share
        rollout/entropy policy/clip_fraction policy/grad_norm policy/approx_kl
        time/tokens_per_s time/generation_share time/update_share
    """)
    }
    assert wanted - set(metrics(command_run)[-1]) == set()


def test_final_is_a_model_for_plain_transformers(command_run: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(command_run / "final")
    tokenizer = AutoTokenizer.from_pretrained(command_run / "final")
    inputs = tokenizer("<boe> 3 4 + =", return_tensors="pt")
    answer = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert tokenizer.decode(answer[0]).startswith("<boe> 3 4 + = ")
    trained, start = (load_file(command_run / name / "model.safetensors") for name in ("final", "warm_start"))
    assert all(not torch.equal(trained[name], start[name]) for name in trained)


def test_rollout_files_tell_what_was_sampled_and_trained_on(command_run: Path) -> None:
    first = records(command_run)
    assert len(first) == 16
    for record in first:
        (turn,), (row,) = record.turns, record.rows
        assert row.ids == turn.prompt_ids + turn.completion_ids
        assert row.loss_mask == [0] * len(turn.prompt_ids) + [1] * len(turn.completion_ids)
        assert record.policy_version == 0
    assert {record.policy_version for record in records(command_run, 4)} == {3}
    lines = gzip.decompress((command_run / "rollouts" / "step_000001.jsonl.gz").read_bytes()).decode().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)


def test_pitfall_36_a_run_repeats_and_another_seed_does_not(command_run: Path, tmp_path: Path, cli: Cli) -> None:
    words = ["train", "--config-dir", command_run, "--config-name", "config", "tracker.console=none"]
    cli.ok(*words, f"run_dir={tmp_path / 'again'}")
    check_equal(outcome(tmp_path / "again"), outcome(command_run))
    cli.ok(*words, f"run_dir={tmp_path / 'other'}", "seed=2")
    one, other = outcome(command_run), outcome(tmp_path / "other")
    assert one.final != other.final
    assert all(one.rollouts[name] != other.rollouts[name] for name in one.rollouts)
    again, first = (folder / "config.yaml" for folder in (tmp_path / "again", command_run))
    assert again.read_text().replace("console: none", "console: plain") == first.read_text()


# ------------------------------------------------------------------------------------------------------ determinism


def test_pitfall_36_the_run_seed_reaches_the_rollouts(model: Path, tmp_path: Path) -> None:
    prompts = []
    for seed in (1, 2):
        run = run_train(tmp_path / str(seed), *SMALL, *pretrained(model), f"seed={seed}")
        sampled = records(run.folder)
        prompts.append([record.turns[0].prompt for record in sampled])
        assert len({record.seed for record in sampled}) == len(sampled)
    assert prompts[0] != prompts[1]
    held_out = [numbers(tmp_path / seed)[0] for seed in ("1", "2")]
    assert held_out[0] == held_out[1]  # the fixed examples of the evaluation do not depend on the seed


def test_a_warm_start_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def run(name: str, *words: str) -> Ran:
        return run_train(tmp_path / name, *SMALL, *SCRATCH, "warm_start.num_steps=16", "trainer.max_steps=1", *words)

    def counted(*args: Any) -> Iterator[float]:
        made.append("warm start")
        return train_supervised(*args)

    monkeypatch.setattr("rlvr.run.tuning.train_supervised", counted)
    first, second = run("first"), run("second")
    assert len(made) == 1
    check_equal(outcome(first.folder), outcome(second.folder))
    run("ppo", *rows_of("ppo"), "algorithm=ppo")
    assert len(made) == 1  # another algorithm starts from the same weights
    without = run("without", "warm_start.cache=false")
    assert len(made) == 2
    check_equal(outcome(first.folder), outcome(without.folder))
    run("other", "seed=5")
    assert len(made) == 3


# ------------------------------------------------------------------------------------------------------ algorithms


def rows_of(algorithm: str) -> list[str]:
    return ["rollout.prompts_per_step=16", "rollout.group_size=1"] if algorithm == "ppo" else []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_with_finite_numbers(algorithm: str, model: Path, tmp_path: Path) -> None:
    overrides = [f"algorithm={algorithm}", "reward=rpn_boxed", *rows_of(algorithm)]
    run = run_train(tmp_path / "run", *SMALL, *pretrained(model), *overrides)
    rows = run.rows
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(value is not None and math.isfinite(value) for row in rows for value in row.values())
    assert undocumented(sorted({name for row in rows for name in row})) == []
    assert all(row["policy/grad_norm"] > 0 for row in rows[1:])
    assert ("loss/value" in rows[1]) == (algorithm == "ppo")
    assert run.result.finished


def test_pitfall_13_a_step_of_dead_groups_changes_no_weight(model: Path, tmp_path: Path) -> None:
    run = run_train(tmp_path / "run", *SMALL, *pretrained(model), "rollout.top_k=1")  # all of a group are equal
    start, end = (load_file(folder / "model.safetensors") for folder in (model, run.folder / "final"))
    assert all(torch.equal(start[name], end[name]) for name in start)
    for row in run.rows[1:]:
        assert row["rollout/zero_advantage_share"] == 1.0
        assert row["policy/trained_tokens"] == 0
        still = ("loss/policy", "loss/total", "policy/clip_fraction", "policy/approx_kl")
        assert [row[name] for name in still] == [0.0] * 4


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_pitfall_21_the_first_update_of_a_real_run_cancels(algorithm: str, model: Path, tmp_path: Path) -> None:
    overrides = [f"algorithm={algorithm}", "algorithm.num_epochs=1", "algorithm.num_minibatches=1", *rows_of(algorithm)]
    overrides += ["algorithm.kl_coef=0.1", "trainer.learning_rate=0.01", "rollout.temperature=1.3", "seed=3"]
    first, second = run_train(tmp_path / "run", *SMALL, *pretrained(model), *overrides).rows[1:]
    assert first["policy/ratio"] == 1.0
    assert first["policy/clip_fraction"] == 0.0
    assert first["policy/reference_kl"] == pytest.approx(0.0, abs=1e-8)
    assert first["policy/mismatch_kl"] == pytest.approx(0.0, abs=1e-8)
    assert second["policy/mismatch_kl"] == pytest.approx(0.0, abs=1e-8)  # the engine has the new weights
    assert second["policy/reference_kl"] > 1e-4


def test_pitfall_20_truncated_sampling_leaves_the_ratio_at_one(model: Path, tmp_path: Path) -> None:
    more = ["rollout.top_p=0.8", "algorithm.num_epochs=2", "algorithm.clip_high=0.3", "trainer.learning_rate=1e-6"]
    run = run_train(tmp_path / "run", *SMALL, *pretrained(model), *more, "rollout.prompts_per_step=16")
    turns = [turn for record in records(run.folder) for turn in record.turns]
    gains = [a - b for t in turns for a, b in zip(t.sampling_logprobs, t.behavior_logprobs, strict=True)]
    assert min(gains) > -1e-4  # what is left of the distribution gains what was cut off
    assert max(gains) <= -math.log(0.8) + 1e-4  # which is at most a share of 1 - 0.8
    assert sum(gain > 0.05 for gain in gains) > len(gains) / 4, "hardly anything was cut off: the test proves nothing"
    for row in run.rows[1:]:
        assert row["policy/ratio"] == pytest.approx(1.0, abs=1e-3)
        assert row["policy/mismatch_kl"] == pytest.approx(0.0, abs=1e-6)


# -------------------------------------------------------------------------------------------------------- learning

LEARN = (
    *TASK,
    *ADAMW,
    *split("""
        task.shape=chain model.intermediate_size=176
        warm_start.num_steps=400 warm_start.learning_rate=4e-3 warm_start.final_phase_steps=30
        warm_start.warmup_steps=20
        rollout.prompts_per_step=16 rollout.group_size=16
        trainer.max_steps=40 trainer.checkpoint_every=null trainer.warmup_steps=0 trainer.learning_rate=5e-4
        evaluation.every=40 evaluation.num_examples=200 tracker.console=none tracker.rollouts_every=null
    """),
)
"""Sums of three digits modulo 5, warm-started until a third of the held-out ones is right."""


@pytest.mark.long
def test_pitfall_18_a_short_run_learns_to_write_the_steps(tmp_path: Path) -> None:
    """With one of three seeds: a processor's rounding decides where a warm start ends, and five of seven learn."""

    def learns(seed: int) -> bool:
        rows = run_train(tmp_path / str(seed), *LEARN, f"seed={seed}").rows
        start, end, rewards = rows[0], rows[-1], [row["reward/mean"] for row in rows[1:]]
        return (
            end["eval/rpn/accuracy_low"] > start["eval/rpn/accuracy_high"]
            and end["eval/rpn/accuracy"] > start["eval/rpn/accuracy"] + 0.3
            and sum(rewards[-5:]) / 5 > sum(rewards[:3]) / 3 + 0.2
            and end["eval/rpn/completion_tokens_mean"] > start["eval/rpn/completion_tokens_mean"] + 0.5
        )

    assert any(map(learns, (1, 6, 4)))


# ------------------------------------------------------------------------------------------------ configurations


def test_multirun_trains_every_value(model: Path, tmp_path: Path, cli: Cli) -> None:
    sweep = tmp_path / "sweep"
    words = once("train", "--multirun", *SMALL, *pretrained(model), f"run_dir={sweep}", "seed=1,2")
    table = cli.ok(*words).out.splitlines()
    assert names_in(sweep) == {"seed-1", "seed-2"}
    assert all("done" in line for line in table[1:3])
    assert table[4].startswith("all runs: 2 runs, 0.")
    one, two = (outcome(sweep / name) for name in ("seed-1", "seed-2"))
    assert one.final != two.final
    alone = run_train(tmp_path / "alone", *SMALL, *pretrained(model), "seed=2")
    check_equal(two, outcome(alone.folder))  # a run of a sweep is the run by itself
    again = cli.ok(*words)  # the same sweep: nothing is left to do
    assert again.out.count("done before") == 2
    assert again.out.splitlines()[4] == table[4]
    other = cli(*once(*words, "trainer.learning_rate=1e-4"))  # another: the folders are taken
    assert other.code == 1
    assert "failed: run_dir=" in other.out
    assert "2 runs" not in other.out  # numbers of earlier runs are no result
