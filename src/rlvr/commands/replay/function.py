"""`rlvr replay` as a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.cli.functions import in_a_thread
from rlvr.errors import errors_from_here
from rlvr.lines import override_lines
from rlvr.run.result import Run

if TYPE_CHECKING:
    from rlvr.commands.replay.body import Replay


@errors_from_here
def replay(
    run: Run | str | Path,
    step: int,
    *,
    what_if: Mapping[str, Any] | None = None,
    influence: bool = False,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> Replay:
    """Run `rlvr replay`: a step of a run once more, which is only read.

    Args:
        run: A run or its folder.
        step: As in `metrics.jsonl`.
        what_if: Changes of the update, as `{"drop": 3}`, `{"reward.3": 0.0, "trainer.learning_rate": 1e-4}`.
        influence: Also estimate what each episode did to the update.
        functions: The run's Python functions by their names in config.yaml; None: those of the `Run`.

    Raises UserError, one sentence, for errors that the caller can correct.
    """
    from rlvr.commands.replay.body import replay as make_step

    own = dict(functions or (run.functions if isinstance(run, Run) else {}))
    folder = str(run.folder if isinstance(run, Run) else run)
    changes = override_lines(what_if or {})
    return in_a_thread(
        lambda stopped: make_step(folder, step, changes=changes, influence=influence, functions=own, stopped=stopped)
    )
