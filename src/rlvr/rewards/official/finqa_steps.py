"""The program language of FinQA: text to tokens, tokens to steps.

A program is a list of tokens, four to a step and `EOF` at the end:

    subtract(5829, 5735), divide(#0, 5735)
    ["subtract(", "5829", "5735", ")", "divide(", "#0", "5735", ")", "EOF"]

The official script joins the tokens again and cuts the text at `)`, `(` and `|`. So does this file: arguments may hold
such characters, and then the verdict depends on where the cuts fall.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ARITHMETIC = ("add", "subtract", "multiply", "divide", "exp", "greater")
TABLE = ("table_max", "table_min", "table_sum", "table_average")
END = "EOF"
TOKEN = re.compile(r"[^()]*\(|\)|[^()]+")


def tokens(program: str) -> list[str]:
    """The tokens of a program's text, `EOF` included; cut at `", "` and at parentheses, as the official script does."""
    return [*(token for piece in program.split(", ") for token in TOKEN.findall(piece)), END]


def is_well_formed(body: Sequence[str]) -> bool:
    """True if tokens 0, 4, 8... name an operation and tokens 3, 7, 11... are `)`.

    `body` has no `EOF`. The parenthesis of an operation is not looked at: `add` and `(add((` pass here.
    """
    operations = all(token.strip("(") in ARITHMETIC + TABLE for token in body[::4])
    return operations and all(token == ")" for token in body[3::4])


def steps(body: Sequence[str]) -> list[str]:
    """The text of each step, `subtract(|5829|5735|`; later ones begin with `|`. What follows the last `)` is lost."""
    return [step.strip() for step in "|".join(body).split(")")[:-1]]


def parts(step: str) -> tuple[str, str, str]:
    """Operation and both arguments of a step.

    Raises:
        IndexError: no `(`, or fewer than two arguments.
    """
    pieces = step.split("(")
    operation, arguments = pieces[0].strip("|").strip(), pieces[1].strip("|").strip().split("|")
    return operation, arguments[0].strip(), arguments[1].strip()
