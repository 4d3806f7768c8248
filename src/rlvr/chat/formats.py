"""Every tool-call format by its name. `prompt.tool_format` offers the first three; `auto` knows all."""

from collections.abc import Mapping, Sequence

from rlvr.chat.family_formats import ATEM, DEEPSEEK, GEMMA, GLM, LFM, XML, Harmony, Mistral
from rlvr.chat.reasoning import Marks, pieces
from rlvr.chat.tool_calls import Reading, ToolFormat
from rlvr.chat.tool_formats import Hermes, Llama, Words
from rlvr.types import Message, ToolSchema

HERMES, LLAMA, WORDS = Hermes(), Llama(), Words()
FORMATS: Mapping[str, ToolFormat] = {
    made.name: made for made in (HERMES, LLAMA, WORDS, XML, GLM, ATEM, Harmony(), DEEPSEEK, GEMMA, LFM, Mistral())
}


def read_message(
    text: str,
    marks: Marks,
    tool_format: ToolFormat,
    tools: Sequence[ToolSchema],
    *,
    finished: bool = True,
    opened: bool = False,
) -> Message:
    """The assistant's message in a text; nothing within reasoning, which the prompt may have `opened`, is a call."""
    reading = Reading()
    for piece, is_reasoning in pieces(text, marks, opened=opened):
        if is_reasoning:
            reading.text.append(piece)
        else:
            tool_format.read(piece, reading, finished=finished, tools=tools)
    content = "".join(reading.text)
    return Message(
        role="assistant", content=content.strip() if reading.calls else content, tool_calls=tuple(reading.calls)
    )
