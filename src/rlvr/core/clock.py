"""Time and memory of a training step."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Clock:
    """Seconds per stage of one step; each stage is entered once."""

    start: float = field(default_factory=time.perf_counter)
    stages: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Count the block's time as `stage`."""
        begin = time.perf_counter()
        yield
        self.stages[stage] = time.perf_counter() - begin

    def metrics(self, num_sampled: int) -> dict[str, float]:
        """`time/...` and `system/...`: the metrics that depend on the clock and the machine."""
        total = time.perf_counter() - self.start
        shares = {f"time/{stage}_share": seconds / total for stage, seconds in self.stages.items()}
        shares["time/other_share"] = max(0.0, 1 - sum(shares.values()))
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)
        return shares | {
            "time/step_s": total,
            "time/tokens_per_s": num_sampled / total,
            "system/peak_memory_mb": kilobytes / 1024,
        }
