"""Checks of tokens on small tokenizers; tests/unit/commands/test_doctor.py plants faults in whole models."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from rlvr.chat.coding import Coder
from rlvr.chat.rendering import Chat
from rlvr.checks.tokens import one_bos, prompt_ends_whole, specials_are_whole
from rlvr.tracking.checks import Check
from tests.unit.chat.tokenizers import BOS, CHATML, byte_tokenizer, user

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
        (EACH, {"adds_bos": True}, "the prompt has the beginning token 259 2 times"),
    ],
)
def test_the_beginning_token_is_written_once(template: str | None, settings: dict[str, Any], wrong: str | None) -> None:
    found = checked(byte_tokenizer(template=template, **settings))
    assert (found.status, found.says) == (
        ("ok", "the prompt begins as the tokenizer begins texts") if wrong is None else ("fail", wrong)
    )
    assert found.evidence["bos_id"] == 259


def test_a_tokenizer_without_a_beginning_token_needs_none() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = None
    assert checked(tokenizer).status == "ok"


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
