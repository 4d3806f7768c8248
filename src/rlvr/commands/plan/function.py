"""`rlvr plan` as a function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.cli.calls import training_call
from rlvr.cli.functions import in_a_thread
from rlvr.errors import errors_from_here

if TYPE_CHECKING:
    from rlvr.commands.plan.body import Plan


@errors_from_here
def plan(
    *,
    gpus: int | None = None,
    seconds: float = 10.0,
    config_name: str | None = None,
    config_dir: str | Path | None = None,
    **arguments: Any,
) -> Plan:
    """Run `rlvr plan`: what `train` with these `arguments` will take. `rlvr plan --help` explains the others.

    Raises UserError, one sentence, for errors that the caller can correct.
    """
    from rlvr.commands.plan.body import plan as make_plan

    given = {key: arguments.pop(key) for key in ("model", "data", "eval_data", "reward", "tools") if key in arguments}
    config, functions = training_call(config_name, config_dir, **given, values=arguments)
    return in_a_thread(lambda stopped: make_plan(config, gpus=gpus, seconds=seconds, functions=functions))
