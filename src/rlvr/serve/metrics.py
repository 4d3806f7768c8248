"""Counts for Prometheus, in its text format."""

from collections import Counter

BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """Counts since the server began."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()  # (endpoint, status)
        self.given_up = 0  # by clients that went away
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._seconds = 0.0
        self._buckets = dict.fromkeys([*BUCKETS_S, "+Inf"], 0)  # requests up to each bound

    def took(self, seconds: float) -> None:
        """Count a completed request."""
        self._seconds += seconds
        for bound in self._buckets:
            self._buckets[bound] += seconds <= float(bound)

    def text(self, *, running: int, waiting: int) -> str:
        """All counts; `running` and `waiting` are completions now."""
        answers = {f'{{endpoint="{path}",status="{status}"}}': n for (path, status), n in sorted(self.answers.items())}
        seconds = {f'_bucket{{le="{bound}"}}': num for bound, num in self._buckets.items()}
        lines = []
        for name, kind, what, samples in (
            ("requests_total", "counter", "Answers by endpoint and status.", answers),
            ("requests_given_up_total", "counter", "Requests whose client went away.", {"": self.given_up}),
            ("prompt_tokens_total", "counter", "Tokens of prompts.", {"": self.prompt_tokens}),
            ("completion_tokens_total", "counter", "Tokens that were sampled.", {"": self.completion_tokens}),
            ("completions_running", "gauge", "Completions that are being sampled.", {"": running}),
            ("completions_waiting", "gauge", "Completions that wait for a place.", {"": waiting}),
            (
                "request_seconds",
                "histogram",
                "Time of answered requests.",
                seconds | {"_sum": round(self._seconds, 6), "_count": self._buckets["+Inf"]},
            ),
        ):
            lines += [f"# HELP rlvr_{name} {what}", f"# TYPE rlvr_{name} {kind}"]
            lines += [f"rlvr_{name}{suffix} {value}" for suffix, value in samples.items()]
        return "\n".join(lines) + "\n"
