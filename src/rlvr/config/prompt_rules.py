"""Rules on whether the prompt asks for what is read; `rules.py` includes the table.

An instruction that contradicts what is read makes every answer invalid, and is an error. A prompt that says nothing of
the format may be meant (a model that was trained to it needs no instruction), and is a note.
"""

import re

from rlvr.config.rule import Rule
from rlvr.config.schema import Config, FinqaTask, Markers, MixTask, PretrainedModel, Prompt, RpnTask, TwoHopTask

PLACES = {
    "solution": r"\{solution_start\}|\{solution_end\}",
    "boxed": r"\\boxed",
    "hash": r"####",
}
"""prompt.answer_in: how a prompt asks for an answer there."""

CALL = r"\b(?:add|subtract|multiply|divide|exp|greater|table_\w+)\s*\("
"""A step of a FinQA program, as an example of one: `subtract(5829, 5735)`."""


def _text(prompt: Prompt) -> str:
    return f"{prompt.system or ''}\n{prompt.user}"


def _asks_for_number(c: Config) -> bool:
    wanted = isinstance(c.task, FinqaTask) and c.task.answer == "program" and c.prompt.system is not None
    return wanted and re.search(rf"{CALL}|\bprogram", _text(c.prompt), re.IGNORECASE) is None


def _asks_for_program(c: Config) -> bool:
    wanted = isinstance(c.task, FinqaTask) and c.task.answer == "number"
    return wanted and re.search(CALL, _text(c.prompt)) is not None


def _tells(prompt: Prompt, place: str) -> bool:
    return place in PLACES and re.search(PLACES[place], _text(prompt)) is not None


def _asks_elsewhere(c: Config) -> bool:
    """Models made from scratch follow no instruction: for them the prompt is a text like any other."""
    elsewhere = _tells(c.prompt, "solution") or _tells(c.prompt, "boxed")
    return isinstance(c.model, PretrainedModel) and elsewhere and not _tells(c.prompt, c.prompt.answer_in)


PROMPT_RULES = (
    Rule(
        _asks_for_number,
        "task.answer=program: prompt.system does not ask for a program, so no answer would be one; choose "
        "prompt=financial_program.",
    ),
    Rule(
        _asks_for_program,
        "task.answer=number: the prompt asks for a program, so no answer could be read; choose "
        "prompt=financial_reasoning, or task.answer=program reward=finqa_program.",
    ),
    Rule(
        _asks_elsewhere,
        "prompt.answer_in={c.prompt.answer_in}: the prompt asks for the answer in another place, so none could be "
        "read; choose another prompt, or change prompt.system and prompt.user to ask for what is read.",
    ),
)


def prompt_notes(config: Config) -> list[str]:
    """What a pretrained model is never told, one sentence for each task; nothing for models made from scratch."""
    if not isinstance(config.model, PretrainedModel):
        return []
    own = config.task.parts if isinstance(config.task, MixTask) else {config.task.name: config}
    return [
        f"{name}: neither prompt.system nor prompt.user says where the answer goes, and it is read from "
        f"prompt.answer_in={bundle.prompt.answer_in} alone: a model that was not trained to it gives no valid answer"
        for name, bundle in {**own, **config.evaluation.also}.items()
        if not isinstance(bundle.task, RpnTask | TwoHopTask) and _untold(bundle.prompt, config.markers)
    ]


def _untold(prompt: Prompt, markers: Markers) -> bool:
    """Shown examples tell, too, and so do markers that are written out."""
    if prompt.answer_in not in PLACES or prompt.few_shot > 0 or _tells(prompt, prompt.answer_in):
        return False
    written = prompt.answer_in == "solution" and any(m.solution_start in _text(prompt) for m in markers.sets.values())
    return not written
