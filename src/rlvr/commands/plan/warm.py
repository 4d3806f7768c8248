"""Seconds of a run's warm start, measured on its first steps."""

import time
from dataclasses import replace

from rlvr.core.supervised import num_steps
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.run.opened import OpenRun
from rlvr.run.policies import warmed
from rlvr.run.tuning import supervised_examples, tuned

SAMPLED_QUESTIONS = 32  # of those to learn from by the model's own samples


class Watch:
    """Stops a training after a while, and knows how long its steps took."""

    def __init__(self, patience_s: float) -> None:
        self._times, self._patience_s = list[float](), patience_s

    def stopped(self) -> bool:
        self._times.append(time.perf_counter())
        return self._times[-1] > self._times[0] + self._patience_s

    def whole(self, num_steps: int, notes: list[str]) -> float:
        """Seconds of all the steps."""
        made = len(self._times) - 1
        if made < num_steps:
            notes.append(f"lengths are those after {made:,} of the {num_steps:,} steps of the warm start")
        first = min(1, made - 1)  # the first step is slow
        return num_steps * (self._times[-1] - self._times[first]) / (made - first)


def warm_seconds(run: OpenRun, policy: HubPolicy, patience_s: float, notes: list[str]) -> float:
    """Seconds of the warm start. It is made as far as there is time, so that completions have its lengths."""
    watch, begin = Watch(patience_s), time.perf_counter()
    if warmed(run, policy, watch.stopped):  # or taken from the cache
        return time.perf_counter() - begin
    policy.model.zero_grad()
    return watch.whole(run.config.warm_start.num_steps, notes)


def tuned_seconds(run: OpenRun, policy: HubPolicy, patience_s: float, notes: list[str]) -> float:
    """As `warm_seconds`, for a pretrained model; of questions to sample only a few are."""
    settings, begin, few = run.config.warm_start, time.perf_counter(), 1.0
    if settings.source == "own":
        whole = sum(task.num_examples(settings.num_examples) for task in run.tasks.own.eval_sets())
        settings = settings.model_copy(update={"num_examples": min(whole, SAMPLED_QUESTIONS)})
        run = replace(run, config=run.config.model_copy(update={"warm_start": settings}))
        few = sum(task.num_examples(settings.num_examples) for task in run.tasks.own.eval_sets()) / whole
    try:
        examples = supervised_examples(run, policy, lambda: False)
    except UserError as error:
        if settings.source == "demonstrations":
            raise
        notes.append(f"without the warm start's training: {error}")
        examples = None
    made_s = (time.perf_counter() - begin) / few
    if not examples:
        return made_s
    watch, size = Watch(patience_s), settings.examples_per_step
    if tuned(run, policy, examples, watch.stopped):
        watch.stopped()  # the end of the last step
    policy.model.zero_grad()
    count = round(len(examples) / few)
    return made_s + watch.whole(num_steps(count, num_epochs=settings.num_epochs, batch_size=size), notes)
