"""What a model says, as the tokens that it would sample."""

from collections.abc import Sequence

from rlvr.chat.rendering import Chat
from rlvr.chat.template import QUESTION, Template
from rlvr.checks.patient import Patient
from rlvr.tasks.base import Said, calling
from rlvr.types import Example, Message


def reply_to(said: Message) -> Message:
    """What follows: the tool's result, or another question."""
    if said.tool_calls:
        return Message(role="tool", content="Found it.", name="look_up", call_id=said.tool_calls[0].id)
    return Message(role="user", content="And then?")


def end_of_turn(chat: Chat, completion: Message, text: str = "") -> tuple[int, ...]:
    """The token that the template puts behind a completion, if it stops; else any that stops."""
    if text and chat.tool_format.name == "words" and completion.tool_calls:
        return ()  # the end of the call is sampled as part of it
    if chat.template is None:
        return tuple(sorted(chat.stop_ids & chat.end_ids)[:1] or sorted(chat.stop_ids)[:1])
    behind = chat.encode_reply([reply_to(completion)], last_id=-1, said=completion)[:1]
    return behind if set(behind) & chat.stop_ids else tuple(sorted(chat.stop_ids)[:1])


def lead_of(template: Template | None, completion: Message, written: str) -> str:
    """What a model writes before its answer: the rest of the header (GPT-OSS), or the end of open reasoning."""
    if template is None:
        return ""
    if template.can.opened:
        return f"\n{template.marks.close.strip()}\n\n"
    prompt = template.render([QUESTION])
    before, found, _ = (template.tried([QUESTION, completion]) or "").partition(written)
    lead = before.removeprefix(prompt) if found and before.startswith(prompt) else ""
    return "" if template.marks.close.strip() in lead else lead


def completions_of(
    patient: Patient, example: Example, turns: Sequence[Said], *, thinks: bool = False
) -> list[tuple[int, ...]]:
    """The tokens of an episode's completions. `thinks`: behind the reasoning that the template opens."""
    chat, tools = patient.chat, patient.task.env(example).tools
    completions = []
    for number, turn in enumerate(turns):
        completion = calling(turn, number)
        if isinstance(completion, str):
            completion = Message(role="assistant", content=completion)
        text = chat.tool_format.write(completion.tool_calls, tools) if completion.tool_calls else completion.content
        if thinks:
            text = lead_of(chat.template, completion, text) + text
        completions.append((*patient.coder.encode(text), *end_of_turn(chat, completion, text)))
    return completions
