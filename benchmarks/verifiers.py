"""Grading speed of the verifiers, and the cost of answers that hang.

    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python benchmarks/verifiers.py [--repeats 5] [--num-workers 2] [--pebble]

Three tables, medians of the repeats. Cheap verifiers, sequentially through the asynchronous interface of training, per
second of CPU time (which other load affects less). math-verify in the sandbox, per second. The sandbox with 5 % hanging
answers, against 1.3 x (0.05 n deadline / workers + n / rate), with the rate measured just before; answers hang in
Python, in C, and with SIGTERM ignored and a forked child. Remaining processes are counted in /proc (Linux) and killed.
`--pebble` adds pebble's ProcessPool, which must be installed, to the third table.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import re
import signal
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr.rewards.base import Verifier, run_verifier
from rlvr.rewards.expressions import Arithmetic
from rlvr.rewards.extract import AnswerFormat, Markers
from rlvr.rewards.format import FormatApproximate, FormatExact
from rlvr.rewards.math import MathEqual
from rlvr.rewards.numeric import FinqaNumeric, Numeric
from rlvr.rewards.official.gsm8k import is_correct
from rlvr.rewards.parts import PartRunner, PartsVerifier
from rlvr.rewards.rpn import RpnBoxed, RpnCorrect, RpnVerifier
from rlvr.rewards.sandbox import Sandbox
from rlvr.types import Attempt, Example, Message, StopReason

MARK = "RLVR_BENCHMARK_MARK"
MARKERS = Markers(
    reasoning_start="<start_working_out>",
    reasoning_end="<end_working_out>",
    solution_start="<SOLUTION>",
    solution_end="</SOLUTION>",
)
WORKING = "She sells 16 - 3 - 4 = 9 eggs a day, which makes 9 * 2 = 18 dollars every day at the market. " * 3
GOLDS = ("18", "\\frac{1}{2}", "2\\sqrt{2}", "x^2+2x+1", "1080", "\\frac{3\\pi}{4}", "(1,2)", "12", "-7.5", "3x-4")
ANSWERS = (
    "{g}",
    "{g} ",
    "${g}$",
    "{g}+0",
    "18",
    "\\frac{{2}}{{4}}",
    "\\sqrt{{8}}",
    "(x+1)^2",
    "1,080",
    "x",
    "{n}",
)
GSM8K_GOLD = "16 - 3 - 4 = 9\n#### 18"


def attempt(gold: str, text: str, state: object = None) -> Attempt:
    """One attempt, as in a rollout."""
    example = Example(id="e", messages=(Message(role="user", content="<boe> 4 0 1 + + ="),), answer=gold)
    return Attempt(
        example=example, completion=text, text=text, stop_reason=StopReason.STOP, num_tokens=100, state=state
    )


def solved(answer: str) -> str:
    """A completion as long as GSM8K's solutions."""
    return f"<start_working_out>{WORKING}<end_working_out><SOLUTION>{answer}</SOLUTION>"


def cheap_verifiers() -> Iterator[tuple[str, Verifier, list[Attempt]]]:
    answers = ("18", "18.0", "$18", "1,080", "19", "-18", "18 eggs", "twelve", "", "yes", "12%", "3/4")
    attempts = [attempt("18", solved(answer)) for answer in answers]
    solution = AnswerFormat(answer_in="solution", markers=MARKERS)
    numeric, exact, approximate = Numeric(weight=3.0), FormatExact(), FormatApproximate(weight=0.5)
    yield "numeric", PartsVerifier({"correct": numeric}, solution), attempts
    yield (
        "numeric + exact format + markers",
        PartsVerifier({"correct": numeric, "format": exact, "markers": approximate}, solution),
        attempts,
    )
    yield "FinQA numeric", PartsVerifier({"correct": FinqaNumeric()}, solution), attempts
    rpn = RpnVerifier(PartsVerifier({"boxed": RpnBoxed(weight=0.3), "correct": RpnCorrect(weight=0.7)}))
    modular = Arithmetic(modulus=13, operators=("+", "-", "*"), smallest=0, largest=12)
    texts = ("4 1 + = 5 <eoe>", "5 <eoe>", "4 1 + = 6 <eoe>", "= = 5 +")
    yield "RPN", rpn, [attempt("5", text, modular) for text in texts]


def cheap_rate(verifier: Verifier, attempts: list[Attempt], num_answers: int) -> float:
    """Answers per second of this process' CPU time."""

    async def run() -> float:
        start = time.process_time()
        for index in range(num_answers):
            await run_verifier(verifier, attempts[index % len(attempts)])
        return num_answers / (time.process_time() - start)

    return asyncio.run(run())


def official_rate(num_answers: int) -> float:
    """Answers per second of GSM8K's official scorer."""
    texts = [f"{WORKING}\n#### {answer}" for answer in ("18", "1,080", "19", "eighteen")]
    start = time.process_time()
    for index in range(num_answers):
        is_correct(texts[index % 4], GSM8K_GOLD)
    return num_answers / (time.process_time() - start)


def math_attempts(num: int) -> list[Attempt]:
    """Groups of eight answers to one gold: right, equivalent, wrong; a third of them are new."""
    draw = random.Random(0)
    made = []
    for index in range(num):
        gold = GOLDS[index // 8 % len(GOLDS)]
        answer = draw.choice(ANSWERS).format(g=gold, n=f"\\frac{{{draw.randrange(10**6)}}}{{{draw.randrange(1, 999)}}}")
        if draw.random() < 1 / 3:
            answer = f"{answer} + {draw.randrange(10**6)}"
        made.append(attempt(gold, f"\\boxed{{{answer}}}"))
    return made


def grade_all(part: PartRunner, attempts: list[Attempt]) -> tuple[float, int]:
    """Seconds, and the number of grades without error."""

    async def run() -> tuple[float, int]:
        start = time.perf_counter()
        grades = await asyncio.gather(*(part.grade(one) for one in attempts))
        return time.perf_counter() - start, sum(grade.status != "error" for grade in grades)

    return asyncio.run(run())


def grade(index: int, milliseconds: float) -> int:
    """An answer that takes this long; every twentieth hangs."""
    if index % 20 == 7:
        hang(index // 20 % 3)
    end = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < end:
        pass
    return index


def hang(kind: int) -> None:
    """Hang: in Python; in C; ignoring SIGTERM, with a child that does too."""
    if kind == 1:
        re.match(r"(a|a)*$", "a" * 60 + "b")
    if kind == 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.fork()
    while True:
        pass


@contextmanager
def marked() -> Iterator[Callable[[], int]]:
    """Yields a function that counts and kills the processes started inside."""
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark
    try:
        yield lambda: end_all(mark)
    finally:
        del os.environ[MARK]
        end_all(mark)


def hanging(num: int, deadline_s: float, num_workers: int, milliseconds: float) -> tuple[float, int, int, int]:
    """Seconds, right answers, timeouts, processes left behind."""
    with marked() as count:
        with Sandbox(num_workers=num_workers, timeout_s=deadline_s, max_memory_mb=1024) as pool:
            pool.submit(grade, 0, 0.0).result()
            start = time.perf_counter()
            results = [future.result() for future in [pool.submit(grade, index, milliseconds) for index in range(num)]]
            seconds = time.perf_counter() - start
        right = sum(result.value == index for index, result in enumerate(results))
        return seconds, right, sum(result.status == "timeout" for result in results), count()


def end_all(mark: str) -> int:
    """Kill processes with the mark, by process id; returns their number."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)
                found += 1
    return found


def hanging_in_pebble(
    num: int, deadline_s: float, num_workers: int, milliseconds: float
) -> tuple[float, int, int, int]:
    """The same with pebble, workers forked from a server without imports."""
    import multiprocessing

    from pebble import ProcessPool  # pyright: ignore[reportMissingImports]

    with marked() as count:
        with ProcessPool(max_workers=num_workers, context=multiprocessing.get_context("spawn")) as pool:
            pool.schedule(grade, args=(0, 0.0)).result()
            start = time.perf_counter()
            futures = [pool.schedule(grade, args=(index, milliseconds), timeout=deadline_s) for index in range(num)]
            right = timeouts = 0
            for index, future in enumerate(futures):
                try:
                    right += future.result() == index
                except FutureTimeoutError:
                    timeouts += 1
            seconds = time.perf_counter() - start
        return seconds, right, timeouts, count()


def pool_rate(num: int, num_workers: int, milliseconds: float) -> float:
    """Answers per second of the pool without hanging ones."""
    with Sandbox(num_workers=num_workers, timeout_s=60.0, max_memory_mb=1024) as pool:
        for _ in range(num_workers):
            pool.submit(grade, 0, 0.0).result()
        start = time.perf_counter()
        for future in [pool.submit(grade, 20 * index, milliseconds) for index in range(num)]:
            future.result()
        return num / (time.perf_counter() - start)


def print_cheap(repeats: int) -> None:
    """The first table."""
    print("| cheap verifier | answers/s, one core | best | goal |\n|---|---|---|---|")
    for name, verifier, attempts in cheap_verifiers():
        rates = [cheap_rate(verifier, attempts, 20_000) for _ in range(repeats)]
        print(f"| {name} | **{statistics.median(rates):,.0f}** | {max(rates):,.0f} | 50,000 |", flush=True)
    rates = [official_rate(20_000) for _ in range(repeats)]
    print(f"| GSM8K official | **{statistics.median(rates):,.0f}** | {max(rates):,.0f} | 50,000 |\n", flush=True)


def print_math(repeats: int, num_workers: int) -> None:
    """The second table."""
    print(f"| math-verify in the pool, {num_workers} workers | answers/s | best | goal | lost |\n|---|---|---|---|---|")
    boxed = AnswerFormat(answer_in="boxed")
    cold, warm, lost = [], [], 0
    for _ in range(repeats):
        with Sandbox(num_workers=num_workers, timeout_s=10.0, max_memory_mb=1024) as pool:
            attempts = [replace(one, format=boxed, sandbox=pool) for one in math_attempts(2000)]
            part = PartRunner("math", MathEqual())
            part.preload(pool)
            for rates in (cold, warm):
                seconds, graded = grade_all(part, attempts)
                rates.append(len(attempts) / seconds)
                lost += len(attempts) - graded
    for name, rates in (("first 2,000, processes started", cold), ("the same again", warm)):
        print(f"| {name} | **{statistics.median(rates):,.0f}** | {max(rates):,.0f} | 500 | {lost} |")
    print(flush=True)


def print_hanging(repeats: int, num_workers: int, with_pebble: bool) -> None:
    """The third table."""
    print("| pool | n | deadline s | ms an answer | wall s | limit s | right | timed out | left behind |")
    print("|---|---|---|---|---|---|---|---|---|")
    for num, deadline_s, milliseconds in ((400, 1.0, 4.0), (1000, 0.5, 4.0), (200, 2.0, 4.0)):
        rate = statistics.median(pool_rate(num, num_workers, milliseconds) for _ in range(repeats))
        limit = 1.3 * (0.05 * num * deadline_s / num_workers + num / rate)
        pools: list[tuple[str, Callable[..., Any]]] = [("rlvr", hanging)]
        for name, run in pools + ([("pebble", hanging_in_pebble)] if with_pebble else []):
            found = [run(num, deadline_s, num_workers, milliseconds) for _ in range(repeats if name == "rlvr" else 1)]
            wall = statistics.median(seconds for seconds, *_ in found)
            rest = " | ".join(str(max(column)) for column in list(zip(*found, strict=True))[1:])
            cells = f"{name} | {num} | {deadline_s} | {milliseconds} | **{wall:.2f}** | {limit:.2f} | {rest}"
            print(f"| {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Answers a second of the verifiers, and the cost of hanging answers.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--pebble", action="store_true", help="compare with pebble's ProcessPool")
    arguments = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, load averages {load}\n")
    print_cheap(arguments.repeats)
    print_math(arguments.repeats, arguments.num_workers)
    print_hanging(arguments.repeats, arguments.num_workers, arguments.pebble)


if __name__ == "__main__":
    main()
