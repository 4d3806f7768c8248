"""Runs as folders for others: loaded without rlvr, with the numbers of the step that is exported."""

from __future__ import annotations

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

from rlvr.cli.main import main
from rlvr.tracking.rollouts import read_rollouts
from tests.system.harness import SMALL, Command, metrics, numbers, run_train

IDS = torch.tensor([[5, 9, 30, 7]])


def export(*words: object) -> int:
    return main(["export", *map(str, words)])


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def snippet(folder: Path) -> str:
    found = re.search(r"```python\n(.*?)\n```", (folder / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits.float()


# ------------------------------------------------------------------------------------------------------- whole models


def test_a_run_is_exported_byte_by_byte_and_its_card_works(
    first_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(first_run, "runs/sums")
    assert export("runs/sums", "--output", "out") == 0
    out, err = capsys.readouterr()
    assert out.endswith("whole model of step 2: out\n")
    assert err == ""
    made = files(tmp_path / "out")
    final = files(first_run / "final")
    assert {name: made[name] for name in final} == final
    assert set(made) - set(final) == {"README.md", "training_config.yaml", "rlvr_export.json"}
    assert [line.split()[1] for line in out.splitlines()[:-2]] == sorted(made)

    card = tmp_path / "card.py"
    card.write_text("import warnings\nwarnings.simplefilter('ignore')\n" + snippet(tmp_path / "out"))
    done = Command(log=tmp_path / "err", out=tmp_path / "said", script=card)
    assert done.wait() == 0, done.err
    prompt = re.search(r'tokenizer\("(.*?)"', snippet(tmp_path / "out"))
    assert prompt is not None
    expected = _generate(first_run / "final", prompt[1])
    assert (tmp_path / "said").read_text().strip() == expected != ""


def _generate(folder: Path, prompt: str) -> str:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=16, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(ids, skip_special_tokens=True)


def test_the_card_has_the_numbers_of_the_run(first_run: Path, tmp_path: Path) -> None:
    assert export(first_run, "--output", tmp_path / "out") == 0
    rows = metrics(first_run)
    last = rows[-1]
    data = yaml.safe_load((tmp_path / "out/README.md").read_text().split("---\n")[1])
    (result,) = data["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == round(last["eval/rpn/accuracy"], 4)
    assert result["dataset"]["args"]["num_examples"] == last["eval/rpn/num_examples"] == 16


def test_pitfall_38_a_checkpoint_has_the_scores_of_its_own_step(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*SMALL, "model=hf", f"model.name_or_path={model}", "warm_start.enabled=false", "trainer.max_steps=4")
    words += ("trainer.checkpoint_every=1", "trainer.keep_last=9", "evaluation.every=2", "trainer.learning_rate=1e-2")
    run = run_train(tmp_path / "run", *words).folder
    by_step = {int(row["step"]): row for row in metrics(run)}
    for step in (1, 2, 4):
        assert export(run / f"checkpoints/step_{step:06d}", "--output", tmp_path / f"out{step}") == 0
        card = (tmp_path / f"out{step}/README.md").read_text()
        assert f"({step} step{'s' * (step > 1)} of grpo)" in card
        if step == 1:
            assert "did not evaluate at step 1" in card
        else:
            row = by_step[step]
            interval = f"{row['eval/rpn/accuracy_low']:.1%} to {row['eval/rpn/accuracy_high']:.1%}"
            assert f"| {row['eval/rpn/accuracy']:.1%} | {interval} | 16 |" in card
        weights = files(tmp_path / f"out{step}")["model.safetensors"]
        assert weights == (run / f"checkpoints/step_{step:06d}/model/model.safetensors").read_bytes()
    assert "It is a checkpoint" in (tmp_path / "out2/README.md").read_text()
    assert "no final model" in capsys.readouterr().err


def test_a_stopped_run_is_exported_at_its_newest_checkpoint(
    first_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(first_run, run)
    shutil.rmtree(run / "final")
    assert export(run) == 0
    assert "step_000002" in capsys.readouterr().err
    assert (run / "export/model.safetensors").is_file()
    shutil.rmtree(run / "checkpoints")
    assert export(run, "--output", tmp_path / "b") == 1
    assert "neither final/ nor a checkpoint yet" in capsys.readouterr().err
    assert export(run / "warm_start", "--output", tmp_path / "c") == 0
    assert files(tmp_path / "c")["model.safetensors"] == (run / "warm_start/model.safetensors").read_bytes()


def test_the_run_can_be_repeated_from_the_folder(
    first_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(first_run, "--output", tmp_path / "out") == 0
    monkeypatch.chdir(tmp_path / "out")
    command = re.search(r"```bash\nrlvr (.*)\n```", Path("README.md").read_text())
    assert command is not None
    capsys.readouterr()
    assert main([*command[1].split(), f"run_dir={tmp_path / 'again'}"]) == 0, capsys.readouterr().err
    assert numbers(tmp_path / "again") == numbers(first_run)


def test_dtype_casts_and_leaves_the_run_alone(first_run: Path, tmp_path: Path) -> None:
    before = files(first_run / "final")
    assert export(first_run, "--output", tmp_path / "out", "--dtype", "bfloat16") == 0
    assert files(first_run / "final") == before
    whole = AutoModelForCausalLM.from_pretrained(first_run / "final").state_dict()
    cast = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert {w.dtype for w in cast.values()} == {torch.bfloat16}
    assert all(torch.equal(whole[name].bfloat16(), cast[name]) for name in whole)
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"


# ----------------------------------------------------------------------------------------------------------- adapters


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft's call, transformers' warning
def test_an_adapter_loads_with_peft(
    adapted: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, base = adapted
    assert export(run, "--output", tmp_path / "out") == 0
    assert "the adapter is for" in capsys.readouterr().err
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert not torch.equal(logits(loaded), logits(AutoModelForCausalLM.from_pretrained(base)))
    assert files(tmp_path / "out")["adapter_model.safetensors"] == files(run / "final")["adapter_model.safetensors"]
    compile(snippet(tmp_path / "out"), "card", "exec")
    assert "AutoPeftModelForCausalLM" in snippet(tmp_path / "out")


def test_the_name_of_the_base_on_the_hub_is_written(adapted: tuple[Path, Path], tmp_path: Path) -> None:
    run, base = adapted
    assert export(run, "--output", tmp_path / "out", "--base-model", "owner/base") == 0
    assert json.loads(files(tmp_path / "out")["adapter_config.json"])["base_model_name_or_path"] == "owner/base"
    assert yaml.safe_load((tmp_path / "out/README.md").read_text().split("---\n")[1])["base_model"] == "owner/base"
    everything = b"".join(content for content in files(tmp_path / "out").values())
    assert str(base.parent).encode() not in everything  # no folder of this machine is published


def test_pitfall_32_merged_is_base_plus_adapter(adapted: tuple[Path, Path], tmp_path: Path) -> None:
    run, base = adapted
    before = files(base), files(run / "final")
    assert export(run, "--output", tmp_path / "out", "--merge") == 0
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


def test_pitfall_32_the_sum_is_cast_and_not_its_parts(adapted: tuple[Path, Path], tmp_path: Path) -> None:
    run, _ = adapted
    assert export(run, "--output", tmp_path / "exact", "--merge") == 0
    assert export(run, "--output", tmp_path / "cast", "--merge", "--dtype", "bfloat16") == 0
    exact = AutoModelForCausalLM.from_pretrained(tmp_path / "exact").state_dict()
    cast = AutoModelForCausalLM.from_pretrained(tmp_path / "cast").state_dict()
    assert all(torch.equal(exact[name].bfloat16(), cast[name]) for name in exact)


def test_rows_of_a_data_set_are_only_shown_on_request(adapted: tuple[Path, Path], tmp_path: Path) -> None:
    run, _ = adapted
    assert export(run, "--output", tmp_path / "a") == 0
    assert "Sampled at step" not in (tmp_path / "a/README.md").read_text()
    assert export(run, "--output", tmp_path / "b", "--samples", 2) == 0
    assert (tmp_path / "b/README.md").read_text().count("Sampled at step") == 2


def test_the_prompt_in_the_card_is_the_prompt_of_training(adapted: tuple[Path, Path], tmp_path: Path) -> None:
    run, _ = adapted
    assert export(run, "--output", tmp_path / "out", "--merge") == 0
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = json.loads(snippet(tmp_path / "out").partition("messages = ")[2].partition("\ninputs")[0])
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    before, question, after = rendered.partition("Your question")
    assert question
    prompt = read_rollouts(run / "rollouts/step_000001.jsonl.gz")[0].turns[0].prompt
    assert prompt.startswith(before)
    assert prompt.endswith(after)


# ------------------------------------------------------------------------------------------------------------ refusals


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    capsys.readouterr()
    code = export(*words)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 + err.count("no final model")
    return code, err


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
    folder: str,
    words: list[str],
    code: int,
    sentence: str,
    first_run: Path,
    adapted: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").mkdir()
    run = {"first": first_run, "adapted": adapted[0]}.get(folder, tmp_path / folder)
    found, err = refused(capsys, run, "--output", tmp_path / "out", *words)
    assert found == code
    assert sentence in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["export", "other", "file"])
def test_what_is_there_is_not_replaced(
    content: str, first_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out"
    if content == "export":
        assert export(first_run, "--output", target) == 0
        (target / "model.safetensors").write_bytes(b"old")
    elif content == "other":
        target.mkdir()
        (target / "thesis.tex").write_text("years of work")
    else:
        target.write_text("a file")
    code, err = refused(capsys, first_run, "--output", target)
    assert code == 2
    assert ("add --overwrite" in err) == (content == "export")
    code = export(first_run, "--output", target, "--overwrite")
    assert code == (0 if content == "export" else 2)
    if content == "export":
        assert files(target)["model.safetensors"] == files(first_run / "final")["model.safetensors"]
    elif content == "other":
        assert (target / "thesis.tex").read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # no leftovers beside it


def test_damaged_weights_are_named(first_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(first_run, run)
    weights = run / "final/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    code, err = refused(capsys, run, "--output", tmp_path / "out")
    assert code == 1
    assert "model.safetensors is damaged" in err
    assert not (tmp_path / "out").exists()
    shutil.copyfile(first_run / "final/model.safetensors", weights)
    (run / "checkpoints/step_000002/model/model.safetensors").write_bytes(b"")
    assert refused(capsys, run / "checkpoints/step_000002", "--output", tmp_path / "out")[0] == 1
    (run / "checkpoints/step_000002/manifest.json").unlink()
    code, err = refused(capsys, run / "checkpoints/step_000002", "--output", tmp_path / "out")
    assert code == 1
    assert "manifest.json is missing" in err


def test_only_files_of_hub_format_are_taken_over(first_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(first_run, run)
    for name in ("pytorch_model.bin", "notes.txt", "run.py", ".env"):
        (run / "final" / name).write_text("x")
    assert export(run, "--output", tmp_path / "out") == 0
    assert not {"pytorch_model.bin", "notes.txt", "run.py", ".env"} & set(files(tmp_path / "out"))
