"""Episodes per second of the environments with an instant model, compared with verifiers 0.3.1 or 0.4.

    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python benchmarks/environments.py [--repeats 5] [--profile]

Needs verifiers in the same virtual environment, and for 0.4 plugins/rlvr-verifiers, whose loop is measured; without it
only rlvr is measured. Both sides alternate on the same episodes: questions answered at once, and questions where the
model searches, reads a document and answers (three turns, two tool calls). The model is a free stub.

rlvr does more work per episode: `run_episode` and the metric render prompts with the chat template, encode them, decode
completions, parse calls from text and validate their arguments, with a byte-level BPE tokenizer. In-process verifiers
gets prepared messages with tool calls, and no token ids. Two APIs are measured: `run_group`, and `rollout` with
`rubric.score_group`. Prints a section of benchmarks/results/environments.md, whole, for the edition that is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import platform
import pstats
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlvr.chat.rendering import Chat
from rlvr.core.engine.base import OnToken
from rlvr.core.episode import ChatModel, run_episode
from rlvr.envs.single_turn import SingleTurnEnv
from rlvr.envs.tool_env import ToolEnv
from rlvr.envs.tools import Tool, make_tool
from rlvr.evaluation.evaluate import grade
from rlvr.evaluation.players import played
from rlvr.models.scratch import build_bpe_tokenizer
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.numeric import Numeric, NumericMetric
from rlvr.rewards.parts import PartsVerifier
from rlvr.types import Attempt, Completion, Example, GradedAnswer, Message, SamplingParams, StopReason, TurnText

COMMAND = "OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python benchmarks/environments.py"
SINGLE, TOOLS = "one turn", "three turns, two calls of tools"
NUM_QUESTIONS, GROUP_SIZE = 400, 8
MAX_TURNS = 5
SYSTEM = "Answer the question with a number. Search and read before you answer."
TEMPLATE = r"""{#- what Qwen2.5's template writes for the messages below -#}
{%- if tools -%}
    {{- '<|im_start|>system\n' + messages[0].content + '\n\n# Tools\n\nYou may call one or more functions to assist '
        'with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n'
        '<tools>' -}}
    {%- for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor -%}
    {{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments within '
        '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
        '</tool_call><|im_end|>\n' -}}
{%- else -%}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) -%}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
    {%- elif message.role == 'assistant' -%}
        {{- '<|im_start|>assistant' -}}
        {%- if message.content %}{{ '\n' + message.content }}{% endif -%}
        {%- for call in message.tool_calls -%}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' -}}
            {{- call.function.arguments | tojson -}}
            {{- '}\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\n' -}}
    {%- elif message.role == 'tool' -%}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""


# ------------------------------------------------------------------------------------------------------ the questions


@dataclass(frozen=True)
class Question:
    """A question, the model's completions by turn, and its documents."""

    text: str
    answer: str
    turns: tuple[str, ...]
    documents: Mapping[str, str]

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """Tool and arguments of each turn but the last."""
        return [("search", {"query": f"birth year {self.answer}", "top_n": 2}), ("read", {"doc_id": "d1"})]


def make_question(index: int) -> Question:
    """Question `index`: the model searches, reads, and answers."""
    answer = str(1900 + index)
    documents = {
        f"d{place}": f"Document {place} of question {index}: the architect of the old town hall was born in the year "
        f"{answer}, moved to the coast at the age of twenty, and built {place} bridges, two of which still stand."
        for place in range(6)
    }
    question = Question(f"In which year was the architect of town hall number {index} born?", answer, (), documents)
    turns = [call_text(name, arguments) for name, arguments in question.calls]
    last = f"The architect of the town hall was born in {answer}, as document d1 says: \\boxed{{{answer}}}"
    return Question(question.text, answer, (*turns, last), documents)


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in Qwen's format."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"I need to find the architect first.\n<tool_call>\n{body}\n</tool_call>"


QUESTIONS = [make_question(index) for index in range(NUM_QUESTIONS)]


def find(query: str, top_n: int, documents: Mapping[str, str]) -> str:
    """Documents with the most words of the query."""
    words = set(query.lower().split())
    ranked = sorted(documents, key=lambda key: -len(words & set(documents[key].lower().split())))
    return "\n".join(f"[{key}] {documents[key]}" for key in ranked[:top_n])


# ------------------------------------------------------------------------------------------------------------- rlvr


def search(query: str, state: Mapping[str, str], top_n: int = 3) -> str:
    """Find documents about something.

    Args:
        query: Words to look for.
        top_n: How many documents to return.
    """
    return find(query, top_n, state)


def read(doc_id: str, state: Mapping[str, str]) -> str:
    """Read a document.

    Args:
        doc_id: The id that a search has shown.
    """
    return state[doc_id]


class InstantEngine:
    """An engine that returns prepared completions at once; the seed is the index."""

    policy_version, max_context_tokens = 0, sys.maxsize

    def __init__(self, completions: Sequence[Completion]) -> None:
        self._completions = completions

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        return self._completions[sampling.seed]

    def release(self, session: Hashable) -> None:
        """Nothing is kept."""

    def load_weights(self, version: int) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing to free."""


@dataclass
class OurSide:
    """Episodes of rlvr, graded as in an evaluation. Without tools they have one turn."""

    tokenizer: PreTrainedTokenizerBase
    tools: tuple[Tool, ...]
    num_turns: int

    def __post_init__(self) -> None:
        self.chat = Chat(self.tokenizer, tool_format="hermes")
        self._format, self._metric = AnswerFormat(answer_in="boxed"), NumericMetric()
        self._verifier = PartsVerifier({"correct": Numeric()}, self._format)
        self._examples = [to_example(index, question) for index, question in enumerate(QUESTIONS)]
        said = [turn for q in QUESTIONS for member in range(GROUP_SIZE) for turn in varied(q, member, self.num_turns)]
        self._engine = InstantEngine([to_completion(self.tokenizer, text) for text in said])

    def env(self, example: Example) -> SingleTurnEnv | ToolEnv:
        if not self.tools:
            return SingleTurnEnv(example, self._verifier)
        documents = example.metadata["documents"]
        return ToolEnv(example, tools=self.tools, state=documents, verifier=self._verifier, max_turns=MAX_TURNS)

    async def grade(self, example: Example, turns: Sequence[TurnText]) -> GradedAnswer:
        """The metric."""
        return await self._metric.grade(replace(Attempt.of(example, turns), format=self._format))

    def tags(self, example: Example) -> tuple[str, ...]:
        """None."""
        return ()

    async def episode(self, index: int, member: int) -> None:
        """One episode of a group, scored and graded."""
        example, first = self._examples[index], (index * GROUP_SIZE + member) * self.num_turns

        def sampling(turn: int) -> SamplingParams:
            return SamplingParams(max_tokens=256, stop_ids=self.chat.stop_ids, seed=first + turn)

        env = self.env(example)
        model = ChatModel(engine=self._engine, chat=self.chat, max_context_tokens=4096)
        episode = await run_episode(example, env, model, sampling, sample_index=0, seed=0)
        record = await grade(self, example, played(self.chat, episode), 0)  # pyright: ignore[reportArgumentType]
        assert (record.correct, record.reward, len(episode.turns)) == (True, 1.0, self.num_turns)
        assert record.diagnostics.get("tool_errors", 0.0) == 0.0

    async def play(self, num_groups: int) -> None:
        """Play groups of episodes concurrently."""
        groups = [index % len(QUESTIONS) for index in range(num_groups)]
        await asyncio.gather(*(self.episode(index, member) for index in groups for member in range(GROUP_SIZE)))


def varied(question: Question, member: int, num_turns: int) -> list[str]:
    """Completions of a group's member, all different."""
    return [f"Attempt {member} of many. {text}" for text in question.turns[-num_turns:]]


def to_example(index: int, question: Question) -> Example:
    return Example(
        id=str(index),
        messages=(Message(role="system", content=SYSTEM), Message(role="user", content=question.text)),
        answer=question.answer,
        metadata={"documents": question.documents},
    )


def to_completion(tokenizer: PreTrainedTokenizerBase, text: str) -> Completion:
    """The text as sampled tokens with the end token."""
    ids = tuple(tokenizer.encode(text + "<|im_end|>", add_special_tokens=False))
    return Completion(
        token_ids=ids,
        behavior_logprobs=(-0.1,) * len(ids),
        sampling_logprobs=(-0.1,) * len(ids),
        stop_reason=StopReason.STOP,
        policy_version=0,
    )


def make_tokenizer() -> PreTrainedTokenizerBase:
    """Byte-level BPE trained on the questions, with Qwen2.5's chat format."""
    texts = [text for q in QUESTIONS for text in (q.text, *q.turns, *q.documents.values())]
    texts += [json.dumps(tool.schema) for tool in make_tools(inline=True)]
    markers = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
    tokenizer = build_bpe_tokenizer(texts, 2000, markers)
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_tools(*, inline: bool) -> tuple[Tool, ...]:
    """Tools on the event loop, or in threads."""
    return tuple(make_tool(function, timeout_s=5.0, inline=inline) for function in (search, read))


# ------------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Row:
    """A way to play a kind of episode: name, kind, function, and rates so far."""

    name: str
    kind: str
    play: Callable[[int], Awaitable[None]]
    rates: list[float] = field(default_factory=list)
    cpu_rates: list[float] = field(default_factory=list)

    def measure(self, num_groups: int) -> None:
        """Measure another rate, in episodes per second of wall and CPU time."""
        start, cpu_start = time.perf_counter(), time.process_time()
        asyncio.run(self._play(num_groups))
        self.rates.append(num_groups * GROUP_SIZE / (time.perf_counter() - start))
        self.cpu_rates.append(num_groups * GROUP_SIZE / (time.process_time() - cpu_start))

    async def _play(self, num_groups: int) -> None:
        await self.play(num_groups)


def our_rows() -> list[Row]:
    """rlvr's rows."""
    tokenizer = make_tokenizer()
    return [
        Row("rlvr", SINGLE, OurSide(tokenizer, (), 1).play),
        Row("rlvr", TOOLS, OurSide(tokenizer, make_tools(inline=True), 3).play),
        Row("rlvr, tools in threads", TOOLS, OurSide(tokenizer, make_tools(inline=False), 3).play),
    ]


def edition() -> str | None:
    """The version of the installed verifiers."""
    try:
        return metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        return None


def their_rows() -> list[Row]:
    """The rows of the installed verifiers, if there is one."""
    version = edition()
    if version is None:
        return []
    here = Path(__file__).parent
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != here]  # not our script `verifiers`
    name = "verifiers_side" if version == "0.3.1" else "verifiers_v1_side"
    spec = spec_from_file_location(name, here / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    side = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(side)
    return [
        Row(f"verifiers {version}, {way}", TOOLS if with_tools else SINGLE, play)
        for with_tools, way, play in side.rows(QUESTIONS, find, SYSTEM, GROUP_SIZE, MAX_TURNS)
    ]


def load() -> str:
    """`0.8, 1.4, 4.5`, over 1, 5 and 15 minutes."""
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def profile(row: Row, num_groups: int) -> None:
    """Print a profile."""
    profiler = cProfile.Profile(time.process_time)  # CPU time is independent of other load
    profiler.enable()
    row.measure(num_groups)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


def main() -> None:
    parser = argparse.ArgumentParser(description="Episodes a second with an instant model.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-groups", type=int, default=100, help=f"of {GROUP_SIZE} episodes, for each measurement")
    parser.add_argument("--profile", action="store_true", help="show where the time of rlvr goes, and nothing else")
    arguments = parser.parse_args()
    ours = our_rows()
    if arguments.profile:
        for row in ours[:2]:
            profile(row, arguments.num_groups)
        return
    rows = ours + their_rows()
    before = load()
    for _ in range(arguments.repeats + 1):
        for row in rows:
            row.measure(arguments.num_groups)
    print(f"## {f'Beside verifiers {edition()}' if edition() else 'Alone'}\n\n    {COMMAND} {' '.join(sys.argv[1:])}\n")
    print(
        f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, one process and one thread."
    )
    print(f"Load averages {before} at the start, {load()} at the end.")
    print(f"Medians of {arguments.repeats} rounds, in which all rows take turns;")
    print(f"{arguments.num_groups * GROUP_SIZE:,} episodes each, in groups of {GROUP_SIZE}.\n")
    print("| episodes | played by | episodes/s | best | per CPU second | goal |\n|---|---|---|---|---|---|")
    for kind, goal in ((SINGLE, "3,000"), (TOOLS, "800")):
        for row in rows:
            if row.kind == kind:
                rates, cpu_rates = row.rates[1:], row.cpu_rates[1:]  # the first round warms up
                cells = f"**{statistics.median(rates):,.0f}** | {max(rates):,.0f} | {statistics.median(cpu_rates):,.0f}"
                print(f"| {kind} | {row.name} | {cells} | {goal if row.name == 'rlvr' else ''} |")


if __name__ == "__main__":
    main()
