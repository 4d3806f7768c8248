"""Checks of chat templates on a tokenizer of bytes: the plain one passes, and each fault is found by its own check."""

from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.chat.coding import Coder
from rlvr.chat.rendering import Chat
from rlvr.checks import template
from rlvr.checks.messages import PLACES, _between, roles_kept, whole_messages
from rlvr.checks.speech import completions_of, end_of_turn, lead_of, reply_to
from rlvr.tasks.base import Solution
from rlvr.types import Example, Message, ToolCall
from tests.unit.chat.tokenizers import CHATML, END, START, byte_tokenizer, user

TOOLS = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def of(text: str = TOOLS, *, several_turns: bool = True, **more: Any) -> Any:
    tokenizer = byte_tokenizer(template=text)
    example = Example(id="e", messages=(user("Why is it so?"),), answer="")
    task = SimpleNamespace(
        train_example=lambda index: example,
        solutions=lambda num: [Solution(example=example, turns=["Because."])],
        vocabulary=None,
        env=lambda example: SimpleNamespace(tools=()),
    )
    coder, model = Coder(tokenizer), SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=None))
    model.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(eos_token_id=None))
    return SimpleNamespace(
        policy=SimpleNamespace(tokenizer=tokenizer),
        chat=(chat := Chat(tokenizer)),
        coder=coder,
        model=model,
        task=task,
        config=SimpleNamespace(seed=0),
        several_turns=several_turns,
        reads=lambda text: True,
        prompt=lambda index: (example, chat.encode_prompt(example.messages, task.env(example).tools)),
        **more,
    )


def with_system(text: str, *tools: Any) -> Any:
    """A patient whose task has a system message, and these tools."""
    found, asked = of(text), (Message(role="system", content="Write it in a box."), user("Why is it so?"))
    example = Example(id="e", messages=asked, answer="")
    found.task.env = lambda example: SimpleNamespace(tools=tools)
    found.prompt = lambda index: (example, found.chat.encode_prompt(asked, tools))
    return found


def test_the_tasks_own_messages_are_in_its_prompt() -> None:
    lost = TOOLS.replace("{% for m in messages %}", "{% for m in messages if not (tools and m.role == 'system') %}")
    assert template.task_is_shown(with_system(TOOLS, template.TOOL.schema)).status == "ok"
    assert template.task_is_shown(with_system(lost)).status == "ok"  # no tools are given
    found = template.task_is_shown(with_system(lost, template.TOOL.schema))
    assert found.says == "the system message is not in the prompt, which the template renders with tools"
    assert found.evidence["lost"] == ["Write it in a box."]


@pytest.mark.parametrize("check", template.CHECKS, ids=lambda check: check.__name__)
def test_a_plain_template_has_no_fault(check: Any) -> None:
    assert check(of()).status == "ok", check(of()).says


CONTENT, HEADER = "{{ m['content'] or '' }}", "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


@pytest.mark.parametrize(
    ("check", "old", "new", "says"),
    [
        (
            template.same_every_day,
            "{% for m in messages %}",
            "{{ strftime_now('%d') }}{% for m in messages %}",
            "the template writes the date",
        ),
        (template.opens_completion, HEADER, "", "the prompt does not end with the header of the assistant: add_gen"),
        (
            template.opens_completion,
            HEADER,
            HEADER.replace("assistant", "model"),
            "the prompt does not end with the header of the assistant that",
        ),
        (whole_messages, CONTENT, "{{ (m['content'] or '')[:90] }}", "the template changes "),
        (
            whole_messages,
            CONTENT,
            "{{ (m['content'] or '') | upper }}",
            "a message is not rendered once, or not in its order",
        ),
        (whole_messages, CONTENT, CONTENT * 2, "a message is not rendered once, or not in its order"),
        (
            roles_kept,
            "{{ m['role'] }}",
            "{{ 'user' if loop.index < 4 else 'assistant' }}",
            "a user's words are rendered under the assistant's",
        ),
        (template.ends_turns, "<|im_end|>", "</turn>", "the template ends an answer with '<', which is no end token"),
        (template.ends_turns, "<|im_end|>", "<|endoftext|>", "the template ends an answer with '<|endoftext|>', "),
        (
            template.whole_calls,
            "c.function.arguments | tojson",
            "(c.function.arguments | tojson)[:99]",
            "the arguments of a long call are cut",
        ),
        (
            template.tool_results,
            CONTENT,
            "{{ m['content'] or '' }}{{ m['content'] if m['role'] == 'tool' else '' }}",
            "a tool's result is rendered twice",
        ),
        (
            template.tool_results,
            "{{ m['role'] }}",
            "{{ 'assistant' if m['role'] == 'tool' else m['role'] }}",
            "a tool's result is rendered as the assistant's own words",
        ),
        (
            template.appends_after_user,
            CONTENT,
            "{{ m['content'] if loop.last or m['role'] == 'user' else 'x' }}",
            "the template changes what was said before: answers and questions in turn, turn 1",
        ),
        (
            template.keeps_spaces,
            CONTENT,
            "{{ (m['content'] or '') | trim }}",
            "the template changes what was said before: answers that begin and end with spaces, turn 1",
        ),
    ],
)
def test_a_fault_is_found(check: Any, old: str, new: str, says: str) -> None:
    assert old in TOOLS
    found = check(of(TOOLS.replace(old, new)))
    assert found.status == "fail", found.says
    assert found.says.startswith(says)


def test_what_was_said_before_counts_where_there_are_several_turns() -> None:
    """With one turn it is said, and no fault."""
    text = TOOLS.replace(CONTENT, "{{ (m['content'] or '') | trim }}")
    found = template.keeps_spaces(of(text, several_turns=False))
    assert (found.status, found.says[-40:]) == ("skipped", "turn 1; episodes of this task have one turn"[-40:])
    assert found.evidence["turn"] == 1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("-".join(("", *PLACES, "")), ["-"] * (len(PLACES) + 1)),
        ("".join(PLACES), [""] * (len(PLACES) + 1)),
        ("-".join(PLACES[:-1]), None),
        ("-".join((*PLACES, PLACES[-1])), None),
        ("-".join((PLACES[0], *PLACES)), None),
        ("-".join((PLACES[1], PLACES[0], *PLACES[2:])), None),
    ],
)
def test_places_are_there_once_and_in_order(text: str, parts: list[str] | None) -> None:
    assert _between(text) == parts


def test_an_answer_is_followed_by_a_question_and_a_call_by_its_result() -> None:
    call = ToolCall(id="c7", name="look_up", arguments={})
    assert reply_to(Message(role="assistant", content="x")).role == "user"
    told = reply_to(Message(role="assistant", content="", tool_calls=(call,)))
    assert (told.role, told.call_id, told.name) == ("tool", "c7", "look_up")


def test_the_end_of_a_turn_is_the_templates_or_any_that_stops() -> None:
    said, bare = Message(role="assistant", content="x"), byte_tokenizer(template=None)
    end, start = (byte_tokenizer().convert_tokens_to_ids(word) for word in (END, START))
    assert end_of_turn(Chat(byte_tokenizer()), said, "x") == (end,)
    assert end_of_turn(Chat(bare), said, "x") == (end,)
    other = Chat(byte_tokenizer(template=CHATML.replace("<|im_end|>", "</turn>")))
    assert end_of_turn(other, said, "x") == (end,)
    other.stop_ids = frozenset({start, end})
    assert end_of_turn(other, said, "x") == (min(start, end),)


def test_completions_are_texts_and_calls_with_their_ends() -> None:
    one = of()
    example, end = one.task.train_example(0), byte_tokenizer().convert_tokens_to_ids(END)
    text, call = completions_of(one, example, ["so", {"name": "look_up", "arguments": {"text": "x"}}])
    assert text == (*one.coder.encode("so"), end)
    assert one.chat.decode(call[:-1]) == one.chat.tool_format.write(
        (ToolCall(id="call_1", name="look_up", arguments={"text": "x"}),), ()
    )
    assert call[-1] == end
    assert completions_of(one, example, ["so"], thinks=True) == [text]  # the template opens no reasoning
    assert lead_of(None, Message(role="assistant", content="x"), "x") == ""


def test_three_turns_are_trained_on_as_they_were_sampled() -> None:
    found = template.ids_are_kept(of())
    assert found.status == "ok", found.says
    assert found.evidence["sampled_ids"] == found.evidence["trained_ids"]
    kept = [word for word, trained in found.evidence["row"] if trained]
    assert "".join(kept).count(END) == 3
    assert found.says.endswith("sampled ids are trained on, in 1 row(s)")
