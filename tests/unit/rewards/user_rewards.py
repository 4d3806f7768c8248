"""Functions as users write them, good and bad."""

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
    return 0.0
