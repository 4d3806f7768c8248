"""The task keep_one: facts, a call that keeps some, a fresh context; what is held out; demonstrations."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from rlvr.chat.rendering import Chat
from rlvr.config.compose import load_config
from rlvr.core.env import Reply
from rlvr.errors import ConfigError, UserError
from rlvr.models.scratch import build_tokenizer
from rlvr.research.evidence import Readable
from rlvr.research.keep_one import KeepOneTask
from rlvr.run.tasks import open_tasks
from rlvr.tasks.base import calling
from rlvr.types import Example, Message, Score, StopReason, ToolCall, TurnText

SMALL = ("task.num_facts=3", "task.num_entities=6", "task.num_relations=2")


def make_task(*overrides: str) -> KeepOneTask:
    easy = [] if any("easy" in one for one in overrides) else ["task.easy_examples=0"]
    with open_tasks(load_config([*easy, *overrides], config_name="keep_one"), "llama", {}) as tasks:
        assert isinstance(tasks.own, KeepOneTask)
        return tasks.own


TASK = make_task()


def right(example: Example) -> str:
    return next(name for name, fact in example.metadata["facts"].items() if fact == example.metadata["asked"])


def call(*words: str, name: str = "keep") -> Message:
    arguments = {"about": words[0], "ids": list(words[1:])} if words else {}
    return Message(role="assistant", content="", tool_calls=(ToolCall(id="call_0", name=name, arguments=arguments),))


def played(example: Example, *said: Message, task: KeepOneTask = TASK) -> tuple[list[Reply], Score]:
    env = task.env(example)
    texts = [
        TurnText(prompt="", completion=one.content, text=one.content, stop_reason=StopReason.STOP, num_tokens=1)
        for one in said
    ]

    async def all_turns() -> tuple[list[Reply], Score]:
        await env.start()
        return [await env.step(message) for message in said], await env.score(texts)

    return asyncio.run(all_turns())


def answer(text: str) -> Message:
    return Message(role="assistant", content=f"<ans> {text} </ans>")


def test_an_example_shows_facts_about_different_subjects_and_asks_for_one() -> None:
    example = TASK.train_example(0)
    facts, asked = example.metadata["facts"], example.metadata["asked"]
    assert len(facts) == 9
    assert len({subject for subject, _, _ in facts.values()}) == 9
    assert asked in facts.values()
    assert example.answer == asked[2]
    words, first = example.messages[0].content.split(), next(iter(facts.values()))
    assert words[-4:] == ["<q>", "which", asked[1], asked[0]]
    assert words[:4] == [first[1], first[0], next(iter(facts)), first[2]]
    assert len(words) == 9 * 4 + 4
    drawn = [TASK.train_example(index) for index in range(200)]
    same = [fact[1] == one.metadata["asked"][1] for one in drawn for fact in others(one)]
    assert sum(same) / len(same) == pytest.approx(1 / 3 + 2 / 3 / 6, abs=0.04)
    places = Counter(
        [*example.metadata["facts"]].index(right(example)) for example in map(TASK.train_example, range(900))
    )
    assert min(places.values()) > 60


def others(example: Example) -> list[tuple[str, str, str]]:
    return [fact for fact in example.metadata["facts"].values() if fact != example.metadata["asked"]]


def test_what_is_kept_is_all_that_a_fresh_context_shows() -> None:
    example = TASK.train_example(0)
    name, (subject, relation, found) = right(example), example.metadata["asked"]
    (reply, last), score = played(example, call(subject, name), answer(found))
    assert reply.restarts
    assert reply.messages[0].content == f"{relation} {subject} {name} {found} <q> what {relation} {subject}"
    assert last.done
    assert score.parts["correct"] == 1.0
    assert [(step.kind, step.id, step.ok) for step in score.trace] == [
        ("query", None, None),
        ("document", name, True),
        ("answer", None, True),
    ]
    every = [*example.metadata["facts"]]
    (reply, _), score = played(example, call(subject, *reversed(every)), answer("e0"))
    assert [word for word in reply.messages[0].content.split() if word in every] == every  # in the order of the search
    assert len(score.late["evidence"].prompts) > 9


@pytest.mark.parametrize("said", [call(), call("e1", "d1", name="find")])
def test_a_call_that_keeps_nothing_is_answered_in_the_vocabulary(said: Message) -> None:
    (reply, _), score = played(TASK.train_example(0), said, answer("e0"))
    assert [message.content for message in reply.messages] == ["<tool> nothing . </tool>"]
    assert not reply.restarts
    assert score.late["evidence"].prompts == ()


@pytest.mark.parametrize("ids", [(), ("e5", "nobody")])
def test_unknown_ids_keep_nothing(ids: tuple[str, ...]) -> None:
    example = TASK.train_example(0)
    (reply, _), score = played(example, call("e1", *ids), answer("e0"))
    assert reply.restarts
    assert len(reply.messages[0].content.split()) == 4  # the question alone
    assert score.late["evidence"].prompts == ()


def test_the_facts_can_be_read_anew() -> None:
    example = TASK.train_example(0)
    env: Any = TASK.env(example)
    assert isinstance(env._found, Readable)
    assert env._found.reading(("d99",)) is None
    assert env._found.reading(())[0].content.split()[:2] == ["<q>", "what"]


def test_other_filters() -> None:
    none, gold = make_task("task.filter=none"), make_task("task.filter=gold")
    for task, shown in ((none, 9), (gold, 1)):
        example = task.train_example(0)
        assert example.metadata == TASK.train_example(0).metadata
        assert len(example.messages[0].content.split()) == shown * 4 + 4
        assert "what" in example.messages[0].content
        env = task.env(example)
        assert (env.tools, env.max_turns) == ((), 1)
        (reply,), score = played(example, answer(example.answer), task=task)
        assert reply.done
        assert score.parts["correct"] == 1.0


def test_easy_examples_come_first() -> None:
    task = make_task("task.easy_examples=6")
    assert [len(task.train_example(index).metadata["facts"]) for index in range(8)] == [1, 2, 3, 1, 2, 3, 9, 9]
    assert {len(example.metadata["facts"]) for example in task.eval_examples(5)} == {9}


def test_few_facts_have_any_ids_in_any_order() -> None:
    task = make_task("task.easy_examples=300")
    easy = [[*task.train_example(index).metadata["facts"]] for index in range(300)]
    shown = [[word for word in TASK.demonstration(index, 1.0)[0].split() if word[0] == "d"] for index in range(300)]
    for ids in (easy, shown):
        assert {name for some in ids if len(some) <= 3 for name in some} == {f"d{number}" for number in range(9)}
        assert any(some != sorted(some) for some in ids)
    assert any(right(task.train_example(index)) == "d8" for index in range(300))


def test_pitfall_38_held_out_facts_are_never_asked_for() -> None:
    task = make_task(*SMALL, "task.held_out_share=0.5")
    every = {(f"e{s}", f"r{r}", f"e{o}") for s in range(6) for r in range(2) for o in range(6)}
    held_out = {fact for fact in every if task.is_held_out(fact)}
    assert {task.train_example(index).metadata["asked"] for index in range(900)} == every - held_out
    assert {example.metadata["asked"] for example in task.eval_examples(900)} == held_out
    assert task.eval_examples(5) == make_task(*SMALL, "task.held_out_share=0.5", "seed=1").eval_examples(900)[:5]


def test_the_fact_that_is_asked_for_is_at_any_place_and_alone_about_its_subject() -> None:
    examples = [TASK.train_example(index) for index in range(200)]
    places = Counter([*one.metadata["facts"].values()].index(one.metadata["asked"]) for one in examples)
    assert set(places) == set(range(9))
    assert max(places.values()) < 60
    assert all(len({subject for subject, *_ in one.metadata["facts"].values()}) == 9 for one in examples)
    for one in make_task("task.filter=gold").eval_examples(50):
        relation, subject, name, found, *question = one.messages[-1].content.split()
        assert one.metadata["facts"][name] == (subject, relation, found) == one.metadata["asked"]
        assert question == ["<q>", "what", relation, subject]


def test_a_trace_says_which_kept_fact_was_asked_for() -> None:
    example = TASK.train_example(0)
    wrong = next(name for name in example.metadata["facts"] if name != right(example))
    _, score = played(example, call("e0", wrong, right(example)), answer(example.answer))
    assert [(step.id, step.ok) for step in score.trace if step.kind == "document"] == [
        (wrong, False),
        (right(example), True),
    ]


def test_a_fact_with_the_same_answer_about_another_subject_is_not_the_right_one() -> None:
    examples = [TASK.train_example(index) for index in range(50)]
    alike = [(one, fact) for one in examples for fact in others(one) if fact[2] == one.answer]
    example, fact = alike[0]
    name = next(name for name, other in example.metadata["facts"].items() if other == fact)
    _, score = played(example, call("e0", name), answer(example.answer))
    assert [step.ok for step in score.trace if step.kind == "document"] == [False]


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_so_many_demonstrations_keep_among_many(share: float) -> None:
    task = make_task(f"task.keep_share={share}")
    sizes = [sum(word[0] == "d" for word in task.demonstration(index, 1.0)[0].split()) for index in range(300)]
    assert sizes.count(9) / 300 == pytest.approx(share, abs=0.06)


def test_pitfall_36_the_stream_is_a_function_of_seed_and_index() -> None:
    again, other = make_task(), make_task("seed=1")
    forward = [TASK.train_example(index) for index in range(20)]
    assert [again.train_example(index) for index in reversed(range(20))] == forward[::-1]
    assert [other.train_example(index) for index in range(20)] != forward


def test_demonstrations_read_few_facts_and_keep_the_right_one_or_the_first() -> None:
    kept: Counter[tuple[int, bool]] = Counter()
    for index in range(600):
        shown = TASK.demonstration(index, 0.25)
        words = shown[0].split()
        size = sum(word.startswith("d") for word in words)
        assert size in (1, 2, 3, 9)
        facts = {words[at + 2]: (words[at], words[at + 1], words[at + 3]) for at in range(0, 4 * size, 4)}
        for prompt, said in zip(shown[::2], shown[1::2], strict=True):
            asked, told = tuple(prompt.split()[-2:]), said.split()
            if told[0] == "<call>":
                assert told[:3] == ["<call>", "keep", asked[1]]
                is_right = facts[told[3]][:2] == asked
                kept[size, is_right] += 1
                assert is_right or told[3] == next(iter(facts))
            else:
                assert (*asked, told[0] if len(told) == 1 else told[1]) in facts.values()
                assert len(told) == 1 or (told[0], *told[2:]) == ("<ans>", "</ans>", "<eoe>")
    for size in (3, 9):
        share = kept[size, True] / (kept[size, True] + kept[size, False])
        assert share == pytest.approx(0.25 + 0.75 / size, abs=0.1)


def test_demonstrations_ask_in_any_order() -> None:
    firsts = [TASK.demonstration(index, 1.0)[1].split()[0] for index in range(300)]
    assert {"<call>", "<ans>"} <= set(firsts)
    assert any(word in TASK._entities for word in firsts)  # an answer without marks


def test_pitfall_06_a_demonstrated_call_has_the_tokens_of_an_episode() -> None:
    assert TASK.vocabulary is not None
    tokenizer: Any = build_tokenizer(TASK.vocabulary)
    chat = Chat(tokenizer, TASK.stop_words)
    (shown,) = TASK.demonstrations(1)
    tools = TASK.env(shown.example).tools
    ids = chat.encode_completion(calling(shown.turns[0], 0), tools)
    name, subject = right(shown.example), shown.example.metadata["asked"][0]
    assert chat.decode(ids) == f"<call> keep {subject} {name} </call>"
    assert ids[-1] in chat.stop_ids
    parsed = chat.parse(ids, StopReason.STOP, tools)
    assert parsed.tool_calls[0].arguments == {"about": subject, "ids": [name]}


@pytest.mark.parametrize("text", ["what r2 e3", "r2 e3", "<q> which r2 e3"])
def test_a_users_question_gets_facts_with_a_held_out_one(text: str) -> None:
    example = TASK.example(text)
    assert example.metadata["asked"][:2] == ("e3", "r2")
    assert TASK.is_held_out(example.metadata["asked"])
    assert example == TASK.example("r2 e3")


@pytest.mark.parametrize("text", ["", "r2", "e3 r2", "where r2 e3", "r6 e3", "r2 e30", "x" * 10_000])
def test_other_questions_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"is no question of task=keep_one: ask what r0 e0 \(to r5 e29\)\.$") as caught:
        TASK.example(text)
    assert len(str(caught.value)) < 400


def test_worlds_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"task.num_facts=9: every fact needs a subject of its own"):
        make_task("task.num_entities=8")
    for share, what in (("1e-09", "evaluate"), ("0.999999999", "train")):
        with pytest.raises(ConfigError, match=rf"task.held_out_share={share} leaves no fact to {what} on"):
            make_task(f"task.held_out_share={share}")
