"""`rlvr doctor` as a function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.cli.calls import Call, Data, RewardFunction, Values, data_file, evaluation, training
from rlvr.cli.functions import in_a_thread
from rlvr.errors import errors_from_here
from rlvr.progress import progress
from rlvr.run.result import Run

if TYPE_CHECKING:
    from rlvr.records.checks import Check


@errors_from_here
def doctor(
    model: Run | str | Path,
    *,
    task: str | None = None,
    data: Data | None = None,
    reward: RewardFunction | str | Values | None = None,
    **overrides: Any,
) -> list[Check]:
    """Run `rlvr doctor`: every check in order, with `name`, `status` (ok, fail, skipped), `says`, `evidence`, `remedy`.

    The arguments are those of `evaluate`, but `data` are rows to train on. Raises UserError if the model or the data
    cannot be loaded.
    """
    from rlvr.commands.doctor.body import examine, trained_from

    source = str(model.folder if isinstance(model, Run) else model)
    call = Call(model=None if data is None else source, data=data_file(data, "data"), reward=reward, values=overrides)
    functions = {**(model.functions if isinstance(model, Run) else {}), **call.functions}
    config = evaluation(call, source, task) if data is None else training(call, task, None)
    config = trained_from(source, config)
    with progress("checking") as show:
        return in_a_thread(lambda stopped: examine(config, functions, show))
