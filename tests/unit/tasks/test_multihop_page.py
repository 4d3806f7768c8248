"""The Python of docs/multihop.md."""

import ast
import asyncio
import re
from typing import Any

from tests.docs.pages import ROOT
from tests.unit.tasks.data_tasks import FIXTURES

GOLDEN = '"task.retriever=golden"'
SETS = [f"\"task.{key}_sets='{FIXTURES / 'musique'},{name}'\"" for key, name in (("train", "train"), ("eval", "dev"))]


def test_an_episode_is_played_from_python() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "multihop.md").read_text(), re.DOTALL)
    assert GOLDEN in code
    names: dict[str, Any] = {}
    on_our_files = code.replace(GOLDEN, ", ".join([GOLDEN, *SETS]))
    asyncio.run(eval(compile(on_our_files, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names))
    assert [message.role for message in names["messages"]] == ["system", "user"]
    assert "Document ID" in names["reply"].messages[0].content
    assert not names["reply"].done
    assert names["score"].parts["em"] == 0.0  # there was no answer
