"""The warm start of a pretrained model: on demonstrations of the data, and on the model's own right samples."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlvr.algorithms.objective import Objective
from rlvr.commands.train.body import train
from rlvr.config.compose import load_config
from rlvr.core.supervised import train_supervised
from rlvr.core.trainer import Trainer
from rlvr.core.world import World
from rlvr.records.jsonl import read_metrics
from rlvr.run import tuning
from rlvr.run.assemble import make_trainer
from rlvr.run.opened import OpenRun
from tests.ranks import Ranks
from tests.system.harness import (
    SCRATCH,
    SMALL,
    Cli,
    Command,
    check_equal,
    metrics,
    num_lines,
    numbers,
    once,
    outcome,
    pretrained,
    run_train,
    split,
)
from tests.system.small_qwen import save_small_qwen
from tests.variants import variants

TUNED = split("warm_start.enabled=true warm_start.learning_rate=3e-3 warm_start.batch_size=8 warm_start.num_epochs=2")
FEW = (*TUNED, "warm_start.num_examples=40")
ALONE = ("trainer.max_steps=0",)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("*model.safetensors")
    return load_file(file)


def words_for(folder: Path, *overrides: str, name: str = "rpn") -> list[str]:
    """`rlvr train` with every step on the console."""
    shown = ("tracker.console=plain", "tracker.log_every=1", f"run_dir={folder}")
    return ["train", "--config-name", name, *once(*overrides, *shown)]


def losses_of(err: str) -> list[float]:
    """`warm start 3/9  loss 1.234  eta 0:01`"""
    return [float(found) for found in re.findall(r"^warm start \d+/\d+  loss ([\d.]+)", err, re.MULTILINE)]


def refuses(cli: Cli, code: int, words: list[str], *parts: str) -> None:
    """One line on stderr, after none of the console."""
    kept = [word for word in words if not word.startswith("tracker.")]
    cli.refuses(code, [*kept, "tracker.console=none"], *parts)


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# -------------------------------------------------------------------------------------- supervised training alone


def test_no_steps_of_rl_is_supervised_training(model: Path, tmp_path: Path, cli: Cli) -> None:
    """Evaluated, saved and reported like any run; a resume of it is the same run."""
    folder = tmp_path / "run"
    done = cli.ok(*words_for(folder, *SMALL, *pretrained(model), *TUNED, *ALONE))
    assert "warm start: demonstrations, 2 epochs, learning rate 0.003" in done.err
    assert "training: none (trainer.max_steps=0)" in done.err
    losses = losses_of(done.err)
    assert losses[-1] < 0.7 * losses[0], losses
    (row,) = metrics(folder)
    assert f"rpn: held-out accuracy {row['eval/rpn/accuracy']:.3f}" in done.out
    assert "; trainer.max_steps=0: no reinforcement learning\n" in done.out
    assert same(folder / "final", folder / "warm_start")
    assert not same(folder / "final", model)
    assert {"report.html", "checkpoints"} <= {path.name for path in folder.iterdir()}
    before = outcome_of(folder)
    assert "warm start " not in cli.ok("train", f"run_dir={folder}", "resume=true").err
    assert outcome_of(folder) == before


def outcome_of(folder: Path) -> tuple[Any, bytes]:
    return numbers(folder), (folder / "final" / "model.safetensors").read_bytes()


def test_the_second_of_two_equal_ones_comes_from_the_cache(model: Path, tmp_path: Path, cli: Cli) -> None:
    words = (*SMALL, *pretrained(model), *FEW, *ALONE)
    few = cli.ok(*words_for(tmp_path / "few", *words, "warm_start.num_examples=8")).err
    assert re.search(r"warm start: [1-8] demonstrations\n", few)  # a question that comes again is not counted
    said = "warm start: from the cache, made by an earlier run"
    assert said not in cli.ok(*words_for(tmp_path / "a", *words)).err
    assert said in cli.ok(*words_for(tmp_path / "b", *words)).err
    assert same(tmp_path / "a" / "final", tmp_path / "b" / "final")
    others = ("warm_start.num_examples=41", "seed=1", "trainer.max_grad_norm=0.5", "warm_start.weight_decay=0.5")
    for n, more in enumerate(("warm_start.cache=false", *others)):
        assert said not in cli.ok(*words_for(tmp_path / str(n), *words, more)).err
    assert same(tmp_path / "a" / "final", tmp_path / "0" / "final")


def test_its_optimizer_is_its_own_and_its_loss_is_the_model_s(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At temperature 1, however the run samples; what is no setting of the warm start is the trainer's."""
    made = []

    def spy(run: OpenRun, policy: Any, objective: Objective, packing: Any) -> Trainer:
        made.append((run.config.trainer, objective.temperature))
        return make_trainer(run, policy, objective, packing)

    monkeypatch.setattr(tuning, "make_trainer", spy)
    own = ("warm_start.weight_decay=0.5", "warm_start.final_learning_rate_share=0.3", "warm_start.warmup_steps=0.5")
    of_run = ("rollout.temperature=0.7", "trainer.max_grad_norm=0.2", "trainer.schedule=constant")
    run_train(tmp_path / "run", *SMALL, *pretrained(model), *FEW, *own, *of_run, *ALONE)
    ((trainer, temperature),) = made
    assert temperature == 1
    assert (trainer.learning_rate, trainer.weight_decay, trainer.final_learning_rate_share) == (3e-3, 0.5, 0.3)
    assert (trainer.schedule, trainer.warmup_steps, trainer.max_steps) == ("linear", 4, 8)  # two epochs
    assert trainer.max_grad_norm == 0.2


# ------------------------------------------------------------------------------------------------- and then RL


LONG = (*SMALL, "trainer.max_steps=3", "trainer.checkpoint_every=1", "warm_start.cache=false", "algorithm.kl_coef=0.1")


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RL from a warm start, with the KL to it, never interrupted."""
    return run_train(tmp_path_factory.mktemp("whole") / "run", *LONG, *pretrained(model), *TUNED).folder


def test_rl_starts_from_it(whole: Path) -> None:
    rows = numbers(whole)
    assert rows[1]["policy/reference_kl"] == pytest.approx(0.0, abs=1e-6)  # the reference is the warm-started model
    assert rows[3]["policy/reference_kl"] > 0
    assert not same(whole / "warm_start", whole / "final")


def die_in_step_4() -> None:
    """Kills the process that it is called in, in the middle of its warm start."""

    def until(*args: Any) -> Iterator[float]:
        yield from islice(train_supervised(*args), 3)
        os.kill(os.getpid(), signal.SIGKILL)

    tuning.train_supervised = until


def killed_and_resumed(folder: Path, *words: str) -> None:
    command = Command(*words_for(folder, *words), log=folder.with_suffix(".log"), prepare=die_in_step_4)
    assert command.wait() == -signal.SIGKILL
    assert "\nwarm start: " in command.err
    assert not (folder / "warm_start").exists()
    assert len(read_metrics(folder / "warm_start.jsonl")) == 3
    run_train(folder, *words, "resume=true")


def check_same_run(folder: Path, whole: Path) -> None:
    check_equal(outcome(folder), outcome(whole))
    losses = read_metrics(folder / "warm_start.jsonl")
    assert [row["step"] for row in losses] == list(range(1, len(losses) + 1))
    assert losses == read_metrics(whole / "warm_start.jsonl")


def test_pitfall_37_kill_9_in_the_middle_of_it_loses_nothing(whole: Path, model: Path, tmp_path: Path) -> None:
    killed_and_resumed(tmp_path / "run", *LONG, *pretrained(model), *TUNED)
    check_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize("loss_on", variants(["completion", "all"]))
def test_pitfall_37_nor_in_that_of_a_model_made_from_scratch(loss_on: str, tmp_path: Path) -> None:
    words = (*LONG, *once(*SCRATCH, "warm_start.num_steps=12", "warm_start.optimizer=muon"))
    words += (f"warm_start.loss_on={loss_on}", "warm_start.final_phase_steps=4")
    alone = run_train(tmp_path / "alone", *once(*words)).folder
    killed_and_resumed(tmp_path / "run", *once(*words))
    check_same_run(tmp_path / "run", alone)


@pytest.mark.parametrize("lines", variants([2, 1]))
def test_pitfall_37_resumed_after_it(lines: int, whole: Path, model: Path, tmp_path: Path) -> None:
    """The reference of the KL is the warm-started model, and not the one it was made of."""
    words, folder = (*LONG, *pretrained(model), *TUNED), tmp_path / "run"
    run_train(folder, *words, stopped=lambda: num_lines(folder) >= lines)
    run_train(folder, *words, "resume=true")
    check_equal(outcome(folder), outcome(whole))


def test_a_step_after_it_is_replayed(whole: Path, cli: Cli, tmp_path: Path) -> None:
    assert "equal" in cli.ok("replay", whole, "--step", "1").out


def test_a_signal_during_it_ends_it(model: Path, tmp_path: Path) -> None:
    polls = iter(range(100))
    ran = run_train(tmp_path / "run", *SMALL, *pretrained(model), *TUNED, stopped=lambda: next(polls) >= 3)
    assert (ran.result.finished, ran.result.num_steps) == (False, 0)
    assert not (ran.folder / "warm_start").exists()


# ------------------------------------------------------------------------------------------------- own samples


def test_own_right_samples(model: Path, tmp_path: Path, cli: Cli) -> None:
    own = ("warm_start.source=own", "warm_start.samples=4", "warm_start.num_examples=30")
    words = (*SMALL, *pretrained(model), *TUNED, *own, *ALONE)
    said = cli.ok(*words_for(tmp_path / "a", *words)).err
    assert "different right ones, to " in said
    assert "in 120 samples of 30 questions" in said
    assert not same(tmp_path / "a" / "final", model)
    cli.ok(*words_for(tmp_path / "b", *words, "warm_start.cache=false"))
    assert same(tmp_path / "a" / "final", tmp_path / "b" / "final")
    said = cli.ok(*words_for(tmp_path / "c", *words, "warm_start.samples=1", "rollout.group_size=4")).err
    right, questions = re.search(r"(\d+) different right ones, to (\d+) questions, in 30 samples of 30", said).groups()
    assert right == questions


# --------------------------------------------------------------------------------------------- data, and bad input


SUMS = split("""
    task=jsonl reward=numeric prompt=boxed task.demonstration_field=shown rollout.prompts_per_step=2
    rollout.group_size=2 rollout.max_completion_tokens=16 evaluation.num_examples=2 trainer.checkpoint_every=null
""")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_qwen(tmp_path_factory.mktemp("small") / "qwen")


def sums(tmp_path: Path, shown: Any) -> str:
    """Questions with a field of demonstrations."""
    rows = [{"question": f"What is {a} plus 1?", "answer": a + 1, "shown": shown} for a in range(40)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"task.path={tmp_path / 'sums.jsonl'}"


MESSAGES = [{"role": "user", "content": "What is 1 plus 1?"}, {"role": "assistant", "content": "The answer is 2."}]


def on_sums(small: Path, tmp_path: Path, shown: Any, *more: str) -> list[str]:
    words = (*SUMS, *FEW, *ALONE, f"model.name_or_path={small}", sums(tmp_path, shown), *more)
    return words_for(tmp_path / "run", *words, name="gsm8k")


@pytest.mark.parametrize("shown", ["The answer is \\boxed{2}.", MESSAGES])
def test_a_field_of_texts_or_messages(shown: Any, small: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli.ok(*on_sums(small, tmp_path, shown))
    losses = losses_of(done.err)
    assert losses[-1] < 0.8 * losses[0]


def test_what_is_left_out_is_said_and_nothing_left_is_an_error(small: Path, tmp_path: Path, cli: Cli) -> None:
    none = on_sums(small, tmp_path, MESSAGES[:1])
    refuses(cli, 1, none, "jsonl has none to train on", "have no assistant turn", "warm_start.source=own")
    shutil.rmtree(tmp_path / "run")
    long = on_sums(small, tmp_path, "very " * 200)
    refuses(cli, 1, long, "have more than 256 tokens (first: jsonl/")


def test_a_task_without_demonstrations_is_refused_before_the_model_is_loaded(
    small: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlvr.run.opened.open_model", None)
    tools = ("prompt=musique_tags", "task.tools=[retrieve_documents,get_document]")  # how to answer is not known
    words = words_for(tmp_path / "run", *tools, *FEW, f"model.name_or_path={small}", name="musique")
    refuses(cli, 1, words, "task musique has none to train on", "warm_start.enabled=false")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (("warm_start.learning_rate=1e30",), ("not finite at step", "lower warm_start.learning_rate")),
        (("warm_start.warmup_steps=20",), ("warm_start.warmup_steps=20: is more than its 9 steps",)),
        (
            ("warm_start.source=own", "warm_start.samples=2"),
            ("warm_start.source=own: none of 70 samples of 35 questions is right", "warm_start.samples"),
        ),
    ],
)
def test_bad_input_is_one_sentence(
    more: tuple[str, ...], parts: tuple[str, ...], small: Path, tmp_path: Path, cli: Cli
) -> None:
    words = on_sums(small, tmp_path, "The answer is 2.", *more)
    refuses(cli, 2 if "warmup" in more[0] else 1, words, *parts)
    assert not (tmp_path / "run" / "warm_start").exists()


def test_a_run_that_fails_in_it_is_listed_as_failed_until_it_goes_on(small: Path, tmp_path: Path, cli: Cli) -> None:
    words = on_sums(small, tmp_path, "The answer is 2.")
    refuses(cli, 1, on_sums(small, tmp_path, "The answer is 2.", "warm_start.learning_rate=1e30"), "not finite at step")
    listed = json.loads(cli.ok("runs", tmp_path, "--json").out)
    assert listed["state"] == "failed"
    assert "not finite at step" in listed["error"]
    cli.ok(*words, "resume=true")
    assert json.loads(cli.ok("runs", tmp_path, "--json").out)["error"] is None


def test_a_quantized_model_learns_with_adapters(small: Path, tmp_path: Path) -> None:
    """And a resumed run has the warm-started adapter as its reference."""
    lora = split("model.lora.enabled=true model.lora.r=4 model.load_in_4bit=true algorithm.kl_coef=0.1")
    shown = sums(tmp_path, "The answer is \\boxed{2}.")
    words = (*SUMS, *FEW, *lora, f"model.name_or_path={small}", shown, "trainer.max_steps=2", "warm_start.cache=false")
    words += (
        "tracker.console=none",
        "tracker.rollouts_every=1",
        "trainer.learning_rate=0.01",
        "trainer.warmup_steps=0",
    )
    ran, parts = run_train(tmp_path / "run", *words, name="gsm8k"), tmp_path / "parts"
    adapter = load_file(ran.folder / "warm_start" / "adapter_model.safetensors")
    assert all(tensor.any() for name, tensor in adapter.items() if "lora_B" in name)
    assert ran.numbers[1]["policy/reference_kl"] == pytest.approx(0.0, abs=1e-6)
    run_train(parts, *words, name="gsm8k", stopped=lambda: num_lines(parts) > 1)
    run_train(parts, *words, "resume=true", name="gsm8k")
    assert numbers(parts) == ran.numbers
    assert same(parts / "final", ran.folder / "final")


# ----------------------------------------------------------------------------------------------------- several ranks


def tuned_by_ranks(world: World, words: tuple[str, ...]) -> None:
    train(load_config(list(words)))


@pytest.mark.parametrize("source", variants(["demonstrations", "own"]))
@pytest.mark.parametrize("strategy", variants(["fsdp2", "ddp"]))
def test_pitfall_09_two_ranks_learn_what_one_does(
    source: str, strategy: str, ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    own = ("warm_start.source=own", "warm_start.samples=2") if source == "own" else ()
    words = (*SMALL, *pretrained(model), *FEW, *own, "trainer.max_steps=1", "warm_start.cache=false")
    alone, folder = run_train(tmp_path / "alone", *words).folder, tmp_path / "run"
    ranks(2, None, tuned_by_ranks, (*once(*words), f"trainer.strategy={strategy}", f"run_dir={folder}"))
    for name, tensor in weights(alone / "warm_start").items():
        torch.testing.assert_close(weights(folder / "warm_start")[name], tensor, rtol=1e-4, atol=1e-5)
    ours, theirs = numbers(folder), numbers(alone)
    assert ours[0]["eval/rpn/accuracy"] == pytest.approx(theirs[0]["eval/rpn/accuracy"], abs=0.1)
    assert ours[1]["reward/mean"] == pytest.approx(theirs[1]["reward/mean"], abs=0.2)
