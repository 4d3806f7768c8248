"""How a template continues a conversation: the tokens after a completion, and text it drops from later prompts.

Qwen3 shows its reasoning only until the next user message:

    prompt of turn 1      user x  assistant
    completion            <think>t</think> y
    the template then     user x  assistant y  user z  assistant

The second prompt does not extend the first prompt and completion, so it starts a new training row.
"""

from collections.abc import Sequence
from dataclasses import replace

from rlvr.chat.template import PLACE, PROBE, QUESTION, Template, call_of
from rlvr.chat.tool_calls import Tools
from rlvr.types import Message

_MAX_KNOWN = 10_000


def behind(template: Template, completion: Message, reply: Sequence[Message], *, header: bool = True) -> str:
    """The text rendered after the content of `said`: end of turn, reply, next header.

    Native calls of `said` stay calls (the template may refuse a tool message without them) with dummy arguments; the
    result then starts with the end of the call.
    """
    place = PLACE
    while any(place in message.content for message in reply):
        place += "x"
    calls = template.calls_in(completion)
    answer = Message(role="assistant", content=place)
    if calls:
        answer = replace(completion, content="", tool_calls=tuple(replace(c, arguments={"text": place}) for c in calls))
    return template.render([QUESTION, answer, *reply], header=header).rpartition(place)[2]


def written(template: Template, completion: Message, tools: Tools) -> str:
    """The text that the template writes for an answer to a question, end of turn included. Where its header begins
    otherwise, the bare content and calls; reasoning that the header opens is closed."""
    before, after = (
        template.render([QUESTION], tools=tools),
        template.render([QUESTION, completion], header=False, tools=tools),
    )
    thoughts, text = template.parts(completion)
    forms = ((completion.content, completion.reasoning or ""), (text, thoughts or ""))
    if any(all(part.strip() in after for part in form) for form in forms):
        for header in (before, before.rstrip()):  # Nemotron: `<think>` and a line break, for `<think></think>`
            if after.startswith(header):
                return after[len(header) :]
    marks, closing = template.marks, ""
    text = (
        completion.content if completion.reasoning is None else marks.around(completion.reasoning, completion.content)
    )
    if template.can.opened:
        text = text.removeprefix(marks.open).removeprefix("\n") if thoughts is not None else text
        closing = "" if marks.close in text else marks.close
    calls = template.format.write(completion.tool_calls, tools) if completion.tool_calls else ""
    return "\n".join(filter(None, [closing, text, calls]))


class RewriteFinder:
    """Renders conversations to find replies that make the template rewrite earlier turns."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._known: dict[tuple[object, ...], bool] = {}

    def rewritten(self, conversation: Sequence[Message], reply: Sequence[Message], tools: Tools = ()) -> bool:
        """Whether the template's next prompt does not extend the last prompt and its completion.

        Checked on a skeleton of the conversation, because templates also trim spaces, which does not count.
        """
        skeleton = [self._dummy(index, message) for index, message in enumerate([*conversation, *reply])]
        shapes = ((m.role, m.content, tuple(call.problem is None for call in m.tool_calls)) for m in skeleton)
        key = (len(conversation), bool(tools), *shapes)
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = self._rewrites(skeleton, len(conversation), [PROBE] if tools else [])
        return self._known[key]

    def _rewrites(self, skeleton: Sequence[Message], length: int, tools: Tools) -> bool:
        before = self._template.tried(skeleton[: length - 1], header=True, tools=tools)
        after = self._template.tried(skeleton, tools=tools)
        if before is None or after is None:
            return False  # the template refuses the conversation; it is rendered piece by piece
        before, after = _dense(before), _dense(after)
        said = skeleton[length - 1]
        empty = _dense(self._template.marks.open + self._template.marks.close)  # reasoning without words
        lost_empty = empty in _dense(said.content) and after.count(empty) <= before.count(empty)
        words = [word for word in said.content.split() if word.startswith("dummy")]
        words += [str(call.arguments["text"]) for call in said.tool_calls if call.problem is None]
        return lost_empty or not after.startswith(before) or any(word not in after for word in words)

    def _dummy(self, index: int, message: Message) -> Message:
        """A message of the same shape with short searchable text."""
        if message.role != "assistant":
            return replace(message, content="x", call_id=None)
        marks = self._template.marks
        thoughts, said = self._template.parts(message)
        content = f"dummy-{index}-said" if said.strip() else ""
        if thoughts is not None:
            thought = f"\ndummy-{index}-thought" if thoughts.strip() else ""
            content = f"{marks.open}{thought}\n{marks.close}\n\n{content}"
        calls = tuple(
            replace(call_of(f"dummy-{index}-{number}").tool_calls[0], id=f"call_{number}", problem=call.problem)
            for number, call in enumerate(message.tool_calls)
        )
        return Message(role="assistant", content=content, tool_calls=calls)


def _dense(text: str) -> str:
    return "".join(text.split())
