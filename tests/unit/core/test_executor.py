"""Rollouts in a thread of their own: results, errors and the end."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest
import torch

from rlvr.core.executor import Background, Executor
from rlvr.errors import UserError

BOTH: list[Callable[[], Executor]] = [Executor, lambda: Background(num_threads=1)]


async def double(x: int) -> int:
    await asyncio.sleep(0)
    return 2 * x


async def fails_in_a_group(error: BaseException) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise error

    await asyncio.gather(double(1), fails(), double(2))


def alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rollouts"]


@pytest.mark.parametrize("make", BOTH)
def test_work_and_functions_have_their_results(make: Callable[[], Executor]) -> None:
    with make() as executor:
        results = [executor.start(double(number)) for number in range(3)]
        assert [result() for result in reversed(results)] == [4, 2, 0]
        assert executor.run(double(21)) == 42
        assert executor.call(lambda: 7) == 7
    assert not alive()


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("error", [UserError("mend it"), ValueError("a bug")])
def test_an_error_arrives_where_the_result_is_asked_for(make: Callable[[], Executor], error: Exception) -> None:
    with make() as executor:
        result = executor.start(fails_in_a_group(error))
        with pytest.raises(type(error)):
            result()
        assert executor.run(double(1)) == 2  # the others go on


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_pitfall_26_what_stops_the_loop_arrives_at_the_caller(error: BaseException) -> None:
    seen: list[object] = []

    def use() -> None:
        with Background(num_threads=1) as executor:
            result = executor.start(fails_in_a_group(error))
            other = executor.start(double(4))
            with pytest.raises(type(error)):
                result()
            seen.extend([other(), executor.run(double(1)), executor.call(lambda: 7)])

    patient = threading.Thread(target=use, daemon=True)
    patient.start()
    patient.join(20)
    assert seen == [8, 2, 7]
    assert not alive()


def test_started_work_runs_while_the_caller_works() -> None:
    ran = threading.Event()

    async def note() -> None:
        ran.set()

    with Background(num_threads=1) as executor:
        executor.start(note())
        assert ran.wait(60)  # before the result is asked for


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [None, ValueError, SystemExit])
def test_the_end_cancels_what_still_runs_and_waits_for_it(trouble: type[BaseException] | None) -> None:
    seen: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.gather(*(asyncio.sleep(3600) for _ in range(3)))
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned up")

    def block() -> Callable[[], None]:
        with Background(num_threads=1) as executor:
            result = executor.start(endless())
            executor.run(double(1))  # it has begun
            if trouble is not None:
                raise trouble("of the trainer")
            return result

    start = time.monotonic()
    with pytest.raises(trouble or CancelledError):
        block()()
    assert time.monotonic() - start < 60
    assert seen == ["cleaned up"]
    assert not alive()
    gc.collect()  # a task that was destroyed while pending, or a loop left open, would warn: an error here


def test_each_thread_computes_with_its_own_number_of_threads() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []

    def use() -> None:
        with Background(num_threads=before + 1) as executor:
            seen.append(executor.call(torch.get_num_threads))
            seen.append(torch.get_num_threads())

    fresh = threading.Thread(target=use)  # it has never asked for its number
    fresh.start()
    fresh.join(60)
    assert seen == [before + 1, before]
