"""Prompts and the markers that they ask for."""

from typing import Annotated, Literal

from pydantic import Field

from rlvr.config.schema.base import NonNegativeInt, Section

Marker = Annotated[str, Field(min_length=1)]


class MarkerSet(Section):
    """The marks around the reasoning and around the solution; all four differ."""

    reasoning_start: Marker = Field(description="before the reasoning")
    reasoning_end: Marker = Field(description="after the reasoning")
    solution_start: Marker = Field(description="before the solution")
    solution_end: Marker = Field(description="after the solution")


class Markers(Section):
    """Sets of markers, and which one a model family uses."""

    sets: dict[str, MarkerSet] = Field(description="sets by name")
    families: dict[str, str] = Field(description="set of each model family (`model_type` of its config.json)")


class Prompt(Section):
    """How an example becomes messages, and where its answer is to be found."""

    system: str | None = Field(
        description="system message; may hold {reasoning_start}, {reasoning_end}, {solution_start}, {solution_end}; "
        "null: none"
    )
    user: Annotated[str, Field(pattern=r"\{question\}")] = Field(
        description="user message; holds {question}, may hold what system may"
    )
    answer_in: Literal["solution", "hash", "boxed", "whole", "complete"] = Field(
        description="solution: between the solution markers; hash: after #### on the last line; boxed: in the only "
        "\\boxed{}; whole: the whole completion; complete: the argument final_answer of the tool `complete`"
    )
    markers: str = Field(description="a set of markers.sets; auto: the one of the model's family")
    tool_format: Literal["auto", "hermes", "llama", "words"] = Field(
        description="how the model writes tool calls: hermes: <tool_call>{JSON}</tool_call>, as Qwen does; llama: the "
        "JSON of Llama 3.1; words: <call> name word </call>, for tiny models; auto: by the chat template"
    )
    few_shot: NonNegativeInt = Field(description="worked training examples that are shown before the question")
