"""uv.lock and constraints.txt say what pyproject.toml here and in plugins/ ask for; `bash .ci/lock` writes both."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from rlvr.cli.versions import INTERNALS

ROOT = Path(__file__).parents[2]
FILES = (ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml")))
READ = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in FILES]
PROJECTS: dict[str, dict[str, Any]] = {project["name"]: project for project in READ}
LOCK = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
PACKAGES: list[dict[str, Any]] = LOCK["package"]
ASKED = [
    (name, extra, text)
    for name, project in PROJECTS.items()
    for extra, texts in {"": project["dependencies"], **project.get("optional-dependencies", {})}.items()
    for text in texts
]


def pins(path: Path) -> dict[str, list[str]]:
    """The versions that a file of constraints has for each package: several, where they depend on the Python."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        requirement = Requirement(line)
        (pin,) = requirement.specifier
        assert (pin.operator, requirement.extras) == ("==", set()), line  # what pip takes as a constraint
        found.setdefault(canonicalize_name(requirement.name), []).append(pin.version)
    return found


CONSTRAINTS = pins(ROOT / "constraints.txt")
OF_VERIFIERS = "plugins/rlvr-verifiers/constraints-0.4.txt"


def plain(extra: str, name: str, extras: set[str], specifier: str) -> tuple[str, ...]:
    clauses = sorted(specifier.replace(" ", "").split(","))
    return (extra, canonicalize_name(name), ",".join(sorted(canonicalize_name(e) for e in extras)), ",".join(clauses))


@pytest.mark.parametrize("name", PROJECTS)
def test_the_lock_was_made_from_these_requirements(name: str) -> None:
    asked = set()
    for project, extra, text in ASKED:
        needed = Requirement(text)
        from_here = needed.name in PROJECTS.keys() - {name}  # locked without a range: it is the one beside it
        if project == name:
            asked.add(plain(extra, needed.name, needed.extras, "" if from_here else str(needed.specifier)))
    (package,) = (package for package in PACKAGES if package["name"] == name)
    locked = {
        plain(
            entry.get("marker", "").removeprefix("extra == ").strip("'"),
            entry["name"],
            set(entry.get("extras", ())),
            entry.get("specifier", ""),
        )
        for entry in package["metadata"]["requires-dist"]
    }
    assert asked == locked, "pyproject.toml has changed: bash .ci/lock"


def test_the_lock_is_for_the_same_pythons() -> None:
    assert {project["requires-python"] for project in PROJECTS.values()} == {LOCK["requires-python"]}


@pytest.mark.parametrize("library", INTERNALS)
def test_libraries_whose_internals_are_used_end_where_none_was_tested(library: str) -> None:
    (bounds,) = (Requirement(text).specifier for _, _, text in ASKED if Requirement(text).name == library)
    assert [clause.operator for clause in bounds if clause.operator == "<"], bounds


def test_the_constraints_are_those_of_the_lock() -> None:
    locked: dict[str, list[str]] = {}
    for package in PACKAGES:
        if package["name"] not in PROJECTS:
            locked.setdefault(package["name"], []).append(package["version"])
    assert {name: sorted(versions) for name, versions in CONSTRAINTS.items()} == {
        name: sorted(versions) for name, versions in locked.items()
    }, "uv.lock has changed: bash .ci/lock"


@pytest.mark.parametrize(("name", "extra", "text"), ASKED)
def test_what_is_locked_lies_in_the_range(name: str, extra: str, text: str) -> None:
    requirement = Requirement(text)
    ours = PROJECTS.get(requirement.name)
    for version in [ours["version"]] if ours else CONSTRAINTS[canonicalize_name(requirement.name)]:
        assert requirement.specifier.contains(Version(version)), (name, extra, version)


def test_the_environment_of_vllm_is_locked() -> None:
    locked = pins(ROOT / ".ci" / "vllm.txt")
    for line in (ROOT / ".ci" / "vllm.in").read_text(encoding="utf-8").splitlines():
        requirement = Requirement(line)
        assert requirement.specifier.contains(*locked[requirement.name]), line
    assert {"transformers", "safetensors", "starlette"} <= locked.keys(), "only what was asked for is pinned"
    assert all(len(versions) == 1 for versions in locked.values())


def test_the_environment_of_verifiers_0_4_differs_where_the_library_asks_for_it() -> None:
    locked = pins(ROOT / OF_VERIFIERS)
    assert Version("0.4") <= Version(*locked["verifiers"]) < Version("0.5")
    needed = [Requirement(text).name for _, extra, text in ASKED if extra in ("", "serve")]
    assert {canonicalize_name(name) for name in needed} - PROJECTS.keys() <= locked.keys()
    others = {name for name, versions in locked.items() if not {*versions} <= {*CONSTRAINTS.get(name, versions)}}
    assert others == {"verifiers", "openai", "mcp", "renderers"}, "constraints.txt has changed: bash .ci/lock"


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *sorted(p.name for p in (ROOT / "docs").glob("*.md"))]
)
def test_pages_install_what_was_tested(page: str) -> None:
    folder = ROOT if page in ("README.md", "CONTRIBUTING.md") else ROOT / "docs"
    for line in (folder / page).read_text(encoding="utf-8").splitlines():
        for part in line.split("pip install ")[1:]:
            if part.startswith(("-e .", "-e '.")):
                assert " -c constraints.txt" in part or f" -c {OF_VERIFIERS}" in part, line
