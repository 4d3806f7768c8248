"""Served models, loaded as the command loads them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.commands.serve.local import ServeSettings, open_served
from rlvr.serve.sampling import Served
from tests.system.small_qwen import save_small_qwen
from tests.unit.serve.chain import save_chain

SETTINGS = ServeSettings(names=("m", "also"), max_batch_size=8, max_queue=24)


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60,000 random weights, a BPE tokenizer of bytes and a chat template."""
    folder = tmp_path_factory.mktemp("qwen")
    save_small_qwen(folder)
    return folder


@pytest.fixture(scope="session")
def qwen(qwen_folder: Path) -> Iterator[Served]:
    """It, served."""
    with open_served(str(qwen_folder), SETTINGS) as (served, _):
        yield served


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The model whose every word is known."""
    with open_served(str(save_chain(tmp_path_factory.mktemp("chain"))), SETTINGS) as (served, _):
        yield served


@pytest.fixture(scope="session")
def long_qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The first, with room for tools in its prompt."""
    folder = tmp_path_factory.mktemp("long")
    with open_served(str(save_small_qwen(folder, 2048)), SETTINGS) as (served, _):
        yield served
