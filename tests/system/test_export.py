"""Runs as folders for others: loaded without rlvr, with the numbers of the step that is exported."""

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlvr.records.rollouts import read_rollouts
from tests.system.harness import SMALL, Cli, Command, metrics, numbers, pretrained, run_train

IDS = torch.tensor([[5, 9, 30, 7]])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder that is exported to."""
    return tmp_path / "out"


@pytest.fixture
def stopped(first_run: Path, tmp_path: Path) -> Path:
    """A copy of the run, which a test may damage."""
    return Path(shutil.copytree(first_run, tmp_path / "run"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def snippet(folder: Path) -> str:
    found = re.search(r"```python\n(.*?)\n```", (folder / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def card_data(folder: Path) -> Any:
    """The metadata of the model card."""
    return yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits.float()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


# ------------------------------------------------------------------------------------------------------- whole models


def test_a_run_is_exported_byte_by_byte_and_its_card_works(first_run: Path, here: Path, cli: Cli) -> None:
    shutil.copytree(first_run, "runs/sums")
    done = cli.ok("export", "runs/sums", "--output", "out")
    assert done.out.endswith("whole model of step 2: out\n")
    assert done.err == ""
    made, final = files(here / "out"), files(first_run / "final")
    assert {name: made[name] for name in final} == final
    assert set(made) - set(final) == {"README.md", "training_config.yaml", "rlvr_export.json"}
    assert [line.split()[1] for line in done.out.splitlines()[:-2]] == sorted(made)
    last = metrics(first_run)[-1]
    (result,) = card_data(here / "out")["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == round(last["eval/rpn/accuracy"], 4)
    assert result["dataset"]["args"]["num_examples"] == last["eval/rpn/num_examples"] == 16

    card = here / "card.py"
    card.write_text("import warnings\nwarnings.simplefilter('ignore')\n" + snippet(here / "out"))
    program = Command(log=here / "err", out=here / "said", script=card)
    assert program.wait() == 0, program.err
    prompt = re.search(r'tokenizer\("(.*?)"', snippet(here / "out"))
    assert prompt is not None
    assert (here / "said").read_text().strip() == _generate(first_run / "final", prompt[1]) != ""


def _generate(folder: Path, prompt: str) -> str:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=16, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(ids, skip_special_tokens=True)


def test_pitfall_38_a_checkpoint_has_the_scores_of_its_own_step(tmp_path: Path, model: Path, cli: Cli) -> None:
    words = (*SMALL, *pretrained(model), "trainer.max_steps=4", "trainer.checkpoint_every=1", "trainer.keep_last=9")
    run = run_train(tmp_path / "run", *words, "evaluation.every=2", "trainer.learning_rate=1e-2").folder
    by_step = {int(row["step"]): row for row in metrics(run)}
    told = ""
    for step in (1, 2, 4):
        checkpoint, out = run / f"checkpoints/step_{step:06d}", tmp_path / f"out{step}"
        told += cli.ok("export", checkpoint, "--output", out).err
        card = (out / "README.md").read_text()
        assert f"({step} step{'s' * (step > 1)} of grpo)" in card
        if step == 1:
            assert "did not evaluate at step 1" in card
        else:
            row = by_step[step]
            interval = f"{row['eval/rpn/accuracy_low']:.1%} to {row['eval/rpn/accuracy_high']:.1%}"
            assert f"| {row['eval/rpn/accuracy']:.1%} | {interval} | 16 |" in card
        assert files(out)["model.safetensors"] == files(checkpoint / "model")["model.safetensors"]
    assert "It is a checkpoint" in (tmp_path / "out2/README.md").read_text()
    assert "no final model" in told


def test_a_stopped_run_is_exported_at_its_newest_checkpoint(stopped: Path, out: Path, cli: Cli) -> None:
    shutil.rmtree(stopped / "final")
    assert "step_000002" in cli.ok("export", stopped).err
    assert (stopped / "export/model.safetensors").is_file()
    shutil.rmtree(stopped / "checkpoints")
    cli.refuses(1, ["export", stopped, "--output", out], "neither final/ nor a checkpoint yet")
    cli.ok("export", stopped / "warm_start", "--output", out)
    assert files(out)["model.safetensors"] == files(stopped / "warm_start")["model.safetensors"]


def test_the_run_can_be_repeated_from_the_folder(first_run: Path, here: Path, cli: Cli) -> None:
    cli.ok("export", first_run, "--output", "out")
    command = re.search(r"```bash\nrlvr (.*)\n```", Path("out/README.md").read_text())
    assert command is not None
    with contextlib.chdir("out"):
        cli.ok(*command[1].split(), f"run_dir={here / 'again'}")
    assert numbers(here / "again") == numbers(first_run)


def test_dtype_casts_and_leaves_the_run_alone(first_run: Path, out: Path, cli: Cli) -> None:
    before = files(first_run / "final")
    cli.ok("export", first_run, "--output", out, "--dtype", "bfloat16")
    assert files(first_run / "final") == before
    whole, cast = weights(first_run / "final"), weights(out)
    assert {w.dtype for w in cast.values()} == {torch.bfloat16}
    assert all(torch.equal(whole[name].bfloat16(), cast[name]) for name in whole)
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"


# ----------------------------------------------------------------------------------------------------------- adapters


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft's call, transformers' warning
def test_an_adapter_loads_with_peft(adapted: tuple[Path, Path], out: Path, cli: Cli) -> None:
    run, base = adapted
    assert "the adapter is for" in cli.ok("export", run, "--output", out).err
    loaded = AutoPeftModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    assert not torch.equal(logits(loaded), logits(AutoModelForCausalLM.from_pretrained(base)))
    assert files(out)["adapter_model.safetensors"] == files(run / "final")["adapter_model.safetensors"]
    compile(snippet(out), "card", "exec")
    assert "AutoPeftModelForCausalLM" in snippet(out)
    assert "Sampled at step" not in (out / "README.md").read_text()  # rows of a data set: only on request


def test_the_name_of_the_base_on_the_hub_is_written(adapted: tuple[Path, Path], out: Path, cli: Cli) -> None:
    run, base = adapted
    cli.ok("export", run, "--output", out, "--base-model", "owner/base", "--samples", 2)
    assert json.loads(files(out)["adapter_config.json"])["base_model_name_or_path"] == "owner/base"
    assert card_data(out)["base_model"] == "owner/base"
    everything = b"".join(files(out).values())
    assert str(base.parent).encode() not in everything  # no folder of this machine is published
    assert (out / "README.md").read_text().count("Sampled at step") == 2


def test_pitfall_32_merged_is_base_plus_adapter(adapted: tuple[Path, Path], tmp_path: Path, cli: Cli) -> None:
    run, base = adapted
    before = files(base), files(run / "final")
    cli.ok("export", run, "--output", tmp_path / "out", "--merge")
    assert (files(base), files(run / "final")) == before
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert {p.dtype for p in merged.parameters()} == {torch.float32}
    # the base as training saw it, rounded to bfloat16, and then exact
    rounded = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).float()
    under = logits(rounded)
    rounded.load_adapter(str(run / "final"))
    torch.testing.assert_close(logits(merged), logits(rounded), rtol=0, atol=1e-4)
    assert (logits(merged) - under).abs().max() > 1e-2
    assert "README.md" in files(tmp_path / "out")
    assert "adapter_config.json" not in files(tmp_path / "out")
    # the sum is cast, not its parts
    cli.ok("export", run, "--output", tmp_path / "cast", "--merge", "--dtype", "bfloat16")
    cast = weights(tmp_path / "cast")
    assert all(torch.equal(tensor.bfloat16(), cast[name]) for name, tensor in merged.state_dict().items())


def test_the_prompt_in_the_card_is_the_prompt_of_training(adapted: tuple[Path, Path], out: Path, cli: Cli) -> None:
    run, _ = adapted
    cli.ok("export", run, "--output", out, "--merge")
    tokenizer: Any = AutoTokenizer.from_pretrained(out)
    messages = json.loads(snippet(out).partition("messages = ")[2].partition("\ninputs")[0])
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    before, question, after = rendered.partition("Your question")
    assert question
    prompt = read_rollouts(run / "rollouts/step_000001.jsonl.gz")[0].turns[0].prompt
    assert prompt.startswith(before)
    assert prompt.endswith(after)


# ------------------------------------------------------------------------------------------------------------ refusals


def refused(cli: Cli, code: int, sentence: str, *words: object) -> str:
    """One sentence, behind a note at most."""
    done = cli("export", *words)
    assert (done.code, done.out) == (code, "")
    assert done.err.count("\n") == 1 + done.err.count("no final model")
    assert sentence in done.err
    return done.err


@pytest.mark.parametrize(
    ("folder", "words", "code", "sentence"),
    [
        ("first", ["--merge"], 2, "there is nothing to merge"),
        ("adapted", ["--dtype", "bfloat16"], 2, "add --merge"),
        ("adapted", ["--public"], 2, "nothing is uploaded"),
        ("nothing", [], 1, "there is no folder"),
        ("empty", [], 1, "is in no run folder"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(
    folder: str, words: list[str], code: int, sentence: str, request: pytest.FixtureRequest, out: Path, cli: Cli
) -> None:
    runs = {"first": "first_run", "adapted": "adapted"}
    found = request.getfixturevalue(runs[folder]) if folder in runs else out.parent / folder
    if folder == "empty":
        found.mkdir()
    refused(cli, code, sentence, found[0] if folder == "adapted" else found, "--output", out, *words)
    assert not out.exists()


def test_an_export_is_replaced_only_on_request(first_run: Path, out: Path, cli: Cli) -> None:
    words = ("export", first_run, "--output", out)
    cli.ok(*words)
    (out / "model.safetensors").write_bytes(b"old")
    cli.refuses(2, words, "add --overwrite")
    cli.ok(*words, "--overwrite")
    assert files(out)["model.safetensors"] == files(first_run / "final")["model.safetensors"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]  # no leftovers beside it


@pytest.mark.parametrize("name", ["thesis.tex", None], ids=["a folder with other files", "a file"])
def test_what_is_no_export_is_never_replaced(name: str | None, first_run: Path, out: Path, cli: Cli) -> None:
    other = out / name if name else out
    other.parent.mkdir(exist_ok=True)
    other.write_text("years of work")
    for more in ((), ("--overwrite",)):
        err = cli.refuses(2, ["export", first_run, "--output", out, *more])
        assert "add --overwrite" not in err
        assert other.read_text() == "years of work"
        assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_damaged_weights_are_named(first_run: Path, stopped: Path, out: Path, cli: Cli) -> None:
    final, checkpoint = stopped / "final/model.safetensors", stopped / "checkpoints/step_000002"
    final.write_bytes(final.read_bytes()[:-100])
    refused(cli, 1, "model.safetensors is damaged", stopped, "--output", out)
    assert not out.exists()
    shutil.copyfile(first_run / "final/model.safetensors", final)
    (checkpoint / "model/model.safetensors").write_bytes(b"")
    refused(cli, 1, "", checkpoint, "--output", out)
    (checkpoint / "manifest.json").unlink()
    refused(cli, 1, "manifest.json is missing", checkpoint, "--output", out)


def test_only_files_of_hub_format_are_taken_over(stopped: Path, out: Path, cli: Cli) -> None:
    names = {"pytorch_model.bin", "notes.txt", "run.py", ".env"}
    for name in names:
        (stopped / "final" / name).write_text("x")
    cli.ok("export", stopped, "--output", out)
    assert not names & set(files(out))
