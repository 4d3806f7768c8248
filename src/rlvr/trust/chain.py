"""Which link of the chain from a prompt to the held-out score loses most: why a curve is flat.

A link is a number from 0, broken, to 1, whole: what its narrowest place lets pass. Its places are what it measures
(`links`), its signals (signals.toml: 0 at `wrong`, 1 at `fine`), and its settings outside of their usual range (the
nearest usual value beside the value, or the reverse). The score of a link is what it loses x how flat the curve is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from rlvr.errors import UserError
from rlvr.records.checks import Check
from rlvr.records.history import History, read_history
from rlvr.tracking.health import is_said, solved
from rlvr.tracking.signals import LINKS, SIGNALS, wrong_at
from rlvr.trust.judges import JUDGES
from rlvr.trust.links import EARLY, MEASURES
from rlvr.trust.record import Place, Record, read_record, updates_of
from rlvr.usual import unusual

MIN_STEPS = 5  # fewer say nothing about a curve
NAMED = 0.25
"""A link with at least this score is named; below it the answer is "I do not know"."""
ROSE = 0.5  # of `Diagnosis.learned`: from here on a curve is not flat
LISTED = 0.05  # links with less are not worth a line
PLACES = 3  # of a link, that are quoted
OF_METRIC = ("paid", "held", "paid_for_length", "other_gold", "unlike_held_out")
"""Links of which a reward that rises says nothing: only the held-out metric does."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """`Cause(name="truncated", score=0.93, says=..., evidence=[...], remedy=..., overrides=[...], in_code=False)`"""

    name: str
    score: float
    says: str
    evidence: Sequence[str]
    remedy: str
    overrides: Sequence[str]
    in_code: bool  # the remedy is in the user's code, data or model, not in a setting


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Of the remedy to the unchanged run, with its 95 % interval."""

    name: str  # `held-out accuracy`, or `rise of the reward`
    unchanged: float
    remedy: float
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.remedy - self.unchanged

    def __str__(self) -> str:
        return (
            f"{self.name} {self.unchanged:.3f} -> {self.remedy:.3f}, {self.value:+.3f} "
            f"(95 % interval {self.low:+.3f} to {self.high:+.3f})"
        )


@dataclass(frozen=True, kw_only=True)
class RemedyTrial:
    """A remedy tried beside the unchanged run."""

    cause: str
    overrides: Sequence[str]
    start: int  # updates behind the weights that both start from
    steps: int
    folder: str  # with `unchanged` and `remedy`
    differences: Sequence[Effect]
    moved: bool = field(init=False)  # a difference is above 0 by more than chance, and none below

    def __post_init__(self) -> None:
        is_worse = any(one.high < 0 for one in self.differences)
        object.__setattr__(self, "moved", any(one.low > 0 for one in self.differences) and not is_worse)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """`causes`, the likeliest first. `learned`: from 0, flat, to 1, the held-out metric rises by more than chance
    (without two evaluations: the reward); `rewarded`: the same of the reward."""

    run: str
    steps: int
    learned: float
    rewarded: float
    curve: str  # a sentence about it
    named: str | None  # the likeliest cause; None: nothing is wrong, or it is not known
    verdict: str  # a sentence
    causes: Sequence[Cause]
    notes: Sequence[str] = field(default_factory=list)
    trial: RemedyTrial | None = None

    @property
    def top(self) -> Cause | None:
        return next((cause for cause in self.causes if cause.name == self.named), None)


def diagnosed(folder: Path, *, with_weights: bool = True) -> Diagnosis:
    """The diagnosis of a run folder, which is only read. UserError: it has fewer than `MIN_STEPS` steps."""
    notes: list[str] = []
    history = read_history(folder)
    _check_length(history)  # before its rollouts and weights are read
    return of_record(read_record(history, with_weights=with_weights, on_note=notes.append), notes)


def of_record(record: Record, notes: list[str] | None = None) -> Diagnosis:
    _check_length(record.history)
    metric, reward = record.rise_of_metric, record.rise_of_reward
    learned, causes = reward if metric is None else metric, causes_of(record)
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


def causes_of(record: Record) -> list[Cause]:
    """The links that lose something of the signal that the links before them let pass, the one that loses most first;
    so a broken link explains what comes after it, and what all lose adds up to at most 1."""
    of_metric, of_reward = record.rise_of_metric or 0.0, record.rise_of_reward
    causes, passed = list[Cause](), 1.0
    for name, places in _in_order(record):
        narrow = sorted((place for place in places if place.passes < 1), key=lambda place: place.passes)
        if not narrow:
            continue
        flat = 1 - (of_metric if name in OF_METRIC else max(of_metric, of_reward))
        score, passed = (1 - narrow[0].passes) * passed * flat, passed * narrow[0].passes
        if score >= LISTED:
            settled = (place for place in narrow if place.overrides and 1 - place.passes >= NAMED)
            leads = next(settled, narrow[0])  # a place that a setting mends says more than a symptom beside it
            seen = [line for place in narrow[:PLACES] if 1 - place.passes >= LISTED for line in place.seen]
            causes.append(
                Cause(
                    name=name,
                    score=round(score, 3),
                    says=leads.says,
                    evidence=seen,
                    remedy=leads.remedy,
                    overrides=list(leads.overrides),
                    in_code=not leads.overrides,
                )
            )
    return sorted(causes, key=lambda cause: -cause.score)


def _in_order(record: Record) -> Iterator[tuple[str, list[Place]]]:
    """Names and places: the links, and before some of them a judge."""
    for link in LINKS:
        for judge in JUDGES.get(link, ()):
            yield judge.__name__, list(judge(record))
        yield link, list(places_of(record, link))


def places_of(record: Record, link: str) -> Iterator[Place]:
    own = list(MEASURES[link](record))
    yield from own
    covered = {name for place in own for name in place.signals}
    rows = record.early_rows if link in EARLY else record.updates
    is_solved = solved(record.history.rows)
    for signal in SIGNALS.values():
        if signal.link != link or signal.name in covered or not signal.is_judged:
            continue
        if is_said(signal, rows[-1:], is_solved=is_solved):
            early, late = signal.weight(record.early(signal.name)), signal.weight(record.late(signal.name))
            yield Place(
                passes=1 - (early if link in EARLY else max(early, late)),
                seen=[f"{record.span(signal.name)} (wrong: {wrong_at(signal)})"],
                says=f"{signal.says}: {signal.leads}.",
                remedy=signal.remedy,
            )
    for value in unusual(record.history.settings, record.sections):
        if value.link == link:
            yield Place(
                passes=value.share,
                seen=[str(value)],
                says=f"{value}.",
                remedy="Set its default.",
                overrides=[f"{value.key}={value.default:g}"],
            )


def verdict_of(causes: Sequence[Cause], learned: float, rewarded: float) -> tuple[str | None, str]:
    """The name of the likeliest cause, if one is likely, and a sentence."""
    if causes and causes[0].score >= NAMED:
        return causes[0].name, causes[0].says
    if learned >= ROSE:
        return None, "It learns; nothing looks wrong."
    if rewarded >= ROSE:
        return None, "The reward rises, the held-out metric not by more than chance; nothing else stands out."
    return None, "I do not know why this curve is flat: nothing that is recorded stands out."


def about_the_curve(record: Record) -> str:
    """A sentence: what rose, from where to where."""
    parts = []
    if record.evaluations:
        first, last = record.evaluations[0], record.evaluations[-1]
        name = record.headline.replace("_", " ")
        parts.append(
            f"held-out {name} {first.value:.3f} in step {first.step} -> {last.value:.3f} in step {last.step} "
            f"(95 % interval {last.low:.3f} to {last.high:.3f})"
        )
    if record.updates:
        first, last = record.updates[0], record.updates[-1]
        parts.append(f"reward {first['reward/mean']:.3f} in step {first['step']:g} -> {last['reward/mean']:.3f}")
    return "; ".join(parts)


def checks(diagnosis: Diagnosis) -> list[Check]:
    """A row for the curve and one for each cause, as the report shows them."""
    status = "ok" if diagnosis.top is None and diagnosis.learned >= ROSE else "notice"
    rows = [
        Check(
            name="curve",
            status=status,
            says=diagnosis.curve if diagnosis.top else f"{diagnosis.verdict} {diagnosis.curve}",
        )
    ]
    for cause in diagnosis.causes:
        sets = f" Set {' '.join(cause.overrides)}." if cause.overrides else ""
        rows.append(
            Check(
                name=cause.name,
                status="fail" if cause is diagnosis.top else "notice",
                says=cause.says,
                evidence={"score": cause.score, "seen": list(cause.evidence)},
                remedy=cause.remedy + sets,
            )
        )
    return rows


def warning(folder: Path) -> str | None:
    """A sentence or two about a run that stayed flat, for its end; None: it learned, is too short, or is not known."""
    try:
        diagnosis = diagnosed(folder)
    except UserError:
        return None
    if diagnosis.top is None:
        return None
    sets = f" Set {' '.join(diagnosis.top.overrides)}." if diagnosis.top.overrides else f" {diagnosis.top.remedy}"
    return f"the curve is flat: {diagnosis.top.says}{sets} More: rlvr diagnose {quote(str(folder))}"
