"""`rlvr eval` as a function."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.cli.calls import Call, Data, RewardFunction, Values, data_file, evaluation
from rlvr.cli.functions import Stopped, in_a_thread
from rlvr.errors import errors_from_here
from rlvr.progress import progress
from rlvr.run.result import Run

if TYPE_CHECKING:
    from rlvr.evaluation.summary import EvaluationResult


@errors_from_here
def evaluate(
    model: Run | str | Path,
    *,
    task: str | None = None,
    data: Data | None = None,
    reward: RewardFunction | str | Values | None = None,
    num_examples: int | None = None,
    samples_per_example: int | None = None,
    output: str | Path | None = None,
    **overrides: Any,
) -> dict[str, EvaluationResult]:
    """Run `rlvr eval`: results by task name.

    Args:
        model: A run, a folder or Hub id, or an endpoint as `openai:http://127.0.0.1:8000/v1#NAME`.
        task: The configuration or task; None: the run's own, or with `data` those rows.
        data: Held-out rows, or a file of them; a run's model is prompted as in the run.
        reward: As in `train`. A Python function of the run must be passed again, unless `model` is the `Run` itself.
        num_examples: None: `evaluation.num_examples`, or all of `data`.
        samples_per_example: None: `evaluation.samples_per_example`.
        output: A file of the records, appended to during the evaluation; the same call resumes it.
        overrides: As in `train`.

    Raises UserError, one sentence, for errors that the caller can correct.
    """
    from rlvr.run.evaluate_sets import evaluate_into
    from rlvr.run.inference import open_inference

    source = str(model.folder if isinstance(model, Run) else model)
    wanted = "all" if num_examples is None and data is not None else num_examples
    chosen = {"evaluation.num_examples": wanted, "evaluation.samples_per_example": samples_per_example}
    values = {key: value for key, value in chosen.items() if value is not None} | overrides
    call = Call(data=data_file(data, "data"), reward=reward, values=values)
    config = evaluation(call, source, task)
    functions = {**(model.functions if isinstance(model, Run) else {}), **call.functions}

    def work(stopped: Stopped) -> dict[str, EvaluationResult]:
        def on_progress(done: int, total: int) -> None:
            if stopped():
                raise _StoppedError
            show(done, total)

        with open_inference(source, config, functions, reads="held_out") as inference:
            for line in inference.notes:
                note(line)
            path = Path(output) if output else None
            with progress("evaluating") as show:
                return evaluate_into(inference, path, on_progress=on_progress, on_note=note)

    note = partial(print, file=sys.stderr)
    return in_a_thread(work)


class _StoppedError(Exception):
    """Ends an evaluation from inside."""
