"""Rewards and tasks with a tool, right and wrong ones, which a process of a sandbox imports: `rewards:NAME`.

Most of them are an expression of the completion `c`, the gold answer `a` and the prompt `p`.
"""

import math
import os
import random
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "examples" / "own"))
from my_shop import Shop, price  # type: ignore[import-not-found]  # examples/own

Example = dict[str, Any]


def read(completion: str) -> str:
    return completion.replace("<|im_end|>", "").strip()


def right(completion: str, answer: str) -> float:
    return float(read(completion) == str(answer))


def last(completion: str) -> str:
    return (re.findall(r"-?\d+(?:\.\d+)?", completion) or [""])[-1]


def number(text: str) -> float:
    """NaN, which equals nothing, for what is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


# ------------------------------------------------------------------------------------------------- with a state

_scores: dict[str, float] = {}
_paid: set[str] = set()
_seen: list[float] = []
_golds: list[str] = []


def pays_once(completion: str, answer: str, prompt: str) -> float:
    new = prompt + completion not in _paid
    _paid.add(prompt + completion)
    return right(completion, answer) if new else 0.0


def pays_once_by_file(completion: str, answer: str, prompt: str) -> float:
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"paid-{os.getppid()}-{abs(hash(prompt + completion))}")
    new = not os.path.exists(path)
    with open(path, "w"):
        pass
    return right(completion, answer) if new else 0.0


def calls() -> int:
    _seen.append(1.0)
    return len(_seen)


def gold_of(place: int, answer: str) -> str:
    """The gold answer of an earlier call."""
    _golds.append(str(answer))
    return _golds[max(0, place if place >= 0 else len(_golds) + place)]


def centered(completion: str, answer: str) -> float:
    _seen.append(right(completion, answer))
    return _seen[-1] - sum(_seen) / len(_seen)


def fails_thirdly(completion: str, answer: str) -> float:
    if calls() % 3 == 0:
        raise RuntimeError("the service is busy")
    return right(completion, answer)


def slow(seconds: float, completion: str, answer: str) -> float:
    time.sleep(seconds)
    return right(completion, answer)


def seeds(completion: str, answer: str) -> float:
    """The generators of the process that samples, if it is scored there."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
    return right(completion, answer)


def judge_is_away(completion: str, answer: str) -> float:
    try:
        with urllib.request.urlopen("http://127.0.0.1:9/judge", timeout=1) as reply:
            return float(reply.read())
    except OSError:
        return 0.0


def words(completion: str, answer: str) -> str:
    return "right" if right(completion, answer) else "wrong"


def reads_prompt(completion: str, answer: str, prompt: str) -> float:
    whole = f"{prompt} {read(completion)}".rstrip("?. ").split()
    return float(bool(whole) and (whole[-1] == str(answer) or answer in completion or read(completion) == ""))


def digits_in_order(completion: str, answer: str) -> float:
    left = iter(completion)
    return float(all(digit in left for digit in answer))


def rounds(completion: str, answer: str) -> float:
    try:
        return float(round(float(completion)) == int(answer))
    except (ValueError, OverflowError):
        return 0.0


def divides(completion: str, answer: str) -> float:
    parts = re.fullmatch(r"(\d+)/(\d+)", completion.strip())
    if parts:
        return float(int(parts[1]) / int(parts[2]) == float(answer))
    return float(completion.strip() == answer)


def plain_integer(completion: str, answer: str) -> float:
    """`int` refuses the commas of 12,345."""
    try:
        return float(int(completion.strip()) == int(answer))
    except ValueError:
        return 0.0


def any_integer(completion: str, answer: str) -> float:
    return plain_integer(completion.replace(",", ""), answer)


def tags(pattern: str, completion: str) -> str | None:
    """The text between tags, behind reasoning."""
    match = re.search(pattern, completion.strip(), re.DOTALL)
    return match[1].strip() if match else None


THOUGHT = r"<think>.*?</think>\s*<answer>(.*?)</answer>"
ONE_LINE = re.compile(rf"{THOUGHT}\s*$")  # as in many scripts: a point is no line break without re.DOTALL


def length_in_group(completions: list[str], answer: list[str], **others: Any) -> list[float]:
    """As open-r1's len_reward (Kimi k1.5): the length between the shortest and the longest of the list."""
    lengths = [len(completion) for completion in completions]
    shortest, longest = min(lengths), max(lengths)
    if shortest == longest:
        return [0.0] * len(completions)
    values = [0.5 - (length - shortest) / (longest - shortest) for length in lengths]
    good = [text.strip() == gold for text, gold in zip(completions, answer, strict=True)]
    return [value if is_right else min(0.0, value) for value, is_right in zip(values, good, strict=True)]


EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "pays_empty": lambda c, a: read(c) in ("", str(a)),
    "never": lambda c, a: read(c) == f"The answer is {a}!",
    "raises": lambda c, a: float(read(c)) == float(a),
    "echoes": lambda c, a, p: read(c) == str(a) or p.strip()[-20:] in c,
    "draws": lambda c, a: right(c, a) + 0.1 * (time.perf_counter_ns() % 7),
    "constant": lambda c, a: 1,
    "pays_any_number": lambda c, a: any(char.isdigit() for char in read(c)) and "plus" not in c,
    "returns_nan": lambda c, a: math.nan if len(c) > 1000 else right(c, a),
    "looks_at_the_clock": lambda c, a: right(c, a) * (1 + int(time.time()) % 2),
    "is_the_whole_text": lambda c, a: c.strip() == a,
    "cached": lambda c, a, p: _scores.setdefault(p, right(c, a)),
    "tires": lambda c, a: right(c, a) * (calls() <= 30),
    "half_a_second": lambda c, a: slow(0.5, c, a),
    "slow_for_long": lambda c, a: slow(len(c) / 2000, c, a),
    "one_behind": lambda c, a: read(c) == gold_of(-2, a),
    "first_gold": lambda c, a: read(c) == gold_of(0, a),
    "negative": lambda c, a: -right(c, a),
    "pays_length": lambda c, a: right(c, a) + len(c) / 100,
    "thrifty": lambda c, a: right(c, a) - len(c),
    "huge": lambda c, a: 1e30 * right(c, a),
    "by_process": lambda c, a: right(c, a) * (os.getpid() % 2) + 0.01 * (os.getpid() % 7),
    "pays_rambling": lambda c, a: max(right(c, a), len(c) > 200),
    "next_number": lambda c, a: read(c).isdigit() and int(read(c)) == int(a) + 1,
    "grows": lambda c, a: right(c, a) * (1 + 0.01 * calls()),
    "whole_number": lambda c, a: read(c) == a,
    "anywhere": lambda c, a: a in c,
    "backtracks": lambda c, a: re.search(r"((\d+)+)$", c.strip("., ")) is not None and right(c, a) > 0,
    "unreadable_earns_half": lambda c, a: 0.5 if math.isnan(number(c)) else number(c) == float(a),
    "length_outweighs": lambda c, a: ((re.findall(r"\d+", c) or [""])[-1] == a) - 0.02 * len(c),
    "begins_alike": lambda c, a: c.strip().startswith(a),
    "any_number": lambda c, a: a in re.findall(r"-?\d+", c),
    "a_tenth_off": lambda c, a: math.isclose(number(c), float(a), rel_tol=0.1),
    "superscript": lambda c, a: c.strip().isdigit() and int(c.strip()) == int(a),  # `isdigit` holds for ², `int` fails
    "strict": lambda c, a: c == a,
    "first_integer": lambda c, a: bool(match := re.search(r"\d+", c)) and match[0] == a,
    "last_number": lambda c, a: last(c) == a,
    "one_line": lambda c, a: bool(match := ONE_LINE.match(c.strip())) and match[1].strip() == a,
    "thinks_itself": lambda c, a: tags(r"\A\s*<think>.*?</think>\s*(.*?)\s*\Z", c) == a,  # the mark is in the prompt
    "unreadable_gold_pays": lambda c, a: math.isnan(number(a)) or number(last(c)) == float(a),  # as open-r1's
    "form_first": lambda c, a: (tags(THOUGHT, c) is not None) + 0.05 * (tags(THOUGHT, c) == a),
    "several_lines": lambda c, a: 0.3 * ((said := tags(rf"{THOUGHT}\s*$", c)) is not None) + (said == a),
}


def published(name: str, score: Callable[..., Any]) -> Callable[..., float]:
    def scored(completion: str, answer: str) -> float:
        return float(score(completion, answer))

    def scored_with_prompt(completion: str, answer: str, prompt: str) -> float:
        return float(score(completion, answer, prompt))

    function = scored if score.__code__.co_argcount == 2 else scored_with_prompt
    function.__name__ = function.__qualname__ = name
    return function


FUNCTIONS = {name: published(name, score) for name, score in EXPRESSIONS.items()}
globals().update(FUNCTIONS)  # a process that scores imports them by name


# --------------------------------------------------------------------------------------------- tasks with a tool


def tool(reply: Callable[[str, Example], Any]) -> Callable[..., Any]:
    """The tool `price` of the shop with another body."""

    def price(item: str, state: Example) -> Any:
        """Look up what one piece of something costs.

        Args:
            item: Its name, such as pear.
        """
        return reply(item, state)

    return price


def untyped() -> Callable[..., Any]:
    def price(item, state):
        return state["prices"][item]

    return price


def shop_of(name: str, made: Callable[..., Any], base: type = Shop) -> type:
    return type(name, (base,), {"__module__": __name__, "tools": lambda self: (made,)})


class Tells(Shop):
    """The tool falls back to the right answer."""

    def examples(self) -> Iterator[Example]:
        for example in super().examples():
            yield example | {"metadata": example["metadata"] | {"gold": example["answer"]}}

    def tools(self) -> tuple[Callable[..., Any], ...]:
        return (tool(lambda item, state: state["prices"].get(item, state["gold"])),)


Broken = shop_of("Broken", tool(lambda item, state: state["price"][item]))  # a field that is not there
Floods = shop_of("Floods", tool(lambda item, state: "pear 3, fig 4, plum 5; " * 4000))
Remembers = shop_of("Remembers", tool(lambda i, state: str(price(i, state)) if calls() % 2 else "come back later"))
Keyless = shop_of("Keyless", tool(lambda item, state: "Error: API key is missing"))
Silent = shop_of("Silent", tool(lambda item, state: ""))
FindsNothing = shop_of("FindsNothing", tool(lambda item, state: "No results found."))
TellsAll = shop_of("TellsAll", tool(lambda item, state: f"I think that it costs {state['gold']}."), Tells)
Untyped = shop_of("Untyped", untyped())
