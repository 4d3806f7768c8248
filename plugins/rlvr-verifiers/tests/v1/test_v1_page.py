"""The taskset that docs/verifiers.md shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripted import call, make_task, play

PAGE = Path(__file__).parents[4] / "docs" / "verifiers.md"


def test_the_taskset_of_the_page_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python sums\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "sums.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = make_task(env_id="sums", env_args={})
    answer = task.train_example(0).answer
    found, codec = play(task, call(("calculator_add", {"a": int(answer) - 7, "b": 7})), answer)
    assert codec.prompts[1][0].content == answer
    assert (found.score.value, found.score.parts) == (1.0, {"right": 1.0})
