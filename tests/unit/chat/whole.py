"""A template's rendering of the whole conversation: the oracle of every way in which a conversation comes here.

prompt           a row of data with messages and tools, from JSON or from Arrow
demonstration    the same as what a model should say
rollout          what the template has in the place of each completion is sampled, turn by turn
serve            a body of /v1/chat/completions
"""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow
from hypothesis import strategies as st

from rlvr.chat.rendering import Chat
from rlvr.core.env import Env, Reply
from rlvr.core.episode import ChatModel, run_episode
from rlvr.data.conversations import read_demonstration, read_prompt, read_tools
from rlvr.data.problems import Conversation
from rlvr.data.rows import Row
from rlvr.reasoning import FIELDS, THINK, Marks
from rlvr.serve.requests import to_messages, to_tools
from rlvr.serve.schemas import ChatRequest, parse
from rlvr.tasks.demonstrations import Replayed, all_encoded, of_conversation
from rlvr.types import Episode, Example, Message, SamplingParams, ToolCall, ToolSchema
from tests.unit.chat.tokenizers import _SPECIAL as SPECIAL
from tests.unit.chat.tokenizers import encode
from tests.unit.core.fakes import FakeEngine, completion

Chats = list[dict[str, Any]]
CALL = ToolCall(id="call_0", name="add", arguments={"a": 1})
EXAMPLE = Example(id="x", messages=(), answer="")

# ------------------------------------------------------------------------------------------------------- conversations


def tool(name: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties][:1]}
    return {"type": "function", "function": {"name": name, "description": "It does.", "parameters": parameters} | more}


ADD = tool("add", {"a": {"type": "integer"}, "b": {"type": "integer"}})
GREET = tool("greet", {"name": {"type": "string"}})
PAINT = tool(
    "paint",
    {
        "color": {"type": "string", "enum": ["red", "ärger"], "description": "Which."},
        "place": {
            "type": "object",
            "properties": {
                "x": {"type": "integer"},
                "inner": {"type": "object", "properties": {"y": {"type": "number"}}},
            },
            "required": ["x"],
        },
        "tags": {"type": "array", "items": {"type": "string"}},
    },
)
NOW = tool("now", {})
TOOLS = {one["function"]["name"]: one for one in (ADD, GREET, PAINT)}

words = st.builds(
    "w{}{}w".format, st.integers(1000, 99999), st.text(st.sampled_from("ab é中\U0001f600'\"{<&\\,."), max_size=8)
)
lines = st.lists(words, min_size=1, max_size=3).map("\n".join)
arguments = {
    "now": st.just({}),
    "add": st.fixed_dictionaries({"a": st.integers(-99, 9999), "b": st.integers(-99, 9999)}),
    "greet": st.fixed_dictionaries({"name": lines}),
    "paint": st.fixed_dictionaries(
        {"color": st.sampled_from(["red", "ärger"])},
        optional={
            "place": st.fixed_dictionaries({"x": st.integers(0, 9)}, optional={"inner": st.just({"y": 0.5})}),
            "tags": st.lists(words, max_size=2),
        },
    ),
}


@st.composite
def called(draw: st.DrawFn, num: int, number: int, names: Sequence[str]) -> Chats:
    """A message that calls so many tools, and what they say; the ids are the next ones from `number`."""
    chosen = [draw(st.sampled_from(names)) for _ in range(num)]
    calls = [
        {"id": f"call{number + n:05d}", "type": "function", "function": {"name": name, "arguments": given}}
        for n, name in enumerate(chosen)
        for given in [draw(arguments[name])]
    ]
    replies = [
        {"role": "tool", "content": draw(lines), "tool_call_id": call["id"], "name": call["function"]["name"]}
        for call in calls
    ]
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *replies]


THOUGHTS = {"field": lambda text: {"reasoning_content": text}, "empty": lambda text: {"reasoning_content": ""}}
KINDS = (
    "plain",
    "system",
    "systems",
    "late",
    "field",
    "inline",
    "empty",
    "call",
    "parallel",
    "thought_call",
    "said_call",
    "bare",
    "nested",
    "arrow",
)


@st.composite
def conversations(draw: st.DrawFn, kind: str, marks: Marks = THINK) -> tuple[Chats, list[dict[str, Any]]]:
    """Messages that end with the assistant's, and tools: `system` with one, `systems` with several, `late` with one
    behind an answer; reasoning in a `field`, `inline` between the `marks`, or `empty`; a `call`, `parallel` ones, one
    with reasoning, one with a text beside it, one of a tool that takes nothing; `nested` tools, and several filled up
    as by `arrow`."""

    def asks() -> dict[str, Any]:
        return {"role": "user", "content": draw(lines)}

    def says() -> dict[str, Any]:
        said = {"role": "assistant", "content": draw(lines)}
        if kind in THOUGHTS and draw(st.integers(0, 3)):
            said |= THOUGHTS[kind](draw(lines))
        elif kind == "inline" and draw(st.integers(0, 3)):
            said["content"] = f"{marks.open}\n{draw(lines)}\n{marks.close}\n\n{said['content']}"
        return said

    chat = [{"role": "system", "content": draw(lines)} for _ in range({"system": 1, "systems": 2}.get(kind, 0))]
    names = {"call": ["add"], "parallel": ["add", "greet"], "thought_call": ["greet"], "nested": ["paint"]}
    names |= {"said_call": ["greet"], "bare": ["now"]}
    offered = [*TOOLS] if kind == "arrow" else names.get(kind, [])
    number = 0
    for _ in range(draw(st.integers(1, 3))):
        chat.append(asks())
        for _ in range(draw(st.integers(1, 2)) if offered else 0):
            num = 1 if kind in ("call", "thought_call") else draw(st.integers(1, 3))
            more = draw(called(num, number, offered))
            if kind == "thought_call":
                more[0] |= {"reasoning_content": draw(lines)}
            elif kind == "said_call":
                more[0] |= {"content": draw(lines)}
            chat, number = [*chat, *more], number + num
        chat.append(says())
        if kind == "late":
            chat += [{"role": "system", "content": draw(lines)}, asks(), says()]
    for place, message in enumerate(chat):
        message["content"] += f" {place}" if message["content"] else ""
    return (_in_order(chat) if kind == "arrow" else chat), [(TOOLS | {"now": NOW})[name] for name in offered]


def _in_order(value: Any) -> Any:
    """A struct of Arrow has its fields in one order in all rows."""
    if isinstance(value, list):
        return [_in_order(one) for one in value]
    if not isinstance(value, dict):
        return value
    order = [*"ab", "name", *PAINT["function"]["parameters"]["properties"], *("x", "inner")]
    keys = sorted(value, key=lambda key: order.index(key) if key in order else -1)
    return {key: _in_order(value[key]) for key in keys}


# -------------------------------------------------------------------------------------------------------------- oracle


def oracle(chat: Chat, messages: Chats, tools: Sequence[ToolSchema], *, header: bool = False) -> str | None:
    """`apply_chat_template` of the messages in the form that the template takes; None if it refuses them."""
    assert chat.template is not None
    can = chat.template.can
    given = []
    for message in messages:
        entry = dict(message)
        if "reasoning_content" in entry and can.fields:
            entry |= dict.fromkeys(FIELDS, entry["reasoning_content"])
        elif thoughts := entry.pop("reasoning_content", None):  # the template has no field
            entry["content"] = chat.marks.around(thoughts, entry["content"])
        if can.arguments == "text" and "tool_calls" in entry:
            entry["tool_calls"] = [
                {
                    **call,
                    "function": {
                        **call["function"],
                        "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
                    },
                }
                for call in entry["tool_calls"]
            ]
        if can.parts:
            entry["content"] = [{"type": "text", "text": entry["content"]}]
        given.append(entry)
    try:
        return str(
            chat._tokenizer.apply_chat_template(
                given, tools=[dict(one) for one in tools] or None, add_generation_prompt=header, tokenize=False
            )
        )
    except Exception:  # of the template itself
        return None


def is_shown(chat: Chat, messages: Chats, tools: Sequence[ToolSchema]) -> bool:
    """Whether the template can express the conversation: it refuses nothing, and each content, call and tool changes
    its rendering, in their order. Otherwise the chat layer says it in its own way, and there is no oracle."""
    text = oracle(chat, messages, tools)
    if text is None or any(oracle(chat, messages[:place], tools, header=True) is None for place in _said(messages)):
        return False

    def changed(index: int, **more: Any) -> Chats:
        return [*messages[:index], {**messages[index], **more}, *messages[index + 1 :]]

    others: list[str | None] = []
    for index, message in enumerate(messages):
        if message["content"]:
            others.append(oracle(chat, changed(index, content="other"), tools))
        calls = message.get("tool_calls", [])
        for place, call in enumerate(calls):
            function = {**call["function"], "arguments": {"other": "other"}}
            others.append(
                oracle(
                    chat,
                    changed(index, tool_calls=[*calls[:place], {**call, "function": function}, *calls[place + 1 :]]),
                    tools,
                )
            )
    for place, one in enumerate(tools):
        function = {**one["function"], "description": "Other."}
        others.append(oracle(chat, messages, [*tools[:place], {**one, "function": function}, *tools[place + 1 :]]))
    systems = [text.find(message["content"]) for message in messages if message["role"] in ("system", "user")]
    return text not in others and (-1 in systems or systems == sorted(systems))


def _said(messages: Chats) -> list[int]:
    return [place for place, message in enumerate(messages) if message["role"] == "assistant"]


# --------------------------------------------------------------------------------------------------------------- doors


def from_json(messages: Chats, tools: Sequence[ToolSchema]) -> Row:
    return Row("x", json.loads(json.dumps({"prompt": messages, "tools": tools or None})))


def from_arrow(messages: Chats, tools: Sequence[ToolSchema]) -> Row:
    """As Arrow gives it back: with the fields of all structs in each."""
    table = pyarrow.Table.from_pylist([{"prompt": messages, "tools": tools or None}])
    return Row("x", table.to_pylist()[0], fills_nulls=True)


def prompt(chat: Chat, row: Row) -> str:
    return chat.decode(chat.encode_prompt(read_prompt(row, "prompt"), read_tools(row)))


def served(chat: Chat, messages: Chats, tools: Sequence[ToolSchema]) -> str:
    def on_the_wire(message: dict[str, Any]) -> dict[str, Any]:
        calls = [
            {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
            for call in message.get("tool_calls", ())
        ]
        return message | ({"tool_calls": calls} if calls else {})

    body = {"messages": [*map(on_the_wire, messages)], "tools": tools or None}
    request = parse(ChatRequest, json.dumps(body).encode())
    return chat.decode(chat.encode_prompt(to_messages(request.messages), to_tools(request.tools or ())))


def no_env(example: Example) -> Env:
    raise AssertionError("a conversation has replies of its own")


def demonstrated(chat: Chat, row: Row) -> Episode | None:
    whole = Row(
        row.place, {"shown": {"messages": row.get("prompt"), "tools": row.get("tools")}}, fills_nulls=row.fills_nulls
    )
    conversation = read_demonstration(whole, "shown")
    assert isinstance(conversation, Conversation)
    episodes, left_out = all_encoded([of_conversation(conversation, EXAMPLE)], no_env, chat, 1_000_000)
    return None if left_out else episodes[0]


class _Script(FakeEngine):
    def __init__(self, completions: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self._left = list(completions)

    async def sample(self, sampling: SamplingParams) -> Any:
        return completion(*self._left.pop(0))


class _Answering(Replayed):
    """Its replies name the calls as an environment with tools does: by the ids that were read."""

    async def step(self, said: Message) -> Reply:
        reply = await super().step(said)
        ids = iter(call.id for call in said.tool_calls)
        named = [replace(m, call_id=next(ids, m.call_id)) if m.role == "tool" else m for m in reply.messages]
        return replace(reply, messages=tuple(named))


def rolled_out(chat: Chat, row: Row, completions: Sequence[tuple[int, ...]]) -> Episode:
    whole = Row(
        row.place, {"shown": {"messages": row.get("prompt"), "tools": row.get("tools")}}, fills_nulls=row.fills_nulls
    )
    conversation = read_demonstration(whole, "shown")
    assert isinstance(conversation, Conversation)
    model = ChatModel(engine=_Script(completions), chat=chat, max_context_tokens=1_000_000)
    params = SamplingParams(max_tokens=100_000, stop_ids=chat.stop_ids, seed=0)
    env = _Answering(of_conversation(conversation, EXAMPLE))
    return asyncio.run(run_episode(EXAMPLE, env, model, lambda turn: params, sample_index=0, seed=0))


def completion_of(chat: Chat, messages: Chats, tools: Sequence[ToolSchema]) -> tuple[int, ...] | None:
    """What the template has in the place of the last message, to its first end token; None if its header differs."""
    before = oracle(chat, messages[:-1], tools, header=True) or ""
    after = oracle(chat, messages, tools) or ""
    if not after.startswith(before):
        return None
    ids = encode(chat._tokenizer, after[len(before) :])
    end = next((place for place, token in enumerate(ids) if token in chat.stop_ids), None)
    if end is None:  # GLM: the header of the next message ends it
        calls = (CALL,) if messages[-1].get("tool_calls") else ()
        return (*ids, chat.encode_completion(Message(role="assistant", content="x", tool_calls=calls), tools)[-1])
    return ids[: end + 1]


# --------------------------------------------------------------------------------------------------------- differences


def differences(
    chat: Chat, messages: Chats, tools: Sequence[ToolSchema], *, arrow: bool = False
) -> Iterator[tuple[str, str, str]]:
    """(door, found, wanted) of each text that is not the template's own rendering of the whole."""
    row = (from_arrow if arrow else from_json)(messages, tools)
    places = _said(messages)
    for place in places:
        asked, wanted = messages[:place], oracle(chat, messages[:place], tools, header=True) or ""
        part = Row("x", {**row.fields, "prompt": row.fields["prompt"][:place]}, fills_nulls=row.fills_nulls)
        if (found := prompt(chat, part)) != wanted:
            yield "prompt", found, wanted
        if (found := served(chat, asked, tools)) != wanted:
            yield "serve", found, wanted
    if (shown := demonstrated(chat, row)) is None:
        yield "demonstration", "left out: its calls cannot be read back", ""
    else:
        yield from _of_episode("demonstration", chat, shown, messages, tools)
    sampled = [completion_of(chat, messages[: place + 1], tools) for place in places]
    known = [ids for ids in sampled if ids is not None]
    if len(known) == len(sampled):
        yield from _of_episode("rollout", chat, rolled_out(chat, row, known), messages, tools)


def _of_episode(
    door: str, chat: Chat, episode: Episode, messages: Chats, tools: Sequence[ToolSchema]
) -> Iterator[tuple[str, str, str]]:
    places = _said(messages)
    if len(episode.turns) != len(places):
        yield door, f"{len(episode.turns)} turns", f"{len(places)} turns"
        return
    for place, turn in zip(places, episode.turns, strict=True):
        found = chat.decode(turn.prompt_ids)
        if found != (wanted := oracle(chat, messages[:place], tools, header=True)):
            yield door, found, wanted or ""
        whole = oracle(chat, messages[: place + 1], tools) or ""
        if completion_of(chat, messages[: place + 1], tools) is None:
            continue  # the template itself has no such header in front of what was said
        found = chat.decode(turn.prompt_ids + turn.completion.token_ids[:-1])
        behind = whole[len(found) :]
        if not whole.startswith(found) or SPECIAL.sub("", behind).strip():
            yield f"{door}, completion", found, whole


# ------------------------------------------------------------------------------------------------------ what is left


@dataclass(frozen=True, kw_only=True)
class Known:
    """Differences that stay, of templates, conversations and doors (patterns), and why."""

    templates: str
    kinds: str = ".*"
    doors: str = ".*"
    why: str


KNOWN = (
    Known(
        templates="gptoss",
        doors="demonstration.*|rollout.*",
        why="an earlier answer ends with `<|return|>`, as it was sampled; the template writes `<|end|>` there",
    ),
    Known(
        templates="deepseek_r1_distill",
        doors="demonstration.*",
        why="the line break behind `</think>`, which the header makes necessary, is the answer's for the template",
    ),
    Known(
        templates="nemotron_3.*",
        doors="demonstration.*",
        why="the header opens `<think>` with a line break, and the template's history has `<think></think>` without",
    ),
    Known(
        templates="diffusion_gemma",
        kinds="call|parallel|thought_call|bare|nested|arrow",
        doors="demonstration.*|rollout.*",
        why="the template writes no header behind a tool's reply, and has one in its history",
    ),
    Known(
        templates="gemma4(_v[234])?|llama3_[12]",
        kinds="field|thought_call",
        doors="demonstration, completion",
        why="the template never shows this reasoning; a demonstration teaches it",
    ),
    Known(
        templates="gemma4.*|diffusion_gemma",
        kinds="inline",
        doors="demonstration, completion",
        why="the template drops reasoning that stands in the content; a demonstration teaches it",
    ),
    Known(
        templates="gemma4.*|diffusion_gemma",
        kinds="said_call",
        doors="demonstration.*|rollout.*",
        why="the template writes what is said beside a call behind the tool's reply; here it stays where it was said",
    ),
    Known(
        templates="muse_glimmer",
        kinds="inline",
        why="for the template reasoning in the content is a part of the answer; here it gets it in its field",
    ),
    Known(
        templates="glm4moe",
        kinds="late",
        doors="demonstration.*|rollout.*",
        why="an answer ends with the header of the next speaker: `<|user|>`, before it is known to be `<|system|>`",
    ),
    Known(
        templates="lfm2_2_5(_v2)?",
        kinds="parallel|thought_call|said_call|arrow",
        doors="demonstration.*|rollout.*",
        why="the template does not escape quotes in calls: such texts are not read back as they were",
    ),
    Known(
        templates="qwen3_8",
        kinds="inline",
        why="the template opens `<think>` once more in front of reasoning in the content; here it gets it in its field",
    ),
)


def reason(template: str, kind: str, door: str) -> str | None:
    """Why this difference stays; None for one that nobody has named."""
    name = template.removesuffix("_training")
    return next(
        (
            one.why
            for one in KNOWN
            if re.fullmatch(one.templates, name) and re.fullmatch(one.kinds, kind) and re.fullmatch(one.doors, door)
        ),
        None,
    )
