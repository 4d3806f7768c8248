"""Dates of birth, read in prose and written as YYYY-MM-DD: a task that a small pretrained model learns on a CPU.

    question    Ada Belmar (born on the 25th of March 1957) is a painter from Lisbon.       answer   1957-03-25
                When was Ada Belmar born? Answer with the date as YYYY-MM-DD.

The sentences are made, by seed, or begin the articles of a multi-hop data set, where the parenthesis gives the date.
"""

import datetime
import random
import re
from calendar import month_abbr, month_name
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

from pydantic import BaseModel

from rlvr.data.multihop_sets import read_sets, table
from rlvr.data.problems import Problem, fingerprint
from rlvr.data.rows import Cell, Row
from rlvr.data.sources import DrawnSource
from rlvr.registry import register
from rlvr.rewards.metrics import Metric
from rlvr.rewards.text import ExactMetric
from rlvr.seeding import derive_seed
from rlvr.settings import Text, setting
from rlvr.tasks.base import TaskContext
from rlvr.tasks.loading import Data, by_hash, make_data, parse_rows
from rlvr.tasks.settings import DataSettings, HeldOutShare

MAX_CHARS = 260
"""Longest opening of an article: prompts stay under about 120 tokens."""
SHORTEST_LIFE_YEARS = 10
"""Two dates around a dash that are closer belong to a battle, a tour or a program."""


@register("task", "dates")
class Dates(DataSettings):
    """Dates of birth as YYYY-MM-DD, from made sentences or from the first sentences of articles."""

    path: Text | None = setting(
        None,
        "HotpotQA, 2Wiki, MuSiQue or corpus files with articles, as in task=musique: a file or path,name,split, "
        "several joined with ;. null: made sentences",
    )
    eval_share: HeldOutShare = setting(0.1, "share of the questions, chosen by hash, that is never trained on")

    @property
    def is_generated(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.path is None

    @property
    def origin(self) -> str:
        return self.path or "made sentences"

    def make_metric(self) -> Metric:
        return ExactMetric()

    def load(self, context: TaskContext) -> Data:
        limits = {"seed": context.seed, "max_train": self.max_train_examples}
        if self.path is not None:
            part = parse_rows(_articles(read_sets("task.path", self.path, ())), parse)
            train, held_out = by_hash(part, self.eval_share, self.origin)
            return make_data((train, held_out), where=self.origin, **limits)
        source = DrawnSource(draw, name=self.name, eval_share=self.eval_share, **limits)
        note = f"sentences made without end, {self.eval_share:.0%} of them, chosen by hash, held out"
        return Data(source=source, notes=(note,))


def _problem(name: str, text: str, born: datetime.date, about: str, *tags: str) -> Problem:
    key = fingerprint(about)
    return Problem(
        id=f"dates/{key.hex()}",
        key=key,
        question=f"{text}\nWhen was {name} born? Answer with the date as YYYY-MM-DD.",
        answer=born.isoformat(),
        tags=tags,
    )


# ------------------------------------------------------------------------------------------------------ made sentences

Written = Callable[[datetime.date], str]
FORMS: dict[str, Written] = {
    "day_month": lambda date: f"{date.day} {month_name[date.month]} {date.year}",
    "month_day": lambda date: f"{month_name[date.month]} {date.day}, {date.year}",
    "short": lambda date: f"{date.day} {month_abbr[date.month]} {date.year}",
    "ordinal": lambda date: f"{month_name[date.month]} {_ordinal(date.day)}, {date.year}",
    "of": lambda date: f"the {_ordinal(date.day)} of {month_name[date.month]} {date.year}",
    "weekday": lambda date: f"a {date:%A}, {date.day} {month_name[date.month]} {date.year}",
}
"""How a date is written, by tag; each reads well behind `on`."""
SENTENCES = (
    "{name} (born on {born}) is a {job} from {place}.",
    "{name} (born {other_name}, {born}) is a {job}, best known for work in {place}.",
    "{name} ({born} – {died}) was a {job} from {place}.",
    "{name} was born in {place} on {born} and worked as a {job} until {died}.",
    "Born in {place} on {born}, {name} became a {job} on {later}.",
    "The {job} {name} died on {died} in {place}; the birth was on {born}.",
    "On {later} the {job} {name}, born on {born} in {place}, won a prize.",
    "{name} is a {job}. The register of {place} has {born} as date of birth, and {later} as date of marriage.",
)
NAMES = (
    "Ada,Alan,Alice,Anton,Beata,Boris,Carla,Carlos,Clara,David,Dora,Edgar,Elena,Emil,Erik,Eva,Felix,Flora,Greta,Hugo,"
    "Ida,Igor,Irene,Ivan,Jana,Jonas,Julia,Karl,Laura,Leon,Lydia,Marta,Max,Mina,Nora,Oscar,Paula,Peter,Rosa,Simon,Victor"
)
SURNAMES = (  # a syllable of each line
    "Bel,Bor,Cal,Dar,Fal,Gar,Hal,Kor,Lan,Mar,Mel,Nor,Ost,Pal,Ram,Sel,Tor,Val,Wen,Zim",
    "a,e,i,o,den,el,len,man,mer,min,ner,ri,ro,sen,ta,ter,va,vi",
    "ck,d,der,gen,ler,li,mar,nen,ni,now,ra,rez,ri,sen,ski,son,tas,ti,tz,vich",
)
PLACES = (
    "Accra,Athens,Austin,Bergen,Boston,Bristol,Cairo,Chicago,Cork,Denver,Dublin,Genoa,Geneva,Glasgow,Havana,Helsinki,"
    "Istanbul,Kraków,Leeds,Lima,Lisbon,London,Lyon,Madrid,Manila,Milan,Montreal,Nairobi,Naples,Osaka,Oslo,Porto,Prague,"
    "Quito,Riga,Rome,Seoul,Seville,Sydney,Turin,Vienna,Zagreb"
)
JOBS = (
    "painter,poet,film director,football player,chemist,composer,politician,tennis player,novelist,sculptor,singer,"
    "jazz pianist,bishop,lawyer,stage actor,photographer,swimmer,physicist,cyclist,historian,mathematician,pilot,cook,"
    "rower,general,journalist,botanist,banker,surgeon,dancer,baseball coach,sailor"
)
AGES = {"later": (18, 29), "died": (30, 94)}
"""In years, at the other dates of a sentence."""
FIRST_DAY, NUM_DAYS = datetime.date(1800, 1, 1), 47_000  # to 1928: all deaths are in the past


def draw(seed: int, place: int) -> Problem:
    """Problem `place` of the endless stream of a seed: a person, a sentence, and a way to write dates."""
    rng = random.Random(derive_seed(seed, "dates", place))

    def one_of(words: str) -> str:
        return rng.choice(words.split(","))

    name, other_name = (f"{one_of(NAMES)} {''.join(map(one_of, SURNAMES))}" for _ in range(2))
    born = FIRST_DAY + datetime.timedelta(days=rng.randrange(NUM_DAYS))
    dates = {key: born + datetime.timedelta(days=rng.randrange(*(365 * age for age in AGES[key]))) for key in AGES}
    form = rng.choice(list(FORMS))
    said = {key: FORMS[form](date) for key, date in {"born": born, **dates}.items()}
    text = rng.choice(SENTENCES).format(
        name=name, other_name=other_name, job=one_of(JOBS), place=one_of(PLACES), **said
    )
    return _problem(name, text, born, text, form)


def _ordinal(day: int) -> str:
    ending = "th" if 10 < day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


# ------------------------------------------------------------------------------------------------------------ articles

_MONTHS = {name: number for number, name in enumerate(month_name) if name}
_MONTH = "|".join(_MONTHS)
_DATE = re.compile(
    rf"\b(?:(?P<day>\d{{1,2}}) (?P<month>{_MONTH})|(?P<us>{_MONTH}) (?P<us_day>\d{{1,2}}),) (?P<year>\d{{4}})\b"
)
_OPENING = re.compile(r"(?P<before>[^()]*)\((?P<inside>[^()]*)\).*?[.!?](?=\s|$)", re.DOTALL)
_VERB = re.compile(r"\b(?:is|was|are|were)\b")  # behind it the parenthesis is about somebody else
_BORN = re.compile(r"\bborn\b[^;\d]*$")  # before a date: nothing but names and places since `born`
_LIFE = re.compile(r"[^;\d]*[–—-][^;\d]*")  # between two dates
_UNSURE = re.compile(r"\b(?:ca?\.|circa|bapt\w*|or|O\.? ?S\.?)(?!\w)|[?/]")


class _Page(BaseModel):
    title: Cell


class _Context(_Page):
    sentences: list[Cell]


class _Paragraph(_Page):
    paragraph_text: Cell


class _Passage(_Page):
    text: Cell


class _Question(BaseModel):
    context: Annotated[list[_Context] | None, table("title", "sentences")] = None
    paragraphs: Annotated[list[_Paragraph] | None, table("title", "paragraph_text")] = None


def _articles(rows: Iterable[Row]) -> Iterator[Row]:
    """The articles of questions, or passages of a corpus, as rows with `title` and `text`, each title once."""
    known: set[str] = set()
    for row in rows:
        question: _Question = row.read(_Question)
        pages = [(page.title, " ".join(page.sentences)) for page in question.context or ()]
        pages += [(page.title, page.paragraph_text) for page in question.paragraphs or ()]
        if not pages:
            passage: _Passage = row.read(_Passage)
            pages = [(passage.title, passage.text)]
        for title, text in pages:
            if title and title not in known:
                known.add(title)
                yield Row(f"{row.place}, article {title!r}", {"title": title, "text": text})


def parse(row: Row) -> Problem | str:
    """The problem of an article, or the reason to exclude it."""
    title, text = row.fields["title"], row.fields["text"]
    name = re.sub(r" \(.*", "", title) or title
    opening = _OPENING.match(text)
    born = opening and date_of_birth(opening["inside"])
    if opening is None or born is None or _VERB.search(opening["before"]) or name.split()[-1] not in opening["before"]:
        return "do not begin with a person and a date of birth"
    if len(opening[0]) > MAX_CHARS:
        return f"begin with a sentence of more than {MAX_CHARS} characters"
    return _problem(name, opening[0], born, title)


def date_of_birth(inside: str) -> datetime.date | None:
    """The date in the parenthesis behind a person's name, None where it has none, or is in doubt.

    `born 25 March 1957`; `born Karl Marx in Trier, May 5, 1818`; `5 May 1818 – 14 March 1883`
    """
    found = [(match, date) for match in _DATE.finditer(inside) if (date := _date(match)) is not None]
    if not found or _UNSURE.search(inside):
        return None
    (first, born), *others = found
    if _BORN.search(inside[: first.start()]):
        return born
    if not others:
        return None
    second, died = others[0]
    lives = _LIFE.fullmatch(inside[first.end() : second.start()]) and died.year - born.year >= SHORTEST_LIFE_YEARS
    return born if lives else None


def _date(match: re.Match[str]) -> datetime.date | None:
    month, day = match["month"] or match["us"], match["day"] or match["us_day"]
    try:
        return datetime.date(int(match["year"]), _MONTHS[month], int(day))
    except ValueError:  # 31 June
        return None
