"""`rlvr audit` on verifiers that were invented without a look at its kinds of texts.

    python benchmarks/audit_unseen.py

Thirty wrong and ten right ones, on which it was fixed; then twelve and five that were invented later, and on which
nothing was changed; then those of a trial as a new user, each with rows of its own (`audit_trial.py`). A bug is found
and rightly named if the audit flags one of the kinds that name it; a right verifier is accused if any wrong text is
said to be paid, or if no format of right answers is found.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import audit
import audit_trial
import audit_unseen_verifiers as verifiers
from audit_trial import Rows

import rlvr

NUMBERS, TEXTS = "numbers", "texts"
Bug = tuple[str, str, tuple[str, ...]]  # function, rows, the kinds that name it
WRONG: list[Bug] = [
    ("in_the_line", NUMBERS, ("digits around", "two values", "all candidates")),
    ("case_counts", TEXTS, ("case",)),
    ("point_dropped", NUMBERS, ("point lost",)),
    ("rounds", NUMBERS, ("near",)),
    ("starts_with", NUMBERS, ("digits around", "two values")),
    ("ends_with", NUMBERS, ("digits around", "negation", "two values")),
    ("anagram", NUMBERS, ("digits reordered",)),
    ("bag_of_words", TEXTS, ("order", "words reordered")),
    ("half_the_words", TEXTS, ("part of it",)),
    ("no_sign", NUMBERS, ("sign",)),
    ("within_ten", NUMBERS, ("order of magnitude", "digit", "near")),
    ("off_by_one", NUMBERS, ("off by one",)),
    ("any_number", NUMBERS, ("two values", "all candidates")),
    ("first_number", NUMBERS, ("two values",)),
    ("deaf_to_not", NUMBERS, ("negation",)),
    ("overflow_is_right", NUMBERS, ("NaN, infinity",)),
    ("not_far", NUMBERS, ("NaN, infinity",)),
    ("turned_around", TEXTS, ("part of it", "empty", "letter dropped")),
    ("with_prompt", NUMBERS, ("echo of the question", "no answer", "empty")),
    ("backtracks", NUMBERS, ("hang", "backtracking (ReDoS)")),
    ("no_exponent", NUMBERS, ("scientific",)),
    ("no_thousands", NUMBERS, ("commas",)),
    ("no_zeros", NUMBERS, ("trailing zeros",)),
    ("no_dollars", NUMBERS, ("currency",)),
    ("percent_is_share", NUMBERS, ("percent or number",)),
    ("hyphen_only", NUMBERS, ("minus sign",)),
    ("flat_braces", NUMBERS, ("fraction", "LaTeX")),
    ("truncates", NUMBERS, ("near",)),
    ("remembers", NUMBERS, ("same text twice",)),
    ("likes_length", NUMBERS, ("very long",)),
    ("believes", NUMBERS, ("claim",)),
]
LATER: list[Bug] = [
    ("one_edit", TEXTS, ("letter dropped",)),
    ("first_letter", TEXTS, ("part of it",)),
    ("strips_zeros", NUMBERS, ("order of magnitude", "point lost")),
    ("three_digits", NUMBERS, ("near", "digit", "off by one")),
    ("reads_the_start", NUMBERS, ("long reasoning",)),
    ("reads_thoughts", NUMBERS, ("earlier answer",)),
    ("no_line_end", NUMBERS, ("whitespace",)),
    ("no_full_stop", NUMBERS, ("full stop",)),
    ("no_markdown", NUMBERS, ("Markdown",)),
    ("words_anywhere", TEXTS, ("all candidates", "echo of the question", "two values")),
    ("folds_digits", NUMBERS, ("look-alike",)),
    ("sums", NUMBERS, ("two values", "equation")),
]
RIGHT = ["line", "box", "tags", "json", "hashes", "result", "sentence", "bare", "brackets", "after_thought"]
RIGHT_LATER = ["assignment", "yaml", "final_tag", "bold", "last_line"]
TEMPLATES = {
    "right_assignment": "ANSWER = {answer};",
    "right_yaml": "```yaml\nanswer: {answer}\n```",
    "right_final_tag": '<final value="{answer}"/>',
}
NAMES = ["Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Emmy", "Kurt", "Sofia", "Niels", "Marie", "Linus"]
FAMILIES = ["Lovelace", "Hopper", "Turing", "Dijkstra", "Liskov", "Knuth", "Noether", "Godel", "Bohr", "Curie"]
PLACES = ["New York City", "The Hague", "Rio de Janeiro", "Buenos Aires", "Kuala Lumpur", "San Francisco", "Cape Town"]


def names(seed: int = 0, num: int = 60) -> Iterator[dict[str, str]]:
    """People and places of several words, and two candidates."""
    rng = random.Random(seed)
    for index in range(num):
        people = [f"{rng.choice(NAMES)} {rng.choice(FAMILIES)}" for _ in range(2)]
        a, b = people if index % 3 else rng.sample(PLACES, 2)
        yield {
            "question": f"Question {index}: which one is meant by rule {index % 2}, {a} or {b}?",
            "answer": (b, a)[index % 2],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-examples", type=int, default=40)
    parser.add_argument("--only", default="", help="those with this text in their name")
    parser.add_argument("--parts", nargs="+", default=["tuned", "later", "trial"])
    args = parser.parse_args()
    rows = {NUMBERS: list(audit.questions()), TEXTS: list(names())}
    parts = {"tuned": (WRONG, RIGHT), "later": (LATER, RIGHT_LATER)}
    for part, (wrong, right) in parts.items():
        if part in args.parts:
            header(part)
            chosen = [bug for bug in wrong if args.only in bug[0]]
            found = sum(tried(*bug, rows[bug[1]], args.num_examples) for bug in chosen)
            names_of = [f"right_{name}" for name in right if args.only in f"right_{name}"]
            accused = sum(not sound(name, rows[kind], kind, args.num_examples) for name in names_of for kind in rows)
            print(
                f"\n{part}: {found} of {len(chosen)} found and rightly named, {accused} of {2 * len(names_of)} accused"
            )
    if "trial" in args.parts:
        trial(args.num_examples, args.only)


def header(part: str) -> None:
    print(f"\n{part}\n\n| verifier | answers | named by | found | other kinds flagged |\n|---|---|---|---|---|")


def trial(num: int, only: str) -> None:
    header("trial")
    chosen = {name: case for name, case in audit_trial.TRIAL.items() if only in name}
    wrong = {name: case for name, case in chosen.items() if case[1]}
    found = sum(tried(name, "its own", kinds, rows, num, audit_trial) for name, (rows, kinds) in wrong.items())
    right = {name: case for name, case in chosen.items() if not case[1]}
    accused = sum(not sound(name, rows, "its own", num, audit_trial) for name, (rows, _) in right.items())
    print(f"\ntrial: {found} of {len(wrong)} found and rightly named, {accused} of {len(right)} accused")


def tried(
    name: str, answers: str, kinds: tuple[str, ...], rows: Rows, num: int, functions: ModuleType = verifiers
) -> bool:
    flagged, said = judged(name, rows, num, functions)
    named = [kind for kind in flagged if kind in kinds]
    others = audit.listed([kind for kind in flagged if kind not in kinds])
    print(
        f"| `{name}` | {answers} | {', '.join(named) or said} | {'yes' if named else '**no**'} | {others} |", flush=True
    )
    return bool(named)


def sound(name: str, rows: Rows, answers: str, num: int, functions: ModuleType = verifiers) -> bool:
    """Whether nothing wrong is said about a right verifier; one that asks for a template gets it."""
    alarms, said = judged(name, rows, num, functions, alarms=True)
    if said and name in (templates := audit_trial.TEMPLATES if functions is audit_trial else TEMPLATES):
        alarms, more = judged(name, rows, num, functions, alarms=True, answer_template=templates[name])
        said = "asks for a template; with it: " + (more or "nothing")
    print(f"| `{name}` | {answers} | {said or 'nothing'} | | {', '.join(alarms)} |", flush=True)
    return not alarms


def judged(
    name: str, rows: Rows, num: int, functions: ModuleType, alarms: bool = False, **more: Any
) -> tuple[list[str], str]:
    """The kinds that are flagged (or those of alarms alone), and why there are none."""
    try:
        found: Any = rlvr.audit(getattr(functions, name), data=rows, seconds=0, num_examples=num, **more)
    except rlvr.errors.UserError as error:
        return [], f"refused: {str(error)[:160]}"
    return [row.kind for row in found.alarms] if alarms else list(found.flagged), ""


if __name__ == "__main__":
    main()
