"""The choices of `prompt=...`, and their markers."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.run_view import RunView
from rlvr.settings import Component, NonNegativeInt, Settings, Text, setting

NO_OWN = "a task that does not write its prompts itself"
SHOWN = f"not task.writes_prompts and task.shows_calls  # {NO_OWN} and a task whose examples can be shown"
OWN_PROMPTS = f"not task.writes_prompts  # {NO_OWN}"

# Fields with different defaults per prompt: a subclass sets `answer_in: AnswerIn = "boxed"`.
System = Annotated[
    str | None,
    setting(
        description="system message; may hold {reasoning_start}, {reasoning_end}, {solution_start}, {solution_end}; "
        "null: none",
        only_if=OWN_PROMPTS,
    ),
]
User = Annotated[
    str,
    setting(
        description="user message; holds {question}, may hold the same placeholders as system",
        only_if=OWN_PROMPTS,
        pattern=r"\{question\}",
    ),
]
AnswerIn = Annotated[
    Literal["solution", "hash", "boxed", "line", "equals", "whole", "complete", "stated"],
    setting(
        description="solution: between the solution markers; hash: after #### on the last line; boxed: in the only "
        "\\boxed{}; line: after Answer: on the last line; equals: the word between the last = and <eoe>, or the end; "
        "whole: the whole completion; complete: the argument final_answer of the tool `complete`; stated: in the form "
        "that the example's prompt shows, #### or \\boxed{} or <answer></answer> or [[ ]] or Answer: or The final "
        "answer is, else the whole completion; all behind the model's own reasoning",
        only_if=OWN_PROMPTS,
    ),
]
MarkerSet = Annotated[
    str,
    setting(
        description="a set of markers.sets; auto: by the model's family",
        only_if=f"uses_markers and not task.writes_prompts  # a prompt with markers and {NO_OWN}",
    ),
]
ToolFormat = Annotated[
    Literal["auto", "hermes", "llama", "list", "words", "taught"],
    setting(
        description="tool call format: hermes: <tool_call>{JSON}</tool_call>, as Qwen does; llama: the "
        "JSON of Llama 3.1; list: <tool_call>[{JSON}]</tool_call>, as SmolLM2 does; words: "
        "<call> name word </call>, for tiny models; taught: hermes without descriptions, "
        "for models made from scratch; auto: by the chat template",
        only_if="task.has_tools  # a task with tools",
    ),
]
PLACES = {"solution": r"\{solution_start\}|\{solution_end\}", "boxed": r"\\boxed", "hash": r"####", "line": r"Answer:"}
"""Values of prompt.answer_in, and how a prompt asks for each."""
PLACEHOLDERS = ("{reasoning_start}", "{reasoning_end}", "{solution_start}", "{solution_end}")


class MarkerSettings(Settings):
    """The four different markers around the reasoning and around the solution."""

    reasoning_start: Text = setting(description="before the reasoning")
    reasoning_end: Text = setting(description="after the reasoning")
    solution_start: Text = setting(description="before the solution")
    solution_end: Text = setting(description="after the solution")


def _marks(reasoning: str, reasoning_end: str, solution: str, solution_end: str) -> MarkerSettings:
    return MarkerSettings(
        reasoning_start=reasoning, reasoning_end=reasoning_end, solution_start=solution, solution_end=solution_end
    )


class MarkersSettings(Settings):
    """Sets of markers, and the set of each model family. Add your own: markers.sets.mine={...}"""

    sets: Mapping[str, MarkerSettings] = setting(
        {
            "working_out": _marks("<start_working_out>", "<end_working_out>", "<SOLUTION>", "</SOLUTION>"),
            "think": _marks("<think>", "</think>", "<answer>", "</answer>"),
            "words": _marks("<because>", "</because>", "<ans>", "</ans>"),
        },
        "sets by name",
    )
    families: Mapping[str, str] = setting(
        {
            "gemma": "working_out",
            "gemma2": "working_out",
            "gemma3": "working_out",
            "gemma3_text": "working_out",
            "llama": "working_out",  # also models made from scratch
            "mistral": "working_out",
            "phi3": "working_out",
            "qwen2": "working_out",
            "qwen3": "think",  # its own reasoning markers
        },
        "marker set of each model family (`model_type` in config.json)",
    )


@register("prompt", "plain")
class Prompt(Component):
    """The question only; the whole completion is the answer."""

    group: ClassVar[str] = "prompt"
    system: System = None
    user: User = "{question}"
    answer_in: AnswerIn = "whole"
    markers: MarkerSet = "auto"
    tool_format: ToolFormat = "auto"
    few_shot: NonNegativeInt = setting(
        0,
        "worked training examples before the question (few-shot)",
        only_if=SHOWN,
    )

    @property
    def text(self) -> str:
        return f"{self.system or ''}\n{self.user}"

    @property
    def uses_markers(self) -> bool:
        return self.answer_in == "solution" or any(place in self.text for place in PLACEHOLDERS)

    def check_run(self, run: RunView) -> None:
        """Models made from scratch do not follow instructions: for them the prompt is plain text."""
        asked = [place for place in ("solution", "boxed") if re.search(PLACES[place], self.text)]
        if asked and not self._asks_for_answer and not run.model.from_scratch and not run.task.writes_prompts:
            raise ConfigError(
                f"prompt.answer_in={self.answer_in}: the prompt asks for the answer in another place "
                f"(prompt.answer_in={asked[0]} reads that), so none could be read; choose another prompt, or change "
                "prompt.system and prompt.user to ask for what is read."
            )

    def remarks(self, run: RunView) -> Iterator[str]:
        """Notes that no prompt text says where the answer goes, for models that follow instructions."""
        marks = [one.solution_start for one in run.markers.sets.values()] if self.answer_in == "solution" else []
        told = self._asks_for_answer or any(mark in self.text for mark in marks) or self.few_shot
        if self.answer_in in PLACES and not (told or run.model.from_scratch or run.task.writes_prompts):
            yield (
                "neither prompt.system nor prompt.user says where the answer goes, and it is read from "
                f"prompt.answer_in={self.answer_in} alone: a model not trained for this gives no valid answer"
            )

    @property
    def _asks_for_answer(self) -> bool:
        return self.answer_in in PLACES and re.search(PLACES[self.answer_in], self.text) is not None

    @property
    def is_plain(self) -> bool:
        return self.system is None and self.user == "{question}" and self.answer_in == "whole" and self.few_shot == 0


@register("prompt", "given")
class Given(Prompt):
    """The prompts of the data as they are, texts or messages; the answer is read where they ask for it."""

    answer_in: AnswerIn = "stated"


@register("prompt", "boxed")
class Boxed(Prompt):
    r"""Free-form reasoning, then the answer in \boxed{}."""

    system: System = r"Reason step by step and put the final answer in \boxed{{}}."
    answer_in: AnswerIn = "boxed"


@register("prompt", "math_reasoning")
class MathReasoning(Prompt):
    """Working between two markers, then the solution between two others."""

    system: System = (
        "You are given a problem. Think about it and write your working out between {reasoning_start} and "
        "{reasoning_end}. Then write the solution and nothing else, no words beside a number, between "
        "{solution_start} and {solution_end}."
    )
    answer_in: AnswerIn = "solution"


@register("prompt", "financial_reasoning")
class FinancialReasoning(Prompt):
    """A page of a financial report and a question about it."""

    system: System = (
        "You are given a page of a financial report, text and table, and a question. Work the answer out between "
        "{reasoning_start} and {reasoning_end}. Then write it, a number, a percentage, yes or no and nothing else,"
        " between {solution_start} and {solution_end}."
    )
    answer_in: AnswerIn = "solution"


@register("prompt", "financial_program")
class FinancialProgram(Prompt):
    """A page of a financial report and a question about it, to be answered with a program in FinQA's language."""

    system: System = (
        "You are given a page of a financial report, text and table, and a question. Work the answer out between "
        "{reasoning_start} and {reasoning_end}. Then write the calculation between {solution_start} and "
        "{solution_end} as steps like subtract(5829, 5735), divide(#0, 5735), where #0 is the result of the first "
        "step. The operations are add, subtract, multiply, divide, exp and greater on two numbers, and table_max, "
        "table_min, table_sum and table_average on a row, as in table_sum(net sales, none)."
    )
    answer_in: AnswerIn = "solution"


@register("prompt", "short_answer")
class ShortAnswer(Prompt):
    """The answer only."""

    system: System = "Answer with the answer alone, without an explanation."


@register("prompt", "two_hop")
class TwoHopPrompt(Prompt):
    """Prompt of task=two_hop: questions `<q> where p3`, calls `<call> search p3 </call>`, answers `<ans> c4 </ans>`."""

    answer_in: AnswerIn = "solution"
    markers: MarkerSet = "words"
    tool_format: ToolFormat = "words"


@register("prompt", "musique")
class SearchAndComplete(Prompt):
    """Search, read, search again, then call `complete`. Add {documents} to user to list the ids and titles of the
    paragraphs."""

    system: System = (
        "Answer the question from the documents that your tools find. The answer takes several steps, each of "
        "which rests on what the step before has found. In every step think about what you know and what is still "
        "missing, then call one tool. Search with retrieve_documents until every step is settled by a document. "
        "Then call complete with your reasoning, an answer that is as short as possible, and the ids of the "
        "documents that it rests on."
    )
    answer_in: AnswerIn = "complete"


@register("prompt", "musique_tags")
class SearchAndTag(Prompt):
    """As musique, but without the tool `complete`: reasoning, citations and answer are text of the last turn. For
    task.tools=[retrieve_documents,get_document,list_documents]."""

    system: System = (
        "Answer the question from the documents that your tools find. The answer takes several steps, each of "
        "which rests on what the step before has found. In every step think about what is still missing, then call"
        " one tool. When every step is settled by a document, call no tool: write your thinking between "
        "{reasoning_start} and {reasoning_end}, then the ids of the documents that the answer rests on as in "
        "<cite>1, 2</cite>, then the answer, as short as possible, between {solution_start} and {solution_end}."
    )
    user: User = "Documents:\n{documents}\n\nQuestion: {question}"
    answer_in: AnswerIn = "solution"
    markers: MarkerSet = "think"
