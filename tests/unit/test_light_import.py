"""The command line answers at once: nothing heavy is loaded before a command needs it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.harness import Command

pytestmark = pytest.mark.slow

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


PARSERS = (
    "from rlvr.cli.main import _parsers, command_modules; "
    "[parser.format_help() for parser in _parsers(command_modules())[1].values()]"
)


MODELS = ("torch", "transformers")
WRONG = "from rlvr.cli.main import main; assert main(['eval', 'x', '--task', 'rpn', '--set', 'misspelt=1']) == 2"
NO_ADDRESS = "from rlvr.cli.main import main; assert main(['eval', 'openai:127.0.0.1#m', '--task', 'rpn']) == 2"
TRACKING = "import rlvr.records.rollouts, rlvr.tracking.console, rlvr.records.jsonl"


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        pytest.param("import rlvr", HEAVY, id="package"),
        pytest.param(f"import rlvr.cli.main; {PARSERS}", HEAVY, id="help of every command"),
        pytest.param("import rlvr; rlvr.train, rlvr.evaluate, rlvr.Run", (*MODELS, "scipy", "numpy"), id="API names"),
        pytest.param(WRONG, MODELS, id="a wrong setting"),
        pytest.param(NO_ADDRESS, MODELS, id="a malformed address"),
        pytest.param(TRACKING, MODELS[:1], id="tracking"),
    ],
)
def test_nothing_heavy_is_loaded_early(statement: str, forbidden: tuple[str, ...]) -> None:
    assert not {*forbidden} & {*python(LIST_HEAVY.format(statement=statement)).split()}


def test_a_run_loads_no_report_or_tracker_early(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys, rlvr.commands.train.body; print(*sys.modules)")
    command = Command(log=tmp_path / "err", out=tmp_path / "out", script=tmp_path / "script.py")
    assert command.wait() == 0, command.err
    loaded = (tmp_path / "out").read_text().split()
    assert "rlvr.commands.train.body" in loaded
    late = ("rlvr.report.", "mlflow", "wandb", "tensorboard")
    assert [name for name in loaded if name.startswith(late)] == []


def test_importing_the_command_line_is_fast() -> None:
    # The best of several: a busy machine makes one run slow, hardly all of them.
    assert min(float(python(TIME_IMPORT)) for _ in range(3)) < MAX_SECONDS
