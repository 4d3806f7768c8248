"""Runs tests of a tree, each in a fork of a process that has loaded the libraries: a third of the time.

    python zygote.py TREE

One line of JSON in, `"tests/...::test_x"`; one line out, `{"code": 1, "output": "..."}`. Nothing of the package and
nothing of its tests may be loaded here: each fork takes them from the tree as it then is.
"""

import gc
import importlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

LIBRARIES = ("torch", "transformers.models.llama.modeling_llama", "pydantic", "hydra", "scipy.stats")


def main() -> None:
    """Serve until stdin ends."""
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()  # pytest collects garbage at its end: not among the libraries' objects, in every fork
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as output:
            child = os.fork()
            if child == 0:
                run(Path(sys.argv[1]), json.loads(line), output.fileno())
            _, status = os.waitpid(child, 0)
            output.seek(0)
            print(json.dumps({"code": os.waitstatus_to_exitcode(status), "output": output.read()[-2000:]}), flush=True)


def run(tree: Path, test: str, output: int) -> NoReturn:
    """What `pytest TEST` in the tree does; the process ends with its status."""
    code = 1  # of a process that ends by an exception, as pytest does of what it finds when all tests are done
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree / "src")
        sys.path[:0] = [str(tree / "src"), str(tree)]
        import pytest

        early = "ignore::pytest.PytestAssertRewriteWarning"  # some libraries are plugins of pytest, too
        code = int(pytest.main(["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-W", early, test]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
