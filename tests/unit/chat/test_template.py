"""Templates without tools, a tool role or calls, and what replaces them."""

import json
from dataclasses import replace

import pytest

from rlvr.chat.rendering import Chat
from rlvr.errors import UserError
from rlvr.types import Message, StopReason, ToolCall
from tests.unit.chat.tokenizers import (
    CHATML,
    END,
    SEARCH,
    START,
    answer,
    byte_tokenizer,
    ended,
    template_tokenizer,
    user,
)

SHOWS_TOOLS = "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}" + CHATML
HERMES = SHOWS_TOOLS.replace(
    "{{ m['content'] }}",
    "{{ m['content'] }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}',
)
MISTRAL = (  # of 7B v0.3, without its defaults
    "{{ bos_token }}{% set last = namespace(user=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and loop.index0 == last.user %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' and m.tool_calls %}[TOOL_CALLS] ["
    "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "{{ ', ' if not loop.last }}{% endfor %}]{{ eos_token }}"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% elif m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role == 'assistant' and not messages[loop.index0 - 1].tool_calls %}"
    "{{ raise_exception('an answer to no call') }}{% endif %}"
    '[TOOL_RESULTS] {"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}"
)
FIELDS = (  # Qwen3's: reasoning is a field, or between marks, and shown only behind the last question
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% set said = m.content %}{% set thought = m.reasoning_content %}"
    "{% if m.role == 'assistant' and thought is not string and '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and thought is string and loop.index0 > ns.last %}"
    "<think>\n{{ thought.strip('\n') }}\n</think>\n\n{{ said.lstrip('\n') }}{% else %}{{ said }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENS = CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")


def calling(query: str, number: int = 0) -> ToolCall:
    return ToolCall(id=f"call_{number}", name="search", arguments={"query": query})


def prompt(chat: Chat, *messages: Message) -> str:
    return chat.decode(chat.encode_prompt(messages, [SEARCH]))


def test_a_template_that_shows_tools_gets_the_schemas() -> None:
    chat = Chat(byte_tokenizer(template=HERMES))
    assert prompt(chat, user("Who?")).startswith(f"{START}tools\n{json.dumps([SEARCH])}{END}\n{START}user\nWho?{END}")
    assert START + "tools" not in chat.decode(chat.encode_prompt([user("Who?")]))


@pytest.mark.parametrize("tool_format", ["hermes", "llama", "words"])
def test_a_template_without_tools_describes_them_to_the_system(tool_format: str) -> None:
    chat = Chat(byte_tokenizer(), tool_format=tool_format)
    said = {"hermes": "<tool_call>", "llama": '"parameters": dictionary', "words": "<call> search QUERY </call>"}
    text = prompt(chat, Message(role="system", content="Be brief."), user("Who?"))
    system, _, rest = text.partition(END)
    assert system.startswith(f"{START}system\nBe brief.\n\n")
    assert said[tool_format] in system
    assert rest == f"\n{START}user\nWho?{END}\n{START}assistant\n"
    assert said[tool_format] in prompt(chat, user("Who?")).partition(END)[0]


def test_mistral_wants_calls_first_and_ids_of_nine_characters() -> None:
    chat = Chat(template_tokenizer(MISTRAL))
    eos = str(chat._tokenizer.eos_token)
    assert chat.tool_format.name == "mistral"
    one, two = ({"name": "search", "arguments": {"query": query}} for query in ("Ann", "Bo"))
    text = f"[TOOL_CALLS] {json.dumps([one, two])}"
    first, completion = chat.encode_prompt([user("Who?")], [SEARCH]), ended(chat, text, eos)
    said = chat.parse(completion, StopReason.STOP, [SEARCH])
    assert said.tool_calls == (calling("Ann"), calling("Bo", 1))
    reply = [answer(f"text {i}", i) for i in range(2)]
    following = chat.next_prompt(first, completion, [user("Who?"), said], reply, [SEARCH])
    assert following[: len(first + completion)] == first + completion
    assert chat.decode(following[len(first + completion) :]) == "".join(
        f'[TOOL_RESULTS] {{"content": "text {i}", "call_id": "call0000{i}"}}[/TOOL_RESULTS]' for i in range(2)
    )
    # it shows the tools before the last question only: a further question rewrites the prompt
    final = chat.parse(ended(chat, "Ann.", eos), StopReason.STOP, [SEARCH])
    conversation = [user("Who?"), said, *reply, final]
    anew = chat.decode(chat.next_prompt(following, ended(chat, "Ann.", eos), conversation, [user("Sure?")], [SEARCH]))
    assert anew.count("[AVAILABLE_TOOLS]") == 1
    assert anew.index("[AVAILABLE_TOOLS]") > anew.index("Ann.")
    # a malformed call is answered too, although the template wants to see a call
    wrong = chat.parse(ended(chat, "[TOOL_CALLS] search", eos), StopReason.STOP, [SEARCH])
    said_no = [Message(role="tool", content="no JSON", name="", call_id="call_0")]
    text = chat.decode(chat.next_prompt(first, (5,), [user("Who?"), wrong], said_no, [SEARCH]))
    assert text.count("no JSON") == 1


STRICT = (  # Gemma's: only users and models, in turn
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('in turn') }}"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("tool_format", "shown"), [("hermes", "<tool_response>\n{}\n</tool_response>"), ("words", "{}")]
)
def test_without_a_tool_role_the_user_says_what_was_found(tool_format: str, shown: str) -> None:
    chat = Chat(byte_tokenizer(template=STRICT), tool_format=tool_format)
    reply = [answer(f"text {i}", i) for i in range(2)]
    said = Message(role="assistant", content="", tool_calls=(calling("Ann"), calling("Bo", 1)))
    answered = "\n".join([shown.format("text 0"), shown.format("text 1"), "Well?"])
    tail = f"\n{START}user\n{answered}{END}\n{START}assistant\n"
    assert chat.decode(chat.encode_reply([*reply, user("Well?")], said=said)) == tail
    assert prompt(chat, user("Who?"), said, *reply, user("Well?")).endswith(tail)


ROLES = CHATML.replace("{{ m['role'] }}", "{{ 'results' if m['role'] == 'tool' else m['role'] }}")
SPELLED = "{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}\n{% endfor %}Assistant:"
REST = CHATML.replace("{{ m['role'] }}", "{{ m.role if m.role in ('user', 'assistant', 'system') else 'other' }}")
SMOLLM2 = (  # of SmolLM2-135M-Instruct to 1.7B
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
    "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GRANITE = CHATML.replace("{% for", "{# write <|tool_call|> and a list #}{% for", 1)


@pytest.mark.parametrize(
    ("template", "known"),
    [
        *((template, False) for template in (CHATML, SMOLLM2, SPELLED, REST)),
        *((template, True) for template in (ROLES, SHOWS_TOOLS, HERMES)),
    ],
)
def test_a_template_that_takes_an_invented_role_does_not_know_tools(template: str, known: bool) -> None:
    """Unless it renders tools or calls: then it is made for them (LFM2)."""
    chat = Chat(template_tokenizer(template))
    text = prompt(chat, user("Who?"), Message(role="assistant", content="", tool_calls=(calling("Ann"),)), answer())
    assert ("<tool_response>\nfound\n</tool_response>" in text) is not known


@pytest.mark.parametrize(
    ("template", "written"), [(SMOLLM2, "<tool_call>[{"), (GRANITE, "<|tool_call|>[{"), (CHATML, "<tool_call>\n{")]
)
def test_a_family_calls_as_it_was_taught_although_its_template_shows_no_calls(template: str, written: str) -> None:
    """What is appended is what the template renders of the whole conversation."""
    chat = Chat(template_tokenizer(template))
    asked, ids = [user("Who?")], chat.encode_prompt([user("Who?")], [SEARCH])
    for turn in range(3):
        calls = tuple(calling(f"{turn} and {number}", number) for number in range(2))
        completion = chat.encode_completion(Message(role="assistant", content="", tool_calls=calls), [SEARCH])
        assert chat.decode(completion).startswith(written)
        said = chat.parse(completion, StopReason.STOP, [SEARCH])
        assert said.tool_calls == calls
        reply = [answer("one"), answer("two", 1)]
        ids = chat.next_prompt(ids, completion, [*asked, said], reply, [SEARCH])
        asked += [said, *reply]
        assert chat.decode(ids) == prompt(chat, *asked)


def test_smollm2_is_told_of_tools_in_its_own_words() -> None:
    text = prompt(Chat(template_tokenizer(SMOLLM2)), user("Who?"))
    assert text.startswith(f"{START}system\nYou are an expert in composing functions.")
    assert f"<tools>{json.dumps([SEARCH])}</tools>" in text


def test_reasoning_opened_by_the_header_begins_the_completion() -> None:
    chat = Chat(byte_tokenizer(template=OPENS))
    call = '<tool_call>{"name": "search", "arguments": {"query": "Ann"}}</tool_call>'
    assert chat.parse(ended(chat, call), StopReason.STOP, [SEARCH]).tool_calls == ()
    said = chat.parse(ended(chat, f"so {call}</think>{call}"), StopReason.STOP, [SEARCH])
    assert said.tool_calls == (calling("Ann"),)
    assert said.content == f"so {call}</think>"
    history = prompt(chat, user("Who?"), Message(role="assistant", content="Hm.\n</think>\n\nAnn."), user("Sure?"))
    assert f"{START}assistant\n<think>\nHm.\n</think>\n\nAnn.{END}" in history


def test_a_templates_own_variables_are_set() -> None:
    chat = Chat(byte_tokenizer(template=OPENS + "{% if shut %}x</think>{% endif %}{{ documents or '' }}"))
    plain, shut = chat.encode_prompt([user("Who?")]), chat.with_variables({"shut": True, "other": [1]})
    assert chat.decode(shut.encode_prompt([user("Who?")])) == chat.decode(plain) + "x</think>"
    assert chat.encode_prompt([user("Who?")]) == chat.with_variables({"shut": False}).encode_prompt([user("Who?")])
    pages = {"documents": [{"title": "Ann", "text": "a page"}]}
    assert "a page" in chat.decode(chat.with_variables(pages).encode_prompt([user("Who?")]))
    call = '<tool_call>{"name": "search", "arguments": {"query": "Ann"}}</tool_call>'
    found = [len(one.parse(ended(one, call), StopReason.STOP, [SEARCH]).tool_calls) for one in (chat, shut)]
    assert found == [0, 1]  # with `shut` the header has closed the reasoning


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "tokenize", "chat_template", "eos_token", "documents"]
)
def test_what_a_prompt_is_made_of_is_no_variable(name: str) -> None:
    for template in (HERMES, None):
        with pytest.raises(UserError, match=f"^{name} "):
            Chat(byte_tokenizer(template=template)).with_variables({"harmless": 1, name: "x"})


ENDS_CALLS = HERMES.replace("<|im_end|>", "{{ '<|call|>' if m.tool_calls else '<|im_end|>' }}")
ENDS_TURNS = "{# <|eom_id|> #}" + HERMES  # Llama's other end of a call


@pytest.mark.parametrize(
    ("template", "end", "closing"),
    [(ENDS_CALLS, "<|call|>", ""), (ENDS_CALLS, END, "<|call|>"), (ENDS_TURNS, "<|eom_id|>", "")],
)
def test_pitfall_03_a_call_may_have_its_own_end(template: str, end: str, closing: str) -> None:
    chat = Chat(template_tokenizer(template))
    own = "<|call|>" if template == ENDS_CALLS else "<|eom_id|>"
    assert {chat.decode([token]) for token in chat.stop_ids} == {END, own, "<|endoftext|>"}
    said = Message(role="assistant", content="", tool_calls=(calling("Ann"),))
    last = chat._tokenizer.convert_tokens_to_ids(end)
    tail = f"{closing}\n{START}tool\nfound{END}\n{START}assistant\n"
    assert chat.decode(chat.encode_reply([answer()], last_id=last, said=said)) == tail


@pytest.mark.parametrize(
    "thought", ["<think>\nplan\n</think>", "<think>plan</think>", "<think>\n\n</think>", "plan\n</think>"]
)
@pytest.mark.parametrize("breaks", ["", "\n", "\n\n"])
@pytest.mark.parametrize("later", [[], ["user"], ["user", "assistant", "user"]])
def test_reasoning_in_the_content_is_rendered_as_the_template_itself_does(
    thought: str, breaks: str, later: list[str]
) -> None:
    """Letter by letter: line breaks that end the reasoning are no part of what follows it."""
    tokenizer = byte_tokenizer(template=FIELDS)
    said = [("user", "x"), ("assistant", f"{thought}{breaks}step one"), *((role, "y") for role in later)]
    wanted = tokenizer.apply_chat_template(
        [{"role": role, "content": text} for role, text in said], tokenize=False, add_generation_prompt=True
    )
    chat = Chat(tokenizer)
    assert chat.decode(chat.encode_prompt([Message(role=role, content=text) for role, text in said])) == wanted  # type: ignore[arg-type]


TURN = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
LATE = "m.role == 'system' and not loop.first"
ONLY_FIRST = CHATML.replace(TURN, f"{{% if not ({LATE}) %}}{TURN}{{% endif %}}")
REFUSES = CHATML.replace(TURN, f"{{% if {LATE} %}}{{{{ raise_exception('begin with it') }}}}{{% endif %}}{TURN}")
ONLY_LAST = (  # DeepSeek R1's: the last of all stands at the beginning
    "{% set ns = namespace(text='') %}{% for m in messages if m.role == 'system' %}{% set ns.text = m.content %}"
    "{% endfor %}{{ ns.text }}" + CHATML.replace("in messages %}", "in messages if m.role != 'system' %}")
)


@pytest.mark.parametrize("template", [CHATML, ONLY_FIRST, ONLY_LAST, REFUSES, STRICT])
@pytest.mark.parametrize("late", ["between", "last", "none"])
@pytest.mark.parametrize("num", [0, 1, 2, 3])
def test_no_system_message_is_lost(template: str, late: str, num: int) -> None:
    """Several are joined where the template shows one, and a late one is said by the user."""
    chat = Chat(byte_tokenizer(template=template))
    messages = [Message(role="system", content=f"rule {n}") for n in range(num)]
    messages += [user("Who?"), Message(role="assistant", content="Ann.")]
    more = {"between": [Message(role="system", content="rule late"), user("Sure?")], "none": [user("Sure?")]}
    messages += more.get(late, [Message(role="system", content="rule late")])
    text = chat.decode(chat.encode_prompt(messages))
    places = [text.find(message.content) for message in messages]
    assert -1 not in places
    assert places == sorted(places)
    if template == CHATML:
        assert text == chat._tokenizer.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in messages],
            tokenize=False,
            add_generation_prompt=True,
        )
    assert ("said by the user" in (chat.note(messages) or "")) is (
        template in (ONLY_FIRST, ONLY_LAST, REFUSES) and late != "none"
    )


SHOWS_PLAN = CHATML.replace("{{ m['content'] }}", "{{ m['content'] }}{{ m.plan or '' }}")


@pytest.mark.parametrize(("template", "shown"), [(CHATML, False), (SHOWS_PLAN, True)])
def test_an_unread_field_is_refused_where_the_template_shows_it(template: str, shown: bool) -> None:
    chat = Chat(byte_tokenizer(template=template))
    messages = [replace(user("Who?"), unread={"plan": "first", "other": [1]})]
    if shown:
        with pytest.raises(UserError, match="shows the field 'plan' of a message, which rlvr does not read: take it"):
            chat.encode_prompt(messages)
    else:
        assert chat.encode_prompt(messages) == chat.encode_prompt([user("Who?")])
