from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.rewards.numbers import Number, YesNo, close, parse_answer, same_answer
from rlvr.rewards.units import words_of


def number(text: str) -> Number:
    found = parse_answer(text)
    assert isinstance(found, Number), text
    return found


SPELLINGS: dict[Fraction | int, tuple[str, ...]] = {
    18: (
        *(
            "18",
            "018",
            "+18",
            "18.",
            "18.0",
            " 18\n",
            "18,",
            "= 18",
            "x = 18",
            "$x = 18$",
            "**18**",
            "*18*",
            "__18__",
            "***18***",
            "**18.**",
            '"18"',
        ),
        *("\u201c18\u201d", "`18`", "\\boxed{18}", "\\(18\\)", "\\[18\\]", "$$18$$", "$18", "US$ 18", "18$", "$18$"),
        *("£18", "18 €", "EUR 18", "\u20b918", "\\$18", "**$18**", "18 eggs", "18kg", "18 m²", "18°C", "$18/hour"),
        *("18 sq. ft.", "18\\text{ eggs}", "18 ft^2", "18\\ \\text{eggs}", "18 (eggs)", "18(eggs per day)", "18 p.m."),
        *("18 a day", "18 points", "18 min", "18 errors", "18 times", "18 apples", "18 dollars", "$18 per day"),
        *("18 boxes", "18 people", "18 years old", "18 miles per hour", "18 kWh", "18 mg/dL", "18 books each"),
    ),
    0: ("-0",),
    5: ("5 dollars a day",),
    -18: ("n = -18",),
    1080: ("1,080", "1{,}080"),
    1500: ("1.5e3",),
    1234567: ("1,234,567",),
    10_000: (
        r"10\,000",
        r"10,\!000",
        r"10,\! 000",
        r"\boxed{10\,000}",
        r"10\;000",
        r"10\ 000",
        "10~000",
        r"$10{,}000$",
    ),
    10**16: ("1e+16",),
    36003776400000: ("36003776400000.0",),
    Fraction("1080.5"): ("1,080.5",),
    Fraction("1.08"): ("1.080",),
    Fraction(1, 2): (".5",),
    Fraction(3, 4): ("3/4", "\\dfrac{3}{4}", "$\\frac{3}{4}$"),
    Fraction(-3, 4): ("-3/4", "-\\frac{3}{4}"),
    Fraction(1, 100_000): ("1e-05",),
    Fraction(1, 10**39): ("0." + "0" * 38 + "1",),
}


@pytest.mark.parametrize(("text", "value"), [(text, value) for value in SPELLINGS for text in SPELLINGS[value]])
def test_accepted_spellings_of_a_plain_number(text: str, value: Fraction) -> None:
    assert number(text) == Number(Fraction(value))


@pytest.mark.parametrize(
    "text", ["-3", "- 3", "\u22123", "\u20133", "$-3", "-$3", "- $ 3", "(3)", "( 3 )", "$(3)", "($3)"]
)
def test_pitfall_28_every_spelling_of_a_minus_is_a_minus(text: str) -> None:
    assert number(text).value == -3


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        *((f"44{sign}", "0.44", "1/100") for sign in ("%", " %", "\\%", " percent", " per cent", " % of revenue")),
        *(("(44%)", "-0.44", "1/100"), ("2 billions", "2e9", "1e9"), ("3 dozen eggs", "36", "12")),
        *(("12.0 million", "12e6", "1e6"), ("$12 million dollars", "12e6", "1e6"), ("($12) million", "-12e6", "1e6")),
    ],
)
def test_percents_and_scales(text: str, value: str, unit: str) -> None:
    assert number(text) == Number(Fraction(value), Fraction(unit))


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "-", "+", "$", "%", "()", "( )", ",", "/", "e5", "-.", "$-", "banana", "eggs 18"),
        *("nan", "NaN", "inf", "-inf", "infinity", "\u221e", "1/0", "0/0", "1.5/2", "1,000/2", "3/"),
        *("18 or 19", "3 4", "3-4", "3 - 4", "18, 19", "18;19", "1 1/2", "18=18", "2+2", "3*6", "10 000", "18.0.0"),
        *("1,08", "10,80", "1,0801", ",080", "1,,080", "1,080,,", "1.080,5", "10,80,000"),
        *("--3", "+-3", "-+3", "-$-3", "(-3)", "-(3)", "(+3)", "(3", "3)", "((3))", "(3) (4)", "(three)"),
        *(r"10\,00", r"1000\,000", r"1\,0000", r"3\,4", "10~0"),
        *("18 (eggs) or", "18 ()", "18 hundred two", "18 million and"),
        *("5% decrease", "18 or more", "18 is wrong", "18 not", "18 thirty", "18 and a half", "18 minus"),
        *("18x", "18 x", "18 a", "18e", "18e+", "1e41", "1e-41", "1e999999999", "0x12", "1_8", "18%%", "%18"),
        *("9" * 41, "18" + " " * 200, "18 " + "a" * 300, "18 one two", "18 eggs for breakfast each", "18\u200b"),
        *("yes no", "yes and no", "yesterday", "y", "n", "not", "nope", "yes 18", "true", "\u0661\u0668"),
        *("\uff11", "x = y = 18", "6 = 18", "x == 18", "~18", "= "),
        *("\\boxed{18} or \\boxed{19}", "**18** or **19**", "****", "\\boxed{}", '"18', "**18", "$$", "$$$", "$18$19$"),
        *("{18}", "\\frac{3}{0}", "\\frac{\\frac{1}{2}}{3}", "18\\", "\\sqrt{18}"),
    ],
)
def test_pitfall_28_what_is_not_one_number_is_invalid(text: str) -> None:
    assert parse_answer(text) is None


def test_a_word_of_the_question_may_follow_unless_it_changes_the_number() -> None:
    known = words_of("Each egg of an ostrich feeds a dozen. It is wrong to eat half of it.")
    for said in ("18 egg", "18 ostrich eggs", "18 ostrich-egg"):
        assert parse_answer(said, known) == Number(Fraction(18)), said
        assert parse_answer(said.replace("egg", "mil").replace("ostrich", "mil"), known) is None
    for said in ("18 wrong", "18 half", "18 is", "18 dozen of", "18 chicken"):
        assert parse_answer(said, known) is None, said


def test_the_limits_are_where_the_docstring_says() -> None:
    assert number("9" * 40).value == 10**40 - 1
    assert number("1e40").value == 10**40
    assert number("1e-40").value == Fraction(1, 10**40)
    assert parse_answer("18" + " " * 198) == Number(Fraction(18))
    assert parse_answer("18" + " " * 199) is None
    assert parse_answer("18 eggs per week") == Number(Fraction(18))
    assert parse_answer("18 eggs per week day") is None


@pytest.mark.parametrize(
    "words",
    [
        *("tenths", "hundredths", "fifths", "tens", "gross", "lakh", "quadrillion", "per mille", "basis points"),
        *("doubled", "halved", "factorial", "over seventy-two", "twenty-five", "point twenty-five", "below", "deficit"),
        *("too low", "nope sorry", "eggs-or-more", "eggs/no", "hundred twenty-five", "% reduction", "percent less"),
        *("mil", "mio", "bil", "tril", "thou", "mrd", "cr", "kilo", "grands", "mils", "mln", "k", "M", "G", "lacs"),
        *("refuted", "rejected", "disproved", "twofold", "mil dollars", "units squared", "inverted"),
        *("million twenty-five", "(or 19)", "(not sure)", "(twenty-five)", "squared", "a half", "dozen dozen", "plus"),
    ],
)
def test_pitfall_28_words_that_change_the_number_are_no_unit(words: str) -> None:
    assert parse_answer(f"18 {words}") is None


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        *(("18", "18.0", True), ("1,080", "1080", True), ("12%", "0.12", True), ("12%", "12", True)),
        *(("1%", "1", True), ("1%", "0.01", True), ("0.99%", "0.99", False)),
        *(("12%", "12 percent", True), ("1/3", "2/6", True), ("12.0 million", "12,000,000", True)),
        *(("12 million", "12 thousand", False), ("12 million", "12%", False), ("12 thousand", "12000%", False)),
        *(("12.0 million", "12", False), ("3 dozen", "3", False), ("44%", "4400%", False), ("0.12%", "0.12", False)),
        *(("1%", "100%", False), ("12%", "1200", False), ("12", "0.12", False), ("3", "-3", False)),
    ],
)
def test_pitfall_28_no_unit_stands_for_another_value(a: str, b: str, same: bool) -> None:
    for one, other in ((number(a), number(b)), (number(b), number(a))):
        assert same_answer(one, other) is same
        assert same or not close(one, other, Fraction(1, 10))


def test_numbers_are_compared_exactly() -> None:
    assert not same_answer(number("1/3"), number("0.3333333333"))
    assert not same_answer(number("0.1"), number("0.10000000000000000001"))
    assert not same_answer(number("9007199254740993"), number("9007199254740992"))  # equal as floats


@pytest.mark.parametrize(
    ("prediction", "gold", "tolerance", "expected"),
    [
        *(("110", "100", "0.1", True), ("90", "100", "0.1", True), ("110.0001", "100", "0.1", False)),
        *(("-100", "100", "0.1", False), ("-105", "-100", "0.1", True), ("0.0001", "0", "0.5", False)),
        *(("0", "0", "0", True), ("35%", "0.34719", "0.01", True), ("100.0000002", "100", "1e-9", False)),
        ("100.00000001", "100", "1e-9", True),
    ],
)
def test_close_is_relative_to_the_gold(prediction: str, gold: str, tolerance: str, expected: bool) -> None:
    assert close(number(prediction), number(gold), Fraction(tolerance)) is expected


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        *(("1,080", "1080"), ("-0.50", "-0.5"), ("1/3", "1/3"), ("-2/14", "-1/7"), ("3/4", "0.75"), ("12%", "0.12")),
        *(("1/1024", "0.0009765625"), ("1e-39", f"0.{'0' * 38}1"), ("1/7", "1/7")),
    ],
)
def test_one_spelling_for_each_value(text: str, spelled: str) -> None:
    assert str(number(text)) == spelled
    assert same_answer(number(spelled), number(text))
    assert (str(YesNo(True)), str(YesNo(False))) == ("yes", "no")


ALPHABET = "0123456789.,-+()$%/eE \n\\{}xyesnomil\u2212\u20ac\u0661\u00b2"


@settings(deadline=None)
@given(st.text(alphabet=ALPHABET, max_size=60) | st.text(max_size=60))
def test_a_number_can_be_written_and_read_again(text: str) -> None:
    found = parse_answer(text)
    if isinstance(found, Number):
        assert any(character.isdigit() for character in text)
        again = parse_answer(str(found))
        assert again is None or again == Number(found.value)  # None: more than 40 digits, such as 1e-40/3


@settings(deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, places=5, min_value=-(10**12), max_value=10**12))
def test_every_decimal_is_read_exactly_whatever_its_dress(value: object) -> None:
    exact = Fraction(str(value))
    plain = f"{value:f}"
    assert number(plain).value == exact
    assert number(f"{value:,f}").value == exact
    assert number(f"{plain} dollars").value == exact
    assert number(f"{plain}%").value == exact / 100
    assert number(repr(float(exact))).value == Fraction(repr(float(exact)))
