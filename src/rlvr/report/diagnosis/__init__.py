"""Why a curve is flat: the likeliest causes of a run folder, with evidence and remedy; `rlvr diagnose` and the report.

`record` reads what a run left behind, `causes` gives the evidence for each cause, `judge` weighs it.
"""

from pathlib import Path
from shlex import quote

from rlvr.errors import UserError
from rlvr.report.diagnosis.causes import CHAIN
from rlvr.report.diagnosis.judge import (
    ROSE,
    Cause,
    Diagnosis,
    Difference,
    Trial,
    about_the_curve,
    judged,
    rise_of_metric,
    rise_of_reward,
    verdict_of,
)
from rlvr.report.diagnosis.record import Evaluation, Record, read_record, updates_of
from rlvr.tracking.checks import Check
from rlvr.tracking.history import History, read_history

__all__ = [
    "Cause",
    "Diagnosis",
    "Difference",
    "Evaluation",
    "Record",
    "Trial",
    "checks",
    "diagnosed",
    "of_record",
    "read_record",
    "warning",
]

MIN_STEPS = 5  # fewer say nothing about a curve


def diagnosed(folder: Path, *, with_weights: bool = True) -> Diagnosis:
    """The diagnosis of a run folder, which is only read. UserError: it has fewer than `MIN_STEPS` steps."""
    notes: list[str] = []
    history = read_history(folder)
    _check_length(history)  # before its rollouts and weights are read
    return of_record(read_record(history, with_weights=with_weights, on_note=notes.append), notes)


def of_record(record: Record, notes: list[str] | None = None) -> Diagnosis:
    _check_length(record.history)
    metric, reward = rise_of_metric(record), rise_of_reward(record)
    learned, causes = reward if metric is None else metric, judged(record, CHAIN)
    named, verdict = verdict_of(causes, learned, reward)
    return Diagnosis(
        run=str(record.history.folder),
        steps=len(record.updates),
        learned=round(learned, 3),
        rewarded=round(reward, 3),
        curve=about_the_curve(record),
        named=named,
        verdict=verdict,
        causes=causes,
        notes=notes or [],
    )


def _check_length(history: History) -> None:
    if (made := len(updates_of(history))) < MIN_STEPS:
        raise UserError(
            f"{history.folder} has made {made} of the {MIN_STEPS} steps or more that a curve needs: go on, "
            "and ask again."
        )


def checks(found: Diagnosis) -> list[Check]:
    """A row for the curve and one for each cause, as the report shows them."""
    status = "ok" if found.top is None and found.learned >= ROSE else "notice"
    rows = [Check(name="curve", status=status, says=found.curve if found.top else f"{found.verdict} {found.curve}")]
    for cause in found.causes:
        sets = f" Set {' '.join(cause.overrides)}." if cause.overrides else ""
        rows.append(
            Check(
                name=cause.name,
                status="fail" if cause is found.top else "notice",
                says=cause.says,
                evidence={"score": cause.score, "seen": list(cause.evidence)},
                remedy=cause.remedy + sets,
            )
        )
    return rows


def warning(folder: Path) -> str | None:
    """A sentence or two about a run that stayed flat, for its end; None: it learned, is too short, or is not known."""
    try:
        found = diagnosed(folder)
    except UserError:
        return None
    if found.top is None:
        return None
    sets = f" Set {' '.join(found.top.overrides)}." if found.top.overrides else f" {found.top.remedy}"
    return f"the curve is flat: {found.top.says}{sets} More: rlvr diagnose {quote(str(folder))}"
