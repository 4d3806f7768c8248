"""A file imports only from lower layers or its own package; siblings of one layer never import each other."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import rlvr
from rlvr import registry
from rlvr.config.config import CHOICES, SECTIONS, Config, inner

PACKAGE = Path(rlvr.__file__).parent

LAYERS = (
    ("errors", "seeding"),
    (
        "http_server",
        "imports",
        "lines",
        "places",
        "printable",
        "progress",
        "quiet",
        "reasoning",
        "threads",
        "yaml_text",
    ),
    ("run_view",),
    ("conditions", "registry"),
    ("settings",),
    ("usual",),
    ("types",),
    ("algorithms", "samplers", "data", "records", "jail"),
    ("core",),
    ("rewards", "retrieval", "chat", "tracking", "scale"),
    ("envs", "models"),
    ("tasks", "engines"),
    ("training", "evaluation", "serve"),
    ("config", "conf"),
    ("run",),
    ("trust",),
    ("report",),
    ("checks", "search"),
    ("cli",),
    ("research",),
    ("commands",),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


parsed = cache(ast.parse)


def imported_modules(source: str, package: str) -> Iterator[str]:
    """Absolute names of everything imported anywhere in a file, also inside functions and `TYPE_CHECKING` blocks."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(module: str) -> str | None:
    """`rlvr.core.engine.cache` -> `core`; None outside the package and for `rlvr.__version__`."""
    parts = module.split(".")
    return parts[1] if parts[0] == "rlvr" and len(parts) > 1 and parts[1] != "__version__" else None


def violations(room: str, source: str, package: str) -> list[str]:
    """The imports of a file in `room` that the layers forbid."""
    found = []
    for module in imported_modules(source, package):
        target = room_of(module)
        if target is not None and target != room and LEVEL[target] >= LEVEL[room]:
            found.append(f"{package} ({LEVEL[room]}) imports {module} ({LEVEL[target]})")
    return found


def test_imports_only_go_down() -> None:
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        relative = file.relative_to(PACKAGE)
        if relative == Path("__init__.py"):
            continue
        package = ".".join(["rlvr", *relative.parent.parts])
        found += violations(relative.parts[0].removesuffix(".py"), file.read_text(), package)
    assert found == []


def test_core_needs_torch_transformers_and_little_else() -> None:
    of_ours = {"core", "algorithms", "types", "errors", "settings", "reasoning", "registry", "seeding", "run_view"}
    allowed = set(sys.stdlib_module_names) | {"torch", "transformers", "pydantic"}
    found = set()
    for file in (PACKAGE / "core").rglob("*.py"):
        for module in imported_modules(file.read_text(), "rlvr.core"):
            room = room_of(module)
            if module.split(".")[0] not in allowed and room not in of_ours:
                found.add(f"{file.name}: {module}")
    assert found == set()


def said(node: ast.AST, skipped: str) -> Iterator[str]:
    """All texts in a file, docstrings included; not those of functions called `skipped`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if getattr(node, "name", None) != skipped:
        for child in ast.iter_child_nodes(node):
            yield from said(child, skipped)


def keys_of_users() -> re.Pattern[str]:
    """Matches `trainer.max_steps`, `algorithm=ppo` and `resume=`, for every section and key of a configuration."""
    settings = {name: [inner(Config.model_fields[name].annotation)[0]] for name in SECTIONS}
    for group in ("reward", *CHOICES):
        settings[group] += registry.every(group).values()
    keys = {rf"\b{name}\.{key}\b" for name, kinds in settings.items() for one in kinds for key in one.model_fields}
    choices = {rf"\b{name}=(?:[a-z]|$)" for name in (*SECTIONS, "run_dir", "resume", "debug")}
    return re.compile("|".join(sorted(keys | choices)))


def test_core_names_no_key_of_a_user() -> None:
    keys, found = keys_of_users(), []
    for text in ("lower trainer.learning_rate", "set model.lora.enabled", "algorithm=", "go on with resume=true"):
        assert keys.search(text)
    for file in (PACKAGE / "core").rglob("*.py"):
        # `check_run` compares with the sampling's settings, and still names both sides
        found += [(file.name, text) for text in said(ast.parse(file.read_text()), "check_run") if keys.search(text)]
    assert found == []


def modules_of_ours() -> dict[str, str]:
    """Source by module."""
    files = {file.relative_to(PACKAGE.parent).with_suffix(""): file for file in PACKAGE.rglob("*.py")}
    return {".".join(path.parts).removesuffix(".__init__"): file.read_text() for path, file in files.items()}


def circles(modules: Mapping[str, str]) -> set[tuple[str, str]]:
    """Pairs of modules that import each other, also inside functions and for types alone."""
    imported = {
        name: {part for path in imported_modules(source, name) for part in (path, path.rpartition(".")[0])}
        for name, source in modules.items()
    }
    return {
        (one, other)
        for one in modules
        for other in imported[one] & modules.keys()
        if one in imported[other] and one != other
    }


def test_circles_are_seen() -> None:
    ours = {"rlvr.a": "from rlvr import b", "rlvr.b": "def f():\n    from rlvr.a import x", "rlvr.c": "import rlvr.a"}
    assert circles(ours) == {("rlvr.a", "rlvr.b"), ("rlvr.b", "rlvr.a")}


def test_no_two_files_import_each_other() -> None:
    """But for a class of settings, light to import, and the heavy file that its `open` imports: they are one part."""
    opened = {"rlvr.models.loading", "rlvr.models.scratch"}
    assert {pair for pair in circles(modules_of_ours()) if not opened & {*pair}} == set()
    assert len(circles(modules_of_ours())) == 2 * len(opened)


def test_no_command_imports_another() -> None:
    found = []
    for file in sorted((PACKAGE / "commands").rglob("*.py")):
        own, *_ = file.relative_to(PACKAGE / "commands").parts
        for module in imported_modules(file.read_text(), "rlvr.commands"):
            if module.startswith("rlvr.commands.") and module.split(".")[2] != own:
                found.append(f"{file}: {module}")
    assert found == []


def test_no_file_of_a_command_hides_a_function_of_its_front() -> None:
    """Importing `commands/x/run.py` would replace the function `run` of `commands/x/__init__.py`."""
    for front in (PACKAGE / "commands").glob("*/__init__.py"):
        defined = {node.name for node in ast.parse(front.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert not defined & {file.stem for file in front.parent.glob("*.py")}, front


@pytest.mark.parametrize("folder", [path for path in sorted((PACKAGE / "commands").iterdir()) if path.is_dir()])
def test_a_command_stays_small(folder: Path) -> None:
    assert sum(len(file.read_text().splitlines()) for file in folder.rglob("*.py")) <= 1700


PLUGINS = [folder for folder in PACKAGE.parents[1].glob("plugins/*") if (folder / "pyproject.toml").exists()]


def private_names(source: str) -> list[str]:
    """The names with an underscore that a file imports from rlvr, or reads from what it imported."""
    imported = [module for module in imported_modules(source, "") if module.split(".")[0] == "rlvr"]
    bound = {"rlvr", *(module.rpartition(".")[2] for module in imported)}
    read = [ast.unparse(node) for node in ast.walk(parsed(source)) if isinstance(node, ast.Attribute)]
    found = [*imported, *(path for path in read if path.split(".")[0] in bound)]
    return [path for path in found if re.search(r"\._(?!_)", path)]


def test_private_names_are_seen() -> None:
    assert private_names("from rlvr.registry import _modules") == ["rlvr.registry._modules"]
    assert private_names("import rlvr._hidden") == ["rlvr._hidden"]
    assert private_names("from rlvr import registry\nregistry._modules('task')") == ["registry._modules"]
    assert private_names("from rlvr.registry import find\nself._mine, find.__name__, other._theirs") == []


def private_reads(modules: Mapping[str, str]) -> list[str]:
    """Private names of ours that are read from an object, in a file that does not define them."""
    trees = {name: parsed(source) for name, source in modules.items()}
    defined = {name: {*private_definitions(tree)} for name, tree in trees.items()}
    ours = set[str]().union(*defined.values())
    return [
        f"{name}: {ast.unparse(node)}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ours - defined[name]
        and ast.unparse(node.value) not in ("self", "cls", "super()")
    ]


def private_definitions(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        name = getattr(node, "name", None) or (isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node)) or ""
        written = isinstance(getattr(node, "ctx", None), ast.Store) or hasattr(node, "name")
        if written and re.fullmatch(r"_[^\W_]\w*", name.removeprefix("self.")):
            yield name.removeprefix("self.")


def test_no_private_name_is_read_from_another_file() -> None:
    one = "class Chat:\n    def __init__(self):\n        self._tokenizer = 1"
    assert private_reads({"a": one, "b": "chat._tokenizer, self._tokenizer"}) == ["b: chat._tokenizer"]
    modules = modules_of_ours()
    assert [name for source in modules.values() for name in private_names(source)] == []
    assert private_reads(modules) == []


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_a_plugin_needs_no_private_name_and_rlvr_no_plugin(plugin: Path) -> None:
    files = [*plugin.rglob("*.py")]
    assert len(files) > 3
    assert [(file, name) for file in files for name in private_names(file.read_text())] == []
    components = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]["entry-points"]["rlvr.components"]
    said = {plugin.name, plugin.name.replace("-", "_"), *(name.replace(".", "=") for name in components)}
    for file in PACKAGE.rglob("*"):
        if file.suffix in (".py", ".yaml", ".tsv", ".toml", ".md"):
            assert not [word for word in said if word in file.read_text(encoding="utf-8")], file


def test_every_room_has_a_layer() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__"} <= set(LEVEL)


def test_the_page_of_core_names_files_that_exist() -> None:
    text = (PACKAGE / "core" / "README.md").read_text()
    named = re.findall(r"[\w/.]+\.py", re.sub(r"\[.*?\]\(.*?\)", "", text))
    assert len(named) > 20
    assert not [name for name in named if not (PACKAGE / "core" / name).exists()]
