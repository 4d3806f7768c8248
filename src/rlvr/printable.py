"""Texts in our messages: nothing of others (data, models, servers, files) may control a terminal; tables."""

from collections.abc import Sequence


def printable(text: str, keep: str = "\n\t") -> str:
    """The text with control characters and the like escaped, except those in `keep`: `\\x1b[2J`."""
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


def ascii_text(text: str) -> str:
    """The text with all but printable ASCII escaped."""
    return printable(text, keep="").encode("ascii", "backslashreplace").decode("ascii")


def one_line(text: str, limit: int = 300) -> str:
    """What is printable of the text, on one line of at most `limit` characters without a full stop."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 2 * limit])
    return " ".join(shown.split())[:limit].rstrip(".")


def cut(text: str, limit: int) -> str:
    """The text, or its first `limit` characters and three dots."""
    return text if len(text) <= limit else f"{text[:limit]}..."


def table(rows: Sequence[Sequence[str]]) -> str:
    """The rows as lines, their cells in columns with two spaces between."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
