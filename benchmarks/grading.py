"""Compares two checkouts of rlvr: seconds to grade 10,000 answers by numeric, text and math, and to load 100,000 rows.

    git worktree add /tmp/before main
    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python benchmarks/grading.py /tmp/before . [--repeats 5] [--num 10000]

Each round measures the first checkout, then the second, in processes of their own; figures are medians of the rounds.
numeric and text are CPU time of this process, math is the clock with two workers, loading is the clock. "ratio" below 1
means that the second one is faster. Every third math answer is an expression never seen before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

NUM_ROWS = 100_000
NUMBERS = (
    "18",
    "18.0",
    "$18",
    "1,080",
    "19",
    "-18",
    "18 eggs",
    "18 dollars a day",
    "twelve",
    "yes",
    "12%",
    "3/4",
    "18 or 19",
)
TEXTS = ("Green Bay", "the Green Bay!", "A", "A, B", "[8.1,9]", "Milwaukee Bucks", "1,080 eggs", "no", "3.5", "")
GOLDS = ("18", "\\frac{1}{2}", "2\\sqrt{2}", "x^2+2x+1", "1080", "\\frac{3\\pi}{4}", "(1,2)", "12", "-7.5", "3x-4")
SAID = ("{g}", "{g} ", "${g}$", "{g}+0", "18", "\\frac{{2}}{{4}}", "\\sqrt{{8}}", "(x+1)^2", "1,080", "x", "{n}")
FORMS = ("{a}\\sqrt{{{b}}}", "x^{b}+{a}", "({a}, {b})", "\\{{{a},{b}\\}}", "{a}\\pi + {b}", "\\frac{{{a}}}{{{b}}}")


def attempts(golds: tuple[str, ...], texts: list[str]) -> list[Any]:
    from rlvr.rewards.extract import AnswerFormat
    from rlvr.types import Attempt, Example, Message, StopReason

    asked = (Message(role="user", content="Janet has 16 ducks that lay an egg a day. " * 5),)
    return [
        Attempt(
            example=Example(id="e", messages=asked, answer=golds[place % len(golds)]),
            completion=text,
            text=text,
            stop_reason=StopReason.STOP,
            num_tokens=100,
            format=AnswerFormat(answer_in="whole"),
        )
        for place, text in enumerate(texts)
    ]


def in_process(part: Any, made: list[Any], num: int) -> float:
    start = time.process_time()
    for index in range(num):
        part.grade(made[index % len(made)])
    return time.process_time() - start


def math(num: int) -> float:
    from rlvr.rewards.math import MathEqual
    from rlvr.rewards.parts import PartRunner
    from rlvr.rewards.sandbox import Sandbox

    rng, texts = random.Random(0), list[str]()
    for place in range(num):
        new = rng.choice(FORMS).format(a=rng.randrange(1, 99), b=rng.randrange(2, 99))
        said = SAID[place % len(SAID)].format(g=GOLDS[place % len(GOLDS)], n=place % 97)
        texts.append(new if place % 3 == 0 else said)
    runner = PartRunner("math", MathEqual())
    with Sandbox(num_workers=2, timeout_s=5.0, max_memory_mb=1024) as sandbox:
        runner.preload(sandbox)
        made = [replace(one, sandbox=sandbox) for one in attempts(GOLDS, texts)]

        async def run() -> float:
            await runner.grade(made[0])
            start = time.perf_counter()
            await asyncio.gather(*map(runner.grade, made))
            return time.perf_counter() - start

        return asyncio.run(run())


def load(kind: str, answer: Callable[[random.Random], str]) -> float:
    from rlvr.config.compose import load_config
    from rlvr.run.tasks import open_tasks

    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{kind}.jsonl"
        rows = ({"question": f"Question {row}: {rng.random()}?", "answer": answer(rng)} for row in range(NUM_ROWS))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = [
            "task=jsonl",
            f"task.path={path}",
            "task.metric=math",
            "reward=math",
            "model=hf",
            "model.name_or_path=x",
            "prompt.markers=think",
        ]
        config = load_config(words, config_name="gsm8k")
        start = time.perf_counter()
        with open_tasks(config, None, {}):
            return time.perf_counter() - start


def measured(num: int) -> dict[str, float]:
    """Seconds by workload, of the checkout in PYTHONPATH."""
    from rlvr.rewards.numeric import Numeric
    from rlvr.rewards.text import TextMatch

    return {
        "numeric": in_process(Numeric(), attempts(("18", "12%", "1080"), list(NUMBERS)), num),
        "text": in_process(TextMatch(), attempts(("Green Bay", "A,B", "3.5"), list(TEXTS)), num),
        "math": math(num),
        "load, numbers": load("numbers", lambda rng: str(rng.randrange(-999, 99999))),
        "load, formulas": load(
            "formulas", lambda rng: rng.choice(FORMS).format(a=rng.randrange(1, 99), b=rng.randrange(2, 99))
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the grading of two checkouts of rlvr.")
    parser.add_argument("checkouts", type=Path, nargs="*")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num", type=int, default=10_000)
    args = parser.parse_args()
    if not args.checkouts:
        print(json.dumps(measured(args.num)))
        return
    rounds = [[_of(checkout, args.num) for checkout in args.checkouts] for _ in range(args.repeats)]
    print("| seconds | before | after | ratio |\n|---|---:|---:|---:|")
    for name in rounds[0][0]:
        before, after = (statistics.median(of_round[side][name] for of_round in rounds) for side in (0, 1))
        print(f"| {name} | {before:.2f} | {after:.2f} | **{after / before:.2f}** |")
    print(f"\n{args.repeats} rounds, load averages {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


def _of(checkout: Path, num: int) -> dict[str, float]:
    variables = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")}
    argv = [sys.executable, str(Path(__file__).resolve()), "--num", str(num)]
    done = subprocess.run(argv, env=variables, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{checkout} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
