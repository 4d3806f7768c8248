"""A model as `rlvr serve` opens it."""

from pathlib import Path

import pytest
import torch

from rlvr.commands.serve.local import ServeSettings, open_served
from rlvr.errors import ConfigError


def test_a_small_model_is_served_by_one_thread(qwen_folder: Path) -> None:
    """Up to the context that it has."""
    before = torch.get_num_threads()
    settings = ServeSettings(names=(), max_batch_size=3, max_queue=4, max_context_tokens=40)
    try:
        with open_served(str(qwen_folder), settings) as (served, notes):
            assert torch.get_num_threads() == 1
            assert (served.names, served.capacity, served.max_context_tokens) == ((str(qwen_folder),), 7, 40)
            assert notes == []
    finally:
        torch.set_num_threads(before)
    with pytest.raises(ConfigError, match=r"--max-context-tokens 999999: the model supports at most \d+; choose fewer"):  # noqa: SIM117
        with open_served(
            str(qwen_folder), ServeSettings(names=(), max_batch_size=1, max_queue=0, max_context_tokens=999999)
        ):
            pass
