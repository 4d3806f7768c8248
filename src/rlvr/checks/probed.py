"""What the reward pays, by the probes of `rlvr audit` on a few rows: so the two never disagree."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rlvr.checks.patient import Patient, skip, solved, verdict
from rlvr.checks.rewards import NUM_EXAMPLES, form_alone, value_of
from rlvr.errors import UserError
from rlvr.records.checks import Check
from rlvr.trust.probes.cases import TellsNothingError, collect, judges, verifiers
from rlvr.trust.probes.causes import find_causes
from rlvr.trust.probes.exploits import SLOW
from rlvr.trust.probes.judge import Audit, Finding

NUM_SHOWN = 3


def probed(patient: Patient) -> Audit | Check:
    """The audit of the task's reward and metric, or the check that says why there is none; made once.

    A reward that tells nothing apart fails, unless right answers earn nothing, which `gold_scores_full` says.
    """
    known = vars(patient)
    if "probed" not in known:
        try:
            known["probed"] = _audit(patient)
        except TellsNothingError as error:
            paid = any(value_of(patient, *gold) > 0 for gold in solved(patient, NUM_EXAMPLES))
            remedy = "compare with the argument `answer`: a reward that is the same for all gives no gradient"
            known["probed"] = Check(status="fail", says=str(error), remedy=remedy) if paid else skip(str(error))
        except UserError as error:
            known["probed"] = skip(str(error))
    return known["probed"]


def _audit(patient: Patient) -> Audit:
    task, config = patient.task, patient.config
    settings = config.bundles.get(task.name, config)
    graders, notes = judges(task, settings, collect(task, settings, NUM_EXAMPLES, config.seed))
    for judge in graders:
        asyncio.run(judge.run())
    return Audit(
        target=task.name,
        rows=tuple(row for judge in graders for row in judge.rows),
        findings=tuple(finding for judge in graders for finding in judge.findings),
        notes=tuple(notes),
        threshold=0.0,
    )


def wrong_earns_nothing(patient: Patient) -> Check:
    """Wrong answers and texts without one earn at most half of what the right answer does."""
    audit = form_alone(patient) or probed(patient)
    if isinstance(audit, Check):
        return audit
    alarms = [row for row in audit.alarms if row.kind != SLOW]
    cause = next(iter(find_causes(audit)), None)
    tried = {row.kind for row in audit.rows if row.group in ("edit", "exploit", "stability")}
    return verdict(
        bool(alarms),
        f"{_names(row.kind for row in alarms)} of {len(tried)} kinds of wrong texts are paid"
        + (f": {cause.says}" if cause else ""),
        f"{len(tried)} kinds of wrong texts earn at most half of what right answers do",
        f"{cause.remedy if cause else alarms[0].remedy if alarms else ''}; `rlvr audit` shows all",
        examples=_shown([one for one in audit.findings if one.kind in {row.kind for row in alarms}]),
    )


def right_is_paid(patient: Patient) -> Check:
    """What the metric calls right earns more than half of the gold's own reward, however it is written.

    A reward may want the gold's own spelling, as the prompt says, or take something for length: both are noted. Where
    spaces around the answer cost it, it fails.
    """
    audit = form_alone(patient) or probed(patient)
    if isinstance(audit, Check):
        return skip(audit.says)
    settings = patient.config.bundles.get(patient.task.name, patient.config)
    metric = verifiers(patient.task, settings)["metric"]
    examples = {example.messages[-1].content: example for example, _ in solved(patient, 4 * NUM_EXAMPLES)}

    async def taken() -> list[Finding]:
        refused = [one for one in audit.findings if (one.verifier, one.group) == ("reward", "rewrite")]
        known = [(one, examples[one.question]) for one in refused if one.question in examples]
        return [one for one, example in known if (await metric(example, one.text)).value == 1.0]

    lost = asyncio.run(taken())
    kinds = {row.kind: row for row in audit.refused if row.kind in {one.kind for one in lost}}
    check = verdict(
        bool(lost),
        f"{_names(kinds)} ways to write right answers that the metric takes are not paid",
        "the reward pays right answers however they are written, where the metric takes them",
        f"{next(iter(kinds.values())).remedy if kinds else ''}; `rlvr audit` shows all",
        examples=_shown(lost),
    )
    return replace(check, status="notice") if lost and "whitespace" not in kinds else check


def reward_survives(patient: Patient) -> Check:
    """What models write is read or refused: a failed reward leaves its episode out of the loss."""
    audit = probed(patient)
    if isinstance(audit, Check):
        return skip(audit.says)
    failed = [one for one in audit.findings if one.score is None and (one.kind == SLOW or not _timed_out(one))]
    return verdict(
        bool(failed),
        f"{failed[0].verifier if failed else ''} fails on {_names(one.kind for one in failed)}: "
        f"{failed[0].message if failed else ''}",
        f"reward and metric read or refuse {len({row.kind for row in audit.rows})} kinds of texts",
        "return None for what cannot be read: such episodes are left out of the group and the loss",
        examples=_shown(failed),
    )


def _timed_out(finding: Finding) -> bool:
    """Other texts than those of `SLOW` may take long: `reward_is_fast` looks at the time of usual ones."""
    return "timed out after" in finding.message


def _names(kinds: Iterable[str]) -> str:
    names = list(dict.fromkeys(kinds))
    return f"{len(names)} ({', '.join(names)})"


def _shown(findings: Sequence[Finding]) -> list[dict[str, object]]:
    return [
        {"question": one.question[-200:], "completion": one.text[:200], "value": one.score, "right_answer": one.full}
        for one in findings[:NUM_SHOWN]
    ]


CHECKS = (reward_survives, wrong_earns_nothing, right_is_paid)
