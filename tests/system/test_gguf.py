"""Every command takes a GGUF file as a model, refuses other files in one sentence, and reads no weights in vain."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForCausalLM

from rlvr.commands.serve.local import ServeSettings, open_served
from tests.system.harness import Cli, once
from tests.unit.models.gguf_files import TEMPLATE, write_gguf

DATA = (
    "task.path=TMP/rows.jsonl",
    "task.eval_path=TMP/held_out.jsonl",
    "task.metric=exact",
    "reward=text",
    "prompt=plain",
)
READ = ("--task", "jsonl", *(word for line in DATA for word in ("--set", line)))
TRAINED = (
    *("--config-name", "gsm8k", "task=jsonl", *DATA, "model.name_or_path=MODEL", "rollout.max_completion_tokens=4"),
    *("evaluation.num_examples=2", "trainer.max_steps=1", "rollout.prompts_per_step=2", "rollout.group_size=2"),
    "tracker.console=none",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "tiny.gguf", "Q8_0", template=TEMPLATE)
    rows = [json.dumps({"question": f"What is 3 + {n}?", "answer": f"{3 + n}"}) for n in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows[:4]))
    (tmp_path / "held_out.jsonl").write_text("\n".join(rows[4:]))
    return tmp_path / "tiny.gguf"


def filled(words: tuple[str, ...], model: Path | str, folder: Path) -> list[str]:
    return [word.replace("MODEL", str(model)).replace("TMP", str(folder)) for word in words]


def test_a_run_on_a_gguf_file_resumes_and_names_the_file(file: Path, tmp_path: Path, cli: Cli) -> None:
    cli.ok("train", *filled(TRAINED, file, tmp_path), f"run_dir={tmp_path / 'run'}")
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert settings["model"]["name_or_path"] == str(file)  # and not a folder of the cache, which may be deleted
    AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "final")
    assert "quantization" not in (tmp_path / "run" / "final" / "config.json").read_text()
    shutil.rmtree(Path(os.environ["XDG_CACHE_HOME"]))
    more = ["trainer.max_steps=2", f"run_dir={tmp_path / 'run'}", "resume=true"]
    cli.ok("train", *once(*filled(TRAINED, file, tmp_path), *more))


COMMANDS = {
    "eval": ("eval", "MODEL", *READ, "--num-examples", "2", "--set", "rollout.max_completion_tokens=8"),
    "predict": ("predict", "MODEL", *READ, "--prompt", "3 4 +", "--set", "rollout.max_completion_tokens=8"),
    "plan": ("plan", *TRAINED, "--seconds", "1"),
    "doctor": ("doctor", "MODEL", *READ, "--set", "rollout.max_completion_tokens=8"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_it_and_tells_once_that_it_is_dequantized(
    command: str, file: Path, tmp_path: Path, cli: Cli, logged: object
) -> None:
    done = cli(*filled(COMMANDS[command], file, tmp_path))
    assert done.code == 0 or command == "doctor", done.err  # which has its own mind about random weights
    assert "Traceback" not in done.err
    assert done.out
    assert str(getattr(logged, "getvalue", str)()).count("tiny.gguf is dequantized, Q8_0, F32 to bfloat16") == 1


def test_it_is_served(file: Path) -> None:
    with open_served(str(file), ServeSettings()) as (model, _):
        assert model.names == (str(file),)


BAD = {
    "safetensors": ("model.safetensors", b"\x02\0\0\0\0\0\0\0{}" + b" " * 60),
    "renamed": ("model.gguf", b"PK\x03\x04" * 20),
    "cut": ("cut.gguf", b"GGUF\x03\0\0\0" + b"\x05\0\0\0\0\0\0\0" * 2),
}
REFUSED = COMMANDS | {
    "train": ("train", *TRAINED, "run_dir=TMP/run"),
    "serve": ("serve", "MODEL", "--port", "0"),
}


@pytest.mark.parametrize("command", REFUSED)
@pytest.mark.parametrize("kind", BAD)
def test_another_file_is_one_sentence_of_every_command(command: str, kind: str, tmp_path: Path, cli: Cli) -> None:
    name, content = BAD[kind]
    (tmp_path / name).write_bytes(content)
    for rows in ("rows.jsonl", "held_out.jsonl"):
        (tmp_path / rows).write_text(json.dumps({"question": f"What is in {rows}?", "answer": "x"}))
    cli.refuses(
        1,
        filled(REFUSED[command], tmp_path / name, tmp_path),
        str(tmp_path / name),
        {"cut": "incomplete or damaged"}.get(kind, "GGUF"),
    )


def without_weights(model: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in model.glob("*.json"):
        shutil.copy(path, folder)
    return folder


@pytest.mark.parametrize("command", ["eval", "predict", "doctor"])
def test_data_are_looked_for_before_weights_are_read(command: str, file: Path, model: Path, cli: Cli) -> None:
    bare = without_weights(model, file.parent / "bare")
    held_out = file.parent / "held_out.jsonl"
    held_out.unlink()
    more = ["--num-examples", "2"] if command == "predict" else []
    cli.refuses(2, [command, bare, *filled(READ, bare, file.parent), *more], f"there is no file {held_out}")


def test_tokens_of_a_teacher_are_compared_before_weights_are_read(file: Path, model: Path, cli: Cli) -> None:
    bare, run = without_weights(model, file.parent / "bare"), file.parent / "run"
    words = filled(TRAINED, bare, file.parent)
    done = cli("train", *words, "algorithm=distill", f"algorithm.teacher={file}", f"run_dir={run}")
    assert (done.code, done.err.count("Traceback")) == (1, 0)
    assert "tokens have other ids, first" in done.err.splitlines()[-1]
    assert not run.exists()
