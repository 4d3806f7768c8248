"""What `rlvr export` takes of a run, and what it refuses; tests/system/test_export.py loads what it writes."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.export import body
from rlvr.commands.export.body import (
    MARK,
    ExportedRun,
    ExportOptions,
    check_repository,
    check_token,
    export,
    find_source,
)
from rlvr.config.compose import load_config, to_run_yaml
from rlvr.errors import ConfigError, UserError
from rlvr.records.rollouts import rollouts_path, write_rollouts
from tests.unit.cli.conftest import Rlvr
from tests.unit.report.runs import episode

OPTIONS = ExportOptions(name="me/model", title="A model")


def run(root: Path, *overrides: str, steps: int = 7) -> Path:
    for folder in ("final", "warm_start"):
        (root / folder).mkdir(parents=True)
    (root / "config.yaml").write_text(to_run_yaml(load_config(overrides)))
    (root / "metrics.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in range(steps + 1)))
    return root


def source(root: Path, *overrides: str, adapter: bool = False, step: int = 7) -> ExportedRun:
    folder = root / "final"
    folder.mkdir(parents=True, exist_ok=True)
    if adapter:
        (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base", "peft_type": "LORA"}')
    return ExportedRun(root=root, config=load_config(overrides), weights=folder, step=step, is_final=True)


def test_the_step_of_weights_is_that_of_their_folder(tmp_path: Path) -> None:
    root = run(tmp_path / "run")
    for name, step, is_final in (("", 7, True), ("final", 7, True), ("warm_start", 0, False)):
        found = find_source(str(root / name))
        assert (found.root, found.step, found.is_final) == (root, step, is_final)
        assert found.weights == root / (name or "final")
    (root / "metrics.jsonl").unlink()
    assert find_source(str(root)).step == load_config([]).trainer.max_steps
    with pytest.raises(UserError, match="is in no run folder: name the folder that"):
        find_source(str(tmp_path))
    with pytest.raises(UserError, match=r"there is no folder .*none"):
        find_source(str(tmp_path / "none"))


def test_a_run_may_be_called_model(tmp_path: Path) -> None:
    """As is the folder of the weights in a checkpoint."""
    root = run(tmp_path / "model")
    found = find_source(str(root))
    assert (found.root, found.weights, found.is_final) == (root, root / "final", True)


PRETRAINED = ("model=hf", "model.name_or_path=some/model")


@pytest.mark.parametrize(
    ("overrides", "adapter", "options", "kind"),
    [
        ((), False, {}, "whole"),
        ((), False, {"dtype": "bfloat16"}, "whole"),
        ((), True, {}, "adapter"),
        ((), True, {"merge": True, "dtype": "bfloat16"}, "merged"),
    ],
)
def test_kinds_of_models(overrides: Any, adapter: bool, options: dict[str, Any], kind: str, tmp_path: Path) -> None:
    made = ExportOptions(name="x", title="x", **options)
    assert body._kind(source(tmp_path, *overrides, adapter=adapter), made) == kind


@pytest.mark.parametrize(
    ("adapter", "options", "said"),
    [
        (True, {"dtype": "bfloat16"}, "--dtype bfloat16: the adapter stays in float32; add --merge"),
        (False, {"merge": True}, "--merge: there is nothing to merge in .*, the whole model was trained"),
    ],
)
def test_an_option_without_effect_is_refused(adapter: bool, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        body._kind(source(tmp_path, adapter=adapter), ExportOptions(name="x", title="x", **options))


@pytest.mark.parametrize(
    ("there", "overwrite", "said"),
    [
        ("other", False, "there is something else already: move it away, or choose another folder"),
        ("other", True, "there is something else already: move it away"),
        ("export", False, "there is an export already; add --overwrite, or choose another folder"),
        ("file", True, "there is something else already: move it away"),
        ("link", True, "there is something else already: move it away"),
    ],
)
def test_what_is_there_is_not_overwritten(there: str, overwrite: bool, said: str, tmp_path: Path) -> None:
    target = tmp_path / "out"
    if there == "file":
        target.write_text("mine")
    elif there == "link":
        target.symlink_to("nowhere")
    else:
        target.mkdir()
        (target / (MARK if there == "export" else "mine")).write_text("{}")
    with pytest.raises(ConfigError, match=rf"--output .*out: {said}"):
        export(source(tmp_path), OPTIONS, target, overwrite=overwrite, dry_run=False, note=print)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("/home/ann/models/x", "FOLDER/x"),
        ("/home/ann/models/x/", "FOLDER/x"),
        ("~/x.jsonl", "FOLDER/x.jsonl"),
        ("a=/data/b.csv,/c/d.csv", "a=/data/b.csv,FOLDER/d.csv"),
        ("/a/b;/c/d", "FOLDER/b;FOLDER/d"),
        ("some/model", "some/model"),
        ("data/mine.jsonl", "data/mine.jsonl"),
        ("<q> / </q>", "<q> / </q>"),
    ],
)
def test_folders_of_this_machine_are_not_published(value: str, named: str) -> None:
    config = load_config(["task=jsonl", "task.path=x.jsonl", "model=hf", "model.name_or_path=m"])
    changed = config.model_copy(update={"task": config.task.model_copy(update={"path": value})})
    found, missing = body._portable(changed)
    assert found.task.path == named  # type: ignore[attr-defined]
    assert missing == (["task.path"] if value != named else [])


def test_samples_are_those_of_the_newest_recorded_step_up_to_the_exported_one(tmp_path: Path) -> None:
    one = source(tmp_path, step=5)
    assert body._samples(one) == []
    for step in (2, 4, 6):
        records = [episode(group=group, sample=sample) for group in range(2) for sample in range(3)]
        write_rollouts(rollouts_path(tmp_path / "rollouts", step), records)
    found = body._samples(one)
    assert [sample.step for sample in found] == [4, 4]  # the first episode of each group
    assert found[0].texts == (("prompt", "<q> 3 4 + ="), ("completion", "7 <eoe>"))
    rollouts_path(tmp_path / "rollouts", 4).write_bytes(b"damaged")
    assert [sample.step for sample in body._samples(one)] == [2, 2]
    replied = episode(reply="found it")
    assert body._texts(replied) == (
        *(("prompt", "<q> 3 4 + ="), ("completion", "7 <eoe>"), ("reply", "found it"), ("completion", "7 <eoe>")),
    )


def test_messages_are_for_models_with_a_template(tmp_path: Path) -> None:
    config = load_config(["task=gsm8k", "model=hf", "model.name_or_path=m"])
    assert body._messages(config, tmp_path) == []
    (tmp_path / "chat_template.jinja").write_text("x")
    assert body._messages(config, tmp_path) == [{"role": "user", "content": "Your question"}]  # nothing is known of it
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    found = body._messages(config, tmp_path)
    assert found[-1]["role"] == "user"
    assert "Your question" in found[-1]["content"]
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    assert body._messages(config, tmp_path) == found


@pytest.mark.parametrize("name", ["model", "a/b/c", "a/..", "a b/c", ""])
def test_a_repository_is_an_owner_and_a_name(name: str) -> None:
    check_repository("ann/rpn-grpo")
    with pytest.raises(ConfigError, match="is no repository; write owner/name"):
        check_repository(name)


def test_a_push_needs_the_hub_and_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="--push needs the Hub: unset HF_HUB_OFFLINE"):
        check_token()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(UserError, match="--push needs a token that may write"):
        check_token()
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_x")
    check_token()


@pytest.mark.parametrize("words", [[], ["--dry-run"], ["--push", "me/model", "--dry-run"]])
def test_what_was_written_is_printed(
    words: list[str], rlvr: Rlvr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, given = run(tmp_path / "run"), list[Any]()

    def written(source: ExportedRun, options: ExportOptions, target: Path, **how: Any) -> tuple[str, dict[str, int]]:
        given.append((source.step, options, target, how["overwrite"], how["dry_run"]))
        return "whole", {"a.json": 1234, "b": 6}

    monkeypatch.setattr(body, "export", written)
    monkeypatch.setattr("rlvr.commands.export.body.check_token", lambda: None)
    out, dry, push = root / "export", "--dry-run" in words, "me/model" if "--push" in words else None
    (line,) = rlvr("export", root, "--json", *words).lines
    assert line == {
        **{"folder": str(out), "kind": "whole", "step": 7, "files": {"a.json": 1234, "b": 6}},
        **{"repository": push, "url": None, "dry_run": dry},
    }
    said = rlvr("export", root, *words)
    lines = said.out.splitlines()
    assert [one.split() for one in lines[:3]] == [
        ["1,234", "a.json"],
        ["6", "b"],
        ["1,240", "bytes", "in", "2", "files"],
    ]
    if dry:
        where = " and uploaded to the private repository me/model" if push else ""
        assert lines[3:] == [f"would be written to {out}{where}"]
    else:
        assert lines[3:] == [f"whole model of step 7: {out}"]
    assert ("no license was chosen" in said.err) == (push is not None)
    step, options, target, overwrite, dry_run = given[0]
    assert (step, target, overwrite, dry_run) == (7, out, False, dry)
    assert (options.title, options.is_pushed, options.merge) == ("model" if push else "run", push is not None, False)
