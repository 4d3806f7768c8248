"""The whole product with its models on another device than its batches: what meets a tensor of the wrong one fails.

There is no GPU in CI. `far.py` makes a device in Python, on which every number is what the CPU makes of it, so that
whole runs can be compared with those on the CPU.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest
import torch
import torch.utils.backend_registration

from tests.system.harness import numbers, split

if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip(f"torch {torch.__version__} has no devices made in Python", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
SMALL = split("""
    trainer.num_threads=1 tracker.console=none trainer.precision=fp32 evaluation.every=1 evaluation.num_examples=4
    rollout.max_completion_tokens=10 task.max_prompt_tokens=15
""")
PPO = split("train --config-name rpn_test warm_start.num_steps=4 warm_start.warmup_steps=1") + SMALL
"""A critic, two epochs of two minibatches, top-p."""

TOOLS = (
    *split("train --config-name two_hop warm_start.num_steps=10 warm_start.warmup_steps=1 warm_start.batch_size=16"),
    *split("trainer.max_steps=1 rollout.prompts_per_step=2 rollout.group_size=2 algorithm.kl_coef=0.1"),
    *SMALL[:-2],
)
"""Several turns, whose keys and values are kept between them, and a reference model."""

ADAPTERS = (
    *split("train --config-name rpn_test model=hf model.lora.enabled=true model.gradient_checkpointing=true"),
    *split("model.lora.target_modules=[q_proj,v_proj] algorithm=grpo algorithm.kl_coef=0.1 trainer.max_steps=1"),
    *split("rollout.group_size=2 algorithm.num_epochs=2 algorithm.num_minibatches=1"),
    *SMALL,
)
"""Adapters on the model that the first run began with, whose layers are computed again in the backward pass."""


def runs(folder: Path) -> list[tuple[str, ...]]:
    """The commands: a run, its continuation, and two more."""
    first = f"run_dir={folder / 'ppo'}"
    return [
        (*PPO, first, "trainer.max_steps=1", "trainer.checkpoint_every=1"),
        ("train", first, "resume=true", "trainer.max_steps=2"),
        (*TOOLS, f"run_dir={folder / 'tools'}"),
        (*ADAPTERS, f"model.name_or_path={folder / 'ppo' / 'warm_start'}", f"run_dir={folder / 'adapters'}"),
    ]


@contextmanager
def elsewhere(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The same runs with models on the other device, in a process of their own."""
    words = [word for command in runs(folder) for word in ("then", *command)][1:]
    settings = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.system.far_run", *words]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=settings) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.long
def test_runs_on_another_device_are_those_on_the_cpu(tmp_path):
    from rlvr.cli.main import main

    with elsewhere(tmp_path / "far") as process:
        for command in runs(tmp_path / "cpu"):
            assert main(list(command)) == 0
        output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-3000:]
    for name, num_lines in {"ppo": 3, "tools": 2, "adapters": 2}.items():
        far, cpu = (numbers(tmp_path / where / name) for where in ("far", "cpu"))
        assert len(far) == len(cpu) == num_lines
        # up to the first update, whose signs of tiny gradients are anybody's
        for ours, theirs in zip(far[:2], cpu[:2], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4, rel=1e-3, nan_ok=True), name
    # a recorded decode step waits for the device once, whatever the model
    assert json.loads(output.splitlines()[-1]) == [{"tolist": 1.0}] * 2
