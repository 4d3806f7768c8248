"""Why a curve is flat: the likeliest causes of a run folder, with evidence and remedy; `rlvr diagnose` and the report.

`record` reads what a run left behind, `causes` says what speaks for each cause, `judge` weighs them against each other.
"""

from pathlib import Path

from rlvr.report.diagnosis.causes import CHAIN
from rlvr.report.diagnosis.judge import Cause, Diagnosis, about_the_curve, judged, risen
from rlvr.report.diagnosis.record import Record, read_record

__all__ = ["Cause", "Diagnosis", "diagnosed", "of_record"]

MIN_STEPS = 5  # fewer say nothing about a curve


def diagnosed(folder: Path, *, with_weights: bool = True) -> Diagnosis:
    """The diagnosis of a run folder, which is only read. ValueError: it has fewer than `MIN_STEPS` steps."""
    notes: list[str] = []
    return of_record(read_record(folder, with_weights=with_weights, on_note=notes.append), notes)


def of_record(record: Record, notes: list[str] | None = None) -> Diagnosis:
    if len(record.updates) < MIN_STEPS:
        made = len(record.updates)
        raise ValueError(f"{record.history.folder} has made {made} of at least {MIN_STEPS} steps that a curve needs.")
    return Diagnosis(
        run=str(record.history.folder),
        steps=len(record.updates),
        learned=round(max(risen(record)), 3),
        curve=about_the_curve(record),
        causes=judged(record, CHAIN),
        notes=notes or [],
    )
