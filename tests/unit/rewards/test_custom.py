import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr.errors import ConfigError, UserError
from rlvr.rewards.base import Grade
from rlvr.rewards.custom import Custom
from rlvr.rewards.parts import PartRunner, make_verifier
from rlvr.rewards.sandbox import Sandbox
from rlvr.rewards.settings import RewardSettings
from rlvr.types import Attempt, Example, Message, StopReason, ToolCall, TurnText
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


def test_a_function_gets_what_it_names_and_its_settings(pool: Sandbox) -> None:
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


def test_functions_written_for_trl_get_lists_of_one(pool: Sandbox) -> None:
    assert grade(pool, f"{MODULE}:trl_length", "abcde") == Grade(value=-2.0)
    assert grade(pool, f"{MODULE}:trl_columns", "abc") == Grade(value=25.0)
    assert grade(pool, f"{MODULE}:trl_columns", "abc", extra=2) == Grade(value=26.0)
    found = grade(pool, f"{MODULE}:trl_missing", "a")
    assert found.status == "error"
    assert "the data has no column 'solution', which the function takes (there are answer, level)" in found.message


def test_an_asynchronous_function_is_awaited(pool: Sandbox) -> None:
    assert grade(pool, f"{MODULE}:waits", "abc") == Grade(value=3.0)
    assert grade(pool, f"{MODULE}:trl_waits", "abcd") == Grade(value=4.0)


def test_trls_functions_get_all_accepted_answers(pool: Sandbox) -> None:
    several = replace(attempt("b").example, metadata={"gold_as_given": ["a", "b"], "aliases": ("b",)})
    made = replace(attempt("b"), example=several, sandbox=pool)
    found = asyncio.run(PartRunner("mine", bound(f"{MODULE}:trl_any_answer")).grade(made))
    assert found == Grade(value=1.0)
    about = replace(attempt("a").example, metadata={"has_messages": True})
    for text, value in (("a", 1.0), ("b", 0.0)):
        made = replace(attempt(text), example=about, sandbox=pool)
        assert asyncio.run(PartRunner("mine", bound(f"{MODULE}:trl_chat")).grade(made)) == Grade(value=value)


def test_functions_get_what_trl_always_passes(pool: Sandbox) -> None:
    for name in ("trl_logs", "trl_reads_logs"):
        assert grade(pool, f"{MODULE}:{name}", "abc") == Grade(value=3.0)
    assert grade(pool, f"{MODULE}:trl_logs", "abc", trainer_state=4) == Grade(value=4.0)


def test_functions_written_for_verl_get_its_arguments(pool: Sandbox) -> None:
    for metadata, value in (({"data_source": "mine"}, 2.0), ({"extra_info": {"split": "train"}}, 1.0), ({}, 1.0)):
        made = replace(attempt("a"), example=replace(attempt("a").example, metadata=metadata), sandbox=pool)
        assert asyncio.run(PartRunner("mine", bound(f"{MODULE}:compute_score")).grade(made)) == Grade(value=value)


@pytest.mark.parametrize("given", [["b", "a"], {"target": ["a", "b"]}, 4, None])
def test_verls_functions_get_the_ground_truth_as_it_came(given: Any) -> None:
    def compute_score(solution_str: str, ground_truth: Any) -> float:
        return float(ground_truth == ("a" if given is None else given))

    metadata = {} if given is None else {"gold_as_given": given}
    made = replace(attempt("a"), example=replace(attempt("a").example, metadata=metadata))
    assert bound(compute_score).grade(made) == 1.0


def test_trls_functions_get_the_whole_conversation() -> None:
    call = ToolCall(id="c7", name="look", arguments={"at": "sky"})
    messages = (
        Message(role="user", content="What is it?", name="ann"),
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content="blue", name="look", call_id="c7"),
    )
    wanted = [
        {"role": "user", "content": "What is it?", "name": "ann"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c7", "type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}],
        },
        {"role": "tool", "content": "blue", "name": "look", "tool_call_id": "c7"},
    ]

    def reward(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        return [float(prompts == [wanted] and completions == [[{"role": "assistant", "content": "a"}]])]

    about = {"has_messages": True, "gold_as_given": ["a"]}
    made = replace(attempt("a"), example=replace(attempt("a").example, messages=messages, metadata=about))
    assert bound(reward).grade(made) == 1.0


def test_a_batch_of_one_has_one_value() -> None:
    def two(completions: Any) -> list[float]:
        return [1.0, 2.0]

    assert bound(two).grade(attempt("a")) == [1.0, 2.0]  # an error, as no list is a reward


def test_a_setting_may_be_what_trl_takes_from_a_column() -> None:
    def reward(completions: Any, scale: float) -> list[float]:
        return [scale for _ in completions]

    assert bound(reward, scale=0.5).grade(attempt("a")) == 0.5


def test_a_module_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_rewards.py").write_text("def half(completion):\n    return 0.5\n")
    monkeypatch.chdir(tmp_path)
    with Sandbox(num_workers=1, timeout_s=1.0, max_memory_mb=512) as local:
        assert grade(local, "my_own_rewards:half", "a") == Grade(value=0.5)


@pytest.mark.parametrize(
    ("function", "settings", "message"),  # a name alone is of the module of this folder
    [
        ("no_such_module:f", {}, "module no_such_module cannot be imported .* start rlvr in the folder"),
        ("__main__:f", {}, "is a function that was given in Python, which no other program can import: give it again"),
        ("_lambda_", {}, "is a function that was given in Python"),
        ("shrt", {}, "has no function shrt; did you mean short?"),
        ("qqqqqqq", {}, "has no function qqqqqqq; there are full, short"),
        ("NOT_A_FUNCTION", {}, "has NOT_A_FUNCTION, which is no function; there are full, short"),
        ("needs_more", {}, r"cannot be called \(missing a required argument: 'rubric'\)"),
        ("by_position", {}, r"cannot be called \(.*'completion'"),
        ("takes_nothing", {}, "takes none of prompt, completion, answer, metadata"),
        ("short", {"bonus": 1}, r"cannot be called \(got an unexpected keyword argument 'bonus'\)"),
        ("full", {"bonsu": 1}, r"cannot be called \(got an unexpected keyword argument 'bonsu'\)"),
        ("full", {"answer": 1}, "cannot be called .*multiple values for keyword argument 'answer'"),
        ("trl_ids", {}, "takes completion_ids, and rewards get texts, not token ids: give the parameter a default"),
        ("Judge", {}, "it is a class"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(
    pool: Sandbox, function: str, settings: dict[str, Any], message: str
) -> None:
    function = function if ":" in function else f"{MODULE}:{function}"
    reward = RewardSettings(parts={"mine": Custom(function=function, settings=settings)})
    with pytest.raises(ConfigError, match=rf"reward\.parts\.mine\.function={function}: .*{message}"):
        make_verifier(reward, WHOLE, pool)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("short", None),
        (
            "raises",
            r"raised KeyError: 'x' \(.*, line \d+\) for the right answer 'a' of example e7; .*max_error_share=1",
        ),
        ("gives_text", "returned str '1.0' for the right answer 'a' of example e7: it must return one finite number"),
        ("forgets", "warning: .* returned None, which means unreadable, for the right answer 'a'"),
        ("hangs", None),  # the machine may be slow
    ],
)
def test_a_function_is_tried_on_a_right_answer(pool: Sandbox, function: str, message: str | None) -> None:
    path = f"{MODULE}:{function}"
    verifier = make_verifier(RewardSettings(parts={"mine": Custom(function=path)}), WHOLE, pool)
    example = attempt("a").example
    lines = []
    try:
        lines += verifier.try_functions(example, "a", max_error_share=0.2)
    except ConfigError as error:
        lines.append(str(error))
    assert [re.search(message or "never", line) is not None for line in lines] == [True] * (message is not None)
    if function == "raises":
        assert list(verifier.try_functions(example, "a", max_error_share=1.0)) == []


def test_a_callable_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, pytest.raises(UserError, match="cannot be sent to another process"):
        bound(lambda completion: log.write(completion))
