"""Which columns of a data set hold the prompt and the answer, where its names are those of other libraries.

    verl        prompt (messages), reward_model.ground_truth, data_source, extra_info
    TRL         prompt (text or messages), with or without solution, answer, ground_truth
    OpenRLHF    input, label
    Alpaca      instruction, and below it the input if there is one; target
    Search-R1   as verl, but the ground truth is {"target": ["accepted", "answers"]}
    prime-rl    prompt, verification_info.ground_truth (JSON in a text); or question, answer
    chats       messages, or conversations, each with role and content; tools
    ShareGPT    conversations, each with from and value
    others      problem, answer; Problem, Answer; query, final_answer

A column called `prompt`, and messages in any column, are whole prompts: they say themselves what is asked for. Where
no column is known to hold the answer and all chats end with a short one of the assistant, it is the answer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.data.conversations import ROLES, messages_in
from rlvr.data.rows import Cell, Row
from rlvr.rewards.extract import last_box
from rlvr.rewards.numbers import parse_gold

QUESTIONS = ("question", "prompt", "problem", "query", "instruction", "input", "messages", "conversations")
TARGET = ".target"
"""The golds in Search-R1's ground truth, whose reward functions get all of it."""
ANSWERS = (
    "answer",
    f"reward_model.ground_truth{TARGET}",
    "reward_model.ground_truth",
    f"ground_truth{TARGET}",
    "ground_truth",
    "final_answer",
    "expected_answer",
    "verification_info.ground_truth",
    "target",
    "label",
    "solution",
)
INSTRUCTION, INPUT = "instruction", "input"
NUM_READ = 100
"""Rows that show the layout."""
MAX_CHARS = 100
"""Of a last message that is an answer to compare with, not a text to imitate."""

_MATH = re.compile(r"[\\^_{}=]|\d\s*[/(,]\s*\d|[a-z]\d|\d[a-z]")  # signs of an expression, not of a sentence


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Columns by name, dots for fields of fields; `answer` None: no row has one. `kind` is that of the answers: a
    reward and a metric that grade them, `numeric`, `math` or `text`."""

    question: str
    answer: str | None
    has_whole_prompts: bool
    kind: str


def layout_of(rows: Sequence[Row], question: str | None, answer: str | None) -> Layout | None:
    """The layout of a data set that begins with these rows, given the columns that the user names.

    None if no column is known to hold a question, or there are no rows.
    """
    if not rows:
        return None
    asked = question or _first(rows, QUESTIONS)
    if asked is None:
        return None
    prompts = [messages_in(row.get(asked)) for row in rows if asked in row]
    gold = answer or _first(rows, ANSWERS) or _last_message(asked, prompts)
    whole = (question is None and asked.lower() == "prompt") or any(isinstance(one, list) for one in prompts)
    golds = [row.get(gold) for row in rows if gold in row] if gold else []
    return Layout(question=asked, answer=gold, has_whole_prompts=whole, kind=_kind(golds))


def input_of(row: Row, question: str, answer: str | None) -> str:
    """Alpaca's `input`, what an `instruction` is about; blank if there is none, or it is the answer."""
    name = next((name for name in row.fields if name.lower() == INPUT and name != answer), None)
    if question.lower() != INSTRUCTION or name is None or row.get(name) is None:
        return ""
    return row.read(Cell, name)


def _first(rows: Sequence[Row], known: Sequence[str]) -> str | None:
    """The first of these columns that a row has, as the data writes it: `Problem` for `problem`."""
    own = {name.lower(): name for row in rows for name in row.fields}
    for name in known:
        top, dot, rest = name.partition(".")
        written = f"{own.get(top, top)}{dot}{rest}"
        if any(written in row for row in rows):
            return written
    return None


def _last_message(asked: str, chats: Sequence[Any]) -> str | None:
    """`messages.-1.content`, if all chats end with an answer of the assistant."""
    last = [chat[-1] for chat in chats if isinstance(chat, list) and chat and isinstance(chat[-1], dict)]
    field = "content" if last and "role" in last[0] else "value"
    roles = [ROLES.get(str(one.get("role", one.get("from")))) for one in last]
    texts = [gold_of(text)[0] for one in last if isinstance(text := one.get(field), str)]
    if not last or {*roles} != {"assistant"} or len(texts) < len(chats) or max(map(len, texts)) > MAX_CHARS:
        return None
    return f"{asked}.-1.{field}"


def _kind(golds: Sequence[Any]) -> str:
    texts = [gold_of(str(one))[0] for one in golds if one not in (None, "") and not isinstance(one, list)]
    others = [text for text in texts if parse_gold(text) is None]
    expressions = [text for text in others if _MATH.search(text)]
    if 2 * (len(others) - len(expressions)) >= len(texts):
        return "text"
    return "math" if expressions else "numeric"  # also with a word or two among numbers: their rows are named


def gold_of(text: str) -> tuple[str, str]:
    r"""The gold of a worked solution, and its working: what follows the last `####`, or is in the last `\boxed{}`."""
    working, mark, gold = text.rpartition("####")
    if mark:
        return gold.strip(), working.strip()
    boxed = last_box(text)
    return (text, "") if boxed is None else (boxed, text.strip())
