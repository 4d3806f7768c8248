"""GSM8K's official scoring: the first `#### N`, compared as text."""

import re

ANSWER = re.compile(r"#### (-?[0-9.,]+)")
INVALID = "[invalid]"


def extract(completion: str) -> str:
    """The number after the first `#### ` without commas; or INVALID.

    Exactly one space is allowed, and no leading `$` or `+`. `#### 1,234 eggs` gives `1234`, `#### 18.` gives `18.`.
    """
    found = ANSWER.search(completion)
    return found.group(1).replace(",", "") if found else INVALID


def is_correct(prediction: str, gold: str) -> bool:
    """Equality of the extracted texts: 18.0 is not 18. ValueError: the gold has no `#### N`."""
    wanted = extract(gold)
    if wanted == INVALID:
        raise ValueError("the gold answer has no line `#### N`")
    return extract(prediction) == wanted
