"""The k_hop task: chains, what is held out, demonstrations and episodes in each mode, and an environment that only
repeats what the model found."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from rlvr.chat.rendering import Chat
from rlvr.config.compose import load_config
from rlvr.core.env import Env, Reply
from rlvr.errors import ConfigError, UserError
from rlvr.models.scratch import build_tokenizer
from rlvr.research.k_hop import KHopTask
from rlvr.run.tasks import open_tasks
from rlvr.types import Example, Message, StopReason
from tests.unit.tasks.test_two_hop import turns

MODES = ("flat", "plan", "filler", "shuffled_plan", "peel")
SMALL = ("task.num_entities=4", "task.num_relations=4", "task.eval_hops=[2,3,4]", "task.held_out_share=0.4")


def make_task(*overrides: str) -> KHopTask:
    with open_tasks(load_config(overrides, config_name="k_hop"), "llama", {}) as tasks:
        assert isinstance(tasks.own, KHopTask)
        return tasks.own


PEEL, FLAT = make_task("task.mode=peel"), make_task("task.mode=flat")
TASKS = {"peel": PEEL, "flat": FLAT}


def task_of(mode: str) -> KHopTask:
    return TASKS.setdefault(mode, make_task(f"task.mode={mode}"))


def chat_of(task: KHopTask) -> Chat:
    assert task.vocabulary is not None
    return Chat(build_tokenizer(task.vocabulary), task.stop_words)


def replies(task: KHopTask, example: Example, *said: str) -> list[Reply]:
    chat, env = chat_of(task), task.env(example)
    tokenizer: Any = build_tokenizer(task.vocabulary or ())

    async def play() -> list[Reply]:
        await env.start()
        ids = [tuple(tokenizer(text)["input_ids"]) for text in said]
        return [await env.step(chat.parse(one, StopReason.STOP, env.tools)) for one in ids]

    return asyncio.run(play())


def texts(found: Sequence[Reply]) -> list[str]:
    return [message.content for reply in found for message in reply.messages]


def relations_of(question: str) -> tuple[str, ...]:
    """In the order of the searches: the question has the outermost first."""
    return tuple(reversed([word for word in question.split() if word.startswith("r")]))


def test_a_question_has_its_outermost_relation_first() -> None:
    example = FLAT.train_example(0)
    start, *relations = example.metadata["chain"]
    assert example.messages == (Message(role="user", content=f"<q> {' '.join(reversed(relations))} {start}"),)
    facts = example.metadata["facts"]
    assert [relation for _, relation, _ in facts] == relations
    assert facts[0][0] == start
    assert all(one[2] == other[0] for one, other in pairwise(facts))
    assert example.answer == facts[-1][2]


def test_pitfall_36_every_example_has_a_world_of_its_own() -> None:
    found = {FLAT.train_example(index).metadata["facts"][0] for index in range(300)}
    known = {}
    for name, relation, value in found:
        known.setdefault((name, relation), set()).add(value)
    assert max(map(len, known.values())) >= 3
    again, other = make_task("task.mode=flat"), make_task("task.mode=flat", "seed=1")
    assert [again.train_example(index) for index in (5, 2)] == [FLAT.train_example(index) for index in (5, 2)]
    assert other.train_example(0) != FLAT.train_example(0)
    assert other.eval_examples(12) == FLAT.eval_examples(12) == FLAT.eval_examples(20)[:12]


def test_two_and_three_hops_are_trained_and_two_to_five_are_tested() -> None:
    assert {len(FLAT.train_example(index).metadata["chain"]) for index in range(50)} == {3, 4}
    examples = FLAT.eval_examples(40)
    assert [FLAT.tags(one) for one in examples[:5]] == [(f"hops_{hops}",) for hops in (2, 3, 4, 5, 2)]
    assert len({one.metadata["chain"] for one in examples}) == 40


@pytest.mark.parametrize("mode", ["flat", "peel"])
def test_pitfall_38_held_out_chains_are_never_trained_on(mode: str) -> None:
    """Nor what turns of `peel` leave of a question, down to two relations."""
    task = make_task(*SMALL, f"task.mode={mode}")
    held_out = {one.metadata["chain"][1:] for one in task.eval_examples(10_000)}
    assert {len(relations) for relations in held_out} == {2, 3, 4}
    asked = {relations_of(task.train_example(index).messages[0].content) for index in range(500)}
    asked |= {relations_of(task.demonstration(index, 1.0)[0]) for index in range(500)}
    left = {relations[done:] for relations in asked for done in range(len(relations) - 1)}
    assert {len(relations) for relations in left} == {2, 3}
    assert not left & held_out


@pytest.mark.parametrize("lengths", ["[1]", "[1,2]"])
def test_pitfall_38_chains_of_one_relation_are_held_out_too(lengths: str) -> None:
    both = ("task.eval_hops=[1,2]", f"task.train_hops={lengths}", "task.num_relations=8", "task.held_out_share=0.4")
    task = make_task(*both)
    held_out = {one.metadata["chain"][1:] for one in task.eval_examples(10_000)}
    assert {len(relations) for relations in held_out} == {1, 2}
    asked = {relations_of(task.train_example(index).messages[0].content) for index in range(500)}
    asked |= {relations_of(task.demonstration(index, 1.0)[0]) for index in range(500)}
    assert not {relations[done:] for relations in asked for done in range(len(relations))} & held_out


def test_when_all_chains_of_a_length_are_shown_the_others_go_on() -> None:
    task = make_task(*SMALL)
    lengths = [len(one.metadata["chain"]) - 1 for one in task.eval_examples(10_000)]
    assert lengths[:3] == [2, 3, 4]
    assert lengths.count(2) < lengths.count(3)
    assert lengths[-1] == 3


@pytest.mark.parametrize(("share", "what"), [("1e-09", "evaluate"), ("0.999999999", "train")])
def test_a_share_that_leaves_nothing_is_refused(share: str, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"task.held_out_share={share} leaves no chain to {what} on: change it"):
        make_task(f"task.held_out_share={share}")


def test_the_relations_of_a_chain_differ() -> None:
    with pytest.raises(ConfigError, match=r"task.num_relations=4: too small for 5 hops"):
        make_task("task.num_relations=4")


# --------------------------------------------------------------------------------------------------------------- turns


def test_flat_keeps_everything_in_one_context() -> None:
    example = FLAT.train_example(0)
    said = [f"<call> search {name} {relation} </call>" for name, relation, _ in example.metadata["facts"]]
    found = replies(FLAT, example, *said, f"<ans> {example.answer} </ans> <eoe>")
    assert texts(found) == [f"<tool> {' '.join(fact)} . </tool>" for fact in example.metadata["facts"]]
    assert [reply.done for reply in found] == [False] * len(said) + [True]
    assert not any(reply.restarts for reply in found)


def test_peel_asks_what_is_left_in_a_fresh_context() -> None:
    example = PEEL.train_example(0)
    chain, facts = example.metadata["chain"], example.metadata["facts"]
    said = [f"<call> search {name} {relation} </call>" for name, relation, _ in facts]
    found = replies(PEEL, example, *said, f"<ans> {example.answer} </ans> <eoe>")
    left = [" ".join(("<q>", *reversed(chain[done + 2 :]), fact[2])) for done, fact in enumerate(facts)]
    assert texts(found) == left
    assert left[-1] == f"<q> {example.answer}"
    assert [reply.restarts for reply in found] == [True] * len(facts) + [False]


def test_pitfall_17_peel_repeats_what_the_model_found_and_nothing_else() -> None:
    """A wrong search leads astray; one without a result, or a call that is none, changes nothing."""
    example = PEEL.train_example(0)
    start, *relations = example.metadata["chain"]
    wrong = next(f"r{number}" for number in range(8) if f"r{number}" not in relations)
    first, *_ = example.metadata["facts"]
    (astray,) = texts(replies(PEEL, example, f"<call> search {start} {wrong} </call>"))
    (told,) = texts(replies(FLAT, example, f"<call> search {start} {wrong} </call>"))
    assert astray == " ".join(("<q>", *reversed(relations[1:]), told.split()[3]))
    for said in ("<call> search r1 e1 </call>", "<call> nothing </call>", "<call> search e0 </call>"):
        assert texts(replies(PEEL, example, said)) == [example.messages[0].content]
    # the same question with another answer gets the same words, as long as nothing was found
    other = PEEL.example(example.messages[0].content)
    assert texts(replies(PEEL, other, "<call> nothing </call>")) == [example.messages[0].content]
    right = texts(replies(PEEL, example, f"<call> search {start} {relations[0]} </call>"))
    assert right == [" ".join(("<q>", *reversed(relations[1:]), first[2]))]


def test_peel_goes_on_when_nothing_is_left_to_ask() -> None:
    example = PEEL.example("r1 e0")
    first, second = texts(replies(PEEL, example, *["<call> search e0 r1 </call>", "<call> search e3 r2 </call>"]))
    assert first == f"<q> {example.answer}"
    assert second.startswith("<q> e")


@pytest.mark.parametrize("mode", ["plan", "filler", "shuffled_plan"])
def test_a_plan_is_noted_and_changes_nothing(mode: str) -> None:
    task = task_of(mode)
    example = task.train_example(0)
    name, relation, found = example.metadata["facts"][0]
    said = ["<call> plan r1 r0 </call>", f"<call> search {name} {relation} </call>"]
    assert texts(replies(task, example, *said)) == [
        "<tool> noted . </tool>",
        f"<tool> {name} {relation} {found} . </tool>",
    ]
    assert texts(replies(task, example, "<call> search r1 </call>")) == ["<tool> nothing . </tool>"]


def test_without_a_mode_of_plans_there_is_no_such_tool() -> None:
    assert texts(replies(FLAT, FLAT.train_example(0), "<call> plan r1 </call>")) == ["<tool> nothing . </tool>"]


# ------------------------------------------------------------------------------------------------------ demonstrations


@pytest.mark.parametrize("mode", MODES)
def test_pitfall_06_a_demonstration_has_the_tokens_of_an_episode(mode: str) -> None:
    """In `peel` the prompts and completions of a turn."""
    task = task_of(mode)
    chat = chat_of(task)
    for index in range(8):
        shown = task.demonstration(index, 1.0)
        relations = relations_of(shown[0])
        if mode == "peel" and not relations:
            continue
        example = task.example(shown[0])
        calls = [text for text in shown[1::2] if text.endswith("</call>")]
        found = replies(task, example, *calls)
        if mode == "peel":
            assert shown == (
                example.messages[0].content,
                f"<call> search {shown[0].split()[-1]} {relations[0]} </call>",
            )
            assert found[0].restarts
        else:  # another world: the same words but for entities
            assert [text.split()[:1] for text in texts(found)] == [text.split()[:1] for text in shown[2::2]]
            assert shown[-1].endswith("</ans> <eoe>")
            assert len(calls) == len(relations) + (mode != "flat")
        assert all(chat.encode_completion(text)[-1] in chat.stop_ids for text in shown[1::2])


def test_plans_and_their_controls() -> None:
    def plans(mode: str) -> list[tuple[tuple[str, ...], list[str]]]:
        task = task_of(mode)
        shown = (task.demonstration(index, 1.0) for index in range(40))
        return [(relations_of(parts[0]), parts[1].split()[2:-1]) for parts in shown]

    assert all(list(relations) == words for relations, words in plans("plan"))
    assert all([*words] == ["."] * len(relations) for relations, words in plans("filler"))
    shuffled = plans("shuffled_plan")
    assert all(sorted(relations) == sorted(words) for relations, words in shuffled)
    assert 0.2 < sum(list(relations) == words for relations, words in shuffled) / 40 < 0.6
    # the same questions in each mode
    assert [one for one, _ in shuffled] == [one for one, _ in plans("plan")]


def test_unworked_demonstrations_stop_early_and_guess() -> None:
    shown = [FLAT.demonstration(index, 0.0) for index in range(300)]
    searches = [len(relations_of(parts[0])) - len(parts[1:-1]) // 2 for parts in shown]
    assert set(searches) == {1, 2, 3}  # at least one is missing
    assert len({parts[-1].split()[1] for parts in shown}) == 16
    peeled = [PEEL.demonstration(index, 0.0) for index in range(100)]
    assert all(parts[1].startswith("<ans> ") for parts in peeled)
    worked = [PEEL.demonstration(index, 1.0) for index in range(100)]
    assert [parts[0].split()[:-1] for parts in worked] == [parts[0].split()[:-1] for parts in peeled]
    assert {len(relations_of(parts[0])) for parts in worked} == {0, 1, 2, 3}
    for question, said in worked:
        assert relations_of(question) or said == f"<ans> {question.split()[-1]} </ans> <eoe>"


# ------------------------------------------------------------------------------------------------------- own questions


@pytest.mark.parametrize("text", ["<q> r4 r1 r3 e7", "r4 r1 r3 e7", "  r4 r1   r3 e7\n"])
def test_a_users_question(text: str) -> None:
    example = FLAT.example(text)
    assert example.metadata["chain"] == ("e7", "r3", "r1", "r4")
    assert example == FLAT.example("<q> r4 r1 r3 e7")


@pytest.mark.parametrize("text", ["", "e7", "r1", "r1 e16", "r1 r1 e1", "r1 r2 r3 r4 r5 r6 e1", "e1 r1", "x" * 10_000])
def test_other_questions_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"is no question of task=k_hop: ask e.g. r1 r0 e0, up to 5") as caught:
        FLAT.example(text)
    assert len(str(caught.value)) < 450


@pytest.mark.parametrize(("mode", "words"), [("flat", 62), ("plan", 74), ("peel", 7)])
def test_an_episode_that_does_not_fit_is_refused(mode: str, words: int) -> None:
    def count(messages: Sequence[Message], tools: object = ()) -> int:
        return sum(len(message.content.split()) for message in messages)

    task_of(mode).limit_prompts(count, words)
    with pytest.raises(ConfigError, match=rf"have {words} tokens, but {words - 1} are left for them"):
        task_of(mode).limit_prompts(count, words - 1)


def test_the_longest_turn_fits() -> None:
    with pytest.raises(ConfigError, match=r"rollout.max_completion_tokens=7: task=k_hop needs 8 or more"):
        make_task("task.mode=plan", "rollout.max_completion_tokens=7")
    assert make_task("task.mode=flat", "rollout.max_completion_tokens=5").env(FLAT.train_example(0)).max_turns == 6


def test_pitfall_07_an_episode_is_traced_to_its_answer() -> None:
    example = PEEL.train_example(0)
    env: Env = PEEL.env(example)
    name, relation, found = example.metadata["facts"][0]
    call = f"<call> search {name} {relation} </call>"

    async def score() -> Any:
        chat, tokenizer = chat_of(PEEL), build_tokenizer(PEEL.vocabulary or ())
        ids: Any = tokenizer(call)["input_ids"]
        await env.start()
        await env.step(chat.parse(tuple(ids), StopReason.STOP, env.tools))
        return await env.score(turns(call, f"<ans> {example.answer} </ans> <eoe>"))

    trace = [(step.kind, step.text, step.ok) for step in asyncio.run(score()).trace]
    assert trace == [
        ("query", f"{name} {relation}", None),
        ("document", f"{name} {relation} {found}", True),
        ("answer", example.answer, True),
    ]
