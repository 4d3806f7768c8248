"""Settings that must stand before torch is imported, and what is skipped."""

import importlib.util
import os
import signal

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads on shared cores cost far more than they gain
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # one worker a core; the models are too small for more threads

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the verifiers library is skipped without it: it brings a hundred packages, and is no test dependency.

    CI runs these in a virtual environment of their own.
    """
    if importlib.util.find_spec("verifiers") is not None:
        return
    skip = pytest.mark.skip(reason="verifiers is not installed: pip install -e '.[test,verifiers]'")
    for item in items:
        if item.get_closest_marker("verifiers"):
            item.add_marker(skip)
