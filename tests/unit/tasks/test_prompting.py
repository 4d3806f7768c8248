from typing import Any

import pytest

from rlvr import registry
from rlvr.errors import ConfigError
from rlvr.tasks.problems import Problem, fingerprint
from rlvr.tasks.prompting import Prompter, resolve_markers
from rlvr.tasks.prompts import MarkerSettings, MathReasoning, Prompt
from rlvr.types import Message
from tests.unit.tasks.data_tasks import MARKERS

SET = MARKERS.sets["working_out"]
PROBLEM = Problem(
    id="p", key=fingerprint("Two and two?"), question="Two and two?", answer="4", solution="2+2 makes four."
)


def prompt(**changes: Any) -> Prompt:
    return MathReasoning(**changes)


def test_markers_are_filled_into_system_and_user_and_the_question_into_user() -> None:
    made = Prompter(prompt(system="Use {reasoning_start}.", user="Q: {question} End with {solution_end}"), SET)
    assert made.messages("Why?") == (
        Message(role="system", content="Use <start_working_out>."),
        Message(role="user", content="Q: Why? End with </SOLUTION>"),
    )


def test_braces_of_a_question_stay_as_they_are() -> None:
    made = Prompter(prompt(system=None), SET)
    nasty = "{solution_start} {} {0} {{x}} %s {question} \\boxed{}"
    assert made.messages(nasty) == (Message(role="user", content=nasty),)


def test_shots_are_turns_before_the_question() -> None:
    shots = [Problem(id=q, key=b"", question=q, answer="", demonstration=a) for q, a in (("a?", "A"), ("b?", "B"))]
    messages = Prompter(prompt(system="s", user="<{question}>"), SET).messages("c?", shots)
    assert [(m.role, m.content) for m in messages] == [
        ("system", "s"),
        ("user", "<a?>"),
        ("assistant", "A"),
        ("user", "<b?>"),
        ("assistant", "B"),
        ("user", "<c?>"),
    ]


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
def test_a_placeholder_that_cannot_be_filled_is_an_error_that_names_the_setting(
    key: str, template: str, named: str
) -> None:
    with pytest.raises(ConfigError) as error:
        Prompter(prompt(**{key: template}), SET)
    assert f"prompt.{key}" in str(error.value)
    assert named in str(error.value)


@pytest.mark.parametrize("name", registry.names("prompt"))
def test_every_prompt_of_the_package_renders_without_a_placeholder_left(name: str) -> None:
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
def test_a_worked_problem_is_in_the_asked_for_format_and_reads_back(answer_in: str, worked: str) -> None:
    made = Prompter(prompt(answer_in=answer_in), SET)
    assert made.worked(PROBLEM) == worked
    assert made.answer_format.extract(worked) == "4"
    assert made.answer_format.is_exact(worked)


@pytest.mark.parametrize(
    ("family", "remedy"), [("gpt9", r"add markers\.families\.gpt9=SET"), (None, r"prompt\.markers=SET")]
)
def test_a_family_without_markers_is_an_error_with_a_remedy(family: str | None, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        resolve_markers(prompt(), MARKERS, family)


def test_an_unknown_set_is_an_error_naming_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"prompt\.markers=thinking: .* did you mean think\?"):
        resolve_markers(prompt(markers="thinking"), MARKERS, "qwen2")
    lost = MARKERS.model_copy(update={"families": {"mine": "gone"}})
    with pytest.raises(ConfigError, match=r"markers\.families\.mine=gone"):
        resolve_markers(prompt(), lost, "mine")


@pytest.mark.parametrize(
    "changes",
    [
        {"reasoning_end": "<start_working_out>"},  # twice
        {"solution_start": "SOLUTION>"},  # inside another
    ],
)
def test_markers_that_cannot_be_told_apart_are_an_error_naming_their_set(changes: dict[str, str]) -> None:
    broken = MarkerSettings(**(SET.model_dump() | changes))
    with pytest.raises(ConfigError, match=r"markers\.sets\.mine: "):
        resolve_markers(prompt(markers="mine"), MARKERS.model_copy(update={"sets": {"mine": broken}}), "llama")
