"""The words that may follow a number without changing it: `18 eggs`, `18 km/h`, `$18 a day`, `18 in total`.

A word is a unit if it is known as one, never because it is not known as something else:

    kg  cm  min  p.m.  dollars  EUR      a measure or a currency
    eggs  apples  students               a plural: what can be counted
    per  each  in total  left            says of what the number is a share or a rest
    egg  (with "egg" in the question)    a word of the prompt or of the gold

Words that change the number before them are no units even where the prompt has them: magnitudes and their abbreviations
(`18 thousand`, `18 mil`), multiples (`18 squared`), comparisons (`18 or more`), second thoughts (`18 is wrong`).
"""

import re
from functools import lru_cache

MAX_UNIT_WORDS = 3

SCALES = {
    "dozen": 12,
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
SCALES |= {f"{word}s": scale for word, scale in SCALES.items()}
_COUNTS = (  # also in the plural
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety third fourth fifth sixth seventh eighth "
    "ninth tenth eleventh twelfth twentieth hundredth thousandth millionth billionth trillionth quarter fraction "
    "gross lakh lac crore myriad milliard billiard quadrillion quintillion sextillion septillion zillion gazillion "
    "mil bil tril thou hund quad mill grand score"
)
_FACTORS = (
    "half halves point nan inf infinity pi mille permille permil basis bp bps reciprocal inverse root sqrt log bn mn "
    "tn mm mln bln mlrd mrd mio twice thrice double doubled triple tripled quadruple quadrupled halved squared cubed "
    "factorial power fold multiplied divided mod"
)
_NEGATIVES = (
    "minus negative decrease decreased decreasing decline declined drop dropped reduction reduced loss lost losing "
    "down deficit shortfall fall fell fallen cut shrink shrank shrinkage contraction off debt owed loses drops falls "
    "cuts declines decreases reductions losses debts shrinks"
)
_COMPARISONS = (
    "more less fewer greater smaller higher lower over under above below beyond within least most max maximum minimum "
    "about around approximately approx roughly nearly almost circa ish up too low high than between to through until "
    "plus versus vs"
)
_SECOND_THOUGHTS = (
    "and or but if else with then so because though although unless when while whereas nor not no non nope nah none "
    "never neither without except yes maybe perhaps probably possibly is are was were be isn arent isnt equal equals "
    "wrong incorrect false instead rather otherwise sorry oops wait actually error mistake guess unsure unknown cannot "
    "cant dont doesnt wont nothing fails doubts guesses"
)
COUNT_WORDS = frozenset(word + plural for word in (*_COUNTS.split(), *SCALES) for plural in ("", "s")) - {"bills"}
"""Words that change the number before them: thirty, tenths, million."""

_NOT_UNITS = COUNT_WORDS.union(f"{_FACTORS} {_NEGATIVES} {_COMPARISONS} {_SECOND_THOUGHTS}".split()) - {"mm"}

_BASES = "m g l L s A V W J N Pa Hz eV B b bit byte mol cal Wh Ah bar ohm Ω F C K T lm lx Bq Sv"
_SYMBOLS = frozenset(prefix + base for prefix in ("", *"mckdhMGTnpuµμ", "da") for base in _BASES.split())
_LENGTHS = (
    "meter metre kilometer kilometre centimeter centimetre millimeter millimetre inch in foot feet ft yard yd mile mi "
    "knot mph kmh kph fps rpm acre hectare ha sq square cubic cu cc degree deg rad radian"
)
_AMOUNTS = (
    "gram gramme kilogram milligram liter litre milliliter millilitre ounce oz pound lb lbs ton tonne stone gallon gal "
    "quart qt pint pt cup tablespoon tbsp teaspoon tsp joule watt volt amp ampere newton pascal hertz byte bit kelvin "
    "celsius fahrenheit unit percent pct pair time"
)
_TIMES = "second sec minute min hour hr day week month quarter year yr decade century fortnight am pm noon"
_MEN = "person people child children man men woman women mouse mice goose geese tooth teeth fish sheep deer"
_CURRENCIES = (
    "dollar buck cent penny pence euro sterling yen yuan won rupee peso franc ruble rouble krona krone lira dinar rand "
    "usd us eur gbp jpy cny inr rs chf cad aud"
)
_SHARES = (
    "a an the per each every of in on at for by from total altogether overall all left remaining remain apiece daily "
    "weekly monthly yearly annually hourly nightly once old long tall wide deep away later earlier ago apart this that "
    "these them his her their its"
)
_BEFORE_ANY = frozenset(("of", "per", "a", "an", "each", "every"))
_MEASURES = frozenset(f"{_LENGTHS} {_AMOUNTS} {_TIMES}".split())
_UNITS = _MEASURES.union(f"{_MEN} {_CURRENCIES} {_SHARES}".split())
_UNIT = re.compile(r"(?:°[CF]?|/[a-z]+|(?:[A-Za-z]{2,}(?:[/-][A-Za-z]+)*|[mghlsLCF]|[ms]/[a-z]+)(?:[²³]|\^[23])?)")
_PIECES = re.compile(r"[^A-Za-zµμΩ]+")
_PLURAL = re.compile(r"[a-z]{2,}(?:[^siu']s)")
_WORD = re.compile(r"[A-Za-z]{2,}")


@lru_cache(maxsize=512)
def words_of(*texts: str) -> frozenset[str]:
    """The words of the texts in lower case, which may stand behind a number that answers them."""
    return frozenset(word.lower() for text in texts for word in _WORD.findall(text))


def are_units(words: list[str], known: frozenset[str] = frozenset()) -> bool:
    """Whether the words do not change the number before them; `known` are those of the prompt and of the gold.

    `a` is allowed, as in `5 dollars a day`, but not at the end; after it, `per` and `of` any word that changes nothing:
    `44% of sales`, `18 per class`.
    """
    if len(words) > MAX_UNIT_WORDS or words[-1:] in (["a"], ["an"], ["the"], ["of"], ["per"]):
        return False
    return all(
        word == "a" or is_unit(word, known, is_free=place > 0 and words[place - 1].lower() in _BEFORE_ANY)
        for place, word in enumerate(words)
    )


@lru_cache(maxsize=4096)
def is_unit(word: str, known: frozenset[str] = frozenset(), *, is_free: bool = False) -> bool:
    """Whether one word, such as `eggs`, `km/h` or `ft^2`, is a unit; with `is_free` any word that changes nothing."""
    if not _UNIT.fullmatch(word):
        return False
    pieces = list(filter(None, _PIECES.split(word)))
    return all(_is_known(piece, known, is_free=is_free) for piece in pieces)


def is_measure(word: str) -> bool:
    """Whether the word is a unit of measurement, which a formula may have behind a number: cm, kg, mph."""
    if not _UNIT.fullmatch(word):
        return False
    return all(
        piece in _SYMBOLS or piece.lower().removesuffix("s") in _MEASURES for piece in filter(None, _PIECES.split(word))
    )


def _is_known(piece: str, known: frozenset[str], *, is_free: bool) -> bool:
    lowered = piece.lower()
    if lowered in _NOT_UNITS:
        return False
    singular = lowered.removesuffix("s")
    return (
        is_free
        or len(piece) == 1
        or piece in _SYMBOLS
        or not _UNITS.isdisjoint((lowered, singular))
        or _PLURAL.fullmatch(lowered) is not None
        or not known.isdisjoint({lowered, singular, f"{lowered}s"})
    )
