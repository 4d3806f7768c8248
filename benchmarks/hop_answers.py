"""What `hop_answers` is worth to honest episodes, and to those who list what they read.

    RLVR_DATA=data python benchmarks/hop_answers.py

Every episode reads all paragraphs of a question of MuSiQue's dev file, then calls `complete` with what its line says.
Prints a Markdown table: mean reward part over the questions, no model involved.
"""

from __future__ import annotations

import asyncio
import re
import statistics
from collections.abc import Callable, Mapping, Sequence

from rlvr.config.compose import load_config
from rlvr.run.tasks import open_tasks
from rlvr.tasks.base import Task
from rlvr.types import Example, Message, StopReason, ToolCall, TurnText

NAME = re.compile(r"\b[A-Z]\w+(?: [A-Z]\w+)*")


def hops(example: Example) -> list[str]:
    return [hop.answer for hop in example.metadata["decomposition"]]


def texts(example: Example, *, all_of_them: bool) -> list[str]:
    about = example.metadata
    return [one.text for one in about["documents"] if all_of_them or one.id in about["support"]]


def names(example: Example, *, all_of_them: bool) -> str:
    found = (name for text in texts(example, all_of_them=all_of_them) for name in NAME.findall(text))
    return ", ".join(dict.fromkeys(found))


Said = Callable[[Example], tuple[str, str]]
"""An example -> reasoning and final answer."""

EPISODES: Mapping[str, Said] = {
    "all bridges named, the right answer": lambda x: (". ".join(hops(x)), x.answer),
    "all bridges named, a wrong answer": lambda x: (". ".join(hops(x)[:-1]), "?"),
    "the right answer, no reasoning": lambda x: ("", x.answer),
    "all titles, a wrong answer": lambda x: (", ".join(one.title for one in x.metadata["documents"]), "?"),
    "all names of all paragraphs, a wrong answer": lambda x: (names(x, all_of_them=True), "?"),
    "all names of the supporting paragraphs, a wrong answer": lambda x: (names(x, all_of_them=False), "?"),
    "the supporting paragraphs copied, a wrong answer": lambda x: (" ".join(texts(x, all_of_them=False)), "?"),
}


def turn(*calls: ToolCall) -> TurnText:
    return TurnText(prompt="", completion="", text="", stop_reason=StopReason.STOP, num_tokens=1, calls=calls)


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(id="call", name=name, arguments=arguments)


async def value(task: Task, example: Example, reasoning: str, answer: str) -> float:
    env = task.env(example)
    await env.start()
    reads = [call("get_document", doc_id=one.id) for one in example.metadata["documents"]]
    end = call("complete", reasoning=reasoning, final_answer=answer, cited_doc_ids=[])
    turns = [turn(*reads), turn(end)]
    for said in turns:
        await env.step(Message(role="assistant", content="", tool_calls=said.calls))
    score = await env.score(turns)
    return float(score.diagnostics["hop_answers"])


def row(name: str, values: Sequence[float]) -> str:
    return f"| {name} | {statistics.fmean(values):.3f} |"


def main() -> None:
    with open_tasks(load_config(["model.name_or_path=none"], config_name="musique"), "llama", {}) as tasks:
        examples = tasks.own.eval_examples(10_000)
        print(f"| {len(examples)} questions of MuSiQue dev: the episode says | hop_answers |\n|---|---|")
        for name, said in EPISODES.items():
            print(row(name, [asyncio.run(value(tasks.own, one, *said(one))) for one in examples]), flush=True)


if __name__ == "__main__":
    main()
