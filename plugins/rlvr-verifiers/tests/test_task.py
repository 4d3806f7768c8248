"""Environments of the verifiers library as tasks: every loop ends, failures are counted, nothing is left running."""

from __future__ import annotations

import asyncio
import gc
import math
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlvr.errors import ConfigError, UserError
from rlvr.tracking.rollout_metrics import tool_metrics
from rlvr.types import StopReason
from scripted import ENVIRONMENTS, Codec, Engine, call, episode, graded, make_task, play
from tests.unit.tasks.data_tasks import turn

CUT = StopReason.LENGTH


@pytest.fixture(autouse=True)
def _environments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(ENVIRONMENTS))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in handlers} == handlers


def test_a_single_turn_is_scored_by_the_rubric() -> None:
    task = make_task("letters")
    example = task.train_example(0)
    (env,) = task.envs(example, 1)
    found = asyncio.run(episode(example, env, "eexx"))
    assert (env.max_turns, env.tools) == (1, ())
    assert found.score.value == 0.5
    assert found.score.parts == {"share_of_e": 0.5, "length": 4.0, "cut": 0.0, "num_turns": 1.0}
    assert found.stop_reason == StopReason.STOP


def test_held_out_is_its_evaluation_set_or_a_share_of_rows() -> None:
    own, cut = make_task("letters"), make_task("numbers")
    assert {example.messages[0].content[:4] for example in own.eval_examples(99)} == {"tell"}
    held_out = {example.id for example in cut.eval_examples(99)}
    trained = {cut.train_example(index).id for index in range(200)}
    assert held_out
    assert len(held_out) + len(trained) == 40
    assert not held_out & trained
    assert held_out == {example.id for example in make_task("numbers", seed=1).eval_examples(99)}
    assert "from the verifiers environment rlvr-test-environments" in cut.notes[0]


def test_tools_are_called_by_the_library() -> None:
    task = make_task("tools")
    example = task.train_example(0)
    (env,) = task.envs(example, 1)
    codec = Codec()
    said = (call(("add", {"a": 1, "b": 2}), ("fail", {"reason": "no way"})), call(("add", {"a": "x"})), example.answer)
    found = asyncio.run(episode(example, env, *said, codec=codec))
    assert [schema["function"]["name"] for schema in env.tools] == ["add", "fail"]
    assert env.tools[0]["function"]["parameters"]["required"] == ["a", "b"]
    first, second = codec.prompts[1:]
    assert [(m.role, m.name, m.content) for m in first] == [("tool", "add", "3"), ("tool", "fail", "no way")]
    assert "b" in second[0].content
    assert found.score.value == 1.0
    assert found.score.parts["total_tool_calls"] == 3.0
    counts = {"turns": 3.0, "tool_calls": 3.0, "malformed_calls": 0.0, "tool_errors": 2.0}
    assert found.score.diagnostics == counts
    assert tool_metrics([counts], [found.stop_reason])["tool_error_share"] == pytest.approx(2 / 3)
    other, _ = play(task, "done")
    assert other.score.diagnostics["tool_errors"] == 0.0
    assert found.turns[1].prompt_ids[:3] == found.turns[0].prompt_ids + found.turns[0].completion.token_ids


def test_pitfall_28_a_malformed_call_is_answered() -> None:
    found, codec = play(make_task("tools"), "calls rubbish", "done")
    assert "Expecting value" in codec.prompts[1][0].content
    assert (found.score.diagnostics["malformed_calls"], len(found.turns)) == (1.0, 2)


def test_a_call_in_the_last_turn_ends_at_the_limit() -> None:
    add = call(("add", {"a": 1, "b": 2}))
    found, _ = play(make_task("tools", more={"max_turns": 2}), add, add)
    assert (found.stop_reason, found.score.value) == (StopReason.MAX_TURNS, 0.5)
    answered, _ = play(make_task("tools", more={"max_turns": 2}), add, "no")
    assert answered.stop_reason == StopReason.STOP


@pytest.mark.parametrize(
    ("said", "max_turns", "reason"), [(("a", ("unfinish", CUT)), None, CUT), (("a", "b"), 2, StopReason.MAX_TURNS)]
)
def test_pitfall_14_an_episode_that_ends_early_is_truncated(said: Any, max_turns: int | None, reason: Any) -> None:
    found, _ = play(make_task("talk"), *said, max_turns=max_turns)
    assert (found.stop_reason, found.score.status) == (reason, "scored")
    # the library saw both completions, and answered the second one to nobody
    assert found.score.parts == {"num_heard": 2.0, "num_messages": 3.0, "cut": 1.0, "num_turns": 2.0}


def test_pitfall_14_a_cut_single_turn_is_truncated() -> None:
    single, _ = play(make_task("letters"), ("ee", CUT))
    assert (single.score.value, single.score.parts["cut"]) == (1.0, 1.0)


def test_pitfall_07_a_rewritten_conversation_starts_a_new_prompt() -> None:
    plain, _ = play(make_task("talk"), "a", "b", "c", max_turns=3)
    starts = [turn.prompt_ids[: len(plain.turns[0].prompt_ids)] for turn in plain.turns]
    assert starts == [plain.turns[0].prompt_ids] * 3
    found, codec = play(make_task("talk", more={"mode": "forgets"}), "a", "b", "c", max_turns=3)
    assert [len(turn.prompt_ids) for turn in found.turns] == [1, 1, 1]  # every prompt is a new one
    assert [message.content for message in codec.prompts[1]] == ["hello", "heard 1"]


def test_content_that_is_no_text_ends_the_run() -> None:
    with pytest.raises(UserError, match="text alone"):
        play(make_task("talk", more={"mode": "image"}), "a", "b")


@pytest.mark.parametrize(
    ("more", "last", "message"),
    [
        ({"mode": "setup"}, "b", "InfraError: no sandbox <- OSError: connection refused"),
        ({"mode": "bug"}, "b", "ZeroDivisionError: a bug"),
        ({"mode": "hangs", "timeout_seconds": 0.05}, "b", "time limit of 0.05 s timed out"),
        ({"mode": "stubborn"}, ("b", CUT), "went on after 100 requests"),
    ],
)
def test_pitfall_26_a_failing_environment_is_an_error(more: dict[str, Any], last: Any, message: str) -> None:
    found, _ = play(make_task("talk", more=more), "a", last)
    assert (found.score.status, math.isnan(found.score.value)) == ("error", True)
    assert message in str(found.score.diagnostics["error"])


def test_pitfall_26_a_raising_reward_function_is_an_error() -> None:
    task = make_task("breaks")
    examples = {task.train_example(index).answer: index for index in range(60)}
    found, _ = play(task, "3", index=examples["3"])
    assert (found.score.status, math.isnan(found.score.value)) == ("error", True)
    assert found.score.diagnostics["error"] == "reward function broken: KeyError: 'no such column'"
    fine, _ = play(task, "4", index=examples["4"])
    assert fine.score.value == 1.5


def play_group(task: Any, *said: Any) -> list[Any]:
    example = task.train_example(0)

    async def run() -> list[Any]:
        envs = task.envs(example, len(said))
        return await asyncio.gather(*(episode(example, env, one) for env, one in zip(envs, said, strict=True)))

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("second", "longest"), [("aaa", [0.0, 1.0, 0.0]), (("aaaaa", StopReason.ABORTED), [0.0, None, 1.0])]
)
def test_group_rewards_compare_all_but_aborted_episodes(second: Any, longest: list[float | None]) -> None:
    found = play_group(make_task("group"), "a", second, "aa")
    assert [one.score.status for one in found] == ["error" if value is None else "scored" for value in longest]
    assert [one.score.parts.get("longest") for one in found] == longest


def test_pitfall_29_too_few_rewards_of_a_group_are_an_error() -> None:
    found = play_group(make_task("group", more={"fails": True}), "a", "aa")
    assert [one.score.status for one in found] == ["error", "error"]
    assert "1 numbers for 2 episodes" in found[0].score.diagnostics["error"]


def test_environments_of_an_environment_group_are_scored() -> None:
    found = play_group(make_task("both", more={"num": 4}), "e", "ee")
    assert [one.score.status for one in found] == ["scored", "scored"]


def test_pitfall_27_a_cancelled_episode_leaves_no_task_behind() -> None:
    task = make_task("tools")
    example = task.train_example(0)
    problems: list[str] = []  # a task that is destroyed while it waits

    async def run() -> int:
        (env,) = task.envs(example, 1)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(str(context)))
        codec = Codec()
        engine = Engine(codec, [call(("add", {"a": 1, "b": 2}))])
        running = asyncio.create_task(episode(example, env, codec=codec, engine=engine))
        del env
        await engine.silent.wait()
        before = len(asyncio.all_tasks())
        running.cancel()
        await asyncio.wait({running})
        del running
        gc.collect()
        for _ in range(5):
            await asyncio.sleep(0)
        assert before == 3  # this one, the episode, the library's rollout
        return len(asyncio.all_tasks())

    assert (asyncio.run(run()), problems) == (1, [])


@pytest.mark.parametrize("kind", ["letters", "handlers"])
def test_our_signal_handlers_stay(kind: str) -> None:
    def ours(number: int, frame: object) -> None: ...

    previous = {number: signal.signal(number, ours) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        make_task(kind)
        assert [signal.getsignal(number) for number in previous] == [ours, ours]
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def test_environments_can_be_made_in_another_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(make_task, "letters").result()


def test_pitfall_38_the_metric_is_the_number_in_the_settings() -> None:
    by_reward, by_length = make_task("letters"), make_task("letters", metric="length", metric_threshold=3)
    example = by_reward.eval_examples(1)[0]
    assert [graded(by_reward, example, said).correct for said in ("e", "eex", "xxxx")] == [True, False, False]
    assert [graded(by_length, example, said).correct for said in ("e", "eex", "xxxx")] == [False, True, True]
    assert graded(by_reward, example, " e ").answer == "e"


def test_the_metric_cannot_grade_what_was_not_scored() -> None:
    task = make_task("breaks")
    example = next(e for e in (task.train_example(index) for index in range(60)) if e.answer == "3")
    assert "KeyError" in (graded(task, example, "3").failure or "")
    other = make_task("breaks")
    assert graded(other, other.train_example(0), "1").failure is None
    assert asyncio.run(other.grade(example, [turn("1")])).failure == "the environment has not scored this episode"


def test_an_unknown_metric_is_an_error_listing_the_metrics() -> None:
    task = make_task("letters", metric="accuracy")
    with pytest.raises(ConfigError, match=r"task\.metric=accuracy.*choose one of reward, share_of_e, length"):
        graded(task, task.eval_examples(1)[0], "e")


def test_demonstrations_texts_and_own_questions() -> None:
    task = make_task("numbers")
    system, user = play(task, "1")[1].prompts[0]  # the library's
    assert (system.role, system.content, user.content[:4]) == ("system", "Answer in digits.", "say ")
    prompt, answer = task.demonstration(3, 1.0)
    assert prompt.startswith("Answer in digits.\nsay ")
    assert answer.isdigit()
    assert any(text.startswith("Answer in digits.\nsay ") for text in task.texts())
    own = task.example(" how many? ")
    assert [message.content for message in own.messages] == ["Answer in digits.", "how many?"]
    assert not graded(task, own, "").correct


def test_long_prompts_are_left_out_and_tools_count() -> None:
    task = make_task("tools")
    counted: list[int] = []

    def count(messages: Any, tools: Any = ()) -> int:
        counted.append(len(tools))
        return len(messages[0].content)

    task.limit_prompts(count, len("say 1"))
    assert set(counted) == {2}
    assert all(len(task.train_example(index).messages[0].content) == 5 for index in range(40))
    assert "left out" in task.notes[-1]
    with pytest.raises(UserError, match="more than 1 tokens"):
        make_task("tools").limit_prompts(count, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env_id": "no-such-environment"}, r"task\.env_id=no-such-environment: there is no such environment"),
        ({"env_args": {"kind": "numbers", "king": 1}}, r"task\.env_args=.*unexpected keyword argument 'king'"),
        ({"env_args": {"kind": "chess"}}, r"task\.env_args=.*KeyError: 'chess'"),
        ({"env_args": {"kind": "silent"}}, "gives no scores"),
        ({"env_args": {"kind": "no_environment"}}, "cannot be made with them"),
    ],
)
def test_a_bad_environment_is_an_error_naming_it(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task(**changes)


def test_an_environment_that_only_evaluates_can_be_evaluated() -> None:
    task = make_task("only_eval")
    assert len(task.eval_examples(99)) == 40
    with pytest.raises(UserError, match="none to train on"):
        task.train_example(0)
