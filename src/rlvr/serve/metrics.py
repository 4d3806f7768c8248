"""Counts for Prometheus, in its text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """What has happened since the server began."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()  # (endpoint, status)
        self.given_up = 0  # by clients that went away
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._seconds = 0.0
        self._buckets = [0] * (len(BUCKETS_S) + 1)

    def took(self, seconds: float) -> None:
        """A completed request."""
        self._seconds += seconds
        place = next((i for i, bound in enumerate(BUCKETS_S) if seconds <= bound), len(BUCKETS_S))
        self._buckets[place] += 1

    def text(self, *, running: int, waiting: int) -> str:
        """All of it; `running` and `waiting` are completions now."""
        lines = [
            *_lines("requests_total", "counter", "Answers by endpoint and status.", self._answers()),
            *_lines("requests_given_up_total", "counter", "Requests whose client went away.", [("", self.given_up)]),
            *_lines("prompt_tokens_total", "counter", "Tokens of prompts.", [("", self.prompt_tokens)]),
            *_lines("completion_tokens_total", "counter", "Tokens that were sampled.", [("", self.completion_tokens)]),
            *_lines("completions_running", "gauge", "Completions that are being sampled.", [("", running)]),
            *_lines("completions_waiting", "gauge", "Completions that wait for a place.", [("", waiting)]),
            *_lines("request_seconds", "histogram", "Time of answered requests.", self._histogram()),
        ]
        return "\n".join(lines) + "\n"

    def _answers(self) -> list[tuple[str, float]]:
        return [(f'{{endpoint="{e}",status="{s}"}}', count) for (e, s), count in sorted(self.answers.items())]

    def _histogram(self) -> list[tuple[str, float]]:
        samples, total = [], 0
        for bound, count in zip([*BUCKETS_S, "+Inf"], self._buckets, strict=True):
            total += count
            samples.append((f'_bucket{{le="{bound}"}}', total))
        return [*samples, ("_sum", round(self._seconds, 6)), ("_count", total)]


def _lines(name: str, kind: str, what: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    head = [f"# HELP rlvr_{name} {what}", f"# TYPE rlvr_{name} {kind}"]
    return head + [f"rlvr_{name}{suffix} {value}" for suffix, value in samples]
