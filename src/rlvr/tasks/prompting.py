"""From a question to the messages of a prompt, and from a worked problem to the completion that it asks for.

system  "... between {reasoning_start} and {reasoning_end} ..."     markers are filled in once, at start
user    "{question}"                                                a question's own braces stay as they are
        "{documents}"                                               of tasks with documents: their ids and titles
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from rlvr.errors import ConfigError, suggestion
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.extract import Markers as AnswerMarkers
from rlvr.tasks.problems import Problem
from rlvr.tasks.prompts import MarkerSettings, MarkersSettings, Prompt
from rlvr.types import Message

MARKER_FIELDS = ("reasoning_start", "reasoning_end", "solution_start", "solution_end")
QUESTION = "question"
DOCUMENTS = "documents"


@dataclass(frozen=True, kw_only=True)
class Shot:
    """A worked example that is shown before the question: a user's and an assistant's turn."""

    question: str
    completion: str


class Prompter:
    """Messages for questions, and the completions that they ask for."""

    def __init__(self, prompt: Prompt, markers: MarkerSettings | None, fields: Sequence[str] = ()) -> None:
        """`fields` are the placeholders of prompt.user beside the question, which `messages` is given values for.

        ConfigError, naming prompt.system or prompt.user, for a placeholder that cannot be filled in.
        """
        self._system = None
        if prompt.system is not None:
            self._system = "".join(text for text, _ in _filled("prompt.system", prompt.system, markers, ()))
        self._user = _filled("prompt.user", prompt.user, markers, (QUESTION, *fields))
        self.answer_format = AnswerFormat(
            answer_in=prompt.answer_in, markers=None if markers is None else AnswerMarkers(**markers.model_dump())
        )

    def messages(
        self, question: str, shots: Sequence[Shot] = (), fields: Mapping[str, str] | None = None
    ) -> tuple[Message, ...]:
        """System message if there is one, the shots as turns, the question with its other fields."""
        system = () if self._system is None else (Message(role="system", content=self._system),)
        turns = [
            message
            for shot in shots
            for message in (
                Message(role="user", content=self._ask({QUESTION: shot.question})),
                Message(role="assistant", content=shot.completion),
            )
        ]
        return (*system, *turns, Message(role="user", content=self._ask({**(fields or {}), QUESTION: question})))

    def worked(self, problem: Problem) -> str:
        """The problem solved in the asked-for format:

        solution   <reasoning_start>48 / 2 = 24<reasoning_end><solution_start>72<solution_end>
        hash       48 / 2 = 24\\n#### 72
        boxed      48 / 2 = 24\\n\\boxed{72}
        whole      72
        complete   72: a call of a tool is written by the chat layer
        """
        if problem.demonstration is not None:
            return problem.demonstration
        answer, working = problem.answer, problem.solution
        if self.answer_format.answer_in == "solution":
            marks = self.answer_format.required_markers()
            reasoning = f"{marks.reasoning_start}{working or f'The answer is {answer}.'}{marks.reasoning_end}"
            return f"{reasoning}{marks.solution_start}{answer}{marks.solution_end}"
        if self.answer_format.answer_in in ("whole", "complete"):
            return answer
        if self.answer_format.answer_in == "equals":
            return f"{working} = {answer}" if working else answer
        last = f"#### {answer}" if self.answer_format.answer_in == "hash" else f"\\boxed{{{answer}}}"
        return f"{working}\n{last}" if working else last

    def _ask(self, values: Mapping[str, str]) -> str:
        return "".join(text + (values[name] if name is not None else "") for text, name in self._user)


def plain(problem: Problem) -> str:
    """The problem solved in the data's own way, without the asked-for format: `48 / 2 = 24\\n#### 72`, or `72`."""
    return f"{problem.solution}\n#### {problem.answer}" if problem.solution else problem.answer


def resolve_markers(prompt: Prompt, markers: MarkersSettings, family: str | None) -> MarkerSettings | None:
    """The markers that a prompt uses with a model of this family (`model_type`), None if it uses none.

    Raises:
        ConfigError: the set is unknown, the family has none, or two of its markers cannot be told apart.
    """
    if not prompt.uses_markers:
        return None
    name = _set_of_family(markers, family) if prompt.markers == "auto" else prompt.markers
    if name not in markers.sets:
        key = "prompt.markers" if prompt.markers != "auto" else f"markers.families.{family}"
        hint = suggestion(name, list(markers.sets))
        raise ConfigError(f"{key}={name}: there is no such set in markers.sets; {hint}")
    found = markers.sets[name]
    try:
        AnswerMarkers(**found.model_dump())
    except ConfigError as error:
        raise ConfigError(f"markers.sets.{name}: {error}") from None
    return found


def _set_of_family(markers: MarkersSettings, family: str | None) -> str:
    if family is not None and family in markers.families:
        return markers.families[family]
    model = f"models of type {family}" if family else "this model, whose type is not known"
    add = f"add markers.families.{family}=SET, or " if family else ""
    raise ConfigError(
        f"prompt.markers=auto: markers.families has no set for {model}; {add}choose prompt.markers=SET "
        f"(sets: {', '.join(markers.sets)})."
    )


def _filled(
    key: str, template: str, markers: MarkerSettings | None, fields: Sequence[str]
) -> list[tuple[str, str | None]]:
    """The template with its markers, cut at the fields of a question: `[("Q: ", "question"), ("", None)]`."""
    cut: list[tuple[str, str | None]] = []
    start = ""
    for text, name in _pieces(key, template):
        start += text
        if name in fields:
            cut.append((start, name))
            start = ""
        elif name is not None:
            start += _marker(key, name, markers, fields)
    return [*cut, (start, None)]


def _marker(key: str, name: str, markers: MarkerSettings | None, fields: Sequence[str]) -> str:
    if name not in MARKER_FIELDS:
        raise ConfigError(_unknown(key, name, fields))
    if markers is None:
        raise ConfigError(f"{key} asks for {{{name}}}, but no markers are configured: choose prompt.markers=SET.")
    return getattr(markers, name)


def _unknown(key: str, name: str, fields: Sequence[str]) -> str:
    known = [*fields, *MARKER_FIELDS]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {{{near[0]}}}?" if near else f"there are {', '.join(f'{{{field}}}' for field in known)}"
    return f"{key} has an unknown placeholder {{{name}}}; {hint} (a literal brace is written twice)"


def _pieces(key: str, template: str) -> list[tuple[str, str | None]]:
    """`"a {question} b"` -> `[("a ", "question"), (" b", None)]`."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(
            f"{key} has a brace that opens or closes nothing ({error}): write {{{{ or }}}} for one."
        ) from None
    for _, name, spec, conversion in parsed:
        if spec or conversion:
            raise ConfigError(f"{key}: the placeholder {{{name}}} cannot have a format; write {{{name}}} alone.")
    return [(text, name) for text, name, _, _ in parsed]
