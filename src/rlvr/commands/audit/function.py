"""`rlvr audit` as a function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.cli.calls import Data, RewardFunction, data_file, import_path
from rlvr.cli.functions import in_a_thread
from rlvr.errors import errors_from_here
from rlvr.lines import override_lines

if TYPE_CHECKING:
    from rlvr.trust.probes.judge import Audit


@errors_from_here
def audit(
    target: str | RewardFunction,
    *,
    data: Data | None = None,
    task: str | None = None,
    num_examples: int = 50,
    seconds: float = 60.0,
    threshold: float = 0.0,
    answer_template: str | None = None,
    config_dir: str | Path | None = None,
    **overrides: Any,
) -> Audit:
    """Run `rlvr audit` on a task, or on a function with `data` or `task`; `rlvr audit --help` explains the others.

    `.alarms` are the kinds of wrong texts that are paid, `.refused` those of right ones that are not. Raises UserError,
    one sentence, for errors that the caller can correct.
    """
    from rlvr.commands.audit.body import AuditOptions, audit_config
    from rlvr.commands.audit.body import audit as run_audit

    functions = {import_path(target): target} if callable(target) else {}
    name = target if isinstance(target, str) else import_path(target)
    folder = None if config_dir is None else str(config_dir)
    where = {"data": data_file(data, "data"), "task": task, "config_dir": folder}
    config = audit_config(name, override_lines(overrides), **where)
    options = AuditOptions(
        num_examples=num_examples, seconds=seconds, threshold=threshold, answer_template=answer_template
    )
    return in_a_thread(lambda stopped: run_audit(config, target=name, options=options, functions=functions))
