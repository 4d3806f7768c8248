"""What `debug=true` makes of a configuration: a run to be read from its first token to its last, in seconds.

Few prompts, few steps, an evaluation and a rollout file at every step. What is said beside `debug=true`, on the command
line or in the same file, stays as it is; a resumed run, whose file says everything, is not made smaller again.
"""

from collections.abc import Collection
from typing import Any

LIMITS = {  # at most
    "trainer.max_steps": 3,
    "trainer.warmup_steps": 0,  # the few steps are whole ones
    "rollout.prompts_per_step": 2,
    "rollout.group_size": 4,
    "evaluation.num_examples": 4,
    "evaluation.every": 1,
    "tracker.log_every": 1,
}
WARM_START_STEPS = 300  # enough for answers that can be read; few of them are right


def shrink(values: dict[str, Any], given: Collection[str]) -> None:
    """Change the values of a composed configuration in place, but for the keys in `given`."""
    before = values.get("rollout", {}).get("prompts_per_step")
    for key, limit in LIMITS.items():
        if key != "tracker.log_every" or _get(values, "tracker.console") != "none":  # it has no effect there
            _lower(values, key, limit, given)
    if "rollout.prompts_per_step" not in given:
        _fill_minibatches(values, before)
    if "tracker.rollouts_every" not in given:
        _set(values, "tracker.rollouts_every", 1)
    if "tracker.rollouts_max_groups" not in given and _get(values, "tracker.rollouts_every") is not None:
        _set(values, "tracker.rollouts_max_groups", None)
    if _get(values, "warm_start.enabled") is True and _get(values, "model.name") != "hf":
        _shorten_warm_start(values, given)


def _fill_minibatches(values: dict[str, Any], most: Any) -> None:
    """As few prompts, from the limit on, as make rows for `algorithm.num_minibatches` equal parts."""
    fewest, size = _get(values, "rollout.prompts_per_step"), _get(values, "rollout.group_size")
    parts = _get(values, "algorithm.num_minibatches")
    if not all(isinstance(number, int) and number > 0 for number in (fewest, most, size, parts)):
        return  # what is wrong with it is said when it is checked
    fitting = (number for number in range(fewest, most + 1) if number * size % parts == 0)
    _set(values, "rollout.prompts_per_step", next(fitting, fewest))


def _shorten_warm_start(values: dict[str, Any], given: Collection[str]) -> None:
    """All phases by the same factor; a phase that is there stays."""
    steps = _get(values, "warm_start.num_steps")
    if "warm_start.num_steps" in given or not isinstance(steps, int) or steps <= WARM_START_STEPS:
        return
    _set(values, "warm_start.num_steps", WARM_START_STEPS)
    for key in ("warm_start.warmup_steps", "warm_start.final_phase_steps"):
        phase = _get(values, key)
        if key not in given and isinstance(phase, int) and phase > 0:
            _set(values, key, max(1, phase * WARM_START_STEPS // steps))


def _lower(values: dict[str, Any], key: str, limit: int, given: Collection[str]) -> None:
    value = _get(values, key)
    if key not in given and isinstance(value, int) and value > limit:
        _set(values, key, limit)


def _get(values: dict[str, Any], key: str) -> Any:
    """The value of `trainer.max_steps`; None where there is none."""
    section, _, name = key.partition(".")
    inside = values.get(section)
    return inside.get(name) if isinstance(inside, dict) else None


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    section, _, name = key.partition(".")
    if isinstance(values.get(section), dict):
        values[section][name] = value
