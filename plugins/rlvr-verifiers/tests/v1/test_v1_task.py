"""Tasksets of verifiers 0.4 as tasks: stops, tools, states and rewards are the library's; failures are counted."""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer

from rlvr.errors import ConfigError, UserError
from rlvr.rewards.base import RewardError
from rlvr.types import StopReason
from rlvr_verifiers.task import VerifiersTask
from scripted import Codec, Engine, call, episode, graded, make_task, play

TASKSETS = Path(__file__).parent / "tasksets"
CUT = StopReason.LENGTH


@pytest.fixture(autouse=True)
def _tasksets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TASKSETS))


def made(kind: str, **changes: Any) -> VerifiersTask:
    return make_task(kind, **{"env_id": "rlvr-test-taskset"} | changes)


def test_a_single_turn_is_scored_by_name() -> None:
    found, codec = play(made("letters"), "eexx")
    assert found.score.value == 0.5
    assert found.score.parts == {"share_of_e": 0.5, "length": 4.0, "cut": 0.0}
    assert found.stop_reason == StopReason.STOP
    assert [message.role for message in codec.prompts[0]] == ["user"]


def test_rewards_have_names_and_weights() -> None:
    task = made("numbers")
    example = task.train_example(0)
    found, codec = play(task, example.answer)
    assert found.score.parts == {"right": 1.0, "short": 1.0}
    assert found.score.value == 2.5
    assert [(m.role, m.content[:4]) for m in codec.prompts[0]] == [("system", "Answ"), ("user", "say ")]


def test_a_share_of_tasks_is_held_out() -> None:
    task = made("numbers")
    held_out = {example.id for example in task.eval_examples(99)}
    trained = {task.train_example(index).id for index in range(200)}
    assert held_out
    assert (len(held_out) + len(trained), held_out & trained) == (40, set())


def test_tools_are_called_with_the_state_of_the_rollout() -> None:
    task = made("tools")
    example = task.train_example(0)
    said = (
        call(("calculator_add", {"a": 1, "b": 2}), ("calculator_break", {"reason": "no way"})),
        call(("note", {"word": "x"})),
        example.answer,
    )
    (env,) = task.envs(example, 1)
    codec = Codec()
    found = asyncio.run(episode(example, env, *said, codec=codec))
    assert [schema["function"]["name"] for schema in env.tools] == ["calculator_add", "calculator_break", "note"]
    assert env.tools[0]["function"]["parameters"]["required"] == ["a", "b"]
    first, second = codec.prompts[1:]
    broken = "Error executing tool break: no way"
    assert [(m.role, m.name, m.content) for m in first] == [
        ("tool", "calculator_add", "3"),
        ("tool", "calculator_break", broken),
    ]
    assert second[0].content == f"1 words; the answer is {example.answer}"
    assert (found.score.value, found.score.parts["noted"]) == (1.0, 1.0)
    counts = {"turns": 3.0, "tool_calls": 3.0, "malformed_calls": 0.0, "tool_errors": 1.0}
    assert found.score.diagnostics == counts
    # what was sampled stays as it is, and the next prompt goes on from there
    for before, after in zip(found.turns, found.turns[1:], strict=False):
        said_ids = before.prompt_ids + before.completion.token_ids
        assert after.prompt_ids[: len(said_ids)] == said_ids


def test_tools_in_concurrent_rollouts_have_states_of_their_own() -> None:
    task = made("tools")
    example = task.train_example(0)

    async def run() -> list[Any]:
        envs = task.envs(example, 8)
        scripts = [[call(("note", {"word": "x"}))] * (index % 3) + ["no"] for index in range(8)]
        return await asyncio.gather(*(episode(example, env, *said) for env, said in zip(envs, scripts, strict=True)))

    assert [one.score.parts["noted"] for one in asyncio.run(run())] == [index % 3 for index in range(8)]


def test_tools_of_a_url_are_called_there() -> None:
    heard: list[str] = []
    server = MCPServer("elsewhere")

    @server.tool()
    def peek(word: str) -> str:
        """Say what a word hides."""
        heard.append(word)
        return "1"

    async def run() -> Any:
        app = server.streamable_http_app(json_response=True, stateless_http=True)
        listening = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        with socket.create_server(("127.0.0.1", 0)) as sock:
            serving = asyncio.create_task(listening.serve(sockets=[sock]))
            url = f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
            task = made("elsewhere", more={"mode": url})
            assert task._env.tools(task._env.train[0]) == ()  # not known before
            example = task.train_example(0)
            (env,) = task.envs(example, 1)
            found = await episode(example, env, call(("peek", {"word": "x"})), call(("peek", {})), "yes")
            listening.should_exit = True
            await serving
        return env.tools, found

    tools, found = asyncio.run(run())
    assert [tool["function"]["name"] for tool in tools] == ["peek"]
    assert (heard, found.score.value) == (["x"], 1.0)
    assert found.score.diagnostics["tool_errors"] == 1.0


def test_an_environment_may_be_the_user() -> None:
    task = made("letters", env_id="rlvr-test-user")
    found, codec = play(task, "a", call(("note", {"word": "x"})), "b", "c", "never said")
    said = [[(message.role, message.content[:7]) for message in prompt] for prompt in codec.prompts]
    assert said == [[("user", said[0][0][1])], [("user", "heard a")], [("tool", "1 words")], [("user", "heard b")]]
    assert (found.stop_reason, found.score.parts["heard"], found.score.parts["noted"]) == (StopReason.STOP, 3.0, 1.0)
    cut, _ = play(task, "a", ("unfinish", CUT))
    assert (cut.stop_reason, cut.score.parts["heard"], cut.score.parts["cut"]) == (CUT, 2.0, 1.0)


def test_the_stops_of_a_task_end_its_episode() -> None:
    note, add = call(("note", {"word": "x"})), call(("calculator_add", {"a": 1, "b": 2}))
    full, _ = play(made("tools"), note, note, "never said")
    assert (full.stop_reason, len(full.turns), full.score.parts["noted"]) == (StopReason.STOP, 2, 2.0)
    limit, _ = play(made("tools"), add, add, add, add, "never said")
    assert (limit.stop_reason, len(limit.turns), limit.score.parts["cut"]) == (StopReason.MAX_TURNS, 4, 1.0)


def test_pitfall_28_bad_calls_are_answered() -> None:
    found, codec = play(made("tools"), "calls rubbish", call(("look_up", {})), call(("calculator_add", {})), "done")
    said = [prompt[0].content for prompt in codec.prompts[1:]]
    assert "invalid JSON" in said[0]
    assert said[1] == "error: unknown tool 'look_up'"
    assert "Field required" in said[2]
    assert (found.score.diagnostics["malformed_calls"], found.score.diagnostics["tool_errors"]) == (1.0, 3.0)


@pytest.mark.parametrize(
    ("said", "max_turns", "reason"),
    [
        ((("unfinish", CUT),), None, CUT),
        ((call(("note", {"word": "x"})), ("unfinish", CUT)), None, CUT),
        ((call(("note", {"word": "x"})),), 1, StopReason.MAX_TURNS),
    ],
)
def test_pitfall_14_an_episode_that_ends_early_is_truncated(said: Any, max_turns: int | None, reason: Any) -> None:
    found, _ = play(made("tools"), *said, max_turns=max_turns)
    assert (found.stop_reason, found.score.status, found.score.parts["cut"]) == (reason, "scored", 1.0)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("setup", "TaskError: task setup: OSError: connection refused"),
        ("stop", "TaskError: model boundary hook failed: ZeroDivisionError: a bug"),
        ("tools", "ToolsetError: opening the tools: FileNotFoundError: no index"),
        ("slow", "a time limit of the task: finalize_timeout"),
    ],
)
def test_pitfall_26_a_failing_task_is_an_error(mode: str, message: str) -> None:
    found, _ = play(made("failing", more={"mode": mode}), "a")
    assert (found.score.status, math.isnan(found.score.value)) == ("error", True)
    assert found.score.diagnostics["error"] == message


def test_pitfall_26_a_raising_reward_is_an_error() -> None:
    task = made("breaks")
    examples = {task.train_example(index).answer: index for index in range(60)}
    found, _ = play(task, "3", index=examples["3"])
    assert (found.score.status, math.isnan(found.score.value)) == ("error", True)
    assert found.score.diagnostics["error"] == "TaskError: task Breaks scoring: KeyError: 'no such column'"
    fine, _ = play(task, "4", index=examples["4"])
    assert fine.score.value == 3.5
    example = next(one for one in map(task.train_example, range(60)) if one.answer == "3")
    assert "KeyError" in (graded(task, example, "3").failure or "")


def test_a_task_without_rewards_is_an_error() -> None:
    found, _ = play(made("unscored"), "a")
    assert found.score.diagnostics["error"] == "the task gave no reward"


def test_pitfall_27_a_cancelled_episode_leaves_no_task_behind() -> None:
    task = made("tools")
    example = task.train_example(0)
    problems: list[str] = []

    async def run() -> int:
        (env,) = task.envs(example, 1)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(str(context)))
        codec = Codec()
        engine = Engine(codec, [call(("note", {"word": "x"}))])
        running = asyncio.create_task(episode(example, env, codec=codec, engine=engine))
        del env
        await engine.silent.wait()
        running.cancel()
        await asyncio.wait({running})
        del running
        gc.collect()
        for _ in range(200):  # the library removes its folder in a thread
            await asyncio.sleep(0.01)
            if len(asyncio.all_tasks()) == 1:
                break
        return len(asyncio.all_tasks())

    assert (asyncio.run(run()), problems) == (1, [])


def test_the_metric_is_a_number_of_the_task() -> None:
    by_reward, by_length = made("letters"), made("letters", metric="length", metric_threshold=3)
    example = by_reward.eval_examples(1)[0]
    assert [graded(by_reward, example, said).correct for said in ("e", "eex")] == [True, False]
    assert [graded(by_length, example, said).correct for said in ("e", "eex")] == [False, True]
    other = made("letters", metric="accuracy")
    with pytest.raises(ConfigError, match=r"task\.metric=accuracy.*choose one of reward, share_of_e, cut, length"):
        graded(other, example, "e")


def test_own_questions_have_the_system_prompt_and_no_answer() -> None:
    task = made("numbers")
    own = task.example(" how many? ")
    assert [message.content for message in own.messages] == ["Answer in digits.", "how many?"]
    assert not graded(task, own, "0").correct
    prompt, answer = task.demonstration(3, 1.0)
    assert prompt.startswith("Answer in digits.\nsay ")
    assert answer.isdigit()


def test_long_prompts_are_left_out_and_tools_count() -> None:
    task = made("tools")
    counted: list[int] = []

    def count(messages: Any, tools: Any = ()) -> int:
        counted.append(len(tools))
        return len(messages[0].content)

    task.limit_prompts(count, len("say 1"))
    assert set(counted) == {3}
    assert all(len(task.train_example(index).messages[0].content) == 5 for index in range(40))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env_id": "no-such-taskset"}, r"task\.env_id=no-such-taskset: there is no such environment"),
        ({"env_args": {"king": 1}}, r"task\.env_args=.*\(ValueError: king: Extra inputs are not permitted\)"),
        ({"env_args": {"kind": "chess"}}, r"task\.env_args=.*KeyError: 'chess'"),
        ({"env_args": {"kind": "boxed"}}, r"its tasks run in containers"),
        ({"env_args": {"kind": "remote"}}, r"its tools run in docker"),
        ({"env_args": {"kind": "mute"}}, r"a task has no prompt"),
        ({"env_args": {"num": 0}}, r"its taskset has no tasks"),
        ({"env_id": "rlvr-test-agents"}, r"plays several agents \(first, second\), and rlvr trains one"),
        ({"env_id": "rlvr-test-endless"}, r"its tasks have no end; .*task\.max_train_examples=1000"),
    ],
)
def test_a_taskset_that_cannot_be_trained_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made("letters", **changes)


def test_a_taskset_without_end_is_cut() -> None:
    task = made("letters", env_id="rlvr-test-endless", max_train_examples=12)
    assert "12 training and" in task.notes[0]


def test_an_environment_of_the_other_edition_names_its_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TASKSETS.parents[1] / "environments"))
    sys.modules.pop("rlvr_test_environments", None)
    with pytest.raises(
        ConfigError, match=r"made for verifiers 0\.3\.1, but 0\.4 is installed: pip install .* -c constr"
    ):
        made("letters", env_id="rlvr-test-environments")


def test_pitfall_29_a_reward_that_is_no_number_ends_the_run() -> None:
    with pytest.raises(RewardError, match="finite"):
        play(made("failing", more={"mode": "nan"}), "a")


def test_content_that_is_no_text_is_refused() -> None:
    with pytest.raises(UserError, match="text alone"):
        made("image")
