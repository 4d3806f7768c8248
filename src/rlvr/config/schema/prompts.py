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
    answer_in: Literal["solution", "hash", "boxed", "whole"] = Field(
        description="solution: between the solution markers; hash: after #### on the last line; boxed: in the only "
        "\\boxed{}; whole: the whole completion"
    )
    markers: str = Field(description="a set of markers.sets; auto: the one of the model's family")
    few_shot: NonNegativeInt = Field(description="worked training examples that are shown before the question")
