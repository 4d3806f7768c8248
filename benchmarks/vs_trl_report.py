"""Helpers of `vs_trl.py`: the TRL process, step times, and tables."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import transformers


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Times and counts of one step."""

    wall: float
    cpu: float
    generation: float
    scoring: float  # rlvr: advantages, old logprobs if needed; TRL: rewards, advantages, padding
    update: float
    tokens: float  # sampled
    reward: float
    dead_groups: float  # share of groups whose rewards are all equal
    memory_mb: float  # peak resident set of the process so far
    trained_tokens: float = 0.0  # rlvr only: tokens in trained lines, shared prompts counted once


class TrlProcess:
    """The TRL process, which waits for commands."""

    def __init__(self, python: str, specification: dict[str, Any]) -> None:
        script = Path(__file__).with_name("trl_side.py")
        environment = os.environ | {"OMP_NUM_THREADS": str(specification["threads"]), "OMP_WAIT_POLICY": "PASSIVE"}
        environment.pop("PYTHONPATH", None)
        self._log = Path(specification["output"]) / "stderr.txt"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        self._send(specification)
        self.versions: dict[str, str] = self._receive()["versions"]

    def steps(self, number: int) -> list[StepTimes]:
        """Run some steps."""
        self._send({"steps": number})
        return [StepTimes(**step) for step in self._receive()["steps"]]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # end of input ends the run
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"TRL's half ended early:\n{self._log.read_text()[-3000:]}")
        return json.loads(line)


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The measured steps of one case."""

    name: str
    goal: float
    ours: Sequence[StepTimes]
    theirs: Sequence[StepTimes]
    versions: dict[str, str]
    num_parameters: int

    def ratio(self, field: str) -> float:
        """TRL's median seconds per step / rlvr's."""
        return median(self.theirs, field) / median(self.ours, field)


def median(steps: Sequence[StepTimes], field: str) -> float:
    """Median of a field over the steps."""
    return statistics.median(getattr(step, field) for step in steps)


def mean(steps: Sequence[StepTimes], field: str) -> float:
    """Mean of a field over the steps."""
    return statistics.fmean(getattr(step, field) for step in steps)


def matmul_gflops(size: int = 2048, repeats: int = 5) -> float:
    """Best of some square fp32 matrix products with the current threads, 2 size^3 operations each."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - begin)
    return 2 * size**3 / min(times) / 1e9


class Report:
    """Collects results and formats them as Markdown."""

    def __init__(self, *, threads: int, precision: str) -> None:
        self._threads, self._precision = threads, precision
        self._results: list[CaseResult] = []
        self._peak = matmul_gflops()

    def add(self, result: CaseResult) -> None:
        """Add a case and re-measure the matmul peak; the best one counts."""
        self._results.append(result)
        self._peak = max(self._peak, matmul_gflops())

    def markdown(self) -> str:
        """Everything."""
        return "\n\n".join([self._machine(), self._speed(), self._work(), self._stages(), self._shares()])

    def _machine(self) -> str:
        versions, num_parameters = self._results[0].versions, self._results[0].num_parameters
        return (
            f"{platform.machine()}, {os.cpu_count()} cores, {self._threads} thread(s) each, load average at the end "
            f"{os.getloadavg()[0]:.1f}; rlvr: torch {torch.__version__}, transformers {transformers.__version__}; "
            f"TRL {versions['trl']}: torch {versions['torch']}, transformers {versions['transformers']}. "
            f"{self._precision}, 16 prompts x 8 completions, {num_parameters / 1e6:.2f}M parameters."
        )

    def _speed(self) -> str:
        head = "| case | rlvr s/step | TRL s/step | ratio of steps/s | by CPU seconds | aim | steps of each |"
        rows = [
            f"| {r.name} | {median(r.ours, 'wall'):.3f} | {median(r.theirs, 'wall'):.3f} | **{r.ratio('wall'):.2f}**"
            f" | {r.ratio('cpu'):.2f} | {r.goal:.0f} | {len(r.ours)} |"
            for r in self._results
        ]
        return table(head, rows)

    def _work(self) -> str:
        head = "| case | side | sampled tokens a step | tokens/s | groups without spread | mean reward | peak RSS, MB |"
        rows = [
            f"| {r.name} | {side} | {mean(steps, 'tokens'):.0f} | {mean(steps, 'tokens') / median(steps, 'wall'):.0f}"
            f" | {mean(steps, 'dead_groups'):.0%} | {mean(steps, 'reward'):.2f} | {steps[-1].memory_mb:.0f} |"
            for r in self._results
            for side, steps in (("rlvr", r.ours), ("TRL", r.theirs))
        ]
        return table(head, rows)

    def _stages(self) -> str:
        head = "| case | side | generation | scoring | update | other |"
        rows = [
            f"| {r.name} | {side} | " + " | ".join(f"{part:.0%}" for part in stages(steps)) + " |"
            for r in self._results
            for side, steps in (("rlvr", r.ours), ("TRL", r.theirs))
        ]
        return table(head, rows)

    def _shares(self) -> str:
        head = "| case | decode GFLOP/s | of the peak | training GFLOP/s | of the peak |"
        rows = []
        for r in self._results:
            billions = r.num_parameters / 1e9
            decode = statistics.median(2 * billions * s.tokens / s.generation for s in r.ours)
            training = statistics.median(6 * billions * s.trained_tokens / s.update for s in r.ours)
            parts = (f"{speed:.1f} | {speed / self._peak:.0%}" for speed in (decode, training))
            rows.append(f"| {r.name} | {' | '.join(parts)} |")
        note = (
            f"rlvr against the measured peak of {self._peak:.0f} GFLOP/s (fp32, 2048 x 2048 x 2048, same threads). "
            "Decode: 2 N x sampled tokens / seconds of generation (prefill and attention not counted). "
            "Training: 6 N x trained tokens / seconds of the update (completions trained on, prompts once a group)."
        )
        return f"{note}\n\n{table(head, rows)}"


def stages(steps: Sequence[StepTimes]) -> list[float]:
    """Mean share of generation, scoring, update and other work in a step."""
    wall = mean(steps, "wall")
    parts = [mean(steps, name) / wall for name in ("generation", "scoring", "update")]
    return [*parts, max(0.0, 1 - sum(parts))]


def table(head: str, rows: Sequence[str]) -> str:
    """Markdown."""
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *rows])
