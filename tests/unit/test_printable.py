"""Texts of others in our messages: nothing of theirs may control a terminal."""

from rlvr.printable import ascii_text, cut, one_line, printable, table


def test_control_characters_are_escaped_and_lines_stay() -> None:
    assert printable("a\x1b[2J\r\n\tb\u202e é") == "a\\x1b[2J\\r\n\tb\\u202e é"
    assert printable("a\nb", keep="") == "a\\nb"


def test_all_but_ascii_is_escaped_and_the_rest_stays_as_it_is() -> None:
    assert ascii_text("it's C:\\x, é \x1b") == "it's C:\\x, \\xe9 \\x1b"


def test_one_line_is_short_and_has_no_full_stop() -> None:
    assert one_line("  what\nwent \x1b wrong. ") == "what went wrong"
    assert one_line("x" * 500, 10) == "x" * 10


def test_a_long_text_is_cut() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3) == "abc..."


def test_the_columns_of_a_table_are_aligned_and_no_line_ends_in_spaces() -> None:
    assert table([("run", "score"), ("seed=10", "-"), ("", "0.5")]) == "run      score\nseed=10  -\n         0.5"
