"""The command line answers at once: nothing heavy is loaded before a command needs it."""

import subprocess
import sys

HEAVY = ("torch", "transformers", "numpy", "scipy", "pydantic", "hydra", "omegaconf", "rich")
MAX_SECONDS = 0.3

LIST_HEAVY = f"""
import sys
import rlvr.cli.main
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
    assert python(LIST_HEAVY.format(statement="")).split() == []


def test_help_of_every_command_loads_nothing_heavy() -> None:
    statement = "from rlvr.cli.main import _parsers; [parser.format_help() for parser in _parsers()[1].values()]"
    assert python(LIST_HEAVY.format(statement=statement)).split() == []


def test_importing_the_command_line_is_fast() -> None:
    # The best of several: a busy machine makes one run slow, hardly all of them.
    assert min(float(python(TIME_IMPORT)) for _ in range(5)) < MAX_SECONDS
