"""The chat templates that TRL ships as package data, read without importing it; what our chat layer does with each.

python -m tests.unit.chat.trl_templates     the table of docs/chat.md
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlvr.chat.history import behind
from rlvr.chat.rendering import Chat
from rlvr.reasoning import ATEM, GEMMA, HARMONY
from rlvr.types import Message, StopReason, ToolCall, ToolSchema
from tests.unit.chat.tokenizers import encode, template_tokenizer

VERSION = "1.16."

TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Finds texts.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "top_n": {"type": "integer"},
                "ratio": {"type": "number"},
                "exact": {"type": "boolean"},
                "ids": {"type": "array", "items": {"type": "string"}},
                "more": {"type": "object"},
            },
            "required": ["query"],
        },
    },
}
QUESTION = Message(role="user", content="Who?")
SURE = Message(role="user", content="Sure?")


def family(name: str) -> str:
    return name.removesuffix("_training")


def call(index: int = 0, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"call_{index}", name="look_up", arguments={"query": f"number {index}"} | arguments)


def answers(calls: Sequence[ToolCall]) -> list[Message]:
    return [Message(role="tool", content=f"found {c.id}", name=c.name, call_id=c.id) for c in calls]


def names() -> list[str]:
    """The templates of the pinned version: `qwen3`, ...; none where TRL is missing or another one."""
    try:
        installed = version("trl")
    except PackageNotFoundError:
        return []
    return sorted(file.stem for file in _folder().glob("*.jinja")) if installed.startswith(VERSION) else []


@cache
def chat_of(name: str) -> Chat:
    """The chat layer over the template, with a tokenizer that has its special tokens."""
    return Chat(template_tokenizer((_folder() / f"{name}.jinja").read_text()))


def _folder() -> Path:
    spec = find_spec("trl")  # finds a top-level package without running it
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "chat_templates"


@dataclass(frozen=True)
class Case:
    """A completion with or without reasoning, which calls a tool or answers."""

    thinks: bool
    calls: bool

    def completion(self, chat: Chat) -> tuple[int, ...]:
        """As a model of the family writes it, with the stop token."""
        template = chat.template
        said = template.format.write([call()], [TOOL]) if self.calls else "Ann."
        if template.marks == HARMONY:
            thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" if self.thinks else ""
            text = thought + said if self.calls else f"{thought}<|channel|>final<|message|>{said}"
        elif template.marks == GEMMA:
            text = ("<|channel>thought\nHm.\n<channel|>" if self.thinks else "") + said
        elif template.marks == ATEM:
            thought = " to=self<|message|>Hm.<|eom|><|start|>assistant" if self.thinks else ""
            text = f"{thought} to={'look_up' if self.calls else 'user'}<|message|>{said}"
        elif template.can.opened:
            text = f"{'Hm.' if self.thinks else ''}\n</think>\n\n{said}"
        elif self.thinks:
            text = f"<think>\nHm.\n</think>\n\n{said}"
        else:
            text = said
        reply = answers([call()]) if self.calls else [SURE]
        message = Message(role="assistant", content="", tool_calls=(call(),) if self.calls else ())
        stops = [token for token in encode(chat._tokenizer, behind(template, message, reply)) if token in chat.stop_ids]
        return (*encode(chat._tokenizer, text), stops[0] if stops else min(chat._closing & chat.stop_ids))


CASES = [Case(thinks, calls) for thinks in (False, True) for calls in (False, True)]


def header(chat: Chat, reply: Sequence[Message]) -> str:
    """What the template has behind a reply, so that the model goes on."""
    said = Message(role="assistant", content="", tool_calls=(call(),) if reply[0].role == "tool" else ())
    return behind(chat.template, said, reply).rstrip()[-8:]


def row(name: str) -> str:
    """The template's row of the table."""
    chat = chat_of(name)
    template = chat.template
    calls = template.format.name if template.native else f"text ({template.format.name})"
    tools = "template" if template.can.tools else "system message"
    tool_role = "tool" if template.can.tool_role else "user"
    user, tool = (_taken_back(chat, calls=calls) for calls in (False, True))
    return f"| {name} | {tools} | {calls} | {tool_role} | {user} | {tool} |"


def _taken_back(chat: Chat, *, calls: bool) -> str:
    reply = answers([call()]) if calls else [SURE]
    lost = {}
    for case in CASES:
        if case.calls is calls:
            said = chat.parse(case.completion(chat), StopReason.STOP, [TOOL])
            lost[case.thinks] = chat._history.rewritten([QUESTION, said], reply, [TOOL])
    if lost[False]:
        return "header, reasoning" if lost[True] else "header without reasoning"
    beside_a_call = "text beside a call" if chat.tool_format.name == "llama" else "reasoning"
    return beside_a_call if lost[True] else "nothing"


if __name__ == "__main__":
    for each in names():
        if family(each) == each:
            print(row(each))
