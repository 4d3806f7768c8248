"""The append-only rule, and tool calls, on every chat template that TRL ships."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr.chat.history import behind
from rlvr.chat.rendering import Chat
from rlvr.types import Message, StopReason, ToolCall
from tests.unit.chat import trl_templates
from tests.unit.chat.tokenizers import encode
from tests.unit.chat.trl_templates import CASES, QUESTION, SURE, TOOL, Case, answers, call, family

NAMES = trl_templates.names()
if not NAMES:
    pytest.skip(f"TRL {trl_templates.VERSION}* is not installed: pip install -e '.[test]'", allow_module_level=True)


def dense(text: str) -> str:
    return "".join(text.split())


def as_rendered(chat: Chat, said: Message, reply: Sequence[Message]) -> tuple[int, ...]:
    """The completion that the template renders for a message, with its stop token."""
    prompt = chat.decode(chat.encode_prompt([QUESTION], [TOOL]))
    whole = chat.template.render([QUESTION, said], header=False, tools=[TOOL])
    assert whole.startswith(prompt), "the header is not what history has in its place"
    ids = encode(chat._tokenizer, whole[len(prompt) :])
    stops = [index for index, token in enumerate(ids) if token in chat.stop_ids]
    if stops:
        return ids[: stops[0] + 1]
    next_stop = [
        token for token in encode(chat._tokenizer, behind(chat.template, said, reply)) if token in chat.stop_ids
    ]
    return (*ids, next_stop[0])  # GLM: the next header ends a turn


def next_prompt(
    chat: Chat, prompt: tuple[int, ...], completion: tuple[int, ...], reply: Sequence[Message]
) -> tuple[tuple[int, ...], list[Message], bool]:
    """The next prompt, the conversation it is made of, and whether the template rewrites it."""
    said = chat.parse(completion, StopReason.STOP, [TOOL])
    rewritten = chat._history.rewritten([QUESTION, said], reply, [TOOL])
    following = chat.next_prompt(prompt, completion, [QUESTION, said], reply, [TOOL])
    return following, [QUESTION, said, *reply], rewritten


PAGE = Path(__file__).parents[3] / "docs" / "chat.md"
HEADER_IS_TAKEN_BACK = {"deepseek_r1_distill", "deepseekv3"}  # <think> of the header
HEADER_IS_CLOSED = {f"nemotron_3_{size}" for size in ("nano", "super", "ultra", "5_lightning")}  # <think></think>
SPACES_ARE_TRIMMED = {"idefics3", "smolvlm", "llava_next"}
RETURN_IS_AN_END = {"gptoss"}  # the last answer of all ends otherwise than those before


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if family(n) not in HEADER_IS_TAKEN_BACK | HEADER_IS_CLOSED])
def test_pitfall_04_replies_are_what_the_template_has_there(name: str) -> None:
    """Completions as the template renders them: then the whole prompt must be the template's, every character."""
    chat = trl_templates.chat_of(name)
    for num_calls in range(3 if chat.template.can.many_calls else 2):
        calls = [call(index) for index in range(num_calls)]
        said = Message(role="assistant", content="" if calls else "Ann.", tool_calls=tuple(calls))
        replied = answers(calls) or [SURE]
        prompt, completion = chat.encode_prompt([QUESTION], [TOOL]), as_rendered(chat, said, replied)
        following, conversation, rewritten = next_prompt(chat, prompt, completion, replied)
        wanted, found = chat.template.render(conversation, tools=[TOOL]), chat.decode(following)
        assert rewritten or following[: len(prompt) + len(completion)] == prompt + completion
        if family(name) in SPACES_ARE_TRIMMED:
            wanted, found = dense(wanted), dense(found)
        elif family(name) in RETURN_IS_AN_END and not calls:
            wanted = wanted.replace("Ann.<|end|>", "Ann.<|return|>")
        assert found == wanted


@pytest.mark.parametrize("name", [n for n in NAMES if family(n) not in HEADER_IS_TAKEN_BACK | HEADER_IS_CLOSED])
def test_a_demonstrated_message_is_what_the_template_renders(name: str) -> None:
    """With its end token, and it is read back."""
    chat = trl_templates.chat_of(name)
    for num_calls in range(3 if chat.template.can.many_calls else 2):
        calls = [call(index) for index in range(num_calls)]
        said = Message(role="assistant", content="" if calls else "Ann.", tool_calls=tuple(calls))
        ids = chat.encode_completion(said, [TOOL])
        assert ids == as_rendered(chat, said, answers(calls) or [SURE])
        read = chat.parse(ids, StopReason.STOP, [TOOL])
        assert [(one.name, one.arguments) for one in read.tool_calls] == [(c.name, c.arguments) for c in calls]
        assert said.content in read.content


@pytest.mark.parametrize("name", [n for n in NAMES if family(n) in HEADER_IS_TAKEN_BACK | HEADER_IS_CLOSED])
def test_a_demonstrated_message_ends_the_reasoning_that_the_header_opens(name: str) -> None:
    chat = trl_templates.chat_of(name)
    text = chat.decode(chat.encode_completion(Message(role="assistant", content="Ann."))[:-1])
    taken_back = "</think>\nAnn." if chat.template.can.opened else "Ann."
    assert text == (taken_back if family(name) in HEADER_IS_TAKEN_BACK else "</think>Ann.")


@pytest.mark.parametrize("name", NAMES)
def test_a_demonstrated_text_stands_as_it_is(name: str) -> None:
    chat = trl_templates.chat_of(name)
    *text, end = chat.encode_completion(" Ann. \n")
    assert chat.decode(text) == " Ann. \n"
    assert end in chat.stop_ids


def test_calls_of_one_message_follow_each_other_where_the_template_shows_one() -> None:
    chat = trl_templates.chat_of("gptoss")
    calls = [call(index) for index in range(3)]
    said = Message(role="assistant", content="", tool_calls=tuple(calls), reasoning="Who knows?")
    for replies in (answers(calls), answers(calls)[::-1]):
        text = chat.decode(chat.encode_prompt([QUESTION, said, *replies], [TOOL]))
        places = [text.find(word) for n in range(3) for word in (f"number {n}", f"found call_{n}")]
        assert -1 not in places
        assert places == sorted(places)
        assert text.count("Who knows?") == 1


SAID = [("user", "Who?"), ("assistant", "Ann."), ("user", "Sure?")]


@pytest.mark.parametrize("name", [n for n in NAMES if family(n) not in SPACES_ARE_TRIMMED])
def test_a_first_prompt_is_what_the_tokenizer_renders(name: str) -> None:
    chat = trl_templates.chat_of(name)
    shown = [dict(TOOL)] if chat.template.can.tools else None
    messages = [{"role": role, "content": text} for role, text in SAID]
    wanted = chat._tokenizer.apply_chat_template(messages, tools=shown, add_generation_prompt=True, tokenize=False)
    said = [QUESTION, Message(role="assistant", content="Ann."), SURE]
    assert chat.decode(chat.encode_prompt(said, [TOOL] if shown else [])) == wanted
    described = chat.decode(chat.encode_prompt(said, [TOOL]))
    assert "look_up" in described
    assert "top_n" in described


@pytest.mark.parametrize("name", NAMES)
def test_pitfall_07_a_prompt_is_extended_unless_rewritten(name: str) -> None:
    chat = trl_templates.chat_of(name)
    for case in CASES:
        prompt, completion = chat.encode_prompt([QUESTION], [TOOL]), case.completion(chat)
        reply = answers([call()]) if case.calls else [SURE]
        following, conversation, rewritten = next_prompt(chat, prompt, completion, reply)
        assert conversation[1].tool_calls == ((call(),) if case.calls else ())
        wanted = chat.template.render(conversation, tools=[TOOL])
        if case.thinks:  # what it thought must not be in a prompt, unless the template has it there
            assert rewritten or "Hm." in wanted
        extended = following[: len(prompt) + len(completion)] == prompt + completion
        assert extended is not rewritten
        if rewritten:
            assert following == encode(chat._tokenizer, wanted)
        else:
            assert wanted.endswith(chat.decode(following[len(prompt) + len(completion) :]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("thinks", [True, False])  # in the last turn; what is taken back was said before
def test_pitfall_07_three_turns_are_extended_or_rendered_again(name: str, thinks: bool) -> None:
    chat = trl_templates.chat_of(name)
    conversation, prompt, extended = [QUESTION], chat.encode_prompt([QUESTION], [TOOL]), []
    for case in (Case(thinks=True, calls=True), Case(thinks=True, calls=True), Case(thinks, calls=False)):
        completion = case.completion(chat)
        conversation.append(chat.parse(completion, StopReason.STOP, [TOOL]))
        reply = answers([call()]) if case.calls else [SURE]
        following = chat.next_prompt(prompt, completion, conversation, reply, [TOOL])
        conversation += reply
        extended.append(following[: len(prompt) + len(completion)] == prompt + completion)
        if not extended[-1]:
            assert following == encode(chat._tokenizer, chat.template.render(conversation, tools=[TOOL]))
        assert chat.decode(following).rstrip().endswith(trl_templates.header(chat, reply))
        prompt = following
    if trl_templates.row(name).endswith("| nothing | nothing |"):
        assert extended == [True, True, True]
    elif trl_templates.row(name).endswith("| reasoning | nothing |"):
        assert extended == [True, True, False]


MALFORMED = {
    "llama": '{"name": "look_up", "parameters": {',
    "harmony": " to=functions.look_up<|channel|>commentary json<|message|>{",
    "atem": " to=look_up<|message|><atem:function_calls></atem:function_calls>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look_up<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "gemma": "<|tool_call>look_up<tool_call|>",
    "lfm": "<|tool_call_start|>[look_up(]<|tool_call_end|>",
}
TAGS = "<tool_call>{</tool_call>"


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_goes_on_after_a_malformed_call(name: str) -> None:
    chat = trl_templates.chat_of(name)
    begun = "</think>" if chat.template.can.opened else ""
    text = encode(chat._tokenizer, begun + MALFORMED.get(chat.tool_format.name, TAGS))
    completion = (*text, min(chat.stop_ids - {chat._tokenizer.eos_token_id}))
    (wrong,) = chat.parse(completion, StopReason.STOP, [TOOL]).tool_calls
    assert wrong.problem
    reply = [Message(role="tool", content=wrong.problem, name=wrong.name, call_id=wrong.id)]
    prompt = chat.encode_prompt([QUESTION], [TOOL])
    following, _, rewritten = next_prompt(chat, prompt, completion, reply)
    assert not rewritten or family(name) in HEADER_IS_TAKEN_BACK
    assert rewritten or following[: len(prompt) + len(completion)] == prompt + completion
    assert chat.decode(following).replace("< ", "<").count(wrong.problem) == 1  # special tokens are spelled apart


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_is_done_for_the_template(name: str) -> None:
    if family(name) == name:
        assert trl_templates.row(name) in PAGE.read_text().splitlines()


VALUES: dict[str, Any] = {
    "query": "who is\nnumber 1?",
    "top_n": 3,
    "ratio": 0.5,
    "exact": True,
    "ids": ["1", "2"],
    "more": {"of": [1, None, {"it": "all"}]},
}
QUOTES = {"query": """it's <b> "so" & {so}: é, 日本 </b>"""}
UNESCAPED = {"lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl"}  # their templates write quotes as they are
NATIVE = [n for n in NAMES if n in trl_templates.names() and family(n) not in HEADER_IS_TAKEN_BACK | HEADER_IS_CLOSED]


@pytest.mark.parametrize("name", [n for n in NATIVE if n != "qwen2_5_vl"])
def test_a_call_that_the_template_renders_is_read_back(name: str) -> None:
    chat = trl_templates.chat_of(name)
    for arguments in (VALUES, {} if family(name) in UNESCAPED else QUOTES, {"query": "3"}, {}):
        said = Message(
            role="assistant", content="", tool_calls=(ToolCall(id="call_0", name="look_up", arguments=arguments),)
        )
        completion = as_rendered(chat, said, answers(said.tool_calls))
        read = chat.parse(completion, StopReason.STOP, [TOOL])
        assert read.tool_calls == said.tool_calls
        cut = completion[: len(completion) // 2]
        assert chat.parse(cut, StopReason.LENGTH, [TOOL]).tool_calls == ()


def test_every_family_that_defines_tool_calls_is_known() -> None:
    """A template that speaks of `tool_calls` and renders them is read in its own format."""
    spoken = {family(name): trl_templates.chat_of(name).template for name in NAMES}
    found = {name: template.format.name for name, template in spoken.items() if template and template.native}
    assert found == {
        "deepseekv3": "deepseek", "glm4moe": "glm", "gptoss": "harmony", "muse_glimmer": "atem",
        "llama3_1": "llama", "llama3_2": "llama",
        **dict.fromkeys(["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"], "hermes"),
        **dict.fromkeys(["qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8", *HEADER_IS_CLOSED], "xml"),
        **dict.fromkeys(["gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5", "diffusion_gemma"], "gemma"),
        **dict.fromkeys(["lfm2_v2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl"], "lfm"),
    }  # fmt: skip
