import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr.errors import ConfigError, UserError
from rlvr.rewards.base import Grade, RewardError
from rlvr.rewards.custom import Custom
from rlvr.rewards.parts import PartRunner, PartsVerifier, make_verifier
from rlvr.rewards.sandbox import Sandbox
from rlvr.rewards.settings import RewardSettings
from rlvr.types import Attempt, Example, Message, StopReason, ToolCall, TurnText
from tests.unit.rewards import user_rewards
from tests.unit.rewards.attempts import WHOLE

MODULE = "tests.unit.rewards.user_rewards"


@pytest.fixture(scope="module")
def pool() -> Iterator[Sandbox]:
    with Sandbox(num_workers=2, timeout_s=1.0, max_memory_mb=1024) as pool:
        yield pool


def attempt(text: str, answer: str = "a") -> Attempt:
    messages = (Message(role="user", content="What is it?"),)
    example = Example(id="e7", messages=messages, answer=answer, metadata={"level": 2})
    return Attempt(example=example, completion=f"{text}<eos>", text=text, stop_reason=StopReason.STOP, num_tokens=1)


def bound(function: str | Callable[..., Any], **settings: Any) -> Custom:
    path = function if isinstance(function, str) else "tests:given"
    functions = {} if isinstance(function, str) else {path: function}
    return Custom(function=path, settings=settings).bound("reward.parts.mine.function", functions)


def grade(pool: Sandbox, function: str | Callable[..., Any], text: str, **settings: Any) -> Grade:
    runner = PartRunner("mine", bound(function, **settings))
    return asyncio.run(runner.grade(replace(attempt(text), sandbox=pool)))


def test_a_function_gets_prompt_text_answer_metadata_and_settings(pool: Sandbox) -> None:
    assert grade(pool, f"{MODULE}:full", "a") == Grade(value=3.0)
    assert grade(pool, f"{MODULE}:full", "a", bonus=0.5) == Grade(value=3.5)
    assert grade(pool, f"{MODULE}:full", "b") == Grade(value=2.0)
    assert grade(pool, f"{MODULE}:full", "") == Grade(value=0.0, status="invalid")


def test_a_function_sees_the_whole_episode(pool: Sandbox) -> None:
    turn = TurnText(prompt="", completion="", text="one", stop_reason=StopReason.STOP, num_tokens=1)
    calls = (ToolCall(id="c", name="search", arguments={"query": "Oslo"}),)
    made = replace(attempt("two"), turns=(turn, replace(turn, text="two")), calls=calls, sandbox=pool)
    found = asyncio.run(PartRunner("mine", bound(f"{MODULE}:episode")).grade(made))
    assert found == Grade(value=0.0)  # a task without documents
    made = replace(made, retrieved=("3", "12"), cited=("12",))
    assert asyncio.run(PartRunner("mine", bound(f"{MODULE}:episode")).grade(made)) == Grade(value=2.1)


def test_a_module_of_the_current_directory_is_found(
    pool: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_rewards.py").write_text("def half(completion):\n    return 0.5\n")
    monkeypatch.chdir(tmp_path)
    with Sandbox(num_workers=1, timeout_s=1.0, max_memory_mb=512) as local:
        assert grade(local, "my_own_rewards:half", "a") == Grade(value=0.5)


@pytest.mark.parametrize("name", ["nan", "huge", "list"])
def test_pitfall_29_a_value_that_is_not_one_finite_number_ends_the_run_naming_the_reward(
    pool: Sandbox, name: str
) -> None:
    verifier = PartsVerifier({"mine": bound(f"{MODULE}:chosen")}, WHOLE, pool)
    with pytest.raises(RewardError, match=r"reward\.parts\.mine returned .* for example 'e7': it must return one"):
        asyncio.run(verifier.verify(attempt(name)))


def test_pitfall_29_every_completion_gets_its_own_value_in_order(pool: Sandbox) -> None:
    runner = PartRunner("mine", bound(f"{MODULE}:late"))

    async def run() -> list[Grade]:
        made = [replace(attempt(str(number)), sandbox=pool) for number in range(30)]
        return await asyncio.gather(*map(runner.grade, made))

    assert [found.value for found in asyncio.run(run())] == list(range(30))


def line_of(code: str) -> int:
    return 1 + Path(user_rewards.__file__).read_text().splitlines().index(f"    {code}")


RAISE, LOAD = 'raise KeyError("no such thing")', 'return json.loads("{")'
FILE = "tests/unit/rewards/user_rewards.py"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", f"KeyError: 'no such thing' ({FILE}, line {line_of(RAISE)})"),
        ("reads_no_json", f"(char 1) ({FILE}, line {line_of(LOAD)})"),
        ("hangs", "timed out after 1 s"),
    ],
)
def test_pitfall_26_a_function_that_fails_is_an_error_and_no_wrong_answer(
    pool: Sandbox, name: str, message: str
) -> None:
    found = grade(pool, f"{MODULE}:{name}", "a")
    assert found.status == "error"
    assert math.isnan(found.value)
    assert found.message.endswith(message)


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        ("no_such_module:f", {}, "module no_such_module cannot be imported .* start rlvr in the folder"),
        ("__main__:f", {}, "is a function that was given in Python, which no other program can import: give it again"),
        (f"{MODULE}:_lambda_", {}, "is a function that was given in Python"),
        (f"{MODULE}:shrt", {}, "has no function shrt; did you mean short?"),
        (f"{MODULE}:qqqqqqq", {}, "has no function qqqqqqq; there are full, short"),
        (f"{MODULE}:NOT_A_FUNCTION", {}, "has NOT_A_FUNCTION, which is no function; there are full, short"),
        (f"{MODULE}:needs_more", {}, r"cannot be called \(missing a required argument: 'rubric'\)"),
        (f"{MODULE}:by_position", {}, r"cannot be called \(.*'completion'"),
        (f"{MODULE}:takes_nothing", {}, "takes none of prompt, completion, answer, metadata"),
        (f"{MODULE}:short", {"bonus": 1}, r"cannot be called \(got an unexpected keyword argument 'bonus'\)"),
        (f"{MODULE}:full", {"bonsu": 1}, r"cannot be called \(got an unexpected keyword argument 'bonsu'\)"),
        (f"{MODULE}:full", {"answer": 1}, "cannot be called .*multiple values for keyword argument 'answer'"),
        (f"{MODULE}:waits", {}, "it is a class, or asynchronous"),
        (f"{MODULE}:forgets", {}, "returns None for every completion; let it `return` a number"),
        (f"{MODULE}:forgets_mostly", {}, "returns None for every completion"),
    ],
)
def test_a_function_that_cannot_be_called_is_a_wrong_setting_named_at_the_start(
    pool: Sandbox, function: str, settings: dict[str, Any], message: str
) -> None:
    reward = RewardSettings(parts={"mine": Custom(function=function, settings=settings)})
    with pytest.raises(ConfigError, match=rf"reward\.parts\.mine\.function={function}: .*{message}"):
        make_verifier(reward, WHOLE, pool)


def test_a_callable_that_cannot_be_sent_to_a_process_is_named_at_the_start(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, pytest.raises(UserError, match="cannot be sent to another process"):
        bound(lambda completion: log.write(completion))
