"""The one fault behind many kinds of texts that are paid."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rlvr.records.checks import Check
from rlvr.trust.probes.exploits import REMEDIES, STABILITY
from rlvr.trust.probes.judge import Audit, Finding, Misjudged

NEARLY_ALL, MANY = 0.9, 3  # a share of the examples; kinds that one sentence has to explain
EXCEPTION, OTHER = "exception", "other answer"
MOST_TEXTS = 3  # of a kind, in a report
ANYWHERE = ("two values", "all candidates", "earlier answer")
SPELLED_AS_GOLD = ("gold itself", "whitespace", "long reasoning")
"""Rewrites that leave the answer's characters as they are."""


@dataclass(frozen=True, kw_only=True)
class RewardFault:
    """`says` and `remedy` as of `Check`; `example`: a text that shows it."""

    name: str
    verifier: str
    kind: str  # of the texts that show it
    says: str
    remedy: str
    explains: tuple[str, ...]  # other kinds that are flagged
    example: Finding | None


def find_causes(audit: Audit) -> list[RewardFault]:
    """At most one for each verifier."""
    verifiers = dict.fromkeys(row.verifier for row in audit.alarms)
    found = (_cause(audit, name, [row for row in audit.alarms if row.verifier == name]) for name in verifiers)
    return [cause for cause in found if cause is not None]


def exact_spellings(audit: Audit) -> dict[str, list[Misjudged]]:
    """By verifier what it refuses, where it takes answers in their gold's own spelling alone: that may be meant."""
    spellings: dict[str, list[Misjudged]] = {}
    for name in dict.fromkeys(row.verifier for row in audit.refused):
        rows = [row for row in audit.rows if row.verifier == name and row.group == "rewrite"]
        other = [row for row in rows if row.kind not in SPELLED_AS_GOLD]
        is_paid = not any(row.num_failed for row in rows if row.kind == "gold itself")
        if is_paid and len(other) >= MANY and all(row.num_failed >= NEARLY_ALL * row.num_examples for row in other):
            spellings[name] = [row for row in audit.refused if row.verifier == name]
    return spellings


def _cause(audit: Audit, verifier: str, alarms: Sequence[Misjudged]) -> RewardFault | None:
    shares = {row.kind: row.num_failed / row.num_examples for row in alarms}

    edits = {row.kind for row in audit.rows if row.verifier == verifier and row.group == "edit"} or {OTHER}

    def paid(*kinds: str) -> bool:
        return all(shares.get(kind, 0) >= NEARLY_ALL for kind in kinds)

    if STABILITY in shares:
        name, kind, says = (
            "not a function",
            STABILITY,
            "one text earns different rewards, so all that follows is chance",
        )
    elif paid(OTHER) and median(shares.get(kind, 0) for kind in edits) >= NEARLY_ALL:
        name, kind, says = "everything is paid", OTHER, "any answer is paid, whatever the gold is"
    elif paid(EXCEPTION):
        name, kind = "errors are paid", EXCEPTION
        says = "what it cannot read is paid: an error, or an answer that is not found, counts as right"
    elif paid(*ANYWHERE):
        name, kind, says = "the gold anywhere", "all candidates", "the gold is paid wherever it stands in the text"
    else:
        return None
    refused = [row.kind for row in audit.refused if row.verifier == verifier and kind == STABILITY]
    explained = tuple(other for other in (*refused, *shares) if other != kind)
    if len(explained) < MANY and kind != EXCEPTION:
        return None
    shown = [one for one in audit.findings if (one.verifier, one.kind) == (verifier, kind)]
    remedy = REMEDIES.get(kind, "compare with the argument `answer`")
    return RewardFault(
        name=name,
        verifier=verifier,
        kind=kind,
        says=says,
        remedy=remedy,
        explains=explained,
        example=next(iter(shown), None),
    )


def checks(audit: Audit) -> Iterator[Check]:
    """A row a kind, for a report: wrong texts that are paid have failed, right ones that are refused are noted."""
    for cause in find_causes(audit):
        shown = [vars(cause.example)] if cause.example else []
        says = f"{cause.verifier}: {cause.says}"
        yield Check(name=cause.name, status="fail", says=says, evidence={"texts": shown}, remedy=cause.remedy)
    for row in audit.rows:
        wrong = "refused" if row.group in ("rewrite", "format") else "paid"
        texts = [one for one in audit.findings if (one.verifier, one.kind) == (row.verifier, row.kind)]
        yield Check(
            name=row.kind,
            status="fail" if row in audit.alarms else "notice" if row in (*audit.refused, *audit.noted) else "ok",
            says=f"{row.verifier}: {row.num_failed} of {row.num_examples} {wrong} ({row.share.low:.0%} to "
            f"{row.share.high:.0%}), {row.num_errors} errors",
            evidence={"texts": [vars(one) for one in texts[:MOST_TEXTS]]} if texts else {},
            remedy=row.remedy,
        )
