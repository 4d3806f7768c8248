"""The two-hop task: worlds, examples that are held out, demonstrations, episodes."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.chat.rendering import Chat
from rlvr.config.compose import load_config
from rlvr.core.env import Env, Reply, TurnText
from rlvr.errors import ConfigError, UserError
from rlvr.models.scratch import build_tokenizer
from rlvr.run.tasks import open_tasks
from rlvr.tasks.two_hop import TwoHopTask
from rlvr.tasks.words import WordsTask
from rlvr.types import Example, Message, StopReason, ToolCall, TraceStep

SMALL = ("task.num_persons=3", "task.num_organizations=3", "task.num_cities=4")


def make_task(*overrides: str) -> TwoHopTask:
    with open_tasks(load_config(overrides, config_name="two_hop"), "llama", {}) as tasks:
        assert isinstance(tasks.own, TwoHopTask)
        return tasks.own


TASK = make_task()


def chain_of(example: Example) -> tuple[str, str, str]:
    return example.metadata["chain"]


def call(*words: str, name: str = "search", problem: str | None = None) -> Message:
    arguments = {"name": " ".join(words)} if words else {}
    made = ToolCall(id="call_0", name=name, arguments=arguments, problem=problem)
    return Message(role="assistant", content="", tool_calls=(made,))


def play(example: Example, *said: Message, task: TwoHopTask = TASK) -> list[Reply]:
    env = task.env(example)

    async def all_turns() -> list[Reply]:
        await env.start()
        return [await env.step(message) for message in said]

    return asyncio.run(all_turns())


def texts(replies: Sequence[Reply]) -> list[str]:
    return [message.content for reply in replies for message in reply.messages]


def test_an_example_asks_for_the_city_of_its_chain() -> None:
    example = TASK.train_example(0)
    person, organization, city = chain_of(example)
    assert example.messages == (Message(role="user", content=f"<q> where {person}"),)
    assert example.answer == city
    world = TASK.facts(example)
    assert world[person] == f"{person} works-at {organization}"
    assert world[organization] == f"{organization} located-in {city}"
    assert len(world) == 40 + 30


def test_pitfall_36_the_stream_is_a_function_of_seed_and_index() -> None:
    again, other = make_task(), make_task("seed=1")
    forward = [TASK.train_example(index) for index in range(30)]
    assert [again.train_example(index) for index in reversed(range(30))] == forward[::-1]
    assert [other.train_example(index) for index in range(30)] != forward
    asked = [TASK.demonstration(index, 1.0)[0] for index in range(30)]
    assert asked != [example.messages[0].content for example in forward]
    assert TASK.eval_examples(20) == other.eval_examples(20)


def test_pitfall_36_every_example_has_a_world_of_its_own() -> None:
    """One world for all would be learnt by heart: then nothing has to be searched for."""
    worlds = [TASK.facts(TASK.train_example(index)) for index in range(60)]
    for name, fewest in (("p0", 15), ("p39", 15), ("o0", 10)):
        assert len({world[name] for world in worlds}) > fewest
    assert TASK.facts(TASK.train_example(3)) == worlds[3]


def test_pitfall_38_held_out_chains_are_never_trained_on() -> None:
    task = make_task(*SMALL, "task.held_out_share=0.5")
    every = {(f"p{p}", f"o{o}", f"c{c}") for p in range(3) for o in range(3) for c in range(4)}
    held_out = {chain for chain in every if task.is_held_out(chain)}
    assert 9 <= len(held_out) <= 27
    assert {chain_of(task.train_example(index)) for index in range(600)} == every - held_out
    evaluated = task.eval_examples(100)
    assert sorted(map(chain_of, evaluated)) == sorted(held_out)  # each once
    assert task.eval_examples(5) == evaluated[:5]
    shown = [task.demonstration(index, 1.0) for index in range(600)]
    taught = {(p[0].split()[-1], p[2].split()[3], p[4].split()[3]) for p in shown}
    assert taught == every - held_out


@pytest.mark.parametrize("share", ["1e-9", "0.999999999"])
def test_a_share_that_leaves_nothing_is_refused(share: str) -> None:
    with pytest.raises(ConfigError, match=r"task.held_out_share=.* leaves no chain to (train|evaluate) on: change it"):
        make_task(f"task.held_out_share={share}")


def test_demonstrations_search_twice_or_guess_early() -> None:
    shown = [TASK.demonstration(index, 0.3) for index in range(2000)]
    kinds = Counter(map(len, shown))
    assert {length: num / 2000 for length, num in kinds.items()} == pytest.approx({2: 0.3, 4: 0.4, 6: 0.3}, abs=0.04)
    guesses = Counter(parts[-1].split()[1] for parts in shown if len(parts) < 6)
    assert len(guesses) == 20  # any city, at random
    for prompt, said, replied, _ in (parts for parts in shown if len(parts) == 4):
        assert said.split()[2] == replied.split()[1] == prompt.split()[-1]


def test_a_worked_demonstration_follows_the_chain() -> None:
    assert TASK.demonstration(1, 1.0) == (
        "<q> where p3",
        "<call> search p3 </call>",
        "<tool> p3 works-at o0 . </tool>",
        "<call> search o0 </call>",
        "<tool> o0 located-in c4 . </tool>",
        "<ans> c4 </ans> <eoe>",
    )
    assert TASK.demonstration(1, 0.0)[0] == "<q> where p3"  # the question does not depend on the share


def test_pitfall_06_a_demonstration_has_the_tokens_of_an_episode() -> None:
    """The warm start must teach the very sequence that sampling goes on with, marks and stop tokens included."""
    assert TASK.vocabulary is not None
    tokenizer: Any = build_tokenizer(TASK.vocabulary)
    chat = Chat(tokenizer, TASK.stop_words)
    example = TASK.train_example(5)
    person, organization, city = chain_of(example)
    env = TASK.env(example)
    said = (f"<call> search {person} </call>", f"<call> search {organization} </call>", f"<ans> {city} </ans> <eoe>")

    async def episode() -> tuple[tuple[int, ...], list[Reply]]:
        conversation = list(await env.start())
        ids = chat.encode_prompt(conversation, env.tools)
        replies = []
        for number, text in enumerate(said):
            completion = tuple(tokenizer(text)["input_ids"])
            assert completion[-1] in chat.stop_ids
            conversation.append(chat.parse(completion, StopReason.STOP, env.tools))
            replies.append(await env.step(conversation[-1]))
            assert replies[-1].done == (number == 2)
            if replies[-1].done:
                return ids + completion, replies
            ids = chat.next_prompt(ids, completion, conversation, replies[-1].messages, env.tools)
        raise AssertionError("never done")

    ids, replies = asyncio.run(episode())
    facts = texts(replies)
    shown = (f"<q> where {person}", said[0], facts[0], said[1], facts[1], said[2])
    assert ids == tuple(tokenizer(" ".join(shown))["input_ids"])
    assert facts == [
        f"<tool> {person} works-at {organization} . </tool>",
        f"<tool> {organization} located-in {city} . </tool>",
    ]
    assert [len(part.split()) for part in shown] == [len(part.split()) for part in TASK.demonstration(1, 1.0)]


@pytest.mark.parametrize(
    "said",
    [
        call("c4"),
        call("p3", "p4"),
        call(),
        call("p3", name="find"),
        call(problem="The call names no tool."),
        call("<eoe>"),
    ],
)
def test_a_failed_search_is_answered_in_the_vocabulary(said: Message) -> None:
    (reply,) = play(TASK.train_example(0), said)
    assert not reply.done
    assert texts([reply]) == ["<tool> nothing . </tool>"]


def turns(*said: str, stop_reason: StopReason = StopReason.STOP) -> list[TurnText]:
    return [
        TurnText(prompt="", completion=text, text=text.removesuffix(" <eoe>"), stop_reason=stop_reason, num_tokens=4)
        for text in said
    ]


RIGHT, WRONG = "<ans> CITY </ans> <eoe>", "<ans> OTHER </ans> <eoe>"


@pytest.mark.parametrize(
    ("said", "stop_reason", "is_right"),
    [
        ([RIGHT], StopReason.STOP, True),
        (["<call> search p0 </call>", RIGHT], StopReason.STOP, True),
        ([RIGHT, WRONG], StopReason.STOP, False),  # the last turn counts
        (["CITY <eoe>"], StopReason.STOP, False),
        (["<ans> CITY CITY </ans> <eoe>"], StopReason.STOP, False),
        (["<ans> CITY </ans> OTHER <eoe>"], StopReason.STOP, False),
        ([RIGHT], StopReason.LENGTH, False),
    ],
)
def test_the_city_between_the_marks_is_right(said: list[str], stop_reason: StopReason, is_right: bool) -> None:
    example = TASK.train_example(0)
    other = "c0" if example.answer != "c0" else "c1"
    made = turns(
        *(text.replace("CITY", example.answer).replace("OTHER", other) for text in said), stop_reason=stop_reason
    )
    env = TASK.env(example)

    async def both() -> tuple[float, bool]:
        await env.start()
        return (await env.score(made)).value, (await TASK.grade(example, made)).correct

    assert asyncio.run(both()) == (float(is_right), is_right)


def traced(example: Example, env: Env, *names: str, said: str) -> tuple[TraceStep, ...]:
    async def score() -> Any:
        await env.start()
        for name in names:
            await env.step(call(name))
        await env.step(Message(role="assistant", content=said))
        return await env.score(turns(*names, f"{said} <eoe>"))

    return asyncio.run(score()).trace


def test_pitfall_07_an_episode_is_traced_to_its_answer() -> None:
    example = TASK.train_example(0)
    person, organization, city = chain_of(example)
    other = "o0" if organization != "o0" else "o1"
    first, second = TASK.envs(example, 2)
    trace = traced(example, first, person, other, organization, said=f"<ans> {city} </ans>")
    found = [(step.kind, step.id, step.text, step.ok, step.turn) for step in trace]
    assert found == [
        ("query", None, person, None, 0),
        ("document", person, f"{person} works-at {organization}", True, 0),
        ("query", None, other, None, 1),
        ("document", other, TASK.facts(example)[other], False, 1),
        ("query", None, organization, None, 2),
        ("document", organization, f"{organization} located-in {city}", True, 2),
        ("answer", None, city, True, 3),
    ]
    # an episode of the same group knows nothing of it
    trace = traced(example, second, "nobody", said="<ans> c? </ans>")
    assert [(step.kind, step.text) for step in trace] == [("query", "nobody"), ("answer", "c?")]


@pytest.mark.parametrize("text", ["<q> where p3", "where p3", "p3", "  where   p3\n"])
def test_a_users_question_gets_a_held_out_chain(text: str) -> None:
    example = TASK.example(text)
    assert chain_of(example)[0] == "p3"
    assert TASK.is_held_out(chain_of(example))
    assert example == TASK.example("where p3")
    assert TASK.facts(example)[chain_of(example)[1]].endswith(f" {example.answer}")


@pytest.mark.parametrize("text", ["", "where", "where p40", "who p3", "where p3 ?", "x" * 10_000])
def test_other_questions_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"is no question of task=two_hop: ask where p0 \(to p39\)\.$") as caught:
        TASK.example(text)
    assert len(str(caught.value)) < 400


def test_an_episode_that_does_not_fit_is_refused() -> None:
    def words(messages: Sequence[Message], tools: object = ()) -> int:
        return sum(len(message.content.split()) for message in messages)

    make_task().limit_prompts(words, 33)  # 3 + 3 x (4 + 6)
    with pytest.raises(ConfigError, match=r"have 33 tokens, but 32 are left for them; .*task.max_turns"):
        make_task().limit_prompts(words, 32)


@pytest.mark.parametrize(
    ("start", "end", "mark"),
    [
        ("<ans>", "</ans>", None),
        ("the answer", "</ans>", "the answer"),
        ("<ans>", "</ ans >", "</ ans >"),
        ("<ans>", "<eoe>", "<eoe>"),
        ("search", "</ans>", "search"),
        ("<ans>", "<ans>", "<ans>"),
    ],
)
def test_a_mark_of_the_answer_is_one_word_of_its_own(start: str, end: str, mark: str | None) -> None:
    task: Any = SimpleNamespace(_answer_start=start, _answer_end=end)
    if mark is None:
        found = WordsTask.made_vocabulary(task, ("search",), ("p1",))
        assert found == ("<pad>", "<boe>", "<eoe>", "search", "<ans>", "</ans>", "p1")
        return
    with pytest.raises(ConfigError, match=f"the marker '{mark}' is not one word of its own"):
        WordsTask.made_vocabulary(task, ("search",), ("p1",))
