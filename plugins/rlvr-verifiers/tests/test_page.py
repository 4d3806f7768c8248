"""docs/verifiers.md on other versions of the library, and the error that names the install."""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest

from rlvr.errors import UserError
from rlvr.types import Example
from rlvr_verifiers.library import installed
from scripted import call, episode

ROOT = Path(__file__).parents[3]
DATA = Path(__file__).parent / "musique"


def test_an_episode_can_be_scored_from_its_calls_alone() -> None:
    (code,) = re.findall(
        r"```python score_calls\.py\n(.*?)```", (ROOT / "docs" / "verifiers.md").read_text(), re.DOTALL
    )
    sets = [f"\"task.{key}='{DATA}/{name}.jsonl'\"" for key, name in (("train_sets", "train"), ("eval_sets", "dev"))]
    assert '"task.retriever=bm25"' in code
    names: dict[str, Any] = {}
    exec(code.replace('"task.retriever=bm25"', ", ".join(['"task.retriever=bm25"', *sets])), names)
    examples: list[Example] = names["game"].held_out()
    assert len(examples) == 4
    rewards = set()
    for example in examples:
        made = [
            ("retrieve_documents", {"query": example.messages[-1].content, "top_n": 3}),
            ("look_up", {}),
            ("get_document", {"doc_id": "0"}),
            ("complete", {"reasoning": "so", "final_answer": example.answer, "cited_doc_ids": ["0"]}),
        ]
        env = names["game"].task.env(example)
        score = asyncio.run(episode(example, env, *[call(one) for one in made])).score
        assert asyncio.run(names["score"](example, made)) == score.value
        rewards.add(score.value)
    assert len(rewards) > 1


@pytest.mark.parametrize("found", [None, "0.2.0", "0.5.0"])
def test_a_missing_or_other_version_names_the_install(monkeypatch: pytest.MonkeyPatch, found: str | None) -> None:
    def version(name: str) -> str:
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(UserError, match=r"pip install -e \. -e plugins/rlvr-verifiers -c constraints\.txt"):
        installed()
