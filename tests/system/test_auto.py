"""What `auto` becomes is in a run's config.yaml, and stays so in a resumed run."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.harness import SMALL, Cli, numbers, once

TINY = (*SMALL, "warm_start.enabled=false", "model.hidden_size=16", "model.num_layers=1", "model.intermediate_size=16")
TWO = ("trainer.max_steps=2", "trainer.checkpoint_every=1", "trainer.schedule=constant", "evaluation.every=1")


def words(folder: Path, *overrides: str) -> list[str]:
    return ["train", "--config-name", "rpn", *once(*TINY, *TWO, *overrides, f"run_dir={folder}")]


def section(folder: Path, name: str) -> dict[str, Any]:
    return yaml.safe_load((folder / "config.yaml").read_text())[name]


def decisions(folder: Path) -> tuple[str, str, str]:
    precision = section(folder, "trainer")["precision"]
    return precision, section(folder, "engine")["dtype"], section(folder, "rollout")["dead_groups"]


def has_bf16(machine: pytest.MonkeyPatch) -> None:
    """A machine on which bfloat16 is faster from the smallest model on."""
    for name, value in (("has_bf16", lambda device: True), ("BF16_PAYS_FROM_WIDTH", 1), ("WIDE", 1)):
        machine.setattr(f"rlvr.models.devices.{name}", value)


def undone(folder: Path) -> None:
    """As of a version that left `auto` in config.yaml and starts.jsonl."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["trainer"]["precision"] = config["engine"]["dtype"] = config["rollout"]["dead_groups"] = "auto"
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    starts = [json.loads(line) for line in (folder / "starts.jsonl").read_text().splitlines()]
    for start in starts:
        start["settings"] |= dict.fromkeys(("trainer.precision", "engine.dtype", "rollout.dead_groups"), "auto")
    (folder / "starts.jsonl").write_text("".join(f"{json.dumps(start)}\n" for start in starts))


def test_the_decided_values_are_in_the_run_s_configuration(cli: Cli, tmp_path: Path) -> None:
    cli.ok(*words(tmp_path / "run", "trainer.max_steps=1"))
    assert decisions(tmp_path / "run") == ("fp32", "float32", "keep")
    trainer = section(tmp_path / "run", "trainer")
    assert trainer["learning_rate"] > 0
    # those of the machine of the moment
    assert (trainer["device"], trainer["num_threads"], trainer["microbatch_tokens"]) == ("auto", None, "auto")


@pytest.mark.parametrize(("algorithm", "dead_groups"), [("dapo", "auto"), ("reinforce_pp", "auto")])
def test_dead_groups_stay_with_an_algorithm_that_says_or_asks_nothing(
    algorithm: str, dead_groups: str, cli: Cli, tmp_path: Path
) -> None:
    cli.ok(*words(tmp_path / "run", "trainer.max_steps=1", f"algorithm={algorithm}"))
    assert decisions(tmp_path / "run")[2] == dead_groups


@pytest.mark.parametrize("old", [False, True], ids=["written values", "auto"])
@pytest.mark.parametrize("line", ["repeated", "from the folder"])
def test_a_run_of_either_shape_is_resumed(line: str, old: bool, cli: Cli, tmp_path: Path) -> None:
    """With the same command line, which says auto again, or from its own config.yaml."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    cli.ok(*words(whole))
    cli.ok(*words(run, "trainer.max_steps=1"))
    if old:
        undone(run)
    more = ["resume=true", "trainer.precision=auto", "engine.dtype=auto"]
    again = words(run, *more) if line == "repeated" else ["train", "--config-dir", str(run), "--config-name", "config"]
    cli.ok(*again, *([] if line == "repeated" else [f"run_dir={run}", "resume=true", "trainer.max_steps=2"]))
    assert decisions(run) == ("fp32", "float32", "keep")
    assert numbers(run) == numbers(whole)
    assert "edited" not in cli.ok("replay", str(run), "--step", "1").out  # made before the values were written


def test_a_run_that_is_resumed_elsewhere_keeps_what_was_decided(cli: Cli, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as machine:
        has_bf16(machine)
        cli.ok(*words(tmp_path / "run", "trainer.max_steps=1"))
    assert decisions(tmp_path / "run") == ("bf16", "bfloat16", "keep")
    cli.ok(*words(tmp_path / "run", "resume=true"))
    assert decisions(tmp_path / "run") == ("bf16", "bfloat16", "keep")


def test_another_value_than_the_run_s_is_refused(cli: Cli, tmp_path: Path) -> None:
    cli.ok(*words(tmp_path / "run", "trainer.max_steps=1"))
    cli.refuses(2, words(tmp_path / "run", "resume=true", "trainer.precision=bf16"), "precision=bf16 differs from fp32")
    cli.refuses(2, words(tmp_path / "run", "resume=true", "rollout.dead_groups=drop"), "differs from keep")
