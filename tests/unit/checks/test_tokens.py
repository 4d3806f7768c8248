"""Checks of tokens on small tokenizers; tests/unit/commands/test_doctor.py plants faults in whole models."""

from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.chat.rendering import Chat
from rlvr.checks.tokens import one_bos
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
