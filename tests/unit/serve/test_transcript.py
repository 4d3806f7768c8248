"""Text as its tokens come."""

import random

import pytest

from rlvr.chat.coding import Coder
from rlvr.serve.sampling import Transcript
from tests.unit.chat.tokenizers import byte_tokenizer

CODER = Coder(byte_tokenizer())
TEXT = "The caf\u00e9 costs 3 \u20ac \U0001f600\U0001f468\u200d\U0001f469 END, or not"


def spoken(ids, stops=(), coder=CODER) -> tuple[list[str], Transcript]:
    """The text taken after each token and at the end."""
    transcript, taken = Transcript(coder.stream(), stops), []
    for token in ids:
        transcript.add(token)
        taken.append(transcript.take())
        if transcript.stopped:
            break
    transcript.finish()
    return [*taken, transcript.take()], transcript


def test_pitfall_06_no_character_is_split_and_none_is_lost():
    taken, transcript = spoken(CODER.encode(TEXT))
    assert "".join(taken) == transcript.text == TEXT
    assert not any("\ufffd" in piece for piece in taken)
    assert taken[:3] == ["T", "h", "e"]


def test_invalid_utf8_decodes_as_the_whole():
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(256) for _ in range(rng.randrange(12))]
        taken, _ = spoken(ids)
        assert "".join(taken) == CODER.decode(ids)


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (("END",), "The caf\u00e9 costs 3 \u20ac \U0001f600\U0001f468\u200d\U0001f469 "),
        (("\u20ac",), "The caf\u00e9 costs 3 "),
        (("nothing", "costs 4", "s 3"), "The caf\u00e9 cost"),
        (("T",), ""),
        (("not",), TEXT[:-3]),
        (("ENDE", "nott"), TEXT),
    ],
)
def test_pitfall_14_no_part_of_a_stop_text_is_shown(stops, text):
    taken, transcript = spoken(CODER.encode(TEXT), stops)
    assert "".join(taken) == transcript.text == text
    assert transcript.stopped == (text != TEXT)


def test_the_possible_start_of_a_stop_text_is_held_back():
    assert spoken(CODER.encode("aEEND"), ("END",))[0] == ["a", "", "E", "", "", ""]
    assert spoken(CODER.encode("aENx"), ("END",))[0] == ["a", "", "", "ENx", ""]
    assert spoken(CODER.encode("aEN"), ("END",))[0] == ["a", "", "", "EN"]


def test_stop_texts_are_found_wherever_tokens_are_cut():
    rng = random.Random(1)
    for _ in range(300):
        text = "".join(rng.choice("ab\u00e9") for _ in range(12))
        stops = tuple("".join(rng.choice("ab\u00e9") for _ in range(rng.randint(1, 4))) for _ in range(3))
        taken, transcript = spoken(CODER.encode(text), stops)
        ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
        places = [text.find(stop) for stop in stops if stop in text[: min(ends, default=0)]]
        assert "".join(taken) == transcript.text == (text[: min(places)] if places else text)


def test_a_transcript_ends_once():
    """Half of a character at the end is shown as far as it came, and once; behind a stop text nothing is."""
    ids = CODER.encode("caf\u00e9")[:-1]
    transcript = spoken(ids)[1]
    assert transcript.text == CODER.decode(ids) == "caf\ufffd"
    transcript.finish()
    assert (transcript.text, transcript.take()) == ("caf\ufffd", "")
    stopped = spoken(CODER.encode("aENDb"), ("END",))[1]
    for token in CODER.encode("\u00e9")[:-1]:
        stopped.add(token)
    stopped.finish()
    assert (stopped.text, stopped.take()) == ("a", "")
