"""docs/from_the_specs.md: every name on its right side exists here, every foreign key is answered with ours."""

import os
import re
from pathlib import Path

import pytest

from rlvr.config.compose import load_config
from rlvr.config.config import matches
from tests.docs.pages import ROOT, blocks
from tests.system.harness import Cli
from tests.system.test_settings import every_setting

PAGE = (ROOT / "docs/from_the_specs.md").read_text()
ROWS = [row for row in re.findall(r"(?m)^\| (.+?) \| (.+?) \|$", PAGE) if row != ("theirs", "here")]
THEIRS = [block.text for block in blocks(PAGE) if block.language == "text"]
SPECIFICATIONS = Path(os.environ.get("RLVR_DATA", ROOT)).parent / "specs"  # they lie beside the real data


KNOWN = {path for path, _ in every_setting()}
PARTS = {"reward.parts.correct", "reward.parts.format", "reward.parts.markers", "reward.parts.hops"}


def spoken_of(text: str) -> list[str]:
    """What stands in code on the right side."""
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize(("theirs", "ours"), ROWS)
def test_what_the_page_names_exists(theirs: str, ours: str) -> None:
    for name in spoken_of(ours):
        if re.fullmatch(r"[a-z]+(\.\w+)+", name) and not name.startswith("rlvr."):
            assert name in PARTS or any(matches(key, name) for key in KNOWN), name
        elif re.fullmatch(r"(src|environments)/[\w/.]+", name):
            assert (ROOT / name).exists(), name
        elif re.fullmatch(r"(--config-name )?(rpn_\w+|hotpotqa|wiki2|musique)", name):
            load_config([], config_name=name.removeprefix("--config-name "))


def test_groups_and_settings_compose() -> None:
    for line in ("reward=rpn_boxed", "reward=rpn_combined", "tracker.report_to=[mlflow]", "tracker.report_to=[wandb]"):
        load_config([line])
    for line in ("reward=musique", "reward=musique_spec", "task.max_turns=10", "task.retriever=golden"):
        load_config([line], config_name="musique")


def foreign() -> list[tuple[str, str]]:
    """Keys of theirs beside one of ours."""
    found = []
    for theirs, ours in ROWS:
        key, mine = re.fullmatch(r"`([a-z_.]+)`", theirs), re.fullmatch(r"`([a-z_.]+)`", ours)
        if key and mine and key[1] != mine[1] and mine[1] in KNOWN | {"task", "reward"}:
            found.append((key[1], mine[1]))
    return found


@pytest.mark.parametrize(("theirs", "ours"), foreign())
def test_a_key_of_theirs_is_answered_with_ours(theirs: str, ours: str, cli: Cli) -> None:
    cli.refuses(2, ["train", "--config-name", "rpn_small", f"{theirs}=1"], ours)


def test_there_are_foreign_keys() -> None:
    assert len(foreign()) >= 20


def command_lines(text: str) -> list[str]:
    """The command lines of the fenced blocks of a page, one line each, without comments."""
    found = []
    for block in blocks(text):
        if block.language in ("bash", "sh"):
            lines = re.sub(r"\\\n\s*", "", block.text).splitlines()
            found += [re.sub(r"\s+", " ", line).strip() for line in lines if line.strip() and not line.startswith("#")]
    return found


@pytest.mark.skipif(not SPECIFICATIONS.is_dir(), reason="the specifications are not beside RLVR_DATA")
@pytest.mark.parametrize("name", ["musique_verifiers", "hydra_pipeline", "rpn_arithmetic"])
def test_every_command_of_the_specifications_is_on_the_page(name: str) -> None:
    theirs = re.sub(r"\s+", " ", re.sub(r"\\\n\s*", "", "\n".join(THEIRS)))
    for line in command_lines((SPECIFICATIONS / f"{name}.md").read_text()):
        assert line in theirs, line


@pytest.mark.skipif(not SPECIFICATIONS.is_dir(), reason="the specifications are not beside RLVR_DATA")
def test_every_parameter_of_the_specifications_is_answered(cli: Cli) -> None:
    """`- `num_epochs`: ...`: a key of ours by the same name, or a sentence that says ours."""
    text = Path(SPECIFICATIONS / "rpn_arithmetic.md").read_text()
    section = text.partition("## Configuration Parameters")[2].partition("## Example")[0]
    names = re.findall(r"(?m)^- `(\w+)`", section)
    assert len(names) >= 15
    for name in names:
        cli.refuses(2, ["train", f"{name}=1"], "the key is called")
