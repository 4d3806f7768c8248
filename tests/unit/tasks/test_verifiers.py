"""Environments of the verifiers library as tasks: every loop ends, failures are counted, nothing is left running."""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import math
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rlvr.errors import ConfigError, UserError
from rlvr.tasks.verifiers import library
from rlvr.tracking.rollout_metrics import tool_metrics
from rlvr.types import StopReason
from tests.unit.tasks.verifiers_play import ENVIRONMENTS, Codec, Engine, call, episode, graded, make_task, play

needs_library = pytest.mark.verifiers
CUT = StopReason.LENGTH


@pytest.fixture(autouse=True)
def _environments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(ENVIRONMENTS))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in handlers} == handlers


# ------------------------------------------------------------------------------------------------ without the library


@pytest.mark.parametrize("found", [None, "0.4.0"])
def test_without_the_library_or_with_another_version_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, found: str | None
) -> None:
    def version(name: str) -> str:
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(UserError, match=r"pip install 'rlvr\[verifiers\]'"):
        library()


# ------------------------------------------------------------------------------------------------------- one turn


@needs_library
def test_a_single_turn_is_scored_by_the_rubric() -> None:
    task = make_task("letters")
    example = task.train_example(0)
    (env,) = task.envs(example, 1)
    found = asyncio.run(episode(example, env, "eexx"))
    assert (env.max_turns, env.tools) == (1, ())
    assert found.score.value == 0.5
    assert found.score.parts == {"share_of_e": 0.5, "length": 4.0, "cut": 0.0, "num_turns": 1.0}
    assert found.stop_reason == StopReason.STOP


@needs_library
def test_its_evaluation_set_is_held_out_and_else_a_share_of_the_rows() -> None:
    own, cut = make_task("letters"), make_task("numbers")
    assert {example.messages[0].content[:4] for example in own.eval_examples(99)} == {"tell"}
    held_out = {example.id for example in cut.eval_examples(99)}
    trained = {cut.train_example(index).id for index in range(200)}
    assert held_out
    assert len(held_out) + len(trained) == 40
    assert not held_out & trained
    assert held_out == {example.id for example in make_task("numbers", seed=1).eval_examples(99)}
    assert "from the verifiers environment rlvr-test-environments" in cut.notes[0]


# ------------------------------------------------------------------------------------------------------------ tools


@needs_library
def test_tools_are_called_by_the_library_and_answered_in_messages() -> None:
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


@needs_library
def test_pitfall_28_a_malformed_call_is_answered_and_the_episode_goes_on() -> None:
    found, codec = play(make_task("tools"), "calls rubbish", "done")
    assert "Expecting value" in codec.prompts[1][0].content
    assert found.score.diagnostics["malformed_calls"] == 1.0
    assert len(found.turns) == 2


@needs_library
def test_a_call_in_the_last_turn_ends_at_the_limit() -> None:
    found, _ = play(make_task("tools", more={"max_turns": 2}), *[call(("add", {"a": 1, "b": 2}))] * 2)
    assert (found.stop_reason, found.score.value) == (StopReason.MAX_TURNS, 0.5)
    answered, _ = play(make_task("tools", more={"max_turns": 2}), call(("add", {"a": 1, "b": 2})), "no")
    assert answered.stop_reason == StopReason.STOP


# ------------------------------------------------------------------------------------------------- ends of a rollout


@needs_library
@pytest.mark.parametrize(
    ("said", "max_turns", "reason"), [(("a", ("unfinish", CUT)), None, CUT), (("a", "b"), 2, StopReason.MAX_TURNS)]
)
def test_pitfall_14_an_episode_that_ends_early_is_finished_by_the_library_and_scored_as_truncated(
    said: Any, max_turns: int | None, reason: StopReason
) -> None:
    found, _ = play(make_task("talk"), *said, max_turns=max_turns)
    assert (found.stop_reason, found.score.status) == (reason, "scored")
    # the library saw both completions, and answered the second one to nobody
    assert found.score.parts == {"num_heard": 2.0, "num_messages": 3.0, "cut": 1.0, "num_turns": 2.0}
    single, _ = play(make_task("letters"), ("ee", CUT))
    assert (single.score.value, single.score.parts["cut"]) == (1.0, 1.0)


@needs_library
def test_pitfall_07_a_conversation_that_is_rewritten_starts_a_new_prompt() -> None:
    plain, _ = play(make_task("talk"), "a", "b", "c", max_turns=3)
    starts = [turn.prompt_ids[: len(plain.turns[0].prompt_ids)] for turn in plain.turns]
    assert starts == [plain.turns[0].prompt_ids] * 3
    found, codec = play(make_task("talk", more={"mode": "forgets"}), "a", "b", "c", max_turns=3)
    assert [len(turn.prompt_ids) for turn in found.turns] == [1, 1, 1]  # every prompt is a new one
    assert [message.content for message in codec.prompts[1]] == ["hello", "heard 1"]


@needs_library
def test_content_that_is_no_text_ends_the_run() -> None:
    with pytest.raises(UserError, match="text alone"):
        play(make_task("talk", more={"mode": "image"}), "a", "b")


@needs_library
def test_an_environment_that_never_ends_is_given_up() -> None:
    found, _ = play(make_task("talk", more={"mode": "stubborn"}), "a", ("b", CUT))
    assert found.score.status == "error"
    assert "went on after 100 requests" in str(found.score.diagnostics["error"])


# ----------------------------------------------------------------------------------------------------------- failures


@needs_library
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("setup", "InfraError: no sandbox <- OSError: connection refused"),
        ("bug", "ZeroDivisionError: a bug"),
        ("hangs", "time limit of 0.05 s timed out"),
    ],
)
def test_pitfall_26_a_failing_environment_is_an_error_and_no_wrong_answer(mode: str, message: str) -> None:
    found, _ = play(make_task("talk", more={"mode": mode, "timeout_seconds": 0.05}), "a", "b")
    assert found.score.status == "error"
    assert math.isnan(found.score.value)
    assert message in str(found.score.diagnostics["error"])


@needs_library
def test_pitfall_26_a_reward_function_that_raises_is_counted_and_not_scored_zero() -> None:
    task = make_task("breaks")
    examples = {task.train_example(index).answer: index for index in range(60)}
    found, _ = play(task, "3", index=examples["3"])
    assert (found.score.status, math.isnan(found.score.value)) == ("error", True)
    assert found.score.diagnostics["error"] == "reward function broken: KeyError: 'no such column'"
    fine, _ = play(task, "4", index=examples["4"])
    assert fine.score.value == 1.5


# ------------------------------------------------------------------------------------------------------------- groups


def play_group(task: Any, *said: Any) -> list[Any]:
    example = task.train_example(0)

    async def run() -> list[Any]:
        envs = task.envs(example, len(said))
        return await asyncio.gather(*(episode(example, env, one) for env, one in zip(envs, said, strict=True)))

    return asyncio.run(run())


@needs_library
def test_rewards_of_groups_compare_the_episodes_of_a_group() -> None:
    found = play_group(make_task("group"), "a", "aaa", "aa")
    assert [one.score.parts["longest"] for one in found] == [0.0, 1.0, 0.0]


@needs_library
def test_an_aborted_episode_neither_holds_its_group_up_nor_takes_part() -> None:
    found = play_group(make_task("group"), "a", ("aaaaa", StopReason.ABORTED), "aa")
    assert [one.score.status for one in found] == ["scored", "error", "scored"]
    assert [one.score.parts.get("longest") for one in found] == [0.0, None, 1.0]


@needs_library
def test_pitfall_29_a_reward_of_a_group_with_too_few_numbers_is_an_error_of_all() -> None:
    found = play_group(make_task("group", more={"fails": True}), "a", "aa")
    assert [one.score.status for one in found] == ["error", "error"]
    assert "1 numbers for 2 episodes" in found[0].score.diagnostics["error"]


# ------------------------------------------------------------------------------------------------- nothing is left over


@needs_library
def test_environments_inside_a_group_of_environments_are_watched_and_scored() -> None:
    found = play_group(make_task("both", more={"num": 4}), "e", "ee")
    assert [one.score.status for one in found] == ["scored", "scored"]


@needs_library
def test_pitfall_27_an_episode_that_is_cancelled_leaves_no_task_behind() -> None:
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


@needs_library
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


# ---------------------------------------------------------------------------------------------------- metric and rest


@needs_library
def test_environments_can_be_made_in_another_thread() -> None:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(make_task("letters")))
    thread.start()
    thread.join()
    assert made


@needs_library
def test_pitfall_38_the_metric_is_the_number_that_the_settings_name() -> None:
    by_reward, by_length = make_task("letters"), make_task("letters", metric="length", metric_threshold=3)
    example = by_reward.eval_examples(1)[0]
    assert [graded(by_reward, example, said).correct for said in ("e", "eex", "xxxx")] == [True, False, False]
    assert [graded(by_length, example, said).correct for said in ("e", "eex", "xxxx")] == [False, True, True]
    assert graded(by_reward, example, " e ").answer == "e"


@needs_library
def test_the_metric_cannot_grade_what_was_not_scored() -> None:
    task = make_task("breaks")
    example = next(e for e in (task.train_example(index) for index in range(60)) if e.answer == "3")
    assert "KeyError" in (graded(task, example, "3").failure or "")
    other = make_task("breaks")
    assert graded(other, other.train_example(0), "1").failure is None
    assert asyncio.run(other.grade(example, _turns("1"))).failure == "the environment has not scored this episode"


def _turns(text: str) -> Any:
    from rlvr.core.env import TurnText

    return [TurnText(prompt="", completion=text, text=text, stop_reason=StopReason.STOP, num_tokens=1)]


@needs_library
def test_an_unknown_metric_is_named_with_those_there_are() -> None:
    task = make_task("letters", metric="accuracy")
    with pytest.raises(ConfigError, match=r"task\.metric=accuracy.*choose one of reward, share_of_e, length"):
        graded(task, task.eval_examples(1)[0], "e")


@needs_library
def test_demonstrations_texts_and_questions_of_ones_own() -> None:
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


@needs_library
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


@needs_library
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
def test_what_cannot_be_an_environment_is_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task(**changes)


@needs_library
def test_an_environment_that_only_evaluates_can_be_evaluated() -> None:
    task = make_task("only_eval")
    assert len(task.eval_examples(99)) == 40
    with pytest.raises(UserError, match="none to train on"):
        task.train_example(0)
