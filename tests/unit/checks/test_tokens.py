"""Checks of tokens on small tokenizers; tests/unit/commands/test_doctor.py plants faults in whole models."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from rlvr.chat.coding import Coder
from rlvr.chat.rendering import Chat
from rlvr.checks.tokens import (
    ends_are_special,
    one_bos,
    own_ends_of_thoughts,
    prompt_ends_whole,
    specials_are_whole,
    text_survives,
)
from rlvr.records.checks import Check
from rlvr.tasks.base import Solution
from rlvr.types import Example
from tests.unit.chat.tokenizers import BOS, CHATML, START, byte_tokenizer, user

EACH = CHATML.replace("<|im_start|>{{", f"{BOS}<|im_start|>{{{{")  # before every message


def checked(tokenizer: Any) -> Check:
    chat = Chat(tokenizer)
    patient: Any = SimpleNamespace(
        policy=SimpleNamespace(tokenizer=tokenizer),
        chat=chat,
        prompt=lambda index: (None, chat.encode_prompt([user("Why?")])),
    )
    return one_bos(patient)


@pytest.mark.parametrize(
    ("template", "settings", "wrong"),
    [
        (BOS + CHATML, {"adds_bos": True}, None),
        (BOS + CHATML, {}, None),
        (CHATML, {}, None),  # a token that nothing writes
        (CHATML, {"adds_bos": True, "eos": BOS}, None),  # one token for both ends
        (None, {}, None),
        (CHATML, {"adds_bos": True}, "the tokenizer begins texts with token 259, and the prompt does not"),
        (BOS + BOS + CHATML, {"adds_bos": True}, "the prompt has the beginning token 259 2 times"),
        (BOS + EACH, {"adds_bos": True}, "the prompt has the beginning token 259 2 times"),
        (EACH, {"adds_bos": True}, None),
        (CHATML, {"bos": START}, None),  # the header of every message begins with it
        (START + CHATML, {"bos": START}, "the prompt has the beginning token 256 2 times"),
    ],
)
def test_the_beginning_token_is_written_once(template: str | None, settings: dict[str, Any], wrong: str | None) -> None:
    found = checked(tokenizer := byte_tokenizer(template=template, **settings))
    assert (found.status, found.says) == (
        ("ok", "the prompt begins as the tokenizer begins texts") if wrong is None else ("fail", wrong)
    )
    assert found.evidence["bos_id"] == tokenizer.bos_token_id


def test_a_tokenizer_without_a_beginning_token_needs_none() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = None
    assert checked(tokenizer).status == "ok"


def of(tokenizer: Any, *solutions: str, vocabulary: tuple[str, ...] | None = None, eos: Any = None, **task: Any) -> Any:
    """A patient whose model names `eos` as its end."""
    chat, coder = Chat(tokenizer), Coder(tokenizer)
    example = Example(id="e", messages=(user("Why?"),), answer="")
    right = [Solution(example=example, turns=[text]) for text in solutions]
    plain = {"solutions": lambda num: right, "train_example": lambda index: example}
    text = SimpleNamespace(eos_token_id=eos)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text), generation_config=SimpleNamespace())
    return SimpleNamespace(
        policy=SimpleNamespace(tokenizer=tokenizer),
        model=model,
        chat=chat,
        coder=coder,
        reads=lambda text: bool(text),
        config=SimpleNamespace(seed=0),
        task=SimpleNamespace(**{"stop_words": (), "vocabulary": vocabulary, **plain, **task}),
    )


def byte(letter: str) -> int:
    (token,) = byte_tokenizer().convert_tokens_to_ids([letter])
    return token


def test_a_token_inside_of_a_text_ends_no_completion() -> None:
    assert ends_are_special(of(byte_tokenizer(), "so 7")).status == "ok"
    one = of(byte_tokenizer(), "the answer is 7 and no more")
    one.chat.stop_ids = one.chat.stop_ids | {byte("7")}
    found = ends_are_special(one)
    assert found.status == "fail"
    assert found.evidence["tokens"]["7"] == "swer is 7 and no"  # eight letters before it, and eight from it on
    assert "end tokens are ordinary text ('7')" in found.says
    last = of(byte_tokenizer(), "7", vocabulary=("7",))
    last.chat.stop_ids = last.chat.stop_ids | {byte("7")}
    assert ends_are_special(last).status == "ok"  # at its end, in words of a vocabulary
    early = of(byte_tokenizer(), "7 and", vocabulary=("7",))
    early.chat.stop_ids = early.chat.stop_ids | {byte("7")}
    assert ends_are_special(early).evidence["tokens"] == {"7": "7 and"}


def test_an_end_that_is_no_special_token_is_one_of_the_tasks_words() -> None:
    for stop_words, status in (((), "fail"), (("\x07",), "ok")):
        one = of(byte_tokenizer(), "so", stop_words=stop_words)
        one.chat.stop_ids = one.chat.stop_ids | {one.coder.encode("\x07")[0]}
        found = ends_are_special(one)
        assert found.status == status
        if status == "fail":
            assert [*found.evidence["tokens"].values()] == ["the words of the tokenizer: it is no special token"]


@pytest.mark.parametrize("template", [CHATML, None])
def test_the_end_of_thoughts_ends_no_completion(template: str | None) -> None:
    """Unless it is the end of a turn, too."""
    tokenizer = byte_tokenizer(template=template)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    (close,) = tokenizer.convert_tokens_to_ids(["</think>"])
    assert own_ends_of_thoughts(of(tokenizer)) == set()
    one = of(tokenizer, eos=[close, 5])
    assert own_ends_of_thoughts(one) == {close}
    found = ends_are_special(one)
    assert found.status == "ok" or found.evidence["tokens"] == {}  # it is not among the ends that are named
    one.chat.stop_ids = one.chat.stop_ids | {close}
    assert ends_are_special(one).evidence["tokens"] == {"</think>": "the end of reasoning: the answer follows it"}
    turn = byte_tokenizer(template=CHATML.replace("<|im_end|>", "</think>"))
    turn.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    turn.eos_token = "</think>"
    assert own_ends_of_thoughts(of(turn)) == set()


def test_texts_come_back_as_they_were() -> None:
    found = text_survives(of(byte_tokenizer(), "so 7"))
    assert found.status == "ok"
    one = of(byte_tokenizer(), "A b")
    one.chat = SimpleNamespace(decode=lambda ids: one.coder.decode(ids).lower())
    found = text_survives(one)
    assert found.status == "fail"
    assert len(found.evidence["examples"]) == 3
    assert found.evidence["examples"][0]["text"] == "A b"
    spaced = of(byte_tokenizer(), "a  b", vocabulary=("a", "b"))
    spaced.chat = SimpleNamespace(decode=lambda ids: " ".join(one.coder.decode(ids).split()))
    assert text_survives(spaced).status == "ok"  # words alone count
    assert "1 texts" in text_survives(spaced).says


def test_special_tokens_are_read_as_such() -> None:
    tokenizer = byte_tokenizer()
    patient: Any = SimpleNamespace(
        policy=SimpleNamespace(tokenizer=tokenizer), chat=Chat(tokenizer), coder=Coder(tokenizer)
    )
    assert specials_are_whole(patient).status == "ok"
    tokenizer.backend_tokenizer.encode_special_tokens = True
    found = specials_are_whole(patient)
    assert found.status == "fail"
    assert found.evidence["tokens"] == ["<|im_start|>", "<|im_end|>"]


@pytest.mark.parametrize(
    ("asked", "status"),
    [("Q: 3 + 4\nA:", "ok"), ("Q: 3 + 4\nA: ", "fail"), ("Q: 3 + 4\nA:\n", "ok"), ("Q: 3 + 4 ", "fail")],
)
def test_a_prompt_does_not_end_within_a_token(asked: str, status: str) -> None:
    tokenizer = spaced_tokenizer()
    coder = Coder(tokenizer)
    patient: Any = SimpleNamespace(
        task=SimpleNamespace(vocabulary=None, answered=lambda answer: answer),
        chat=Chat(tokenizer),
        coder=coder,
        prompt=lambda index: (SimpleNamespace(answer="7"), coder.encode(asked)),
    )
    assert prompt_ends_whole(patient).status == status


def spaced_tokenizer() -> Any:
    """Bytes, and one token for a space with a 7."""
    tokenizer = byte_tokenizer(template=None)
    inner = json.loads(tokenizer.backend_tokenizer.to_str())
    inner["model"]["vocab"]["Ġ7"] = max(inner["model"]["vocab"].values()) + 20
    inner["model"]["merges"] = [["Ġ", "7"]]
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(inner)), eos_token="<|im_end|>")
