"""The command line answers at once: nothing heavy is loaded before a command needs it."""

import subprocess
import sys

import pytest

import rlvr

HEAVY = ("torch", "transformers", "numpy", "scipy", "pydantic", "hydra", "omegaconf", "rich")
MAX_SECONDS = 0.3

LIST_HEAVY = f"""
import sys
{{statement}}
print(*[name for name in {HEAVY!r} if name in sys.modules])
"""
TIME_IMPORT = """
import time
start = time.perf_counter()
import rlvr.cli.main
print(time.perf_counter() - start)
"""


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    assert python(LIST_HEAVY.format(statement="import rlvr.cli.main")).split() == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert python(LIST_HEAVY.format(statement="import rlvr")).split() == []


def test_naming_a_function_of_the_api_loads_no_model_library() -> None:
    heavy = python(LIST_HEAVY.format(statement="import rlvr; rlvr.train, rlvr.evaluate, rlvr.Run")).split()
    assert not {"torch", "transformers", "scipy", "numpy"} & set(heavy)


def test_a_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'tarin'"):
        rlvr.tarin  # type: ignore[attr-defined]  # noqa: B018
    assert {"Run", "evaluate", "train"} <= set(rlvr.__all__)


def test_help_of_every_command_loads_nothing_heavy() -> None:
    statement = "from rlvr.cli.main import _parsers; [parser.format_help() for parser in _parsers()[1].values()]"
    assert python(LIST_HEAVY.format(statement=statement)).split() == []


def test_a_wrong_setting_is_told_before_anything_heavy_is_loaded() -> None:
    statement = (
        "from rlvr.cli.main import main; assert main(['eval', 'x', '--task', 'rpn', '--set', 'misspelt=1']) == 2"
    )
    heavy = python(LIST_HEAVY.format(statement=statement)).split()
    assert not {"torch", "transformers"} & set(heavy)


def test_a_run_loads_neither_the_report_nor_a_tracker_before_it_needs_them() -> None:
    code = "import sys, rlvr.app.train; print(*sys.modules)"
    late = ("rlvr.report.", "mlflow", "wandb", "tensorboard")
    assert [name for name in python(code).split() if name.startswith(late)] == []


def test_importing_the_command_line_is_fast() -> None:
    # The best of several: a busy machine makes one run slow, hardly all of them.
    assert min(float(python(TIME_IMPORT)) for _ in range(5)) < MAX_SECONDS
