"""docs/verifiers.md: what it says of other versions of the library holds. Needs no library."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from rlvr.types import Example
from tests.unit.tasks.verifiers_play import call, episode

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "fixtures" / "vf_musique"


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
