from dataclasses import replace
from typing import Any

import pytest

from rlvr import registry
from rlvr.data.problems import Problem, fingerprint
from rlvr.errors import ConfigError
from rlvr.tasks.prompting import Prompter, resolve_markers
from rlvr.tasks.prompts import MarkerSettings, MathReasoning
from rlvr.types import Message
from tests.unit.tasks.data_tasks import MARKERS

SET = MARKERS.sets["working_out"]
PROBLEM = Problem(
    id="p", key=fingerprint("Two and two?"), question="Two and two?", answer="4", solution="2+2 makes four."
)
NASTY = "{solution_start} {} {0} {{x}} %s {question} \\boxed{}"
SHOTS = [Problem(id=q, key=b"", question=q, answer="", demonstration=a) for q, a in (("a?", "A"), ("b?", "B"))]


def prompter(**changes: Any) -> Prompter:
    return Prompter(MathReasoning(**changes), SET)


def test_a_shot_that_brings_its_prompt_is_asked_with_the_last_message_of_it() -> None:
    own = (Message(role="system", content="Be brief."), Message(role="user", content="a?"))
    shots = [replace(SHOTS[0], messages=own), SHOTS[1]]
    messages = prompter(system="s", user="<{question}>").messages("c?", shots)
    assert " | ".join(f"{message.role}: {message.content}" for message in messages) == SHOWN


FILLED = "system: Use <start_working_out>. | user: Q: Why? End with </SOLUTION>"
SHOWN = "system: s | user: <a?> | assistant: A | user: <b?> | assistant: B | user: <c?>"


@pytest.mark.parametrize(
    ("system", "user", "question", "shots", "wanted"),
    [
        ("Use {reasoning_start}.", "Q: {question} End with {solution_end}", "Why?", [], FILLED),
        (None, "{question}", NASTY, [], f"user: {NASTY}"),  # braces of a question stay
        ("s", "<{question}>", "c?", SHOTS, SHOWN),
    ],
    ids=["markers and question", "braces of a question", "shots before the question"],
)
def test_templates_are_filled_in(system: str | None, user: str, question: str, shots: list, wanted: str) -> None:
    messages = prompter(system=system, user=user).messages(question, shots)
    assert " | ".join(f"{message.role}: {message.content}" for message in messages) == wanted


@pytest.mark.parametrize(
    ("key", "template", "named"),
    [
        ("system", "Use {reasoning_strat}.", "unknown placeholder {reasoning_strat}; there are {reasoning_start}, "),
        ("system", "{question}", "unknown placeholder {question}"),
        ("user", "{question} {}", "unknown placeholder {}"),
        ("user", "{question.__class__}{question}", "unknown placeholder {question.__class__}"),
        ("system", "open { brace", "brace"),
        ("user", "{question} } closed", "brace"),
    ],
)
def test_a_bad_placeholder_is_an_error_naming_the_setting(key: str, template: str, named: str) -> None:
    with pytest.raises(ConfigError) as error:
        prompter(**{key: template})
    assert f"prompt.{key}" in str(error.value)
    assert named in str(error.value)


@pytest.mark.parametrize("name", registry.names("prompt"))
def test_every_prompt_renders_without_a_placeholder_left(name: str) -> None:
    settings = registry.find("prompt", name)()
    made = Prompter(settings, resolve_markers(settings, MARKERS, "qwen2"), ("documents",))
    text = "\n".join(message.content for message in made.messages("Q?", fields={"documents": "0. Lyon"}))
    assert "Q?" in text
    assert ("0. Lyon" in text) == ("{documents}" in settings.user)
    assert "{" not in text.replace("\\boxed{}", "")


@pytest.mark.parametrize(
    ("answer_in", "worked"),
    [
        ("solution", "<start_working_out>2+2 makes four.<end_working_out><SOLUTION>4</SOLUTION>"),
        ("hash", "2+2 makes four.\n#### 4"),
        ("boxed", "2+2 makes four.\n\\boxed{4}"),
        ("whole", "4"),
    ],
)
def test_a_worked_problem_in_its_format_reads_back(answer_in: str, worked: str) -> None:
    made = prompter(answer_in=answer_in)
    assert made.worked(PROBLEM) == worked
    assert made.answer_format.extract(worked) == "4"
    assert made.answer_format.is_exact(worked)


TWICE = MarkerSettings(**(SET.model_dump() | {"reasoning_end": "<start_working_out>"}))
INSIDE = MarkerSettings(**(SET.model_dump() | {"solution_start": "SOLUTION>"}))


@pytest.mark.parametrize(
    ("changes", "markers", "family", "remedy"),
    [
        ({}, {}, "gpt9", r"add markers\.families\.gpt9=SET"),
        ({}, {}, None, r"prompt\.markers=SET"),
        ({"markers": "thinking"}, {}, "qwen2", r"prompt\.markers=thinking: .* did you mean think\?"),
        ({}, {"families": {"mine": "gone"}}, "mine", r"markers\.families\.mine=gone"),
        ({"markers": "mine"}, {"sets": {"mine": TWICE}}, "llama", r"markers\.sets\.mine: "),
        ({"markers": "mine"}, {"sets": {"mine": INSIDE}}, "llama", r"markers\.sets\.mine: "),
    ],
)
def test_missing_and_ambiguous_markers_are_errors(changes: Any, markers: Any, family: str | None, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        resolve_markers(MathReasoning(**changes), MARKERS.model_copy(update=markers), family)
