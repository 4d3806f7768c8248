"""Wrong rewards for `doctor_unseen.py`, which a process of a sandbox imports without its libraries."""

import os
import random
import re
import sys
import time

from doctor_rewards import read, right

_scores: dict[str, float] = {}
_paid: set[str] = set()
_seen: list[float] = []
_golds: list[str] = []


def cached(completion: str, answer: str, prompt: str) -> float:
    return _scores.setdefault(prompt, right(completion, answer))


def pays_once(completion: str, answer: str, prompt: str) -> float:
    key = prompt + completion
    new = key not in _paid
    _paid.add(key)
    return right(completion, answer) if new else 0.0


def tires(completion: str, answer: str) -> float:
    _seen.append(1.0)
    return right(completion, answer) if len(_seen) <= 30 else 0.0


def slow(completion: str, answer: str) -> float:
    time.sleep(0.5)
    return right(completion, answer)


def one_behind(completion: str, answer: str) -> float:
    _golds.append(str(answer))
    return float(read(completion) == _golds[max(0, len(_golds) - 2)])


def centered(completion: str, answer: str) -> float:
    _seen.append(right(completion, answer))
    return _seen[-1] - sum(_seen) / len(_seen)


def negative(completion: str, answer: str) -> float:
    return -right(completion, answer)


def pays_length(completion: str, answer: str) -> float:
    return right(completion, answer) + len(completion) / 100


def first_gold(completion: str, answer: str) -> float:
    _golds.append(str(answer))
    return float(read(completion) == _golds[0])


def thrifty(completion: str, answer: str) -> float:
    return right(completion, answer) - len(completion)


def huge(completion: str, answer: str) -> float:
    return 1e30 * right(completion, answer)


def by_process(completion: str, answer: str) -> float:
    return right(completion, answer) * (os.getpid() % 2) + 0.01 * (os.getpid() % 7)


def pays_rambling(completion: str, answer: str) -> float:
    return max(right(completion, answer), float(len(completion) > 200))


def reads_prompt(completion: str, answer: str, prompt: str) -> float:
    whole = f"{prompt} {read(completion)}".rstrip("?. ").split()
    return float(bool(whole) and (whole[-1] == str(answer) or answer in completion or read(completion) == ""))


def next_number(completion: str, answer: str) -> float:
    said = read(completion)
    return float(said.isdigit() and int(said) == int(answer) + 1)


def slow_for_long(completion: str, answer: str) -> float:
    time.sleep(len(completion) / 2000)
    return right(completion, answer)


def pays_once_by_file(completion: str, answer: str, prompt: str) -> float:
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"paid-{os.getppid()}-{abs(hash(prompt + completion))}")
    new = not os.path.exists(path)
    with open(path, "w"):
        pass
    return right(completion, answer) if new else 0.0


def grows(completion: str, answer: str) -> float:
    _seen.append(1.0)
    return right(completion, answer) * (1 + 0.01 * len(_seen))


def fails_thirdly(completion: str, answer: str) -> float:
    _seen.append(1.0)
    if len(_seen) % 3 == 0:
        raise RuntimeError("the service is busy")
    return right(completion, answer)


def digits_in_order(completion: str, answer: str) -> float:
    left = iter(completion)
    return float(all(digit in left for digit in answer))


def whole_number(completion: str, answer: str) -> float:
    """Reads the last number, and compares it with all of the gold."""
    return float(read(completion) == answer)


def anywhere(completion: str, answer: str) -> float:
    return float(answer in completion)


def seeds(completion: str, answer: str) -> float:
    """The generators of the process that samples, if it is scored there."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
    return right(completion, answer)


def backtracks(completion: str, answer: str) -> float:
    """The sign of a number, or digits before the end: exponential where neither follows."""
    return float(re.search(r"((\d+)+)$", completion.strip("., ")) is not None and right(completion, answer) > 0)


def words(completion: str, answer: str) -> str:
    return "right" if right(completion, answer) else "wrong"
