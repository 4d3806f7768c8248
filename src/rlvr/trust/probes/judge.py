"""Grades the probes of all cases, and counts failures by kind, per example: texts of one example are correlated.

Rewards have any range, so a text is judged by its share of the way from wrong to right, for the same example:

    wrap(other answer) -1    wrap(gold) 3    text 1.2    share 0.55: paid (more than half)
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rlvr.evaluation.intervals import Interval, wilson
from rlvr.trust.probes.exploits import FORM, OTHERWISE, REMEDIES, SLOW, STABILITY, exploit_probes
from rlvr.trust.probes.rewrites import BY_RULE, Case, Group, Probe, edit_probes, rewrite_probes
from rlvr.types import Example

PAID = 0.5  # a text with a larger share is paid
MOST_ERRORS = 2  # examples whose verifier failed, by kind; a hanging one takes its whole time limit for each text
NUM_BEHIND = 2  # times that another answer is graded behind the right one: two processes may take turns
NUM_LOW = 3  # other answers that a right one is compared with


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """`Verdict(value=1.0)`; a verifier that failed has NaN and a message."""

    value: float
    message: str = ""

    @property
    def failed(self) -> bool:
        return math.isnan(self.value)

    @property
    def timed_out(self) -> bool:
        return self.failed and "timed out after" in self.message


Verifier = Callable[[Example, str], Awaitable[Verdict]]
Rule = Callable[[Case, str], Awaitable[bool]]
"""Whether an answer, without its format, is right."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Values of a wrong and of a right answer."""

    low: float
    full: float

    def share(self, value: float) -> float:
        if self.full <= self.low:  # it does not tell right from wrong
            return float(value >= self.full)
        return (value - self.low) / (self.full - self.low)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A text that was misjudged; `score` is None and `message` the reason if the verifier failed on it."""

    verifier: str
    group: Group
    kind: str
    question: str
    gold: str
    text: str
    score: float | None
    full: float
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Misjudged:
    """The examples of a kind that were misjudged: right answers that are not paid, wrong ones that are."""

    verifier: str
    group: Group
    kind: str
    num_examples: int
    num_failed: int
    num_errors: int  # examples for which the verifier raised or ran out of time; no failures

    @property
    def share(self) -> Interval:
        return wilson(self.num_failed, self.num_examples)

    @property
    def remedy(self) -> str:
        return REMEDIES.get(self.kind, OTHERWISE)


@dataclass(frozen=True, kw_only=True)
class Audit:
    target: str
    rows: tuple[Misjudged, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    threshold: float  # largest share of examples of an edit that may be paid

    @property
    def alarms(self) -> list[Misjudged]:
        """Wrong texts that are paid, and verifiers that contradict themselves."""
        failed = [row for row in self.rows if row.num_failed]
        return [
            row
            for row in failed
            if row.group in ("exploit", "stability", "adversary")
            or (row.group == "edit" and row.share.value > self.threshold)
        ]

    @property
    def refused(self) -> list[Misjudged]:
        """Right answers that are not paid; not those that only the format refuses."""
        return [row for row in self.rows if row.group == "rewrite" and row.num_failed]

    @property
    def noted(self) -> list[Misjudged]:
        """What is paid for golds that no row has: rows without an answer are left out when the data load."""
        return [row for row in self.rows if row.group == "gold" and row.num_failed]

    @property
    def flagged(self) -> list[str]:
        return list(dict.fromkeys(row.kind for row in (*self.refused, *self.alarms)))


class Judge:
    """One verifier, its scales, and what it got wrong."""

    def __init__(self, name: str, verifier: Verifier, cases: Sequence[Case], rule: Rule | None = None) -> None:
        """`rule`: whether an answer of a kind of `BY_RULE` is right; None: none is."""
        self.name, self.cases, self._verifier, self._rule = name, cases, verifier, rule
        self.findings = list[Finding]()
        self._unpaid = dict[int, Verdict]()  # what own answers earn that are not paid, by example
        self._moved = dict[int, list[tuple[Verdict, Verdict]]]()  # another answer, before and behind the gold
        self._counts: dict[tuple[Group, str], list[str]] = defaultdict(list)  # outcomes, by example

    async def run(self, on_progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        self.scales = await self._scales()
        for index, case in enumerate(self.cases):
            if (verdict := self._unpaid.get(index)) is not None:  # what else is refused or paid there says nothing
                gold = next(rewrite_probes(case))
                self._counts[gold.group, gold.kind].append("error" if verdict.failed else "failed")
                self.findings.append(self.finding(case, gold, verdict, self.scales[index].full))
                continue
            kinds: dict[tuple[Group, str], list[Probe]] = defaultdict(list)
            for probe in (*rewrite_probes(case), *edit_probes(case), *exploit_probes(case, index)):
                if not (probe.kind in BY_RULE and self._rule and await self._rule(case, probe.answer or "")):
                    kinds[probe.group, probe.kind].append(probe)
            wanted = [key for key in kinds if self._counts[key].count("error") < MOST_ERRORS]
            found = await asyncio.gather(*(self._outcome(case, self.scales[index], kinds[key]) for key in wanted))
            for key, outcome in zip(wanted, found, strict=True):
                self._counts[key].append(outcome)
            await self._repeat(case, self.scales[index], self._moved.get(index, []))
            on_progress(index + 1, len(self.cases))

    @property
    def rows(self) -> list[Misjudged]:
        return [
            Misjudged(
                verifier=self.name,
                group=group,
                kind=kind,
                num_examples=len(outcomes),
                num_failed=outcomes.count("failed"),
                num_errors=outcomes.count("error"),
            )
            for (group, kind), outcomes in self._counts.items()
            if outcomes
        ]

    def note_failures(self, group: Group, kind: str, findings: Iterable[Finding], num_examples: int) -> None:
        """Failures that were found elsewhere."""
        found = list(findings)
        self.findings += found
        self._counts[group, kind] = ["failed"] * len(found) + ["right"] * (num_examples - len(found))

    def finding(self, case: Case, probe: Probe, verdict: Verdict, full: float) -> Finding:
        return Finding(
            verifier=self.name,
            group=probe.group,
            kind=probe.kind,
            question=case.question,
            gold=case.gold if probe.gold is None else probe.gold,
            text=probe.text,
            score=None if verdict.failed else verdict.value,
            full=full,
            message=verdict.message,
        )

    async def _scales(self) -> list[Scale]:
        """For an example whose own answer is not paid more than others: the median of the rest."""
        scales, fulls = list[Scale | None](), list[Verdict]()
        values = list[float]()
        for index, case in enumerate(self.cases):
            others = [await self._verifier(case.example, case.wrap(other)) for other in case.others[:NUM_LOW]]
            full = await self._verifier(case.example, case.wrap(case.gold))
            if others:  # a verifier that remembers the right answer pays for others behind it
                behind = [await self._verifier(case.example, case.wrap(case.others[0])) for _ in range(NUM_BEHIND)]
                self._moved[index] = [(others[0], again) for again in behind]
            fulls.append(full)
            seen = [one.value for one in others if not one.failed]
            values += [one.value for one in (full, *others) if not one.failed]
            tells = not full.failed and seen and full.value > min(seen)
            scales.append(Scale(low=min(seen), full=full.value) if tells else None)
            if tells:
                lowest = min(others, key=lambda one: math.inf if one.failed else one.value)
                await self._judge_form(case, case.others[others.index(lowest)], lowest, full)
        good = [scale for scale in scales if scale is not None]
        if good:
            usual = Scale(low=median(one.low for one in good), full=median(one.full for one in good))
            pairs = enumerate(zip(scales, fulls, strict=True))
            self._unpaid = {i: full for i, (own, full) in pairs if own is None and not usual.share(full.value) > PAID}
        else:  # full marks are its best ones
            usual = Scale(low=min(values, default=0.0), full=max(values, default=0.0))
        return [scale or usual for scale in scales]

    async def _judge_form(self, case: Case, other: str, wrong: Verdict, full: Verdict) -> None:
        """Fails if this wrong answer earns more than half of a right one, beyond what any text earns."""
        nothing, is_paid = Verdict(value=0.0), wrong.value > PAID * full.value and wrong.value > 0
        if is_paid:
            nothing = await self._verifier(case.example, "")
        floor = 0.0 if nothing.failed else max(0.0, nothing.value)
        is_paid = is_paid and wrong.value - floor > PAID * (full.value - floor)
        self._counts["exploit", FORM].append("failed" if is_paid else "right")
        if is_paid:
            probe = Probe(kind=FORM, group="exploit", text=case.wrap(other))
            self.findings.append(self.finding(case, probe, wrong, full.value))

    async def _outcome(self, case: Case, scale: Scale, probes: Sequence[Probe]) -> str:
        outcome = "right"
        for probe in probes:
            if probe.where is not None and not scale.share((await self._grade(case, probe, probe.where)).value) > PAID:
                continue
            verdict = await self._grade(case, probe, probe.text)
            share = scale.share(verdict.value)
            if probe.twin is not None:
                share = min(share, scale.share((await self._grade(case, probe, probe.twin)).value))
            if verdict.failed and probe.gold is not None:
                continue  # to refuse such a gold is right
            if verdict.failed:
                slow = probe.kind == SLOW and verdict.timed_out
                outcome = "failed" if slow else "error" if outcome == "right" else outcome
                self.findings.append(self.finding(case, probe, verdict, scale.full))
            elif (share > PAID) != probe.is_right:
                outcome = "failed"
                self.findings.append(self.finding(case, probe, verdict, scale.full))
        return outcome

    async def _grade(self, case: Case, probe: Probe, text: str) -> Verdict:
        example = case.example
        if probe.gold is not None:
            example = Example(id=example.id, messages=example.messages, answer=probe.gold, metadata=_bare(example))
        return await self._verifier(example, text)

    async def _repeat(self, case: Case, scale: Scale, moved: Sequence[tuple[Verdict, Verdict]]) -> None:
        """The same texts twice in a row, and another answer before and behind the right one."""
        outcome, pairs = "right", [(case.wrap(case.others[0]), *pair) for pair in moved]
        for answer in (case.gold, *case.others[:1]):
            text = case.wrap(answer)
            first = await self._verifier(case.example, text)
            pairs.append((text, first, await self._verifier(case.example, text)))
        for text, first, second in pairs:
            if not (first.failed or second.failed) and first.value != second.value:
                outcome = "failed"
                message = f"then {second.value:g}"
                probe = Probe(kind=STABILITY, group="stability", text=text)
                verdict = Verdict(value=first.value, message=message)
                self.findings.append(self.finding(case, probe, verdict, scale.full))
        self._counts["stability", STABILITY].append(outcome)


def _bare(example: Example) -> Mapping[str, object]:
    """Metadata without other spellings of the answer."""
    return {key: value for key, value in example.metadata.items() if key != "aliases"}
