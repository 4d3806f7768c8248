"""Functions as users write them, good and bad."""

import asyncio
from typing import Any

NOT_A_FUNCTION = 3


def full(prompt: str, completion: str, answer: str, metadata: dict[str, Any], *, bonus: float = 0.0) -> float | None:
    if not completion:
        return None
    assert prompt == "What is it?"
    return float(completion == answer) + bonus + metadata["level"]


def short(completion: str, answer: str) -> float:
    return 1.0 if completion == answer else 0.0


def episode(turns: list[str], calls: list[dict[str, Any]], retrieved: list[str], cited: list[str]) -> float:
    assert turns == ["one", "two"]
    assert calls == [{"name": "search", "arguments": {"query": "Oslo"}}]
    return len(retrieved) + len(cited) / 10


def needs_more(completion: str, rubric: str) -> float:
    return 0.0


def takes_nothing() -> float:
    return 0.0


def by_position(completion: str, /) -> float:
    return 0.0


def forgets(completion: str, answer: str) -> None:
    float(completion == answer)


def raises(completion: str) -> float:
    return {"y": 1.0}["x"]


def gives_text(completion: str) -> str:
    return "1.0"


def hangs(completion: str) -> float:
    while True:
        pass


async def waits(completion: str) -> float:
    await asyncio.sleep(0)
    return float(len(completion))


def trl_any_answer(completions, answer, **kwargs):
    return [float(text in accepted) for text, accepted in zip(completions, answer, strict=True)]


async def trl_waits(completions, **kwargs):
    await asyncio.sleep(0)
    return [float(len(completion)) for completion in completions]


class Judge:
    def __init__(self, completion: str) -> None:
        self.completion = completion


def trl_length(completions, **kwargs):
    """TRL's form, as in its documentation: a list of numbers."""
    return [-abs(3 - len(completion)) for completion in completions]


def trl_columns(prompts, completions, level, extra=1):
    """TRL's form with a column of the data by name."""
    return [float(level[0] * 10 + len(prompts) + len(completions[0]) + extra)]


def trl_chat(prompts, completions, answer, **kwargs):
    """TRL's form for data in messages."""
    assert prompts[0][-1] == {"role": "user", "content": "What is it?"}
    return [float(completion[0]["content"] == gold) for completion, gold in zip(completions, answer, strict=True)]


def trl_logs(completions, trainer_state, log_extra=print, **kwargs):
    """TRL's form with its state and its logs."""
    log_extra("length", [len(completion) for completion in completions])
    kwargs["log_metric"]("mean_length", 3.0)
    assert "completion_ids" not in kwargs
    return [float(trainer_state or len(completion)) for completion in completions]


def trl_reads_logs(completions, log_metric, completion_ids=None):
    log_metric("mean_length", 3.0)
    return [float(len(completion)) for completion in completions if completion_ids is None]


def trl_ids(completions, completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def trl_missing(completions, solution):
    return [1.0]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """verl's form, which returns a number or a dict."""
    right = float(solution_str == ground_truth)
    return {"score": right, "acc": right > 0} if extra_info else right + (data_source == "mine")
