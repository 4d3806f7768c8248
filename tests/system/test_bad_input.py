"""Bad input: one sentence that names the thing, its value and the remedy; nothing lost, no traceback."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.system.harness import SMALL, TASK, Cli, metrics, num_lines, once, outcome, pretrained, python_rlvr, rlvr
from tests.system.harness import run_train as run

SET_TASK = [word for setting in TASK for word in ("--set", setting)]


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder; reading does not change them, locking neither."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"}


def train(start: Path, folder: Path | str, *more: str) -> list[str]:
    """The words of a training from that model into that folder."""
    return once("train", *SMALL, *pretrained(start), f"run_dir={folder}", *more)


# -------------------------------------------------------------------------------------------------------- settings

SETTINGS = {
    "unknown key": ("trainer.learnin_rate=1", ["trainer.learnin_rate=1", "did you mean trainer.learning_rate"]),
    "out of range": ("rollout.top_p=1.5", ["rollout.top_p=1.5", "less than or equal to 1"]),
    "operand too large": ("task.operand_range=[0,9]", ["task.operand_range=[0,9]", "task.modulus=7", "narrow"]),
    "key of another algorithm": ("algorithm.gae_lambda=0.9", ["algorithm.gae_lambda=0.9", "algorithm=ppo"]),
    "context too small": ("model.max_context_tokens=20", ["model.max_context_tokens=20", "raise it"]),
    "heads": ("model.num_heads=5", ["model.num_heads=5", "model.hidden_size=64", "multiple"]),
    "idle setting": ("algorithm.clip_low=0.1", ["algorithm.clip_low=0.1", "no effect", "num_minibatches > 1"]),
    "bad minibatches": ("algorithm.num_minibatches=3", ["algorithm.num_minibatches=3", "divisor"]),
    "resume of nothing": ("resume=true", ["resume=true", "run_dir=FOLDER"]),
    "resume where no run is": ("run_dir=absent resume=true", ["no run to resume", "remove resume=true"]),
    "part without type": ("reward.parts.mine.weight=2", ["reward.parts.mine.type", "must be one of", "say "]),
    "two at once": ("trainer.max_step=1 rollout.top_p=2", ["2 settings", "trainer.max_steps?", "rollout.top_p=2"]),
    "key given twice": ("seed=1 seed=2", ["seed=2: seed was given before (seed=1)"]),
    "unknown preset": ("--config-name rnp", ["rnp", "did you mean rpn"]),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_wrong_setting_is_refused_before_anything_is_written(case: str, tmp_path: Path, cli: Cli) -> None:
    words, parts = SETTINGS[case]
    folder = [] if "resume" in case else [f"run_dir={tmp_path / 'run'}"]
    cli.refuses(2, ["train", *folder, *words.split()], *parts)
    assert list(tmp_path.iterdir()) == []


def test_the_command_itself_prints_one_line(tmp_path: Path) -> None:
    done = python_rlvr("train", "trainer.learnin_rate=1", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    sentence = "trainer.learnin_rate=1: there is no key trainer.learnin_rate; did you mean trainer.learning_rate?"
    assert done.err == f"rlvr: error: {sentence}\n"


# ------------------------------------------------------------------------------------------------------ run folders


def test_a_run_folder_is_never_overwritten(trained: Path, model: Path, cli: Cli) -> None:
    before = contents(trained)
    cli.refuses(2, train(model, trained), f"run_dir={trained}", "resume=true", "another run_dir")
    assert contents(trained) == before


def test_a_folder_with_other_files_is_left_alone(model: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    cli.refuses(2, train(model, tmp_path), f"run_dir={tmp_path}", "not empty", "another run_dir")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_written_is_named(model: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "file").write_text("precious")
    below = tmp_path / "file" / "run"
    cli.refuses(2, train(model, below), f"{tmp_path / 'file'} is a file", "choose another run_dir")
    assert (tmp_path / "file").read_text() == "precious"
    cli.refuses(1, train(model, "/proc/run"), "Cannot write /proc/run")


# ------------------------------------------------------------------------------------------------------ checkpoints


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


DAMAGES = [("model/model.safetensors", flip), ("manifest.json", cut), ("state.json", Path.unlink)]


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(trained: Path, tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "run"
    newest = folder / "checkpoints" / "step_000002"
    words = ["train", f"run_dir={folder}", "resume=true"]
    for name, damage in DAMAGES:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(trained, folder)
        shutil.rmtree(folder / "final")
        damage(newest / name)
        before = contents(folder)
        err = cli.refuses(1, words, str(newest), "the run goes on from an earlier one")
        assert name in err or (name == "manifest.json" and "damaged" in err)
        assert contents(folder) == before
    cli.refuses(1, ["eval", newest], str(newest), "damaged")
    shutil.rmtree(newest)
    cli.ok(*words)
    assert outcome(folder) == outcome(trained)


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with checkpoints after each of its two steps."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    return run(folder, *SMALL, *pretrained(model), "trainer.checkpoint_every=1", "trainer.keep_last=3").folder


def test_a_half_written_checkpoint_is_none(trained: Path, tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    shutil.rmtree(folder / "final")
    (folder / "checkpoints" / "step_000002").rename(folder / "checkpoints" / ".step_000002.tmp-99999")
    (folder / "checkpoints" / ".step_000002.tmp-99999" / "manifest.json").unlink()
    cli.ok("train", f"run_dir={folder}", "resume=true")
    assert outcome(folder) == outcome(trained)
    assert not list((folder / "checkpoints").glob(".*"))


# ----------------------------------------------------------------------------------------------------------- models


def without_tokenizer(folder: Path, model: Path) -> None:
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("tokenizer*"))


def cut_weights(folder: Path, model: Path) -> None:
    shutil.copytree(model, folder)
    cut(folder / "model.safetensors")


def nothing(folder: Path, model: Path) -> None:
    folder.mkdir()


MODELS: dict[str, tuple[Callable[[Path, Path], object], list[str]]] = {
    "no tokenizer": (without_tokenizer, ["no tokenizer", "copy that of the base model"]),
    "no model": (nothing, ["no config.json", "Hub format"]),
    "damaged weights": (cut_weights, ["cannot be loaded"]),
    "nowhere": (lambda folder, model: None, ["there is no folder", "name a model folder or a Hub id"]),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_model_that_cannot_be_loaded_is_named(case: str, model: Path, tmp_path: Path, cli: Cli) -> None:
    prepare, parts = MODELS[case]
    prepare(tmp_path / "model", model)
    cli.refuses(1, train(tmp_path / "model", tmp_path / "run"), str(tmp_path / "model"), *parts)


def test_a_model_without_the_words_of_the_task(model: Path, tmp_path: Path, cli: Cli) -> None:
    words = train(model, tmp_path / "run", "task.modulus=7", "task.operand_range=[0,6]")
    cli.refuses(1, words, str(model), "<boe> ", "use a model made for it")


PROMPTS = {
    "3 + 4": ["3 + 4", "reverse Polish"],
    "": ["reverse Polish"],
    "1 two +": ["two"],
    "1 9 +": ["9"],
    "1 " * 40 + "+ " * 39: ["tokens"],
    "<eoe>": ["<eoe>"],
}


def test_predict_refuses_what_is_no_expression_of_the_task(trained: Path, cli: Cli) -> None:
    for prompt, parts in PROMPTS.items():
        cli.refuses(2, ["predict", trained, "--prompt", prompt], *parts)


# ------------------------------------------------------------------------------------------------------ NaN in a run


def test_a_model_whose_weights_hold_nan(model: Path, tmp_path: Path, cli: Cli) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    parts = ("logits are not finite", "use another model")
    cli.refuses(1, train(broken, tmp_path / "run"), "weights hold NaN", *parts)
    cli.refuses(1, ["eval", broken, "--task", "rpn", *SET_TASK], *parts)


def test_a_non_finite_loss_stops_the_run_and_keeps_the_batch(model: Path, tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "run"
    more = ["trainer.learning_rate=1e30", "trainer.max_steps=5", "trainer.checkpoint_every=1", "reward=rpn_boxed"]
    words = train(model, folder, *more, "rollout.temperature=1.5")
    err = cli.refuses(1, words, "is not finite", "start another run", "trainer.learning_rate", "rows")
    (kept,) = (folder / "non_finite").iterdir()
    assert str(kept) in err
    step = int(kept.stem.removeprefix("step_"))
    assert f"step {step} " in err
    batch = load_file(kept)
    assert batch["ids"].shape == batch["loss_mask"].shape == batch["advantages"].shape
    assert num_lines(folder) == step  # lines 0 .. step - 1 are there
    assert f"step_{step - 1:06d}" in {path.name for path in (folder / "checkpoints").iterdir()}
    assert not (folder / "final").exists()
    # the printed remedy works: another run, from the first checkpoint's weights
    start = folder / "checkpoints" / "step_000000" / "model"
    if start.is_dir():
        cli.ok(*train(start, tmp_path / "again", "trainer.max_steps=1"))


OWN_ALGORITHM = """
import os
from dataclasses import replace
from rlvr.algorithms.grpo import Grpo

class Wrong(Grpo):
    calls: list = []

    def advantages(self, batch, penalties, mask):
        self.calls.append(1)  # the first step is right
        return None if self.wrong("advantages") else super().advantages(batch, penalties, mask)

    def surrogate(self, log_ratio, logprobs, advantages, mask):
        found = super().surrogate(log_ratio, logprobs, advantages, mask)
        return replace(found, loss=found.loss.sum()) if self.wrong("surrogate") else found

    def wrong(self, method):
        return os.environ.get("WRONG") == method and len(self.calls) > 1
"""


WRONG_RESULTS = {"advantages": "an Estimate with finite advantages [B, T] = [", "surrogate": "loss of shape []"}


@pytest.mark.parametrize("method", WRONG_RESULTS)
def test_an_own_algorithm_with_wrong_results_stops_the_run(
    method: str, model: Path, here: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    Path(f"wrong_{method}.py").write_text(OWN_ALGORITHM)
    monkeypatch.setenv("WRONG", method)
    name = f"algorithm=wrong_{method}:Wrong"
    words = train(model, "run", name, "trainer.checkpoint_every=1", "trainer.max_steps=3")
    cli.refuses(1, words, f"{name}: its method {method} ", WRONG_RESULTS[method])
    assert num_lines(Path("run")) == 2  # lines 0 and 1 are there
    assert (Path("run") / "checkpoints" / "step_000001").is_dir()
    monkeypatch.delenv("WRONG")  # as the sentence says: corrected, it goes on
    cli.ok("train", "run_dir=run", "resume=true")
    assert num_lines(Path("run")) == 4


def test_an_unwritable_output_is_refused_before_the_work(model: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "file").write_text("")
    words = ["eval", model, "--task", "rpn", *SET_TASK, "--output"]
    cli.refuses(1, [*words, tmp_path / "file" / "out.jsonl"], "Cannot write", "file")
    cli.refuses(1, [*words, tmp_path], "Cannot write")


def test_a_warm_start_that_diverges_says_so(tmp_path: Path, cli: Cli) -> None:
    more = ["warm_start.num_steps=20", "warm_start.final_phase_steps=1", "warm_start.learning_rate=1e30"]
    words = ["train", *SMALL, "model.hidden_size=32", *more, f"run_dir={tmp_path / 'run'}"]
    cli.refuses(1, words, "warm start", "not finite", "warm_start.learning_rate")
    assert not (tmp_path / "run" / "warm_start").exists()


# --------------------------------------------------------------------------------------------------------- no space


def test_a_full_disk_leaves_the_last_checkpoint_whole(trained: Path, model: Path, tmp_path: Path, cli: Cli) -> None:
    """A limit on the size of files stands for the disk: the optimizer's state no longer fits."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    before = contents(folder / "checkpoints")
    words = ["train", "resume=true", "trainer.max_steps=4"]
    done = rlvr(*words, "run_dir=run", cwd=tmp_path, max_file_bytes=100_000)
    assert (done.code, done.err.count("\n")) == (1, 1), done.err
    assert done.err.startswith("rlvr: error: Cannot write run/checkpoints/step_000003")
    assert "raise it" in done.err
    assert contents(folder / "checkpoints") == before
    cli.ok(*words, f"run_dir={folder}")
    assert [row["step"] for row in metrics(folder)] == [0, 1, 2, 3, 4]
    more = ["trainer.checkpoint_every=1", "trainer.keep_last=3", "trainer.max_steps=4", "evaluation.every=2"]
    whole = run(tmp_path / "whole", *SMALL, *pretrained(model), *more).folder
    assert outcome(folder).final == outcome(whole).final


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_file_system_leaves_the_last_checkpoint_whole(model: Path, tmp_path: Path, cli: Cli) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=1400k tmpfs {disk} 2>/dev/null"):
        pytest.skip("mounting is not permitted here")
    try:
        more = ["trainer.checkpoint_every=1", "trainer.max_steps=50", "trainer.keep_last=50"]
        cli.refuses(1, train(model, disk / "run", *more), "Cannot write", "disk is full", "free some space")
        steps = sorted(path.name for path in (disk / "run" / "checkpoints").iterdir())
        assert steps
        assert all(name.startswith("step_") for name in steps)
        os.system(f"mount -o remount,size=100m {disk}")
        cli.ok("train", f"run_dir={disk / 'run'}", "resume=true", f"trainer.max_steps={len(steps) + 1}")
    finally:
        os.system(f"umount {disk}")


def test_a_reward_that_overflows_blames_neither_algorithm_nor_learning_rate(
    model: Path, tmp_path: Path, cli: Cli
) -> None:
    """And the corrected command goes on in its folder."""
    words = train(model, tmp_path / "run")
    said = cli.refuses(
        1, [*words, "reward.parts.correct.weight=1e30"], "reward.parts.correct gave 1, and its weight is"
    )
    assert "learning_rate" not in said
    cli.ok(*words, "resume=true")
    assert len(metrics(tmp_path / "run")) == 3
