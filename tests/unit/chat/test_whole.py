"""Each way into the model gives the tokens of the template's own rendering of the whole conversation."""

from typing import Any

import pytest
from hypothesis import Phase, given, settings

from rlvr.chat.rendering import Chat
from tests.unit.chat import trl_templates
from tests.unit.chat.test_template import CHATML, FIELDS, HERMES, SMOLLM2
from tests.unit.chat.tokenizers import template_tokenizer
from tests.unit.chat.whole import KINDS, KNOWN, conversations, differences, is_shown, reason

OWN = {"chatml": CHATML, "fields": FIELDS, "hermes": HERMES, "smollm2": SMOLLM2}
CHOSEN = ("qwen3", "nemotron_3_nano", "gemma4_v5", "gptoss", "qwen3_vl")  # benchmarks/templates.py tries all
NAMES = [*OWN, *(name for name in CHOSEN if name in trl_templates.names())]


def chat_of(name: str) -> Chat:
    return Chat(template_tokenizer(OWN[name])) if name in OWN else trl_templates.chat_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_is_rendered_as_the_template_renders_the_whole(name: str) -> None:
    """Turn by turn, as a demonstration, as a prompt of data and through the server, letter by letter."""
    chat, shown = chat_of(name), set[str]()

    def check(kind: str) -> None:
        @settings(max_examples=2, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
        @given(conversations(kind, chat.marks))
        def equal(case: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
            messages, tools = case
            if is_shown(chat, messages, tools):
                shown.add(kind)
                for door, found, wanted in differences(chat, messages, tools, arrow=kind == "arrow"):
                    assert reason(name, kind, door), (kind, door, found, wanted)

        equal()

    for kind in KINDS:
        check(kind)
    assert {"plain", "inline"} <= shown
    assert chat.template is not None
    if chat.template.native and chat.template.can.many_calls:
        assert {"call", "parallel", "bare", "nested", "arrow"} <= shown


def test_what_is_known_to_differ_says_why_and_covers_no_more_than_it_must() -> None:
    for name in [*OWN, "qwen3", "qwen3_5_think", "lfm2_v2", "qwen2_5"]:
        assert not any(reason(name, kind, door) for kind in KINDS for door in ("prompt", "rollout", "serve"))
    assert len({one.why for one in KNOWN}) == len(KNOWN)
