"""Names of components: ours win over installed packages and files in the current folder."""

import colorsys
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlvr
from rlvr import registry
from rlvr.algorithms.grpo import Grpo
from rlvr.config.compose import load_config
from rlvr.errors import ConfigError
from rlvr.imports import imported
from rlvr.registry import register

MODULE = """
from rlvr.algorithms.grpo import Grpo
from rlvr.config.compose import load_config
from rlvr.registry import register

@register("algorithm", "rloo")
class Mine(Grpo): ...
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with an algorithm `mine`, one with a name of ours, and one whose module is missing."""
    (tmp_path / "of_a_package.py").write_text(MODULE)
    info = tmp_path / "shelf-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    names = {"mine": "of_a_package:Mine", "grpo": "of_a_package:Mine", "broken": "gone_from_here:Mine"}
    lines = [f"algorithm.{name} = {path}" for name, path in names.items()]
    (info / "entry_points.txt").write_text("\n".join(["[rlvr.components]", *lines]))
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._installed.cache_clear()
    yield
    registry._installed.cache_clear()


def test_the_table_says_where_each_of_our_components_is_declared() -> None:
    declared = re.compile(r'^@register\("(\w+)", (.+)\)$', re.MULTILINE)
    package = Path(rlvr.__file__).parent
    modules = defaultdict[str, dict[str, str]](dict)
    for file in package.rglob("*.py"):
        module = ".".join(["rlvr", *file.relative_to(package).with_suffix("").parts])
        for group, quoted in declared.findall(file.read_text()):
            modules[group] |= dict.fromkeys(re.findall(r"\w+", quoted), module)
    assert modules.keys() == tomllib.loads(registry.TABLE.read_text()).keys()
    for group, names in modules.items():
        assert registry._modules(group) == names


def test_an_installed_package_adds_names_and_takes_none_of_ours(installed: None) -> None:
    assert registry.find("algorithm", "mine").__name__ == "Mine"
    assert registry.name_of(registry.find("algorithm", "mine")) == "mine"
    assert registry.find("algorithm", "grpo") is Grpo


def test_a_broken_package_stops_only_those_that_choose_it(installed: None) -> None:
    assert "broken" not in registry.every("algorithm")
    assert {"mine", "grpo"} <= registry.every("algorithm").keys()
    with pytest.raises(ConfigError, match=r"^algorithm=broken: module gone_from_here cannot be imported"):
        registry.find("algorithm", "broken")


def test_what_a_package_of_the_clone_brings_is_named_with_its_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, shelf = (tmp_path / "plugins" / name for name in ("bare", "shelf"))
    for folder in (bare, shelf):
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(f'[project]\nname = "rlvr-{folder.name}"\n')
    with (shelf / "pyproject.toml").open("a") as file:
        file.write('[project.entry-points."rlvr.components"]\n"task.shop" = "shelf:Shop"\n')
    monkeypatch.setattr(registry, "PLUGINS", tmp_path / "plugins")
    remedy = "there is no such task; rlvr-shelf brings it: pip install -e . -e plugins/shelf -c constraints.txt."
    with pytest.raises(ConfigError) as found:
        registry.find("task", "shop")
    assert str(found.value) == f"task=shop: {remedy}"
    with pytest.raises(ConfigError) as composed:
        load_config(["task=shop"])
    assert str(composed.value) == f"task=shop: {remedy}"
    with pytest.raises(ConfigError, match="algorithm=shop: there is no such algorithm; there are "):
        registry.find("algorithm", "shop")


def test_the_plugin_of_this_clone_is_found() -> None:
    remedy = "rlvr-verifiers brings it: pip install -e . -e plugins/rlvr-verifiers -c constraints.txt."
    assert registry.remedy("task", "verifiers", []) == remedy


def test_a_user_class_is_never_saved_under_our_names() -> None:
    class Child(Grpo): ...

    named = register("algorithm", "rloo")(Child)
    assert registry.name_of(named) == f"{__name__}:{Child.__qualname__}"
    assert registry.find("algorithm", "rloo").__name__ == "Rloo"


def test_a_file_in_the_current_folder_hides_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "colorsys.py").write_text("rgb_to_hsv = print")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "colorsys")
    found = imported("key=value", "colorsys:rgb_to_hsv", "function", callable)
    assert found.__code__.co_filename == colorsys.rgb_to_hsv.__code__.co_filename


@pytest.mark.filterwarnings("ignore:Field name")  # of pydantic, on a name that hides another
@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ("other: 'Nowhere' = None", "algorithm=own_field:Own: its class raised PydanticUserError: `Own` is not fully"),
        ("words: set = {'x'}", "Own: a default that YAML cannot hold raised TypeError"),
        ("share: float = setting(3.0, 'x', le=1)", "algorithm.share=3.0: must be less than or equal to 1"),
    ],
)
def test_a_field_that_cannot_be_a_setting_is_one_sentence(
    field: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "from rlvr.algorithms.grpo import Grpo\nfrom rlvr.settings import setting\n"
    (tmp_path / "own_field.py").write_text(f"{head}class Own(Grpo):\n    {field}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_field", raising=False)
    with pytest.raises(ConfigError, match=sentence):
        load_config(["algorithm=own_field:Own"])
