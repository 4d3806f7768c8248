"""The warm start of a pretrained model, in this process; `tests/system/test_tuning.py` trains with it."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr.errors import ConfigError, UserError
from rlvr.models.loading import load_policy
from rlvr.models.policy import HubPolicy
from rlvr.run.opened import OpenRun, opened
from rlvr.run.run_folder import RunFolder
from rlvr.run.tuning import CACHED, started_policy
from rlvr.tracking.console import Console
from tests.system.small_qwen import save_small_qwen
from tests.unit.core.tiny import tiny_config

SETTINGS = (
    *("task=jsonl", "reward=numeric", "prompt=boxed", "task.demonstration_field=shown", "rollout.prompts_per_step=2"),
    *("rollout.group_size=2", "rollout.max_completion_tokens=16", "evaluation.num_examples=2", "trainer.num_threads=1"),
    *("warm_start.enabled=true", "warm_start.num_epochs=1", "warm_start.batch_size=4", "warm_start.num_examples=8"),
    "warm_start.warmup_steps=2",  # of its two
)

Tuned = Callable[..., tuple[HubPolicy | None, OpenRun, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_qwen(tmp_path_factory.mktemp("small") / "qwen")


@pytest.fixture
def tuned(model: Path, tmp_path: Path) -> Iterator[Tuned]:
    """The policy after its warm start in a new folder, its run, and what was said."""
    with ExitStack() as stack:

        def make(
            *overrides: str, shown: Any = "The answer is \\boxed{2}.", stopped: bool = False, to: str = "run"
        ) -> tuple[HubPolicy | None, OpenRun, str]:
            rows = [{"question": f"What is {a} plus 1?", "answer": a + 1, "shown": shown} for a in range(12)]
            file = tmp_path / "sums.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            about = (f"task.path={file}", f"model.name_or_path={model}")
            config = tiny_config(*SETTINGS, *about, *overrides, name="gsm8k")
            said = StringIO()
            console = stack.enter_context(Console("plain", 1, 1, stream=said))
            folder = RunFolder(root=tmp_path / to)
            folder.root.mkdir(exist_ok=True)
            run = replace(stack.enter_context(opened(config, folder=nullcontext(folder))), console=console)
            return started_policy(run, lambda: stopped), run, said.getvalue()

        yield make


def weights(policy: HubPolicy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


def test_what_it_learned_is_kept_for_the_run_and_the_next_one(tuned: Tuned) -> None:
    first, run, said = tuned()
    assert first is not None
    assert CACHED not in said
    assert "warm start: 8 demonstrations\n" in said
    saved = load_policy(run.config.model.pretrained, seed=0, device=torch.device("cpu"))  # type: ignore[arg-type]
    before = weights(saved).clone()
    saved.load_weights(run.folder.warm_start)
    assert torch.equal(weights(saved), weights(first))
    assert not torch.equal(weights(first), before)
    second, _, said = tuned(to="other")
    assert second is not None
    assert CACHED in said
    assert torch.equal(weights(second), weights(first))
    assert CACHED not in tuned("warm_start.cache=false", to="third")[2]
    again, _, said = tuned(to="other")  # resumed
    assert again is not None
    assert said == ""
    assert torch.equal(weights(again), weights(first))


def test_a_stopped_warm_start_leaves_nothing(tuned: Tuned) -> None:
    policy, run, _ = tuned("seed=79", stopped=True)
    assert policy is None
    assert not run.folder.warm_start.exists()


def test_rows_that_are_left_out_are_named(tuned: Tuned) -> None:
    with pytest.raises(UserError, match=r"none to train on \(left out: 8 have more than 256 tokens \(first: jsonl/"):
        tuned(shown="very " * 200)


def test_a_warmup_longer_than_the_warm_start_is_refused(tuned: Tuned) -> None:
    with pytest.raises(ConfigError, match=r"^warm_start.warmup_steps=3: is more than its 2 steps \(8 examples x "):
        tuned("seed=80", "warm_start.warmup_steps=3")
