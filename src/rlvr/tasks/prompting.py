"""Builds prompt messages from questions, and demonstrations from worked problems.

system  "... between {reasoning_start} and {reasoning_end} ..."     markers are filled in once, at start
user    "{question}"                                                a question's own braces stay as they are
        "{documents}"                                               for tasks with documents: their ids and titles
        "{paragraphs}"                                              the same with their texts
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlvr.data.problems import Problem
from rlvr.errors import ConfigError, suggestion
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.extract import Markers as AnswerMarkers
from rlvr.tasks.prompts import MarkerSettings, MarkersSettings, Prompt
from rlvr.types import Message, ToolCall

DOCUMENTS, PARAGRAPHS = "documents", "paragraphs"


class Prompter:
    """Builds messages of questions, and completions in the required format."""

    def __init__(self, prompt: Prompt, markers: MarkerSettings | None, fields: Sequence[str] = ()) -> None:
        """`fields` are the placeholders of prompt.user besides the question; `messages` gets their values.

        ConfigError, naming prompt.system or prompt.user, for an unknown placeholder.
        """
        self._user, self._markers = prompt.user, {} if markers is None else markers.model_dump()
        _check("prompt.system", prompt.system or "", [*self._markers])
        _check("prompt.user", prompt.user, ["question", *fields, *self._markers])
        system = None if prompt.system is None else prompt.system.format(**self._markers)
        self._system = () if system is None else (Message(role="system", content=system),)
        self.answer_format = AnswerFormat(
            answer_in=prompt.answer_in, markers=None if markers is None else AnswerMarkers(**self._markers)
        )

    def messages(
        self,
        question: str,
        shots: Sequence[Problem] = (),
        fields: Mapping[str, str] | None = None,
        given: Sequence[Message] = (),
    ) -> tuple[Message, ...]:
        """System message if any, worked few-shot examples as turns, then the question with its fields.

        `given` is the prompt of data that brings its own: our system text follows its own, the examples come after
        that, and its last message of the user is the question.
        """
        turns: list[Message] = []
        for shot in shots:
            asked = shot.messages[-1].content if shot.messages else shot.question
            turns += (self._asked(asked, {}), Message(role="assistant", content=self.worked(shot)))
        system = self._system
        if given and given[0].role == "system":
            texts = [message.content for message in (given[0], *system)]
            system, given = (replace(given[0], content="\n\n".join(texts)),), given[1:]
        last = [self._asked(question, fields or {})]
        if given:
            last = [*given]
            if last[-1].role == "user":
                last[-1] = self._asked(last[-1].content, fields or {})
        return (*system, *turns, *last)

    def _asked(self, question: str, fields: Mapping[str, str]) -> Message:
        return Message(role="user", content=self._user.format(question=question, **fields, **self._markers))

    def answered(self, answer: str, before: str = "") -> str | Message | None:
        """The last completion of an episode, or its rest after `before`, without any more working:

        solution   <reasoning_end><solution_start>72<solution_end>      the first one only within the reasoning
        hash       #### 72
        complete   a call of `complete`, at the start of a completion
        whole      72, or 2 where the completion begins with a 7: it is the answer already
        stated     None: it differs by prompt
        """
        if self.answer_format.answer_in == "stated":
            return None
        form, line = self.answer_format, "\n" if before.strip() and not before.endswith("\n") else ""
        if form.answer_in == "complete" and not before:
            call = ToolCall(id="call_0", name="complete", arguments={"final_answer": answer})
            return Message(role="assistant", content="", tool_calls=(call,))
        if form.answer_in == "solution":
            marks = form.required_markers()
            within = before.count(marks.reasoning_start) > before.count(marks.reasoning_end)
            return f"{marks.reasoning_end if within else ''}{form.filled(answer)}"
        if form.answer_in == "equals":
            return f"= {answer}" if before else answer
        if form.answer_in == "whole":
            return answer.removeprefix(before.lstrip())
        return f"{line if form.answer_in in ('hash', 'boxed', 'line') else ''}{form.filled(answer)}"

    def worked(self, problem: Problem) -> str:
        """The problem solved in the required format:

        solution   <reasoning_start>48 / 2 = 24<reasoning_end><solution_start>72<solution_end>
        hash       48 / 2 = 24\\n#### 72
        boxed      48 / 2 = 24\\n\\boxed{72}
        whole      72
        complete   72: the chat layer writes the tool call
        """
        if problem.demonstration is not None:
            return problem.demonstration
        answer, working = problem.answer, problem.solution
        form = self.answer_format.for_prompt(problem.question)
        if form.answer_in == "solution":
            marks = form.required_markers()
            reasoning = f"{marks.reasoning_start}{working or f'The answer is {answer}.'}{marks.reasoning_end}"
            return f"{reasoning}{form.filled(answer)}"
        if form.answer_in in ("whole", "complete"):
            return answer
        if form.answer_in == "equals":
            return f"{working} = {answer}" if working else answer
        return f"{working}\n{form.filled(answer)}" if working else form.filled(answer)


def plain(problem: Problem) -> str:
    """The problem solved in the data's own format: `48 / 2 = 24\\n#### 72`, or `72`."""
    return f"{problem.solution}\n#### {problem.answer}" if problem.solution else problem.answer


def resolve_markers(prompt: Prompt, markers: MarkersSettings, family: str | None) -> MarkerSettings | None:
    """The markers of a prompt for a model family (`model_type`); None if it uses none.

    ConfigError if the set is unknown, the family has none, or markers are ambiguous.
    """
    if not prompt.uses_markers:
        return None
    name, key = prompt.markers, "prompt.markers"
    if name == "auto":
        name, key = markers.families.get(family or ""), f"markers.families.{family}"
        if name is None:
            raise ConfigError(
                f"prompt.markers=auto: markers.families has no set for models of type {family}; add {key}=SET, or "
                f"choose prompt.markers=SET (sets: {', '.join(markers.sets)})."
            )
    if name not in markers.sets:
        hint = suggestion(name, list(markers.sets))
        raise ConfigError(f"{key}={name}: there is no such set in markers.sets; {hint}")
    chosen = markers.sets[name]
    try:
        AnswerMarkers(**chosen.model_dump())
    except ConfigError as error:
        raise ConfigError(f"markers.sets.{name}: {error}") from None
    return chosen


def _check(key: str, template: str, known: Sequence[str]) -> None:
    """ConfigError for a placeholder not in `known`, or a single brace."""
    try:
        (unknown, *_) = [
            f"{{{name}}}" for _, name, _, _ in string.Formatter().parse(template) if name not in (None, *known)
        ] or [""]
    except ValueError as error:
        unknown = f"({error})"
    if unknown:
        places = ", ".join(f"{{{name}}}" for name in known)
        raise ConfigError(f"{key} has an unknown placeholder {unknown}; there are {places} (write {{{{ for a brace).")
