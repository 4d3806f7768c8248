"""Every command line of the README and of docs/ runs, every link leads somewhere, every piece of code is code."""

import ast
import importlib
import re
from pathlib import Path

import pytest
import yaml

from rlvr.cli.main import command_modules
from tests.docs.pages import ROOT, Command, anchors, blocks, commands, files, links, name_of, pages
from tests.docs.session import Session, treatments_of
from tests.docs.treatments import OWN_TEST
from tests.docs.world import RUNS, World, furnish, prepare
from tests.system.conftest import shared
from tests.system.harness import DATA
from tests.system.small_qwen import save_questions, save_small_qwen

PAGES = {name_of(page): page for page in pages()}
COMMANDS = {name: commands(page) for name, page in PAGES.items()}
WITH_COMMANDS = [name for name, found in COMMANDS.items() if found]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, qwen: Path, tool_qwen: Path) -> World:
    def make(folder: Path) -> None:
        questions = save_small_qwen(folder / "qwen"), save_questions(folder / "sums.jsonl")
        prepare(folder, tool_model=tool_qwen, questions=questions)

    folder = shared(tmp_path_factory, "docs", make)
    return World(runs={name: folder / name for name in RUNS}, model=qwen, tool_model=tool_qwen)


@pytest.mark.long
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_of_a_page_run_in_their_order(
    page: str,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RLVR_DATA", str(DATA))
    furnish(tmp_path, world)
    for name, text in files(PAGES[page]).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def output() -> tuple[str, str]:
        found = capsys.readouterr()
        return found.out, found.err

    session = Session(tmp_path, world, output)
    try:
        for command in COMMANDS[page]:
            session.play(command)
    finally:
        session.close()


@pytest.mark.parametrize("command", [one for found in COMMANDS.values() for one in found], ids=str)
def test_each_command_has_exactly_one_treatment(command: Command) -> None:
    fitting = [one.pattern for one in treatments_of(command)]
    assert len(fitting) == 1, f"{command}: {fitting or 'add it to TREATMENTS in tests/docs/treatments.py'}"


def test_commands_are_found() -> None:
    """The parser reads what a reader reads: prompts, comments, continuations, tables, pipes and variables."""
    page = ROOT / "README.md"
    texts = [command.text for command in commands(page)]
    assert "rlvr train" in texts
    assert sum(text.startswith("rlvr") for text in texts) >= 15
    assert sum(len(found) for found in COMMANDS.values()) >= 60


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for line, target in links(PAGES[page]):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (PAGES[page].parent / file).resolve() if file else PAGES[page]
        assert path.exists(), f"{page}:{line}: {target}: there is no such file"
        assert path.is_relative_to(ROOT), f"{page}:{line}: {target}: is outside of the repository"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{page}:{line}: {target}: no heading of that name"


def test_every_page_is_linked_from_the_readme() -> None:
    linked: set[Path] = set()
    for page in (ROOT / "README.md", ROOT / "docs/index.md", ROOT / "benchmarks/README.md"):
        linked |= {(page.parent / target.partition("#")[0]).resolve() for _, target in links(page)}
    missing = [name for name, page in PAGES.items() if name.startswith("docs/") and page not in linked]
    assert not missing, f"neither README.md nor docs/index.md links {', '.join(missing)}"


def test_the_index_links_every_page_once() -> None:
    index = ROOT / "docs/index.md"
    linked = [(index.parent / target.partition("#")[0]).resolve() for _, target in links(index)]
    for name, page in PAGES.items():
        if name not in ("README.md", "docs/index.md"):
            assert linked.count(page) == 1, f"docs/index.md links {name} {linked.count(page)} times, not once"


GENERATED = ("docs/configuration.md", "docs/metrics.md", "docs/pitfalls.md")
NO_COMMAND = ("docs/design.md", *GENERATED)


@pytest.mark.parametrize("page", [name for name in PAGES if name.startswith("docs/") and name not in NO_COMMAND])
def test_a_page_begins_with_the_command_that_answers_it(page: str) -> None:
    lines = PAGES[page].read_text().splitlines()
    code = [number for number, line in enumerate(lines) if line.startswith(("```", "    "))]
    assert code, page
    assert code[0] <= 8, f"{page}: the first code is in line {code[0] + 1}"


@pytest.mark.parametrize("page", [name for name in PAGES if name not in GENERATED])
def test_cells_of_tables_are_short(page: str) -> None:
    text = PAGES[page].read_text()
    for block in blocks(text):
        text = text.replace(block.text, "")
    for line in text.splitlines():
        cells = re.split(r"(?<!\\)\|", line) if line.startswith("|") else []
        for cell in cells:
            shown = re.sub(r"\]\([^)]*\)", "]", cell).strip()
            assert len(shown) <= 240, f"{page}: a cell of {len(shown)} characters: {shown[:60]}"


@pytest.mark.parametrize("page", [name for name in PAGES if name not in OWN_TEST])
def test_code_is_code(page: str) -> None:
    """Python parses and its imports of rlvr exist, YAML is YAML."""
    for block in blocks(PAGES[page].read_text()):
        if block.language == "python":
            tree = compile(
                block.text, f"{page}:{block.line}", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            )
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rlvr":
                    module = importlib.import_module(node.module or "")
                    missing = [name.name for name in node.names if not hasattr(module, name.name)]
                    assert not missing, f"{page}:{block.line}: {node.module} has no {', '.join(missing)}"
        elif block.language == "yaml":
            yaml.safe_load(block.text)


@pytest.mark.parametrize("page", PAGES)
def test_commands_inside_a_sentence_exist(page: str) -> None:
    known = set(command_modules())
    text = PAGES[page].read_text()
    for block in blocks(text):
        text = text.replace(block.text, "")
    for found in re.findall(r"`rlvr ([a-z]\w*)", text):
        assert found in known, f"{page}: rlvr {found}: there is no such command"


def test_no_folder_of_somebodys_machine_is_shown() -> None:
    for name, page in PAGES.items():
        found = re.search(r"(?<![\w.])/(home(?!/me/)|root|work|tmp|Users)/\S+", page.read_text())
        assert found is None, f"{name}: {found and found[0]}"
