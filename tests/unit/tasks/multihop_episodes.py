"""Multi-hop tasks from small files, and a scripted model that plays them turn by turn."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr.core.env import TurnText
from rlvr.tasks.dataset import DatasetTask
from rlvr.types import Example, GradedAnswer, Message, Score, StopReason, ToolCall
from tests.unit.tasks.data_tasks import FIXTURES, make

FOLDERS = {"musique": "musique", "hotpotqa": "hotpotqa", "wiki2": "2wikimultihopqa"}


def make_qa(name: str = "musique", folder: Path | None = None, **changes: Any) -> DatasetTask:
    """The task on the fixtures (or another folder), with changed settings."""
    where = folder or FIXTURES / FOLDERS[name]
    more = {key: changes.pop(key) for key in ("reward", "prompt", "seed") if key in changes}
    return make({"name": name, "train_sets": f"{where},train", "eval_sets": f"{where},dev", **changes}, **more)


def corpus(name: str = "musique", **more: Any) -> dict[str, Any]:
    """Retrieval over the corpus of the fixtures."""
    return {"scope": "corpus", "corpus": str(FIXTURES / FOLDERS[name] / "corpus.jsonl"), **more}


def call(tool: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="call_0", name=tool, arguments=arguments)


def answer(text: Any, cited: Any = (), reasoning: Any = "It follows.") -> ToolCall:
    cited = list(cited) if isinstance(cited, tuple) else cited
    return call("complete", reasoning=reasoning, final_answer=text, cited_doc_ids=cited)


def said(*calls: ToolCall, text: str = "", stop_reason: StopReason = StopReason.STOP) -> TurnText:
    """A turn of the model."""
    return TurnText(prompt="", completion=text, text=text, stop_reason=stop_reason, num_tokens=3, calls=calls)


async def episode(
    task: DatasetTask, example: Example, turns: Sequence[TurnText]
) -> tuple[Score, GradedAnswer, list[Message]]:
    """What an episode of these turns is worth, how it is graded, what the tools said. It ends where the env ends it."""
    env = task.env(example)
    await env.start()
    done: list[TurnText] = []
    heard: list[Message] = []
    for turn in turns:
        done.append(turn)
        if turn.stop_reason is not StopReason.STOP:
            break
        reply = await env.step(Message(role="assistant", content=turn.text, tool_calls=turn.calls))
        heard += reply.messages
        if reply.done:
            break
    return await env.score(done), await task.grade(example, done), heard


def play(task: DatasetTask, example: Example, *turns: TurnText) -> tuple[Score, GradedAnswer, list[Message]]:
    return asyncio.run(episode(task, example, turns))


def solve(example: Example) -> list[TurnText]:
    """Search once, then answer right and cite what supports."""
    search = call("retrieve_documents", query=example.messages[-1].content, top_n=20)
    return [said(search), said(answer(example.answer, tuple(example.metadata["support"])))]


def rows(name: str, split: str = "dev") -> list[dict[str, Any]]:
    """The rows of a fixture."""
    return [json.loads(line) for line in (FIXTURES / FOLDERS[name] / f"{split}.jsonl").read_text().splitlines()]
