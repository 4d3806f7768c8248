"""The short way between text and ids gives what transformers gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from rlvr.chat.coding import Coder
from rlvr.chat.rendering import Chat
from rlvr.errors import UserError
from rlvr.models.scratch import build_tokenizer
from rlvr.types import Message
from tests.unit.chat.tokenizers import byte_tokenizer

BYTES = byte_tokenizer(adds_bos=True)
CODER = Coder(BYTES)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(text=st.text(max_size=40), pieces=st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", " ", "\n", "é"])))
def test_ids_and_text_are_those_of_transformers(text: str, pieces: list[str]) -> None:
    text = text + "".join(pieces) + text
    ids = BYTES.encode(text, add_special_tokens=False)
    assert CODER.encode(text) == tuple(ids)
    cut = ids[: len(ids) // 2]  # perhaps in the middle of a letter
    wanted = BYTES.decode(cut, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert CODER.decode(cut) == CODER.decode(tuple(cut)) == wanted


def test_padding_and_truncation_that_others_set_change_nothing() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(2)
    coder = Coder(tokenizer)
    assert len(coder.encode("abc")) == 3
    tokenizer(["abc", "a"], padding=True, truncation=True, max_length=2)
    assert len(coder.encode("abc")) == 3
    assert len(coder.encode("a")) == 1


class Shouting(PreTrainedTokenizerFast):
    """A tokenizer with a mind of its own."""

    def _decode(self, *args, **kwargs) -> str:
        return super()._decode(*args, **kwargs).upper()


def test_a_tokenizer_with_a_way_of_its_own_is_asked() -> None:
    shouting = Shouting(tokenizer_object=BYTES.backend_tokenizer)
    coder = Coder(shouting)
    assert coder.decode(coder.encode("abc")) == "ABC"


def test_a_word_that_the_tokenizer_does_not_know_is_one_sentence() -> None:
    coder = Coder(build_tokenizer(["<pad>", "<boe>", "<eoe>", "a"]))
    assert coder.encode("a a") == (3, 3)
    with pytest.raises(UserError, match="cannot encode 'a b': use a model made for it"):
        coder.encode("a b")


def schema(name: str) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}


def test_pitfall_38_prompts_that_are_remembered_are_not_mixed_up() -> None:
    chat = Chat(byte_tokenizer())
    questions = [[Message(role="user", content=text)] for text in ("a", "b")]
    prompts = {}
    for _ in range(2):
        for name in ("search", "read", None):
            for number, messages in enumerate(questions):
                tools = [schema(name)] if name else []  # a new list, whose id may be that of an old one
                prompts.setdefault((name, number), set()).add(chat.encode_prompt(messages, tools))
    assert [len(found) for found in prompts.values()] == [1] * 6
    assert len(set.union(*prompts.values())) == 6
    for (name, number), found in prompts.items():
        text = chat.decode(next(iter(found)))
        assert (name or "no tool") in text or name is None
        assert f"\n{'ab'[number]}<|im_end|>" in text
