"""Settings of held-out evaluation while training."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from rlvr.settings import NonNegativeInt, PositiveInt, Settings, setting
from rlvr.tasks.settings import TaskBundle

ALL_EXAMPLES = 10**9  # more than any held-out set


class EvaluationSettings(Settings):
    """Held-out evaluation during training; the first one precedes the first update."""

    every: PositiveInt | None = setting(
        10,
        "steps between evaluations; the last step is always evaluated; null: no evaluation",
        debug=1,
    )
    num_examples: PositiveInt | Literal["all"] = setting(
        500, "held-out examples, always the same", only_if="every is not None", debug=4
    )
    samples_per_example: NonNegativeInt = setting(
        0,
        "0: greedy only; k > 0: also k sampled completions each, for avg@k and pass@k",
        only_if="every is not None",
    )
    headline: Annotated[str, Field(pattern=r"^(accuracy|sampled_accuracy|(sampled_)?part_.+)$")] = setting(
        "accuracy",
        "the metric of eval/<task>/ for the console and for the best checkpoint: accuracy, "
        "sampled_accuracy, part_<name> or sampled_part_<name> of a reward part",
        only_if="every is not None",
    )
    also: Mapping[str, TaskBundle] = setting(
        {},
        "more tasks to evaluate, each with its own prompt and metric: a list of names, e.g. [finqa]; or name: {task: "
        "jsonl, set: ['task.path=...']}",
        only_if="every is not None",
    )

    @property
    def limit(self) -> int:
        """`num_examples` as a number."""
        return ALL_EXAMPLES if self.num_examples == "all" else self.num_examples
