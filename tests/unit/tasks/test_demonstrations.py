"""Demonstrations have the very tokens of a rollout with the same completions."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr.chat.rendering import Chat
from rlvr.core.batch import episode_rows
from rlvr.core.episode import ChatModel, run_episode
from rlvr.data.conversations import read_demonstration
from rlvr.data.problems import Conversation
from rlvr.data.rows import Row
from rlvr.errors import UserError
from rlvr.models.scratch import build_tokenizer
from rlvr.registry import ours
from rlvr.tasks.base import Task
from rlvr.tasks.demonstrations import Replayed, all_encoded, of_conversation, token_ids
from rlvr.types import Completion, Episode, Example, Message, SamplingParams, ToolCall
from tests.unit.chat.test_template import FIELDS, HERMES, OPENS
from tests.unit.chat.tokenizers import CHATML, SEARCH, answer, byte_tokenizer, user
from tests.unit.chat.whole import no_env
from tests.unit.core.fakes import FakeEngine, completion
from tests.unit.research.test_k_hop import make_task as k_hop
from tests.unit.tasks.data_tasks import FIXTURES, opened, write_jsonl
from tests.unit.tasks.multihop_episodes import make_qa
from tests.unit.tasks.test_two_hop import TASK as TWO_HOP


class Script(FakeEngine):
    """Samples what it was told."""

    def __init__(self, completions: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self._left = list(completions)

    async def sample(self, sampling: SamplingParams) -> Completion:
        return completion(*self._left.pop(0))


def played(task: Task, example: Example, chat: Chat, completions: Sequence[tuple[int, ...]]) -> Episode:
    """The episode in which exactly these tokens are sampled."""
    model = ChatModel(engine=Script(completions), chat=chat, max_context_tokens=100_000)
    params = SamplingParams(max_tokens=1000, stop_ids=chat.stop_ids, seed=0)
    return asyncio.run(run_episode(example, task.env(example), model, lambda turn: params, sample_index=0, seed=0))


def check_like_a_rollout(task: Task, chat: Chat, num: int = 3) -> list[tuple[Example, Episode]]:
    episodes, left_out = all_encoded(task.demonstrations(num), task.env, chat, 100_000)
    assert (len(episodes), left_out) == (num, {})
    examples = [one.example for one in task.demonstrations(num)]
    for example, demonstrated in zip(examples, episodes, strict=True):
        completions = [turn.completion.token_ids for turn in demonstrated.turns]
        assert token_ids(demonstrated) == token_ids(played(task, example, chat, completions))
        assert all(ids[-1] in chat.stop_ids for ids in completions)
    return list(zip(examples, episodes, strict=True))


def words_of(task: Task) -> Chat:
    assert task.vocabulary is not None
    return Chat(build_tokenizer(task.vocabulary), task.stop_words)


def test_expressions_write_their_steps() -> None:
    with opened({"name": "rpn"}) as task:
        chat = words_of(task)
        example, first = check_like_a_rollout(task, chat)[0]
        (turn,) = first.turns
        assert chat.decode(turn.completion.token_ids).endswith(f"= {example.answer} <eoe>")
        assert chat.decode(turn.prompt_ids) == example.messages[0].content


@pytest.mark.parametrize("name", [name for name, kind in ours("task").items() if kind.made_of_words is True])
def test_solutions_of_a_made_up_task_are_paid_and_right(name: str) -> None:
    with opened({"name": name}) as task:
        chat = words_of(task)
        for example, demonstrated in check_like_a_rollout(task, chat):
            episode = played(task, example, chat, [turn.completion.token_ids for turn in demonstrated.turns])
            assert episode.score.value == 1
            assert asyncio.run(task.grade(example, episode.texts)).correct


def test_calls_are_answered_by_the_tools() -> None:
    _, first = check_like_a_rollout(TWO_HOP, words_of(TWO_HOP))[0]
    assert len(first.turns) == 3
    (row,) = episode_rows(first)  # tool replies are part of it, and not trained on
    assert 0 < sum(row.loss_mask) < len(row.ids)


def test_pitfall_07_a_context_that_restarts_forgets_what_was_said() -> None:
    task = k_hop("task.mode=peel")
    chat = words_of(task)
    for example, demonstrated in check_like_a_rollout(task, chat):
        start, *relations = example.metadata["chain"]
        asked = [f"<q> {' '.join(reversed(relations[done:]))} " for done in range(len(relations))]
        shown = [chat.decode(turn.prompt_ids) for turn in demonstrated.turns]
        assert shown[0] == asked[0] + start
        assert [text.rpartition(" ")[0].strip() for text in shown] == [*map(str.strip, asked), "<q>"]
        assert len(list(episode_rows(demonstrated))) == len(shown)  # none extends another


@pytest.mark.parametrize("template", [True, False])
def test_worked_answers_end_as_the_model_ends_its_turn(template: bool) -> None:
    chat = Chat(byte_tokenizer() if template else byte_tokenizer(template=None))
    with opened({"name": "gsm8k", "path": str(FIXTURES / "gsm8k")}) as task:
        _, first = check_like_a_rollout(task, chat)[0]
        ids = first.turns[0].completion.token_ids
        assert chat.decode(ids).endswith("</SOLUTION><|im_end|>")


def test_searches_of_a_multi_hop_task() -> None:
    check_like_a_rollout(make_qa(), Chat(byte_tokenizer()), 1)


# ------------------------------------------------------------------------------------------------- a field of the data


def rows(field: Any) -> list[dict[str, Any]]:
    return [{"question": f"What is {n} plus 1?", "answer": n + 1, "shown": field} for n in range(20)]


def demonstrated(
    tmp_path: Path, field: Any, *, max_tokens: int = 10_000, template: str = CHATML, **more: Any
) -> tuple[Chat, Any, Any, Any]:
    """The chat, the first training example, the episodes and what was left out."""
    chat = Chat(byte_tokenizer(template=template))
    settings = {"name": "jsonl", "path": str(write_jsonl(tmp_path / "rows.jsonl", rows(field)))}
    with opened({**settings, "demonstration_field": "shown", **more}) as task:
        (first, *_) = task.demonstrations(4)
        return chat, first.example, *all_encoded(task.demonstrations(4), task.env, chat, max_tokens)


def test_a_text_is_the_completion_as_it_stands(tmp_path: Path) -> None:
    chat, example, episodes, _ = demonstrated(tmp_path, " It is 2.\n")
    (turn,) = episodes[0].turns
    assert chat.decode(turn.completion.token_ids) == " It is 2.\n<|im_end|>"
    assert turn.prompt_ids == chat.encode_prompt(example.messages)
    assert "shown" not in example.metadata


CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "search", "arguments": '{"query": "1"}'}}]}
REPLY = {"role": "tool", "content": "one", "name": "search"}


def test_messages_are_the_whole_conversation_or_follow_the_prompt(tmp_path: Path) -> None:
    said = [{"role": "assistant", "content": "2"}]
    chat, example, episodes, _ = demonstrated(tmp_path, said)
    assert episodes[0].turns[0].prompt_ids == chat.encode_prompt(example.messages)
    chat, example, episodes, _ = demonstrated(tmp_path, [{"role": "user", "content": "1 + 1?"}, *said])
    text = "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>"
    assert chat.decode(token_ids(episodes[0])[0]) == text


@pytest.mark.parametrize("tools", [[SEARCH], None])
def test_calls_and_replies_of_the_data(tools: list[Any] | None, tmp_path: Path) -> None:
    """The loss is on what the assistant says, calls included, and not on the tool's reply."""
    messages = [{"role": "user", "content": "1 + 1?"}, CALL, REPLY, {"role": "assistant", "content": "2"}]
    chat, _, episodes, left_out = demonstrated(tmp_path, {"messages": messages, "tools": tools})
    assert left_out == {}
    (row,) = episode_rows(episodes[0])
    trained = "".join(chat.decode([token]) for token, on in zip(row.ids, row.loss_mask, strict=True) if on)
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "1"}}\n</tool_call>'
    assert trained == f"{call}<|im_end|>2<|im_end|>"
    assert ("one" in chat.decode(row.ids), "Finds texts." in chat.decode(row.ids)) == (True, tools is not None)


def trained_text(chat: Chat, episode: Episode) -> str:
    rows = episode_rows(episode)
    return "".join(chat.decode([t]) for row in rows for t, on in zip(row.ids, row.loss_mask, strict=True) if on)


@pytest.mark.parametrize(
    ("template", "begin"),
    [(CHATML, "<think>\n"), (FIELDS, "<think>\n"), (OPENS, "")],
    ids=["inline", "field", "opened"],
)
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking", "inline"])
def test_reasoning_is_learned_wherever_data_have_it(template: str, begin: str, field: str, tmp_path: Path) -> None:
    message = {"role": "assistant", "content": "a", field: "because"}
    if field == "inline":
        message = {"role": "assistant", "content": "<think>\nbecause\n</think>\n\na"}
    chat, _, episodes, _ = demonstrated(tmp_path, [message], template=template)
    assert trained_text(chat, episodes[0]) == f"{begin}because\n</think>\n\na<|im_end|>"


@pytest.mark.parametrize(
    "said", [{"content": "b"}, {"content": "b", "reasoning_content": "why"}, {"content": "<think>w</think>b"}]
)
def test_pitfall_07_what_a_template_takes_back_is_not_in_later_prompts(said: dict[str, Any], tmp_path: Path) -> None:
    """Each turn sees what a rollout with the same completions has there: what the template makes of the whole."""
    messages = [{"role": "user", "content": "1?"}, {"role": "assistant", **said}, {"role": "user", "content": "2?"}]
    shows_empty = FIELDS.replace("<|im_start|>{{ m.role", "{% set thought = thought or '' %}<|im_start|>{{ m.role")
    for template in (FIELDS, shows_empty):
        last = {"role": "assistant", "content": "d"}
        chat, _, episodes, _ = demonstrated(tmp_path, [*messages, last], template=template)
        wanted = chat._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert chat.decode(episodes[0].turns[1].prompt_ids) == wanted
        assert "think" not in wanted


def test_replies_find_their_calls_by_the_ids_of_the_data(tmp_path: Path) -> None:
    """The template names the reply's tool by the call's id, as Gemma 4 does."""
    by_id = HERMES.replace(
        "<|im_start|>{{ m['role'] }}",
        "<|im_start|>{{ m['role'] }}{% for o in messages %}{% for c in o.tool_calls or [] %}"
        "{% if m.role == 'tool' and c.id == m.tool_call_id %} {{ c.function.name }}{% endif %}"
        "{% endfor %}{% endfor %} ",
    )
    other = {"type": "function", "function": {**SEARCH["function"], "name": "find"}}
    calls = [
        {"id": f"id-{n}", "function": {"name": name, "arguments": {}}} for n, name in enumerate(["search", "find"])
    ]
    replies = [{"role": "tool", "content": f"r{n}", "tool_call_id": f"id-{n}"} for n in (1, 0)]
    messages = [{"role": "user", "content": "1?"}, {"role": "assistant", "tool_calls": calls}, *replies]
    shown = {"messages": [*messages, {"role": "assistant", "content": "2"}], "tools": [SEARCH, other]}
    chat, _, episodes, _ = demonstrated(tmp_path, shown, template=by_id)
    text = chat.decode(episodes[0].turns[1].prompt_ids)
    assert "tool find \nr1<|im_end|>\n<|im_start|>tool search \nr0<|im_end|>" in text


def test_what_cannot_be_trained_on_is_counted_and_named(tmp_path: Path) -> None:
    _, _, episodes, left_out = demonstrated(tmp_path, [{"role": "user", "content": "1 + 1?"}])
    assert episodes == []
    assert [(why, len(ids)) for why, ids in left_out.items()] == [("have no assistant turn", 4)]
    _, _, episodes, left_out = demonstrated(tmp_path, "2", max_tokens=20)
    assert (episodes, list(left_out)) == ([], ["have more than 20 tokens"])


def test_the_context_may_be_full_to_its_last_token(tmp_path: Path) -> None:
    _, _, episodes, _ = demonstrated(tmp_path, "2")
    length = max(len(ids) for one in episodes for ids in token_ids(one))
    _, _, _, left_out = demonstrated(tmp_path, "2", max_tokens=length)
    assert left_out == {}
    _, _, _, left_out = demonstrated(tmp_path, "2", max_tokens=length - 1)
    assert list(left_out) == [f"have more than {length - 1} tokens"]


def test_a_conversation_with_tools_has_no_others() -> None:
    example, said = Example(id="x", messages=(), answer=""), (user("Who?"), Message(role="assistant", content="Ann."))
    its_own = of_conversation(Conversation(messages=said, tools=(SEARCH,)), example, [{}])
    assert its_own == of_conversation(Conversation(messages=said), example, [SEARCH])
    assert Replayed(its_own).tools == (SEARCH,)


def test_calls_have_ids_of_their_own_and_replies_keep_theirs() -> None:
    plain, named = {"name": "search"}, {"id": "mine", "function": {"name": "search", "arguments": {"query": "1"}}}
    shown = [{"role": "assistant", "tool_calls": [plain, plain]}, {"role": "tool", "tool_call_id": "mine"}]
    shown += [{"role": "assistant", "content": None, "tool_calls": [plain, named]}]
    found = read_demonstration(Row("x", {"shown": shown}), "shown")
    assert isinstance(found, Conversation)
    first, reply, last = found.messages
    ids = [call.id for call in (*first.tool_calls, *last.tool_calls)]
    assert len({*ids}) == 4
    assert (ids[-1], last.tool_calls[-1].arguments, last.content) == ("mine", {"query": "1"}, "")
    assert reply.call_id == "mine"


def test_a_text_that_goes_on_after_its_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the demonstration of example jsonl/.*goes on after its end token"):
        demonstrated(tmp_path, "2<|im_end|>3")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (5, "field 'shown' must be a text, a list of messages"),
        ([{"role": "bot", "content": "2"}], r"'shown.0.role' must be 'system', 'user', 'assistant' or 'tool'"),
        ([{"content": "2"}], r"'shown.0.role' is missing"),
        ({"messages": [], "more": 1}, r"'shown.more' must not be there"),
    ],
)
def test_another_shape_is_an_error(field: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        demonstrated(tmp_path, field)


def test_an_unknown_field_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"field 'other' is missing; .*task\.demonstration_field=\.\.\."):
        demonstrated(tmp_path, "2", demonstration_field="other")


def test_rows_without_one_are_counted(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "rows.jsonl", [row | {"shown": None} for row in rows(0)[:15]] + rows("yes")[15:])
    with opened({"name": "jsonl", "path": str(file), "demonstration_field": "shown"}) as task:
        shown = list(task.demonstrations(99))
        assert {tuple(one.turns) for one in shown} == {("yes",), ()}
        groups, left_out = all_encoded(shown, task.env, Chat(byte_tokenizer()), 99_999)
        assert left_out.keys() == {"have no demonstration"}
        assert len(groups) + len(left_out["have no demonstration"]) == len(shown)
        few = [tuple(one.turns) for one in task.demonstrations(2)]
        assert few.count(("yes",)) == 2


def test_messages_need_a_template(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "rows.jsonl", rows([{"role": "assistant", "content": "2"}]))
    settings = {"name": "jsonl", "path": str(file), "demonstration_field": "shown"}
    with opened(settings) as task, pytest.raises(UserError, match="need a chat template"):
        task.demonstration(0, 1.0)


def test_a_call_that_cannot_be_read_back_is_left_out() -> None:
    """A call within unfinished reasoning is none to the model."""
    calls = (ToolCall(id="a", name="search", arguments={"query": "Ann"}),)
    said = Message(role="assistant", content="<think>", tool_calls=calls)
    conversation = Conversation(messages=(user("Who?"), said, answer(), Message(role="assistant", content="Ann.")))
    solution = of_conversation(conversation, Example(id="x", messages=(), answer=""), [SEARCH])
    episodes, left_out = all_encoded([solution], no_env, Chat(byte_tokenizer()), 10_000)
    assert (len(episodes), list(left_out)) == (0, ["have tool calls that cannot be read back in this model's format"])
