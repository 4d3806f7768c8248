"""A pytest plugin that writes which tests run which lines of the package, for `tests/mutate_rooms.py`.

    LINES_RUN=lines.json pytest -n 0 -p tests.lines_run tests/unit/core

The file has for each source file and line the test functions, as pytest names them. Lines that a fixture of more than
one test runs belong to every test that uses it; lines of import and of other processes to none.
"""

import importlib.util
import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

SPEC = importlib.util.find_spec("rlvr")  # which may be a copy
assert SPEC is not None
assert SPEC.origin is not None
PACKAGE = str(Path(SPEC.origin).parent)
FIXTURE = "fixture "


class Lines:
    """The lines that run, by the test or fixture that runs them."""

    def __init__(self) -> None:
        self.owner, self.tests = "", dict[str, list[str]]()
        self.run: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.ours = dict[str, bool]()  # by file

    def call(self, frame: FrameType, event: str, value: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in self.ours:
            self.ours[file] = file.startswith(PACKAGE)
        return self.line if self.ours[file] and self.owner else None

    def line(self, frame: FrameType, event: str, value: Any) -> Any:
        self.run[frame.f_code.co_filename, frame.f_lineno].add(self.owner)
        return self.line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Function) -> Iterator[None]:
        self.owner = item.nodeid.split("[")[0]
        self.tests[self.owner] = item.fixturenames
        sys.settrace(self.call)
        threading.settrace(self.call)
        try:
            return (yield)
        finally:
            self.owner = ""
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        before = self.owner
        if fixturedef.scope != "function":
            self.owner = FIXTURE + fixturedef.argname
        try:
            return (yield)
        finally:
            self.owner = before

    def pytest_sessionfinish(self) -> None:
        """Write them."""
        users = defaultdict[str, list[str]](list)
        for test, fixtures in self.tests.items():
            for name in fixtures:
                users[FIXTURE + name].append(test)
        found = defaultdict[str, dict[int, list[str]]](dict)
        for (file, line), owners in self.run.items():
            tests = {test for owner in owners for test in users.get(owner, [owner])}
            found[str(Path("src/rlvr", Path(file).relative_to(PACKAGE)))][line] = sorted(tests)
        Path(os.environ["LINES_RUN"]).write_text(json.dumps(found))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Lines())
