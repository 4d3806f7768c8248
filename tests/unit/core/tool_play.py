"""What whole episodes with tools need: a model that calls them by chance, tools, environments, a watched engine."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlvr.chat.rendering import Chat
from rlvr.core.engine.engine import LocalEngine
from rlvr.core.episode import ChatModel, run_episode
from rlvr.envs.tool_env import ToolEnv
from rlvr.envs.tools import Tool, ToolError, make_tool
from rlvr.models.scratch import build_bpe_tokenizer
from rlvr.types import (
    Attempt,
    Completion,
    Episode,
    Example,
    Message,
    SamplingParams,
    Score,
    StopReason,
    ToolCall,
    ToolSchema,
)
from tests.unit.chat.tokenizers import END, START
from tests.unit.core.fakes import FakeEngine

OPEN, CLOSE = "<tool_call>", "</tool_call>"
CALLS = {
    "search": '{"name": "search", "arguments": {"query": "',
    "read": '{"name": "read", "arguments": {"doc_id": "',
    "number": '{"name": "search", "arguments": {"query": 3, "top_n": "',
    "nothing": '{"name": "nothing", "arguments": {"query": "',
    "complete": '{"name": "complete", "arguments": {"answer": "',
}
SHARES = {"search": 0.3, "read": 0.3, "number": 0.1, "nothing": 0.1, "complete": 0.1}
WORDS = ("alpha", "beta", "gamma", "delta")
QUOTE, BRACE = '"}}', '"}'
MARKERS = (START, END, OPEN, CLOSE, *CALLS.values(), *WORDS, QUOTE, BRACE)
TEMPLATE = (  # names are enough: schemas letter by letter would fill the context
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }} {% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}{{ "}" }}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT_TOKENS = 1024


def walker_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, chat markers, and the pieces of calls as tokens of their own."""
    tokenizer = build_bpe_tokenizer([], 256 + 2 + len(MARKERS), MARKERS)
    tokenizer.eos_token = END
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def walker_chat() -> Chat:
    """Hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""
    return Chat(walker_tokenizer(), tool_format="hermes")


def walker_model(tokenizer: PreTrainedTokenizerFast, *, noise: float = 0.05) -> LlamaForCausalLM:
    """A tiny Llama that writes tool calls by chance: a table of bigrams in the weights of a transformers model.

    The embedding of a token is a unit vector, the head reads off what follows it, and one random attention layer makes
    every logit depend a little on everything before it. It calls tools that exist and one that does not, with good and
    bad arguments, writes broken calls, answers, and words letter by letter, whose text encodes to other ids.
    """
    size = 8 * math.ceil(len(tokenizer) / 8)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size,
            hidden_size=size,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT_TOKENS,
            eos_token_id=tokenizer.convert_tokens_to_ids(END),
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.copy_(_table(tokenizer, size).T / math.sqrt(size))  # the norm multiplies by sqrt(size)
        layer = model.model.layers[0]
        for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            weight.copy_(torch.randn_like(weight) * noise / math.sqrt(size))
    return model.eval()


def _table(tokenizer: PreTrainedTokenizerFast, size: int) -> torch.Tensor:
    """Logits `[token, next token]`: log of the shares below, -12 elsewhere."""
    words = dict.fromkeys(WORDS, 0.2)
    after: dict[str, Mapping[str, float]] = {
        "\u010a": {OPEN: 0.8, "beta": 0.1, "b": 0.1},  # a line end: the last token of the header of a turn
        OPEN: {CALLS[name]: share for name, share in SHARES.items()} | {"alpha": 0.1},
        QUOTE: {CLOSE: 1.0},
        BRACE: {CLOSE: 0.8, END: 0.2},
        CLOSE: {END: 0.7, OPEN: 0.2, "alpha": 0.1},
    }
    after |= {call: words | {"b": 0.2} for call in CALLS.values()}
    after |= {word: {QUOTE: 0.8, BRACE: 0.05, END: 0.05, "gamma": 0.1} for word in (*WORDS, "a")}
    after |= {"b": {"e": 1.0}, "e": {"t": 1.0}, "t": {"a": 1.0}}  # "beta" is one token, if it is encoded
    table = torch.full((size, size), -12.0)
    table[:, tokenizer.convert_tokens_to_ids(END)] = -1.0  # any other token ends the turn
    for token, shares in after.items():
        row = tokenizer.convert_tokens_to_ids(token)
        table[row] = -12.0
        for following, share in shares.items():
            table[row, tokenizer.convert_tokens_to_ids(following)] = math.log(share)
    return table


chat = cache(walker_chat)


@cache
def model() -> Any:
    return walker_model(chat()._tokenizer)


def make_engine(max_batch_size: int = 8) -> LocalEngine:
    return LocalEngine(model(), max_batch_size=max_batch_size, max_context_tokens=CONTEXT_TOKENS)


@dataclass
class Shelf:
    """The documents of one episode, and what was looked up in them."""

    owner: str
    seen: list[str] = field(default_factory=list)


def search(query: str, state: Shelf, top_n: int = 3) -> str:
    """Search.

    Args:
        query: What for.
        top_n: How many.
    """
    state.seen.append(query)
    return "".join(f"{query} {number} of {state.owner}\n" for number in range(top_n))


async def read(doc_id: str, state: Shelf) -> str:
    """Read."""
    await asyncio.sleep(0)
    if doc_id == "gamma":
        raise ToolError("there is no such document")
    return f"{doc_id} of {state.owner}"


def complete(answer: str, state: Shelf) -> None:
    """Answer."""


class CountVerifier:
    """What an episode has seen."""

    name = "count"

    async def verify(self, attempt: Attempt) -> Score:
        assert isinstance(attempt.state, Shelf)
        return Score(value=float(len(attempt.state.seen)))


def make_tools(*functions: Callable[..., object]) -> tuple[Tool, ...]:
    made = [make_tool(function, timeout_s=5.0, inline=function is search) for function in functions or (search, read)]
    return (*made, make_tool(complete, timeout_s=5.0, final=True, inline=True))


TOOLS = make_tools()


def make_env(name: str, tools: Sequence[Tool] = TOOLS, max_turns: int = 4) -> ToolEnv:
    example = Example(id=name, messages=(Message(role="user", content=f"Where is {name}?"),), answer="")
    return ToolEnv(example, tools=tools, state=Shelf(name), verifier=CountVerifier(), max_turns=max_turns)


class Recorder(FakeEngine):
    """Passes everything on to an engine and notes it."""

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__()
        self.engine = engine
        self.calls: dict[Hashable, list[tuple[tuple[int, ...], Completion]]] = {}

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: Hashable | None = None, **_: Any
    ) -> Completion:
        completion = await self.engine.generate(prompt_ids, sampling, session=session)
        self.calls.setdefault(session or object(), []).append((tuple(prompt_ids), completion))
        return completion

    def release(self, session: Hashable) -> None:
        super().release(session)
        self.engine.release(session)


async def play(env: ToolEnv, engine: Any, seed: int, *, codec: Any = None, context: int = CONTEXT_TOKENS) -> Episode:
    codec = codec or chat()

    def sampling(turn: int) -> SamplingParams:
        return SamplingParams(max_tokens=40, stop_ids=codec.stop_ids, seed=1000 * seed + turn)

    example = env._example
    model = ChatModel(engine=engine, chat=codec, max_context_tokens=context)
    return await run_episode(example, env, model, sampling, sample_index=0, seed=seed)


class Script:
    """The real chat, but each turn of one episode means the scripted calls, whatever was sampled."""

    def __init__(self, *turns: Sequence[ToolCall]) -> None:
        self._turns = list(turns)

    def __getattr__(self, name: str) -> Any:
        return getattr(chat(), name)

    def parse(self, ids: Sequence[int], stop_reason: StopReason, tools: Sequence[ToolSchema] = ()) -> Message:
        said = chat().parse(ids, stop_reason)
        return Message(role="assistant", content=said.content, tool_calls=tuple(self._turns.pop(0)))


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(id="call_0", name=name, arguments=arguments)


DONE = (call("complete", answer="x"),)


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20.0
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)
