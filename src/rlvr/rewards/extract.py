"""Extracts the answer from a completion, in the same way for rewards and metrics, training and evaluation.

    answer_in   the answer is
        solution    inside the single solution block:   <start_working_out>...<end_working_out><SOLUTION>18</SOLUTION>
        hash        after `####` on the last line, as in GSM8K's own solutions:   ... #### 18; up to the end if
                    the gold has several lines
        boxed       inside the single `\\boxed{...}`, braces balanced; text may follow, but no other box
        whole       the whole text
        complete    the argument `final_answer` of a call of the tool `complete`, in any turn
        line        behind `Answer:` on the last line, as DAPO asks for it
        json        the value of a key of the only JSON object
        stated      in the form that the prompt shows: `####`, `\\boxed{}`, `\\fbox{}`, `<answer></answer>`, `[[ ]]`,
                    `Answer: ...`, `The final answer is X`, `{"answer": ...}`; the last one counts; without one the
                    whole text
        equals      the single word between the last `=`, possibly the prompt's, and the first `<eoe>` (for models that
                    do not have that word, the end):   4 1 + = 5 <eoe>

An answer stands behind the model's own reasoning (`<think>...</think>`): what is in it is no answer, and reasoning that
does not end has none behind it.

Extraction is strict: an unclosed block, two solution blocks, two boxes (even with one answer), two `####`, or a number
after the solution block give no answer. A cut-off completion has no answer: its last number may be incomplete.
Extraction takes linear time.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from rlvr.errors import ConfigError
from rlvr.rewards.completion import completion_of
from rlvr.types import Attempt, StopReason

HASH = "####"
EQUALS, END = "=", "<eoe>"
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_ENDING = re.compile(r"[\s.*_`]*")  # of the sentence that an answer stands in: `It is <answer>5</answer>.`
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # escaped braces do not count


@dataclass(frozen=True, kw_only=True, slots=True)
class Markers:
    """The tags around the reasoning and around the solution: `<think>`, `</think>`, `<answer>`, `</answer>`.

    ConfigError if one is blank or contained in another: their occurrences would be ambiguous.
    """

    reasoning_start: str
    reasoning_end: str
    solution_start: str
    solution_end: str

    def __post_init__(self) -> None:
        for index, marker in enumerate(self.in_order):
            others = self.in_order[:index] + self.in_order[index + 1 :]
            if not marker.strip() or any(marker in other for other in others):
                raise ConfigError(
                    f"marker {marker!r} is blank or part of another one: give each of the four markers a text that "
                    "occurs in no other."
                )

    @property
    def in_order(self) -> tuple[str, str, str, str]:
        return self.reasoning_start, self.reasoning_end, self.solution_start, self.solution_end


class Blocks(NamedTuple):
    """A completion split at its markers: before <r> reasoning </r> between <s> solution </s> after.

    Without reasoning markers `reasoning` is None and everything up to the solution is `before`.
    """

    before: str
    reasoning: str | None
    between: str
    solution: str
    after: str


def find_blocks(text: str, markers: Markers) -> Blocks | None:
    """The blocks of `text`; None unless the solution markers occur exactly once, the reasoning markers both once or
    not at all, and all in order."""
    has_reasoning = markers.reasoning_start in text or markers.reasoning_end in text
    marks = markers.in_order if has_reasoning else markers.in_order[2:]
    if any(text.count(marker) != 1 for marker in marks):
        return None
    pieces = []
    for marker in marks:
        piece, cut, text = text.partition(marker)
        if not cut:
            return None
        pieces.append(piece)
    before, reasoning, between, solution = pieces if has_reasoning else (pieces[0], None, "", pieces[1])
    return Blocks(before, reasoning, between, solution, text)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerFormat:
    """`AnswerFormat(answer_in="boxed")`, `AnswerFormat(answer_in="solution", markers=Markers(...))`"""

    answer_in: Literal["solution", "hash", "boxed", "line", "whole", "complete", "equals", "json", "stated"]
    markers: Markers | None = None
    spelling: str = ""  # of a box, `fbox`; of a line, `is` where it is a sentence; the key of a JSON object

    def __post_init__(self) -> None:
        if self.answer_in == "solution":
            self.required_markers()

    def required_markers(self) -> Markers:
        if self.markers is None:
            raise ConfigError(
                f"answers in format {self.answer_in!r} are to be read by their markers, but no markers are configured "
                "for this model: choose a set of markers for it."
            )
        return self.markers

    def for_prompt(self, prompt: str) -> AnswerFormat:
        """The format that a prompt asks for, by the place that it shows last; itself unless `answer_in` is `stated`."""
        return _stated_in(prompt) if self.answer_in == "stated" else self

    def filled(self, answer: str) -> str:
        """The answer at its place: `#### 72`; the answer alone where the format needs more than a text of it."""
        if self.answer_in == "solution":
            return f"{self.required_markers().solution_start}{answer}{self.required_markers().solution_end}"
        if self.answer_in == "hash":
            return f"{HASH} {answer}"
        if self.answer_in == "boxed":
            return f"\\{self.spelling or 'boxed'}{{{answer}}}"
        if self.answer_in == "line":
            return f"The final answer is {answer}" if self.spelling == "is" else f"Answer: {answer}"
        if self.answer_in == "json":
            return json.dumps({self.spelling: answer}, ensure_ascii=False)
        return answer

    def answer_of(self, attempt: Attempt) -> str | None:
        """The answer, stripped and not blank; None if it is not at its place or the completion was cut off."""
        if self.answer_in == "stated":
            return self.for_prompt(attempt.prompt).answer_of(attempt)
        if self.answer_in == "equals" and END in attempt.completion.split():  # END shows that it was not cut off
            return after_equals(attempt.prompt, attempt.completion)
        if attempt.stop_reason is not StopReason.STOP:
            return None
        if self.answer_in == "complete":
            completed = completion_of(attempt)
            return None if completed is None else completed.answer.strip() or None
        if self.answer_in == "equals":
            return after_equals(attempt.prompt, f"{attempt.said} {END}")
        return self.extract(attempt.said, has_lines="\n" in attempt.example.answer.strip())

    def extract(self, text: str, *, has_lines: bool = False) -> str | None:
        """The answer in a completion's text; None for `complete`, `equals` and `stated`, which need more than it.

        With `has_lines` an answer after `####` may have several lines.
        """
        if self.answer_in == "solution":
            return _in_solution(text, self.required_markers())
        if self.answer_in == "hash":
            return _after_hash(text, has_lines)
        if self.answer_in == "boxed":
            return _in_box(text, self.spelling or "boxed")
        if self.answer_in == "line":
            return _in_sentence(text) if self.spelling == "is" else _on_line(text, _LINE)
        if self.answer_in == "json":
            return _in_json(text, self.spelling)
        return text.strip() or None if self.answer_in == "whole" else None

    def form_of(self, attempt: Attempt) -> str:
        """The text whose form the prompt asks for: without the model's own reasoning, but with it where the prompt's
        markers of reasoning are the model's, as a template may write the first of them."""
        marks = attempt.marks
        if self.markers is None or self.markers.reasoning_start != marks.open:
            return attempt.said
        return f"{marks.open}{attempt.text}" if attempt.opened else attempt.text

    def is_exact(self, text: str) -> bool:
        """Whether the text is in this format and nothing else: for `solution`, both blocks with only whitespace
        around."""
        if self.answer_in == "solution":
            blocks = find_blocks(text, self.required_markers())
            if blocks is None or not blocks.reasoning:
                return False
            outside = blocks.before + blocks.between + blocks.after
            return bool(blocks.reasoning.strip() and blocks.solution.strip() and not outside.strip())
        return self.extract(text) is not None


_ANSWER = r"(?:(?:the )?(?:final )?answer)"
_LABEL = rf"(?:{_ANSWER}(?: is)?[*_]*\s*[:：])"
_SO = r"(?:(?:so|thus|hence|therefore),? )"
_ASKED = r"""(?:\b(?:form|format|line|with|as|by|after|like|write|say)\b\W{0,4}|["'`“*])"""
_BLANK = r"""(?:\.\.\.|…|_{2,}|\$?\\?[\[{<(]|\$\w|X\b)"""
"""How a gap that the answer is to fill begins."""
_SHOWN = re.compile(
    # each form takes the gap that it shows with it: `#### <answer>` and `\boxed{<answer>}` ask for no tag
    r"\\(?P<box>boxed|fbox)(?![A-Za-z])(?:\{[^{}\n]{0,40}\})?"
    r"|(?P<hash>####)(?:\s*<\w+>)?"
    r"|(?<!<)<(?P<tag>[A-Za-z][\w-]{0,40})>(?:(?P<filling>[^<>\n]{0,60})(?P<pair></(?P=tag)>))?"
    r"|(?P<double>\[\[|<<)(?P<inside>[^\[\]<>\n]{0,40})(?P<end>\]\]|>>)"
    r"|\"(?P<key>[\w ]{0,30}(?i:answer|solution|result)[\w ]{0,30})\"\s*:\s*"
    r"(?P<value>\"[^\"\n]{0,60}\"|[^\s\"{},]{1,30})(?=\s*[,}])"
    # in words, quoted or with a blank: `Answer:` at the end of a prompt only begins the completion
    rf"|(?P<sentence>(?i:(?:{_ASKED}|(?<=: )){_SO}?{_ANSWER} is)\s*(?={_BLANK}|[A-Z]\b|[\"'`”]))"
    rf"|(?P<line>(?i:{_ASKED}{_LABEL})(?:\s*<\w+>)?(?=\W*[$\w<\[{{\"'`”*])"
    rf"|(?m:^)(?i:[*_ ]*{_LABEL})[*_ ]*(?={_BLANK}))"
)
_BEFORE = r"(?:[*_\s>#]|[-•+] |Final Answer: )*"
"""Marks of Markdown before an answer's line, and the heading of Minerva's prompts."""
_LINE = re.compile(rf"{_BEFORE}{_LABEL}[*_]*(.*)", re.IGNORECASE)
_SENTENCE = re.compile(rf"{_BEFORE}{_SO}?{_ANSWER} is:?(?![a-z])(.*?)(?:\.? I hope it is correct)?\.?", re.IGNORECASE)
_CALLED_ANSWER = re.compile(r"answer|\bans\b|solution|result|verdict|conclusion|final(?!ly)|choice", re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"\W*|_*|\W*[A-Za-z]\W*|.*\b(?:answer|solution|result|verdict|choice|option|number|letter|value|integer|expression|here)\b.*",
    re.IGNORECASE,
)
_THOUGHTS = re.compile("think|thought|reason|scratch|work|analy|explan|step", re.IGNORECASE)
_NEAR = 80
"""Characters before a pair of marks that may say that it is for the answer."""
_WHOLE = AnswerFormat(answer_in="whole")


@lru_cache(maxsize=256)  # the episodes of a group share a prompt
def _stated_in(prompt: str) -> AnswerFormat:
    shown = [form for place in _SHOWN.finditer(prompt) if (form := _format_of(place)) is not None]
    return shown[-1] if shown else _WHOLE


def _format_of(place: re.Match[str]) -> AnswerFormat | None:
    """The format of a form that a prompt shows; None for marks that it does not call the answer's."""
    if place["box"]:
        return AnswerFormat(answer_in="boxed", spelling=place["box"])
    if place["hash"]:
        return AnswerFormat(answer_in="hash")
    if place["sentence"]:
        return AnswerFormat(answer_in="line", spelling="is")
    if place["line"]:
        return AnswerFormat(answer_in="line")
    if place["key"]:
        is_gap = _PLACEHOLDER.fullmatch(place["value"]) is not None
        return AnswerFormat(answer_in="json", spelling=place["key"]) if is_gap else None
    is_told = _CALLED_ANSWER.search(place.string, max(0, place.start() - _NEAR), place.start()) is not None
    if (tag := place["tag"]) is None:
        inside = place["inside"]
        is_one = _PLACEHOLDER.fullmatch(inside) and (is_told or _CALLED_ANSWER.search(inside))
        return _between(place["double"], place["end"]) if is_one else None
    if _THOUGHTS.search(tag):
        return None
    if _CALLED_ANSWER.search(tag):
        is_one = "answer" in tag.lower() or f"</{tag}>" in place.string
    else:
        is_one = place["pair"] and is_told and _PLACEHOLDER.fullmatch(place["filling"])
    return _between(f"<{tag}>", f"</{tag}>") if is_one else None


def _between(start: str, end: str) -> AnswerFormat:
    markers = Markers(reasoning_start="<think>", reasoning_end="</think>", solution_start=start, solution_end=end)
    return AnswerFormat(answer_in="solution", markers=markers)


def after_equals(prompt: str, completion: str) -> str | None:
    """The word between the last `=` of prompt + completion and the completion's first `<eoe>`; None if not one word."""
    words = completion.split()
    if END not in words:
        return None
    words = prompt.split() + words[: words.index(END)]
    return words[-1] if len(words) > 1 and words[-2] == EQUALS and words[-1] != EQUALS else None


def _in_solution(text: str, markers: Markers) -> str | None:
    blocks = find_blocks(text, markers)
    if (
        blocks is None
        or not _ENDING.fullmatch(blocks.after)
        or (blocks.reasoning is not None and blocks.before.strip())
    ):
        return None
    return blocks.solution.strip() or None


def _after_hash(text: str, has_lines: bool) -> str | None:
    text = text.rstrip()
    if text.count(HASH) != 1:
        return None
    before, _, answer = text.partition(HASH)
    if before.rpartition("\n")[2].strip() or ("\n" in answer and not has_lines) or answer.startswith("#"):
        return None
    return answer.strip() or None


def _on_line(text: str, label: re.Pattern[str]) -> str | None:
    """The rest of the last line, if that is the only one that begins with the label, which may stand above it."""
    lines = [line for line in text.splitlines() if line.strip()]
    labelled = [(place, match[1].strip(" *_")) for place, line in enumerate(lines) if (match := label.fullmatch(line))]
    if len(labelled) != 1:
        return None
    place, answer = labelled[0]
    rest = [line.strip(" *_") for line in lines[place + 1 :]]
    return answer or None if not rest else rest[0] or None if len(rest) == 1 and not answer else None


def _in_sentence(text: str) -> str | None:
    """`18` of a last line `The final answer is 18.`"""
    found = _on_line(text, _SENTENCE)
    return found and (found.removesuffix(".").rstrip() or None)


def _in_json(text: str, key: str) -> str | None:
    """The value of the key in the only JSON object of a text, a text or a number."""
    try:
        found = json.loads(text[text.index("{") : text.rindex("}") + 1])
        value = found[key]
    except (ValueError, KeyError, RecursionError):
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value).strip() or None


def _in_box(text: str, command: str) -> str | None:
    boxes = list(_BOX.finditer(text))
    if len(boxes) != 1 or boxes[0][0] != f"\\{command}":
        return None
    return _in_braces(text[boxes[0].end() :]) or None


def last_box(text: str) -> str | None:
    r"""What is in the last `\boxed{}` of a text, also of several; None if there is none, or it does not close."""
    ends = [box.end() for box in _BOX.finditer(text) if box[0] == "\\boxed"]
    return _in_braces(text[ends[-1] :]) if ends else None


def _in_braces(text: str) -> str | None:
    inside, depth = text.lstrip(), 0
    for brace in _BRACE.finditer(inside) if inside.startswith("{") else ():
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth == 0:
            return inside[1 : brace.start()].strip()
    return None
