"""`sweep.*`: the settings of a search. They belong to a sweep, not to its runs."""

from collections.abc import Sequence
from typing import Literal

from pydantic import ValidationError

from rlvr.config import messages
from rlvr.config.overrides import parse_overrides
from rlvr.errors import ConfigError
from rlvr.settings import NonNegativeInt, PositiveInt, Settings, setting, validated

SECTION = "sweep"


class SweepSettings(Settings):
    """With `rlvr train --multirun`, on its command line: search the swept values by Optuna instead of running every
    combination. The goal is the last held-out `evaluation.headline`."""

    trials: PositiveInt = setting(description="points of the space to try; a run each")
    jobs: PositiveInt = setting(1, "trials at a time, each a process with its share of the cores")
    sampler: Literal["tpe", "random"] = setting(
        "tpe", "tpe: ten random points, then near those that did well (tree-structured Parzen estimator); random: all"
    )
    seed: NonNegativeInt = setting(0, "of the sampler; `seed` is that of the runs")
    prune: bool = setting(
        True, "end a trial when its held-out interval lies wholly below that of the median trial at the same step"
    )


def is_setting(line: str) -> bool:
    key = line.lstrip("+~").partition("=")[0]
    return key == SECTION or key.startswith(f"{SECTION}.")


def read_settings(lines: Sequence[str]) -> SweepSettings:
    """From lines such as `sweep.trials=20`. ConfigError with key, value and remedy."""
    values = {}
    for line, override in zip(lines, parse_overrides(lines), strict=True):
        name = override.key_or_group.removeprefix(SECTION).removeprefix(".")
        if not name or override.is_delete() or override.is_sweep_override():
            raise ConfigError(f"{line}: a search has one of each of its settings, e.g. {SECTION}.trials=20.")
        if name in values:
            raise ConfigError(f"{line}: {SECTION}.{name} was given before; give it once.")
        values[name] = override.value()
    if "trials" not in values and values.keys() <= SweepSettings.model_fields.keys():
        raise ConfigError(f"{lines[0]}: a search needs a number of trials; add {SECTION}.trials=20.")
    try:
        return validated(SweepSettings, values)
    except ValidationError as error:
        raise ConfigError(messages.invalid(error, {}, SweepSettings, f"{SECTION}.")) from None
