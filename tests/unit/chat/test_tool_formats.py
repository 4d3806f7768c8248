import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.chat.formats import FORMATS, read_message
from rlvr.chat.tool_calls import as_written
from rlvr.reasoning import THINK, Marks
from rlvr.types import Message, ToolCall, ToolSchema


def tool(name: str, **parameters: dict[str, Any]) -> ToolSchema:
    schema = {"type": "object", "properties": parameters}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}


SEARCH = tool("search", query={"type": "string"}, top_n={"type": "integer"})
CITE = tool("cite", answer={"type": "string"}, ids={"type": "array", "items": {"type": "string"}})
ROLL = tool("roll", sides={"anyOf": [{"type": "integer"}, {"type": "null"}]}, exact={"type": "boolean"})
LIST = tool("list")
TOOLS = [SEARCH, CITE, ROLL, LIST]


def read(name: str, text: str, *, finished: bool = True, marks: Marks = THINK, opened: bool = False) -> Message:
    return read_message(text, marks, FORMATS[name], TOOLS, finished=finished, opened=opened)


def calls(name: str, text: str, **options: Any) -> list[tuple[str, Any]]:
    """(name, arguments) of the calls, None for the arguments of malformed ones."""
    return [(c.name, None if c.problem else c.arguments) for c in read(name, text, **options).tool_calls]


def problem(name: str, text: str) -> str:
    (only,) = read(name, text).tool_calls
    assert only.problem is not None
    assert only.arguments == {}
    return only.problem


def test_hermes_calls_stand_in_text() -> None:
    message = read(
        "hermes",
        'So: <tool_call>\n{"name": "search", "arguments": {"query": "Ann", "top_n": 3}}\n</tool_call>'
        '\n<tool_call>{"name": "list"}</tool_call> done',
    )
    assert message.tool_calls == (
        ToolCall(id="call_0", name="search", arguments={"query": "Ann", "top_n": 3}),
        ToolCall(id="call_1", name="list", arguments={}),
    )
    assert message.content == "So: \n done"
    text = '<tool_call>{"name": "search", "arguments": {"query": "a </tool_call> <tool_call> b"}}</tool_call>'
    assert calls("hermes", text) == [("search", {"query": "a </tool_call> <tool_call> b"})]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("search Ann", "no JSON"),
        ("", "no JSON"),
        ("[1]", "must be a JSON object"),
        ('{"arguments": {}}', "names no tool"),
        ('{"name": 3, "arguments": {}}', "names no tool"),
        ('{"name": " ", "arguments": {}}', "names no tool"),
        ('{"name": "search", "arguments": [1]}', "must be a JSON object"),
        ('{"name": "search", "arguments": "Ann"}', "no JSON"),
        ('{"name": "search", "arguments": "3"}', "must be a JSON object"),
        ('{"name": "search", "arguments": {"top_n": NaN}}', "NaN is no number of JSON"),
        ('{"name": "search", "arguments": {"top_n": -Infinity}}', "-Infinity is no number of JSON"),
        ('{"name": "search", "arguments": {"top_n": 1e999}}', "1e999 is no number"),
        ('{"name": "search", "arguments": {"top_n": ' + "1" * 5000 + "}}", "limit"),
        ('{"name": "search", "arguments": {"query": "a", "query": "b"}}', "a key stands twice"),
        ('{"name": "search", "arguments": {"query": "\\ud800"}}', "surrogate"),
        ('{"name": "search", "arguments": {"query": ' + "[" * 90_000, "nested too deep"),
        ('{"name": "search", "arguments": {"query": ' + "[" * 40 + "]" * 40 + "}}", "nested too deep"),
        ('{"name": "search", "arguments": {"query": "' + "x" * 100_000 + '"}}', "too long"),
        ('{"name": "search", "arguments": {"query": "Ann"}} and more', "followed by </tool_call>"),
    ],
)
def test_pitfall_29_a_malformed_call_says_what_is_wrong(body: str, words: str) -> None:
    raw = f"<tool_call>{body}</tool_call>"
    assert words in problem("hermes", raw)
    assert len(problem("hermes", raw)) < 300
    assert read("hermes", f"a {raw} b").content == f"a {raw} b"


def test_a_call_that_does_not_end_is_malformed_or_cut_off() -> None:
    text = 'a <tool_call>{"name": "list", "arguments": {}}'
    assert "</tool_call> is missing" in problem("hermes", text)
    assert read("hermes", text, finished=False) == Message(role="assistant", content=text)
    whole = '<tool_call>{"name": "list"}</tool_call>'
    assert calls("hermes", whole + text, finished=False) == [("list", {})]


ONE, TWO = '{"name": "search", "arguments": {"query": "a [b] </tool_call>"}}', '{"name": "list", "arguments": {}}'
BOTH = [("search", {"query": "a [b] </tool_call>"}), ("list", {})]


@pytest.mark.parametrize(
    ("name", "text", "wanted", "content"),
    [
        ("hermes", f"<tool_call>[{ONE}, {TWO}]</tool_call>", BOTH, ""),
        ("hermes", f"So: <tool_call>[\n{ONE},\n{TWO}\n]\n</tool_call> done", BOTH, "So:  done"),
        ("hermes", f"<tool_call>\n```json\n[{ONE}]\n```\n</tool_call>", BOTH[:1], ""),
        ("hermes", f"<tool_call>[{ONE}]</tool_call>\n<tool_call>{TWO}</tool_call>", BOTH, ""),
        ("list", f"<tool_call>[{ONE}, {TWO}]</tool_call>", BOTH, ""),
        ("list", f"<tool_call>{ONE}</tool_call>", BOTH[:1], ""),
        ("hermes", "<tool_call>[]</tool_call>", [], "<tool_call>[]</tool_call>"),  # SmolLM2: no call is needed
        ("hermes", f"<tool_call>[{TWO}, 3]</tool_call>", [("", None)], f"<tool_call>[{TWO}, 3]</tool_call>"),
        ("taught", f"<tool_call>[{ONE}, {TWO}]</tool_call>", BOTH, ""),
        ("llama", f"[{ONE}, {TWO}]", BOTH, ""),
        ("llama", f"So:\n```json\n[\n{ONE},\n{TWO}]\n```", BOTH, "So:"),
        ("llama", f"<|python_tag|>[{ONE}, {TWO}]", BOTH, ""),
        ("llama", f'[{{"age": 3}}, {TWO}]', BOTH[1:], '[{"age": 3}, ]'),  # a call among other JSON, as before
        ("llama", '[{"age": 3}]', [], '[{"age": 3}]'),
        ("granite", f"<|tool_call|>[{ONE}, {TWO}]", BOTH, ""),
        ("granite", f"<|tool_call|>[{ONE}]<|/tool_call|>", BOTH[:1], ""),
        ("granite", f"<|tool_call|>{TWO}", BOTH[1:], ""),
    ],
)
def test_calls_in_a_list_are_so_many_calls(name: str, text: str, wanted: list[tuple[str, Any]], content: str) -> None:
    assert calls(name, text) == wanted
    assert read(name, text).content == content


def test_a_call_within_a_list_has_problems_of_its_own() -> None:
    text = f'<tool_call>[{TWO}, {{"arguments": {{}}}}, {{"name": "search", "arguments": [1]}}]</tool_call>'
    assert calls("hermes", text) == [("list", {}), ("", None), ("search", None)]


LLAMA_CALL = '{"name": "search", "parameters": {"query": "Ann"}}'


@pytest.mark.parametrize(
    ("text", "content", "num_calls"),
    [
        (LLAMA_CALL, "", 1),
        (f"<|python_tag|>{LLAMA_CALL}", "", 1),
        (f"I have to find Ann.\n{LLAMA_CALL}", "I have to find Ann.", 1),
        (f"```json\n{LLAMA_CALL}\n```", "", 1),
        (f"So:\n```\n{LLAMA_CALL}\n{LLAMA_CALL}\n```\nLet me see.", "So:\n\nLet me see.", 2),
        (f"Find her: <|python_tag|>{LLAMA_CALL}", "Find her:", 1),
        (f'Of {{"age": 3}}: {LLAMA_CALL}, or', 'Of {"age": 3}: , or', 1),
        (f"{LLAMA_CALL}; {LLAMA_CALL}", "", 2),
        (f"<|python_tag|>{LLAMA_CALL}; {LLAMA_CALL}", "", 2),
    ],
)
def test_a_llama_call_may_follow_text_or_be_in_a_fence(text: str, content: str, num_calls: int) -> None:
    found = [ToolCall(id=f"call_{i}", name="search", arguments={"query": "Ann"}) for i in range(num_calls)]
    assert read("llama", text) == Message(role="assistant", content=content, tool_calls=tuple(found))


def test_a_hermes_call_may_be_in_a_fence() -> None:
    hermes = f"So: <tool_call>\n```json\n{LLAMA_CALL}\n```\n</tool_call>"
    assert calls("hermes", hermes) == [("search", {"query": "Ann"})]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "search", "parameters": {"query": ',
        'First {"name": "search", "parameters": {"query": "Ann}',
        "<|python_tag|>print(1)",
        "<|python_tag|>",
    ],
)
def test_a_broken_llama_call_is_malformed_or_cut_off(text: str) -> None:
    assert "no JSON" in problem("llama", text)
    assert read("llama", text).content == text.strip()
    assert read("llama", text, finished=False) == Message(role="assistant", content=text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<call> search Ann 3 </call>", [("search", {"query": "Ann", "top_n": 3})]),
        ("<call> search 3 Ann </call>", [("search", {"query": "3", "top_n": "Ann"})]),  # for the tool to refuse
        ("<call> search Ann 3 4 </call>", [("search", {"query": "Ann", "top_n": "3 4"})]),
        ("<call> cite in Rome 1 </call>", [("cite", {"answer": "in", "ids": ["Rome", "1"]})]),
        ("<call> roll 6 true </call>", [("roll", {"sides": 6, "exact": True})]),
        ("<call> roll null maybe </call>", [("roll", {"sides": None, "exact": "maybe"})]),
        ("<call> search </call>", [("search", {})]),
        ("<call> list </call> <call> fly away </call>", [("list", {}), ("fly", {})]),
        ("<call> list me </call>", [("", None)]),
        ("<call> </call>", [("", None)]),
        ("<call> <call> list </call>", [("", None)]),
        ("<call> list", [("", None)]),
        ("</call> list", []),
    ],
)
def test_words_are_the_parameters_in_their_order(text: str, wanted: list[tuple[str, Any]]) -> None:
    assert calls("words", text) == wanted


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("words", "harmony")])
def test_what_a_format_writes_it_reads_back(name: str) -> None:
    made = [
        ToolCall(id="call_0", name="search", arguments={"query": "it's \\ é\n2", "top_n": 3}),
        ToolCall(id="call_1", name="cite", arguments={"answer": "Rome", "ids": ["1", "2"]}),
        ToolCall(id="call_2", name="list", arguments={}),
    ]
    if name == "lfm":  # its list of calls is written by its template; ours writes one list a call
        made = made[:1]
    text = FORMATS[name].write(made, TOOLS)
    assert calls(name, text) == [(c.name, c.arguments) for c in made]
    assert "search" in FORMATS[name].describe(TOOLS)


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("xml", "<tool_call><function=search><parameter=top_n>3</parameter></function></tool_call>", {"top_n": 3}),
        ("xml", "<tool_call><function=search><parameter=query>\n3\n</parameter></tool_call>", {"query": "3"}),
        ("glm", "<tool_call>search<arg_key>query</arg_key><arg_value>3</arg_value></tool_call>", {"query": "3"}),
        ("deepseek", '<｜tool▁call▁begin｜>search<｜tool▁sep｜>{"top_n": 3}<｜tool▁call▁end｜>', {"top_n": 3}),
        ("gemma", '<|tool_call>call:search{query:<|"|>a {"b"}, c<|"|>}<tool_call|>', {"query": 'a {"b"}, c'}),
        ("lfm", "<|tool_call_start|>[search(query='it\\'s', top_n=3)]<|tool_call_end|>", {"query": "it's", "top_n": 3}),
        ("mistral", 'So [TOOL_CALLS]search[ARGS]{"top_n": 3}', {"top_n": 3}),
        ("harmony", ' to=functions.search<|channel|>commentary json<|message|>{"top_n": 3}', {"top_n": 3}),
        ("harmony", '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"top_n": 3}', {"top_n": 3}),
        ("harmony", " to=functions.search<|channel|>commentary<|message|>", {}),
    ],
)  # fmt: skip
def test_pitfall_28_variants_of_families(name: str, text: str, wanted: dict[str, Any]) -> None:
    assert calls(name, text) == [("search", wanted)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("xml", "<tool_call>search</tool_call>"),
        ("xml", "<tool_call><function=search><parameter=query>Ann</function></tool_call>"),
        ("xml", "<tool_call><function=search><parameter=a>1</parameter><parameter=a>2</parameter></tool_call>"),
        ("xml", "<tool_call><function=search>"),
        ("glm", "<tool_call></tool_call>"),
        ("atem", "<atem:function_calls>search</atem:function_calls>"),
        ("deepseek", "<｜tool▁call▁begin｜>search<｜tool▁call▁end｜>"),
        ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n{'a'}\n```<｜tool▁call▁end｜>"),
        ("gemma", "<|tool_call>search<tool_call|>"),
        ("gemma", "<|tool_call>call:search{query:<tool_call|>"),
        ("gemma", "<|tool_call>call:search{query:open('x')}<tool_call|>"),
        ("gemma", "<|tool_call>call:search{top_n:1}2<tool_call|>"),
        ("gemma", "<|tool_call>call:search{top_n:1,top_n:2}<tool_call|>"),
        ("lfm", "<|tool_call_start|>search('x')<|tool_call_end|>"),
        ("lfm", "<|tool_call_start|>[search(query=__import__('os'))]<|tool_call_end|>"),
        ("lfm", "<|tool_call_start|>[search(query='x)]<|tool_call_end|>"),
        ("lfm", "<|tool_call_start|>[search(query=" + "[" * 5000 + ")]<|tool_call_end|>"),
        ("mistral", "[TOOL_CALLS] search"),
        ("mistral", "[TOOL_CALLS] [3]"),
        ("mistral", "[TOOL_CALLS]search[ARGS]{} and"),
        ("harmony", " to=functions.search<|channel|>commentary json<|message|>{"),
        ("harmony", " to=functions.search<|channel|>commentary json<|message|>[]"),
    ],
)  # fmt: skip
def test_malformed_calls_of_families(name: str, text: str) -> None:
    assert problem(name, text).endswith(".")
    assert read(name, text).content == text.strip()


def test_an_unknown_escape_of_a_python_like_call_keeps_its_backslash() -> None:
    text = r"<|tool_call_start|>[search(query='\d \\ \' \n')]<|tool_call_end|>"
    assert calls("lfm", text) == [("search", {"query": "\\d \\ ' \n"})]


LISTED = '<tool_call>{"name": "list"}</tool_call>'


@pytest.mark.parametrize(
    ("text", "num_calls"),
    [
        (f"<think>{LISTED}</think>", 0),
        (f"<think>{LISTED}</think>{LISTED}", 1),
        (f"<think>{LISTED}", 0),
        (f"{LISTED}</think>{LISTED}{LISTED}", 2),  # the prompt had opened it
        (f"{LISTED}<think>{LISTED}</think>{LISTED}<think>{LISTED}", 2),
        (f"<think><think></think>{LISTED}", 1),
        (LISTED, 1),
    ],
)
def test_pitfall_28_nothing_within_reasoning_is_a_call(text: str, num_calls: int) -> None:
    assert len(read("hermes", text).tool_calls) == num_calls
    assert "".join(read("hermes", text).content.split()).count("<think>") == text.count("<think>")
    assert read("hermes", LISTED, opened=True).tool_calls == ()  # the prompt has opened it
    assert len(read("hermes", f"so</think>{LISTED}", opened=True).tool_calls) == 1


SAID = "say </think> or <think>, loudly"


@pytest.mark.parametrize("before", ["", "Well. ", "<think>so</think>"])
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("words", "harmony")])
def test_pitfall_28_marks_of_reasoning_within_an_argument_are_its_text(name: str, before: str) -> None:
    call = ToolCall(id="call_0", name="search", arguments={"query": SAID})
    message = read(name, before + FORMATS[name].write([call, replace(call, id="call_1")], [SEARCH]))
    assert [one.arguments for one in message.tool_calls] == [{"query": SAID}] * 2
    assert message.content == before.strip()


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        *((name, FORMATS[name].close, None) for name in ("xml", "glm", "atem")),
        *((name, f"{FORMATS[name].close} twice {FORMATS[name].close}", None) for name in ("xml", "glm", "atem")),
        ("xml", "a </parameter> b", "an argument has </parameter> in its value"),
        ("glm", "a </arg_value> b", "an argument has </arg_value> in its value"),
        ("atem", "a </atem:parameter> b", "an argument has </atem:parameter> in its value"),
    ],
)
def test_marks_of_a_call_within_an_argument_do_not_cut_it(name: str, value: str, problem: str | None) -> None:
    call = ToolCall(id="call_0", name="search", arguments={"query": value})
    (found,) = read(name, FORMATS[name].write([call], [SEARCH])).tool_calls
    assert (found.problem or "").partition(": ")[2].removesuffix(".") == (problem or "")
    assert found.arguments == ({} if problem else {"query": value})


MARKS = [
    "<tool_call>", "</tool_call>", "<call>", "</call>", '{"name": "search", "arguments": {', "}", "[", "]", '"', "\\",
    "'", "<think>", "</think>", "<function=search>", "<parameter=query>", "</parameter>", "</function>", "search", " ",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "{", "NaN",
    "<|tool_call>call:search{", "<tool_call|>", '<|"|>', "<|tool_call_start|>[search(", ")", "]<|tool_call_end|>",
    "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", " to=functions.search<|channel|>commentary",
    "<|message|>", "<atem:function_calls>", '<atem:invoke name="search">', "</atem:function_calls>", "query=", ",",
    "1", "-", ":", "\n", "é", "�",
]  # fmt: skip


@given(st.lists(st.sampled_from(MARKS), max_size=40), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_anything_can_be_read(parts: list[str], finished: bool, opened: bool) -> None:
    text = "".join(parts)
    for name in FORMATS:
        message = read(name, text, finished=finished, opened=opened)
        if not message.tool_calls:
            assert name == "deepseek" or message.content == text
        for call in message.tool_calls:
            json.dumps(dict(call.arguments), allow_nan=False).encode()
            assert call.problem is None or (call.problem.endswith(".") and not call.arguments)


@pytest.mark.parametrize("name", FORMATS)
def test_a_megabyte_is_read_in_one_go(name: str) -> None:
    """Each would take minutes if reading were quadratic in the text."""
    for unit in [*MARKS, "<tool_call><function=a><parameter=b>", "<tool_call>[", '<tool_call>{"a": "', "<call> a "]:
        read(name, unit * (1_000_000 // len(unit)))
    deep = "[" * 1_000_000
    for text in (
        f"<tool_call>{deep}</tool_call>",
        f"<|python_tag|>{deep}",
        f"<|tool_call>call:a{{b:{deep}<tool_call|>",
        "<|tool_call>call:a{b:'" + "\\'" * 40_000 + "}<tool_call|>",
    ):
        assert all(call.problem for call in read(name, text).tool_calls)


@pytest.mark.parametrize(
    ("kinds", "text", "wanted"),
    [
        (["integer", "string"], "3", 3),
        (["integer", "string"], "3.5", "3.5"),
        (["integer", "string"], "three", "three"),
        (["string"], "3", "3"),
        (["number", "null"], "None", None),
        (["integer", "string"], "null", "null"),
        (["boolean", "string"], "True", True),
        (["array", "string"], "[1]", [1]),
        ([], "3", "3"),
    ],
)
def test_bare_text_is_of_the_first_kind_that_it_fits(kinds: list[str], text: str, wanted: object) -> None:
    for schema in ({"type": kinds}, {"anyOf": [{"type": kind} for kind in kinds]}):
        found = as_written(text, schema)
        assert (found, type(found)) == (wanted, type(wanted))
