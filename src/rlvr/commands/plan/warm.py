"""Seconds of a run's warm start, measured on its first steps."""

import time
from dataclasses import replace

from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.run.opened import OpenRun, never
from rlvr.run.tuning import lessons_of, taught

SAMPLED_QUESTIONS = 32  # of those to learn from by the model's own samples


class WarmWatch:
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
    """Seconds of the warm start; of questions to sample only a few are sampled.

    It is made as far as there is time, so that completions have its lengths.
    """
    settings, begin, few = run.config.warm_start, time.perf_counter(), 1.0
    if not run.config.model.from_scratch and settings.source == "own":
        whole = sum(task.num_examples(settings.num_examples) for task in run.tasks.own.eval_sets())
        settings = settings.model_copy(update={"num_examples": min(whole, SAMPLED_QUESTIONS), "cache": False})
        run = replace(run, config=run.config.model_copy(update={"warm_start": settings}))
        few = sum(task.num_examples(settings.num_examples) for task in run.tasks.own.eval_sets()) / whole
    try:
        lessons = lessons_of(run, policy, never)
    except UserError as error:
        if settings.source == "demonstrations":
            raise
        notes.append(f"without the warm start's training: {error}")
        lessons = None
    made_s = (time.perf_counter() - begin) / few
    if lessons is None:
        return made_s
    watch = WarmWatch(patience_s)
    if taught(run, policy, lessons, watch.stopped):
        if few == 1:  # also from the cache
            return time.perf_counter() - begin
        watch.stopped()  # the end of the last step
    policy.model.zero_grad()
    in_steps = settings.epochs(run.config.model) is None
    return made_s + watch.whole(lessons.num_steps if in_steps else round(lessons.num_steps / few), notes)
