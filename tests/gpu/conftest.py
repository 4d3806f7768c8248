"""Everything here needs an NVIDIA GPU; without one it is skipped, and says so."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here, and skip it where torch sees no GPU."""
    import torch

    skip = pytest.mark.skip(reason=f"no GPU: torch {torch.__version__} sees none; docs/scale.md says what never ran")
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(skip)
