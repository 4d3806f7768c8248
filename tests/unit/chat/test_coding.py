"""The fast encoder and decoder agree with transformers."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from rlvr.chat.coding import Coder
from rlvr.chat.rendering import Chat
from rlvr.errors import UserError
from rlvr.models.scratch import build_tokenizer
from tests.unit.chat.tokenizers import SEARCH, byte_tokenizer, user

BYTES = byte_tokenizer(adds_bos=True)
CODER = Coder(BYTES)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(text=st.text(max_size=40), pieces=st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", " ", "\n", "é"])))
def test_ids_and_text_are_those_of_transformers(text: str, pieces: list[str]) -> None:
    text = text + "".join(pieces) + text
    ids = BYTES.encode(text, add_special_tokens=False)
    assert CODER.encode(text) == tuple(ids)
    cut = ids[: len(ids) // 2]  # perhaps in the middle of a letter
    wanted = BYTES.decode(cut, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert CODER.decode(cut) == CODER.decode(tuple(cut)) == wanted


def test_foreign_padding_and_truncation_change_nothing() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(2)
    coder = Coder(tokenizer)
    assert len(coder.encode("abc")) == 3
    tokenizer(["abc", "a"], padding=True, truncation=True, max_length=2)
    assert len(coder.encode("abc")) == 3
    assert len(coder.encode("a")) == 1


class Shouting(PreTrainedTokenizerFast):
    def _decode(self, *args, **kwargs) -> str:
        return super()._decode(*args, **kwargs).upper()


def test_an_overridden_decode_is_used() -> None:
    coder = Coder(Shouting(tokenizer_object=BYTES.backend_tokenizer))
    assert coder.decode(coder.encode("abc")) == "ABC"


def test_an_unknown_word_is_one_sentence() -> None:
    coder = Coder(build_tokenizer(["<pad>", "<boe>", "<eoe>", "a"]))
    assert coder.encode("a a") == (3, 3)
    with pytest.raises(UserError, match="cannot encode 'a b': use a model made for it"):
        coder.encode("a b")


def test_pitfall_38_cached_prompts_are_not_mixed_up() -> None:
    chat = Chat(byte_tokenizer())
    prompts: dict[tuple[str | None, str], set[tuple[int, ...]]] = {}
    for _ in range(2):
        for name, question in product(("search", "read", None), "ab"):
            schema: Any = SEARCH | {"function": SEARCH["function"] | {"name": name}}
            tools = [schema] if name else []  # a new list, whose id may be that of an old one
            prompts.setdefault((name, question), set()).add(chat.encode_prompt([user(question)], tools))
    assert [len(found) for found in prompts.values()] == [1] * 6
    assert len(set.union(*prompts.values())) == 6
    for (name, question), (found,) in prompts.items():
        text = chat.decode(found)
        assert name is None or name in text
        assert f"\n{question}<|im_end|>" in text
