"""What `auto` means for each kind of model, and where a warm-up ends."""

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from rlvr.training.settings import TrainingSettings, WarmStartSettings

SCRATCH, PRETRAINED, ADAPTED = (
    SimpleNamespace(from_scratch=scratch, adapted=adapted)
    for scratch, adapted in ((True, False), (False, False), (False, True))
)
WARM = ("enabled", "batch_size", "warmup_steps", "learning_rate")


@pytest.mark.parametrize(
    ("model", "rate", "warm"),
    [
        (SCRATCH, 4e-4, (True, 64, 20, 3e-3)),
        (PRETRAINED, 1e-6, (False, 16, 0.1, 1e-5)),
        (ADAPTED, 1e-5, (False, 16, 0.1, 1e-4)),
    ],
)
def test_auto_fits_the_model(model: Any, rate: float, warm: tuple[Any, ...]) -> None:
    assert TrainingSettings().fitted(model).learning_rate == rate
    found = WarmStartSettings(batch_size="auto", warmup_steps="auto", learning_rate="auto").fitted(model)
    assert tuple(getattr(found, name) for name in WARM) == warm
    own = {"enabled": True, "batch_size": 5, "warmup_steps": 7, "learning_rate": 0.5}
    kept = WarmStartSettings(**own).fitted(model)
    assert {name: getattr(kept, name) for name in WARM} == own
    assert TrainingSettings(learning_rate=0.5).fitted(model).learning_rate == 0.5


def test_a_share_of_warm_up_is_of_the_steps() -> None:
    assert TrainingSettings(max_steps=30, warmup_steps=0.1).fitted(PRETRAINED).warmup_steps == 3
    assert WarmStartSettings(num_steps=30, warmup_steps=0.2).fitted(SCRATCH).warmup_steps == 6


@pytest.mark.parametrize("kind", [TrainingSettings, WarmStartSettings])
@pytest.mark.parametrize("steps", [1.5, 1.01, -0.1, -1])
def test_more_than_all_steps_are_no_share_of_them(kind: Any, steps: float) -> None:
    with pytest.raises(ValidationError, match="warmup_steps"):
        kind(warmup_steps=steps)


@pytest.mark.parametrize(("steps", "fits"), [(29, True), (30, True), (31, False)])
def test_a_warm_up_ends_with_the_run_at_the_latest(steps: int, fits: bool) -> None:
    for kind, name in ((TrainingSettings, "max_steps"), (WarmStartSettings, "num_steps")):
        if fits:
            kind(**{name: 30, "warmup_steps": steps})
        else:
            with pytest.raises(ValidationError, match="the learning rate is never reached"):
                kind(**{name: 30, "warmup_steps": steps})
