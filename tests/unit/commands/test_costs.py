"""What `rlvr plan` measures; tests/system/test_plan.py compares it with runs."""

from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.commands.plan import costs
from tests.unit.core.tiny import tiny_model


def test_a_model_too_large_to_be_copied_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stages beside each other need two of it; then half the speed is supposed."""
    monkeypatch.setattr(costs, "MOST_COPIED", 0)
    bench: Any = SimpleNamespace(model=tiny_model())
    nothing: Any = None
    assert costs.Bench._beside(bench, nothing, nothing) == 0.5
