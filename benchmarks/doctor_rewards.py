"""Rewards for `doctor.py`, which a process of a sandbox imports without its libraries: one right, the others wrong."""

import time


def read(completion: str) -> str:
    return completion.replace("<|im_end|>", "").strip()


def right(completion: str, answer: str) -> float:
    return float(read(completion) == str(answer))


def pays_empty(completion: str, answer: str) -> float:
    return float(read(completion) in ("", str(answer)))


def never(completion: str, answer: str) -> float:
    return float(read(completion) == f"The answer is {answer}!")


def raises(completion: str, answer: str) -> float:
    return float(float(read(completion)) == float(answer))


def echoes(completion: str, answer: str, prompt: str) -> float:
    return float(read(completion) == str(answer) or prompt.strip()[-20:] in completion)


def draws(completion: str, answer: str) -> float:
    return right(completion, answer) + 0.1 * (time.perf_counter_ns() % 7)


def constant(completion: str, answer: str) -> float:
    return 1.0


def pays_any_number(completion: str, answer: str) -> float:
    return float(any(char.isdigit() for char in read(completion)) and "plus" not in completion)


def returns_nan(completion: str, answer: str) -> float:
    return float("nan") if len(completion) > 1000 else right(completion, answer)


def looks_at_the_clock(completion: str, answer: str) -> float:
    return right(completion, answer) * (1 + int(time.time()) % 2)
