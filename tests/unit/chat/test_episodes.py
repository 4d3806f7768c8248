"""Whole episodes through the chat layer: the sampled ids are the trained ids."""

import asyncio
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.chat.rendering import Chat
from rlvr.core.batch import TokenRow, episode_rows
from rlvr.core.engine.base import Engine
from rlvr.core.env import Reply, TurnText
from rlvr.core.episode import ChatModel, run_episode
from rlvr.types import Completion, Episode, Example, Message, SamplingParams, Score, StopReason, ToolCall, ToolSchema
from tests.unit.chat.tokenizers import CHATML, END, SEARCH, START, answer, encode, ended, template_tokenizer, user

MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "a"), ("aa", "a"), ("<", "t"), ("0", "0")]
FORGETFUL = CHATML.replace(
    "{{ m['content'] }}",
    "{{ m['content'] if loop.index0 > ns.last or '</think>' not in m.content else m.content.split('</think>')[-1] }}",
).replace(
    "{% for m in messages %}",
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}",
    1,
)
FORGETFUL = FORGETFUL.replace("{{ m['role'] }}", "{{ 'results' if m['role'] == 'tool' else m['role'] }}")
"""As Qwen3's: it knows tools, and reasoning is shown until the user speaks again."""


class Script(Engine):
    """Says the completions one after the other."""

    def __init__(self, completions: Sequence[tuple[int, ...]]) -> None:
        self.completions = iter(completions)

    async def generate(
        self, prompt_ids: tuple[int, ...], params: SamplingParams, *, session: object | None = None
    ) -> Completion:
        ids = next(self.completions)
        logprobs = {"behavior_logprobs": (-0.5,) * len(ids), "sampling_logprobs": (-0.5,) * len(ids)}
        return Completion(token_ids=ids, stop_reason=StopReason.STOP, policy_version=0, **logprobs)

    def release(self, session: object) -> None:
        pass


class Talk:
    """Replies with the given messages, in their order."""

    max_turns: int | None = None
    tools: tuple[ToolSchema, ...] = (SEARCH,)

    def __init__(self, replies: Sequence[Message]) -> None:
        self.replies = list(replies)
        self.heard: list[Message] = []

    async def start(self) -> tuple[Message, ...]:
        return (Message(role="user", content="the aaa 00"),)

    async def step(self, said: Message) -> Reply:
        self.heard.append(said)
        done = not self.replies
        return Reply(messages=() if done else (self.replies.pop(0),), done=done)

    async def score(self, turns: Sequence[TurnText]) -> Score:
        return Score(value=1.0)


def run(chat: Chat, completions: Sequence[tuple[int, ...]], env: Talk) -> Episode:
    def sampling(turn: int) -> SamplingParams:
        return SamplingParams(max_tokens=10_000, stop_ids=chat.stop_ids, seed=turn)

    example = Example(id="x", messages=(), answer="")
    model = ChatModel(engine=Script(completions), chat=chat, max_context_tokens=1_000_000)
    return asyncio.run(run_episode(example, env, model, sampling, sample_index=0, seed=0))


CHATS = {
    name: Chat(template_tokenizer(template, MERGES)) for name, template in (("chatml", CHATML), ("qwen", FORGETFUL))
}


def trained(*rows: TokenRow) -> list[int]:
    return [token for row in rows for token, counts in zip(row.ids, row.loss_mask, strict=True) if counts]


@given(st.integers(0, 10**9), st.lists(st.sampled_from(["user", "tool"]), max_size=3))
@settings(max_examples=60, deadline=None)
def test_pitfall_06_trained_ids_are_sampled_ids_of_any_text(seed: int, roles: list[str]) -> None:
    """Ids at random: bytes that are no text, merges that no encoder would choose, tags, special tokens."""
    chat = CHATS["chatml"]
    rng = random.Random(seed)
    stop = chat._tokenizer.convert_tokens_to_ids(END)
    usual = [token for token in range(len(chat._tokenizer)) if token not in chat.stop_ids]
    completions = [(*rng.choices(usual, k=rng.randint(0, 12)), stop) for _ in range(len(roles) + 1)]
    episode = run(chat, completions, Talk([user("go on") if role == "user" else answer() for role in roles]))
    (row,) = episode_rows(episode)
    assert trained(row) == [token for ids in completions for token in ids]
    for turn, following in zip(episode.turns, episode.turns[1:], strict=False):
        before = turn.prompt_ids + turn.completion.token_ids
        assert following.prompt_ids[: len(before)] == before


def test_pitfall_06_ids_that_encode_otherwise_stay_as_they_are() -> None:
    chat = CHATS["chatml"]
    ids = tuple(map(chat._tokenizer.convert_tokens_to_ids, ("t", "h", "e", "a", "aa", END)))
    assert encode(chat._tokenizer, chat.decode(ids)) != ids
    (row,) = episode_rows(run(chat, [ids, ids], Talk([answer()])))
    assert trained(row) == [*ids, *ids]


def test_pitfall_04_turns_with_a_tool_are_not_trained_on() -> None:
    chat = CHATS["chatml"]
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "Ann"}}\n</tool_call>'
    completions = [ended(chat, text) for text in (call, call, "Rome")]
    env = Talk([answer("one"), answer("two")])
    (row,) = episode_rows(run(chat, completions, env))
    header = f"{END}\n{START}assistant\n"
    text = chat.decode(row.ids)
    assert text.endswith(
        f"{START}user\nthe aaa 00{header}{call}{END}\n{START}user\n<tool_response>\none\n</tool_response>{header}"
        f"{call}{END}\n{START}user\n<tool_response>\ntwo\n</tool_response>{header}Rome{END}"
    )
    assert text.count(call) == 2
    assert chat.decode(trained(row)) == f"{call}{END}{call}{END}Rome{END}"
    assert [message.tool_calls for message in env.heard] == [
        (ToolCall(id="call_0", name="search", arguments={"query": "Ann"}),)
    ] * 2 + [()]


def test_pitfall_07_taken_back_reasoning_begins_a_new_row() -> None:
    """Two answers of a tool go on in the row; the user's next question begins another, without the reasoning."""
    chat = CHATS["qwen"]
    texts = [f"<think>\nthought {turn}\n</think>\n\nsaid {turn}" for turn in range(3)]
    completions = [ended(chat, text) for text in texts]
    first, second = episode_rows(run(chat, completions, Talk([answer(), user("Sure?")])))
    assert chat.decode(first.ids).endswith(
        f"{texts[0]}{END}\n{START}results\nfound{END}\n{START}assistant\n{texts[1]}{END}"
    )
    shown = chat.decode(second.ids)
    assert "thought 0" not in shown
    assert "thought 1" not in shown
    assert shown.index("said 0") < shown.index("found") < shown.index("said 1")
    assert shown.endswith(f"{START}user\nSure?{END}\n{START}assistant\n{texts[2]}{END}")
    assert trained(first, second) == [token for ids in completions for token in ids]


def test_pitfall_04_an_answer_with_the_dummy_is_rendered_whole() -> None:
    """A tool may say anything, also the words with which the template is asked."""
    chat = CHATS["chatml"]
    assert chat.decode(chat.encode_reply([answer("a rlvr-completion-goes-here b")])) == (
        f"\n{START}user\n<tool_response>\na rlvr-completion-goes-here b\n</tool_response>{END}\n{START}assistant\n"
    )


@pytest.mark.parametrize("reason", [StopReason.LENGTH, StopReason.STOP])
def test_pitfall_14_a_cut_completion_calls_only_what_is_complete(reason: StopReason) -> None:
    chat = CHATS["chatml"]
    whole = '<tool_call>{"name": "search", "arguments": {"query": "a"}}</tool_call>'
    ids = encode(chat._tokenizer, whole + whole[:-5])
    ids = ids if reason is StopReason.LENGTH else (*ids, chat._tokenizer.convert_tokens_to_ids(END))
    found = chat.parse(ids, reason, [SEARCH]).tool_calls
    assert [call.problem is None for call in found] == ([True] if reason is StopReason.LENGTH else [True, False])
    assert chat.parse(ids, reason).tool_calls == ()  # without tools nothing is a call
