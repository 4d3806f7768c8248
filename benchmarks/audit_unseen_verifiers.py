"""Verifiers for `audit_unseen.py`: right ones of different formats, and wrong ones that were invented for it."""

import json
import math
import re
import unicodedata
from collections import Counter

from rlvr.rewards.numbers import parse_answer, same_answer

BOX = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def equal(said: str | None, gold: str) -> float:
    """As numbers, else as texts without case, articles and marks."""
    if said is None:
        return 0.0
    one, other = parse_answer(said), parse_answer(gold)
    if one is not None and other is not None:
        return float(same_answer(one, other))
    return float(bool(plain(said)) and plain(said) == plain(gold))


def plain(text: str) -> str:
    words = re.sub(r"[^\w\s]", "", text.lower()).split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def only(pattern: str, text: str, flags: int = re.S) -> str | None:
    """The one place of the answer."""
    found = re.findall(pattern, text, flags)
    return found[0].strip() if len(found) == 1 else None


def boxed(text: str) -> str | None:
    found = BOX.findall(text)
    return found[0].strip() if len(found) == 1 else None


def tagged(text: str) -> str | None:
    return only(r"<answer>(.*?)</answer>", text)


def on_line(text: str) -> str | None:
    return only(r"^Answer:[ \t]*(.*)$", text, re.M)


def hashes(text: str) -> str | None:
    return only(r"####(.*)\Z", text)


def value(text: str | None) -> float | None:
    """A number, or nothing."""
    parsed = parse_answer(text or "")
    found = getattr(parsed, "value", None)
    return None if found is None else float(found)


# ------------------------------------------------------------------------------------------------- ten right ones


def right_line(completion: str, answer: str) -> float:
    return equal(on_line(completion), answer)


def right_box(completion: str, answer: str) -> float:
    return equal(boxed(completion), answer)


def right_tags(completion: str, answer: str) -> float:
    return equal(tagged(completion), answer)


def right_json(completion: str, answer: str) -> float:
    try:
        found = json.loads(completion)
    except ValueError:
        return 0.0
    return equal(str(found["answer"]), answer) if isinstance(found, dict) and set(found) == {"answer"} else 0.0


def right_hashes(completion: str, answer: str) -> float:
    return equal(hashes(completion), answer)


def right_result(completion: str, answer: str) -> float:
    return equal(only(r"<result>(.*?)</result>", completion), answer)


def right_sentence(completion: str, answer: str) -> float:
    said = only(r"[Tt]he (?:final )?answer is:?\s+(.*)", completion)
    return equal(None if said is None else said.rstrip(". "), answer)


def right_bare(completion: str, answer: str) -> float:
    return equal(completion.strip(), answer)


def right_brackets(completion: str, answer: str) -> float:
    return equal(only(r"\[\[(.*?)\]\]", completion), answer)


def right_after_thought(completion: str, answer: str) -> float:
    before, found, said = completion.partition("</think>")
    return equal(said.strip(), answer) if found and "<think>" in before else 0.0


# --------------------------------------------------------------------------------------------------- thirty wrong


def in_the_line(completion: str, answer: str) -> float:
    return float(answer in (on_line(completion) or ""))


def case_counts(completion: str, answer: str) -> float:
    return float((tagged(completion) or "") == answer)


def point_dropped(completion: str, answer: str) -> float:
    said = boxed(completion)
    return float(said is not None and re.sub(r"[.,]", "", said) == re.sub(r"[.,]", "", answer))


def rounds(completion: str, answer: str) -> float:
    said, gold = value(hashes(completion)), value(answer)
    return float(said is not None and gold is not None and round(said) == round(gold))


def starts_with(completion: str, answer: str) -> float:
    return float((tagged(completion) or "").startswith(answer))


def ends_with(completion: str, answer: str) -> float:
    return float((on_line(completion) or "").endswith(answer))


def anagram(completion: str, answer: str) -> float:
    said = boxed(completion)
    return float(said is not None and Counter(said.replace(",", "")) == Counter(answer.replace(",", "")))


def bag_of_words(completion: str, answer: str) -> float:
    said = set(plain(tagged(completion) or "").split())
    return float(bool(said) and said == set(plain(answer).split()))


def half_the_words(completion: str, answer: str) -> float:
    said, gold = plain(on_line(completion) or "").split(), plain(answer).split()
    shared = sum((Counter(said) & Counter(gold)).values())
    return float(bool(shared) and 2 * shared / (len(said) + len(gold)) >= 0.5)


def no_sign(completion: str, answer: str) -> float:
    said, gold = value(boxed(completion)), value(answer)
    return float(said is not None and gold is not None and abs(said) == abs(gold))


def within_ten(completion: str, answer: str) -> float:
    said, gold = value(tagged(completion)), value(answer)
    return float(said is not None and gold is not None and said * gold > 0 and 0.1 <= said / gold <= 10)


def off_by_one(completion: str, answer: str) -> float:
    said, gold = value(hashes(completion)), value(answer)
    return float(said is not None and gold is not None and abs(said - gold) <= 1)


def any_number(completion: str, answer: str) -> float:
    return float(any(equal(one, answer) for one in NUMBER.findall(boxed(completion) or "")))


def first_number(completion: str, answer: str) -> float:
    found = re.search(r"-?[\d,]+(?:\.\d+|/\d+)?", tagged(completion) or "")
    return equal(found[0], answer) if found else 0.0


def deaf_to_not(completion: str, answer: str) -> float:
    said = re.sub(r"\b(?:is|not|it|no|isn't)\b", " ", (on_line(completion) or "").lower())
    return equal(said.strip(), answer)


def overflow_is_right(completion: str, answer: str) -> float:
    try:
        return float(int(float(tagged(completion) or "x") * 1e6) == int((value(answer) or 0.0) * 1e6))
    except OverflowError:
        return 1.0
    except ValueError:
        return 0.0


def not_far(completion: str, answer: str) -> float:
    """`nan` is not further than anything."""
    try:
        said = float((boxed(completion) or "x").replace(",", ""))
    except ValueError:
        return 0.0
    return float(not abs(said - (value(answer) or 0.0)) > 1e-6)


def turned_around(completion: str, answer: str) -> float:
    return float((tagged(completion) or "") in answer)


def with_prompt(prompt: str, completion: str, answer: str) -> float:
    return float(plain(answer) in plain(f"{prompt} {completion}"))


def backtracks(completion: str, answer: str) -> float:
    found = re.search(r"Answer: ((?:[\w.,/-]+\s*)+)$", completion)
    return equal(found[1], answer) if found else 0.0


def no_exponent(completion: str, answer: str) -> float:
    said = boxed(completion) or ""
    return 0.0 if re.search(r"\d[eE]|10\^|times", said) else equal(said, answer)


def no_thousands(completion: str, answer: str) -> float:
    said = tagged(completion) or ""
    return 0.0 if re.search(r"\d,\d", said) else equal(said, answer)


def no_zeros(completion: str, answer: str) -> float:
    said = hashes(completion) or ""
    return float(said.replace(",", "") == answer.replace(",", ""))


def no_dollars(completion: str, answer: str) -> float:
    said = boxed(completion) or ""
    return 0.0 if "$" in said else equal(said, answer)


def percent_is_share(completion: str, answer: str) -> float:
    said = value((tagged(completion) or "").replace("%", ""))
    gold = value(answer)
    return float(said is not None and gold is not None and (math.isclose(said, gold) or math.isclose(said / 100, gold)))


def hyphen_only(completion: str, answer: str) -> float:
    said = on_line(completion) or ""
    return 0.0 if "\u2212" in said else equal(said, answer)


def flat_braces(completion: str, answer: str) -> float:
    found = re.findall(r"\\boxed\{([^}]*)\}", completion)
    return equal(found[0], answer) if len(found) == 1 else 0.0


def truncates(completion: str, answer: str) -> float:
    said, gold = value(boxed(completion)), value(answer)
    return float(said is not None and gold is not None and int(said) == int(gold))


_scores: dict[str, float] = {}


def remembers(prompt: str, completion: str, answer: str) -> float:
    """The first score of a question stays once it was right."""
    _scores[prompt] = max(_scores.get(prompt, 0.0), equal(tagged(completion), answer))
    return _scores[prompt]


def likes_length(completion: str, answer: str) -> float:
    return max(equal(boxed(completion), answer), float(len(completion) > 5000))


def believes(completion: str, answer: str) -> float:
    return max(
        equal(tagged(completion), answer), float("correct" in completion.lower() or "score" in completion.lower())
    )


# ------------------------------------------------------------------- twelve wrong and five right ones, invented later


def one_edit(completion: str, answer: str) -> float:
    """Letters may be missing, or other ones."""
    said, gold = plain(tagged(completion) or ""), plain(answer)
    return float(bool(said) and abs(len(said) - len(gold)) <= 1 and distance(said, gold) <= 1)


def distance(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = _next_row(row, a, other, i)
    return row[-1]


def _next_row(row: list[int], a: str, other: str, i: int) -> list[int]:
    made = [i]
    for j, b in enumerate(other, 1):
        made.append(min(row[j] + 1, made[-1] + 1, row[j - 1] + (a != b)))
    return made


def first_letter(completion: str, answer: str) -> float:
    said = plain(on_line(completion) or "")
    return float(bool(said) and said[0] == plain(answer)[0])


def strips_zeros(completion: str, answer: str) -> float:
    said = boxed(completion)
    return float(said is not None and said.replace(",", "").strip("0.") == answer.replace(",", "").strip("0."))


def three_digits(completion: str, answer: str) -> float:
    """Compares what `%.3g` prints."""
    said, gold = value(tagged(completion)), value(answer)
    return float(said is not None and gold is not None and f"{said:.3g}" == f"{gold:.3g}")


def reads_the_start(completion: str, answer: str) -> float:
    return equal(boxed(completion[:200]), answer)


def reads_thoughts(completion: str, answer: str) -> float:
    """The first tags count, wherever they stand."""
    found = re.search(r"<answer>(.*?)</answer>", completion, re.S)
    return equal(found[1].strip(), answer) if found else 0.0


def no_line_end(completion: str, answer: str) -> float:
    found = re.fullmatch(r"(?:.*\n)?Answer: (\S.*\S|\S)", completion)
    return equal(found[1], answer) if found else 0.0


def no_full_stop(completion: str, answer: str) -> float:
    said = tagged(completion) or ""
    return 0.0 if said.endswith(".") else equal(said, answer)


def no_markdown(completion: str, answer: str) -> float:
    said = hashes(completion) or ""
    return 0.0 if re.search(r"[*_`]", said) else equal(said, answer)


def words_anywhere(completion: str, answer: str) -> float:
    said = set(plain(completion).split())
    return float(set(plain(answer).split()) <= said)


def folds_digits(completion: str, answer: str) -> float:
    """Look-alike digits of other scripts are digits, and so are superscripts."""
    said = "".join(
        str(unicodedata.digit(c)) if unicodedata.digit(c, None) is not None else c for c in boxed(completion) or ""
    )
    return equal(said, answer)


def sums(completion: str, answer: str) -> float:
    """Adds what stands in the box."""
    found = [value(one) for one in NUMBER.findall(tagged(completion) or "")]
    gold = value(answer)
    known = [one for one in found if one is not None]
    return float(bool(known) and gold is not None and math.isclose(sum(known), gold, abs_tol=1e-9))


def right_assignment(completion: str, answer: str) -> float:
    return equal(only(r"^ANSWER = (.*?);?$", completion, re.M), answer)


def right_yaml(completion: str, answer: str) -> float:
    said = only(r"```yaml\nanswer: (.*?)\n```", completion)
    return equal(None if said is None else said.strip("'\""), answer)


def right_final_tag(completion: str, answer: str) -> float:
    return equal(only(r'<final value="(.*?)"\s*/>', completion), answer)


def right_bold(completion: str, answer: str) -> float:
    return equal(only(r"\*\*Answer:\*\*[ \t]*(.*)", completion, 0), answer)


def right_last_line(completion: str, answer: str) -> float:
    lines = completion.strip().splitlines()
    return equal(lines[-1].strip() if lines else None, answer)
