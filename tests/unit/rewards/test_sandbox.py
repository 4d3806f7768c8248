import asyncio
import operator
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.errors import UserError
from rlvr.rewards.sandbox import CallResult, Sandbox
from tests.unit.rewards import bad_calls
from tests.unit.rewards.bad_calls import MARK, alive, echo, survivors

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc: survivors cannot be counted")

DEADLINE_S = 1.0


def make_pool(num_workers: int = 1, timeout_s: float = DEADLINE_S) -> Sandbox:
    return Sandbox(num_workers=num_workers, timeout_s=timeout_s, max_memory_mb=768)


@pytest.fixture(scope="module")
def pool() -> Iterator[Sandbox]:
    with make_pool(num_workers=2) as pool:
        yield pool


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What a pool starts carries it; what survives the test, which has failed then, is ended here."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    for pid in survivors(value):
        os.kill(pid, signal.SIGKILL)


def gather(pool: Sandbox, *calls: tuple[Any, ...]) -> list[CallResult]:
    async def run() -> list[CallResult]:
        return await asyncio.gather(*(pool.call(*call) for call in calls))

    return asyncio.run(run())


def one(pool: Sandbox, function: Callable[..., object] | str, *args: object) -> CallResult:
    return gather(pool, (function, *args))[0]


def statuses(results: list[CallResult]) -> list[str]:
    return [result.status for result in results]


def wait_until(condition: Callable[[], bool]) -> bool:
    """True as soon as the condition holds; False after far longer than it should take."""
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.mark.slow
@pytest.mark.parametrize("hang", bad_calls.HANGS)
def test_pitfall_27_what_hangs_is_killed_at_its_deadline(pool: Sandbox, hang: Callable[[], None]) -> None:
    found: list[CallResult] = []
    calls = [(hang,) if number == 3 else (echo, number) for number in range(30)]
    thread = threading.Thread(target=lambda: found.extend(gather(pool, *calls)), daemon=True)
    thread.start()  # where signal.alarm cannot work
    thread.join(timeout=DEADLINE_S + 15)
    assert found[3] == CallResult(status="timeout", message="timed out after 1 s")
    rest = [number for number in range(30) if number != 3]
    assert found[:3] + found[4:] == [CallResult(status="ok", value=number) for number in rest]


@pytest.mark.slow
def test_pitfall_27_deadlines_of_hanging_calls_run_in_parallel(pool: Sandbox) -> None:
    gather(pool, *[(bad_calls.sleep, 0.5)] * 2)  # both workers have loaded what they need
    start = time.monotonic()
    results = gather(pool, *((bad_calls.spin,) for _ in range(4)))
    assert statuses(results) == ["timeout"] * 4
    assert time.monotonic() - start < 4 * DEADLINE_S  # two after two; one after another would need all of it


@pytest.mark.slow
def test_pitfall_27_a_first_run_counts_and_loading_does_not() -> None:
    slow = bad_calls.SlowToLoad()
    with make_pool(timeout_s=0.5) as pool:
        assert one(pool, slow, 20.0).message == "timed out after 0.5 s"  # its worker is replaced and loads again
        assert one(pool, slow, 0.0).value == "done"
        assert one(pool, slow, 20.0).message == "timed out after 0.5 s"


def test_pitfall_27_a_worker_that_ignores_sigterm_is_replaced() -> None:
    with make_pool() as pool:
        futures = [pool.submit(bad_calls.sleep_through_sigterm), pool.submit(echo, 1)]
        assert statuses([future.result(timeout=DEADLINE_S + 10) for future in futures]) == ["timeout", "ok"]


@needs_proc
def test_pitfall_27_a_forked_child_dies_with_the_call_that_hangs(mark: str, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with make_pool() as pool:
        results = gather(pool, (bad_calls.hang_with_a_child, str(path)), (echo, 1))
        assert statuses(results) == ["timeout", "ok"]
        assert not alive(int(path.read_text()))
    assert survivors(mark) == []


@needs_proc
def test_pitfall_27_what_hangs_is_killed_though_no_call_follows(mark: str, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with make_pool() as pool:
        assert one(pool, bad_calls.hang_with_a_child, str(path)).status == "timeout"
        assert wait_until(lambda: not alive(int(path.read_text())))


@needs_proc
def test_pitfall_27_a_daemon_that_left_its_group_dies_too(mark: str, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with make_pool(timeout_s=20.0) as pool:
        assert one(pool, bad_calls.leave_a_daemon, str(path)).status == "ok"
        assert wait_until(lambda: not alive(int(path.read_text())))
        assert one(pool, echo, 1).value == 1
    assert survivors(mark) == []


@needs_proc
def test_a_child_that_outlives_its_call_is_ended(mark: str) -> None:
    with make_pool(timeout_s=20.0) as pool:
        child = one(pool, bad_calls.leave_a_child)
        assert child.status == "ok"
        assert one(pool, echo, 1).value == 1
        assert wait_until(lambda: not alive(int(child.value)))
    assert survivors(mark) == []


@needs_proc
def test_a_forked_child_that_returns_gives_no_second_answer(mark: str) -> None:
    with make_pool(timeout_s=20.0) as pool:
        results = gather(pool, (bad_calls.come_back_twice,), *((echo, number) for number in range(10)))
        assert [result.value for result in results] == [7, *range(10)]
    assert survivors(mark) == []


@pytest.mark.parametrize(
    ("bad", "status", "message"),
    [
        ((bytearray, 4 << 30), "memory", "needed more than 768 MB of memory"),
        ((sys.exit, 0), "exception", "SystemExit: 0"),
        ((bad_calls.be_interrupted,), "exception", "KeyboardInterrupt"),
        ((bad_calls.recurse,), "exception", "RecursionError"),
        ((bad_calls.fail_without_words,), "exception", "MuteError"),
        ((object,), "exception", "TypeError: Object of type object is not JSON"),
        ((os._exit, 0), "crash", "its process died"),
        ((signal.raise_signal, signal.SIGSEGV), "crash", "its process died"),
        ((operator.mul, "x", 8 << 20), "crash", "its process died"),  # too long an answer
        ((bad_calls.write_into_every_socket,), "crash", "its process died"),
        ((bad_calls.hang_up,), "crash", "its process died"),
        ((bad_calls.claim_a_huge_reply,), "crash", "its process died"),
    ],
)
def test_pitfall_26_a_failure_spares_other_calls(
    pool: Sandbox, bad: tuple[Any, ...], status: str, message: str
) -> None:
    calls = [bad if number == 2 else (echo, number) for number in range(12)]
    results = gather(pool, *calls)
    assert (results[2].status, results[2].value) == (status, None)
    assert results[2].message.startswith(message)
    others = results[:2] + results[3:]
    assert others == [CallResult(status="ok", value=number) for number in range(12) if number != 2]


def test_pitfall_26_a_call_does_not_pay_for_calls_before_it() -> None:
    with make_pool(timeout_s=20.0) as pool:
        results = gather(pool, (bad_calls.keep_memory, 400), (bad_calls.keep_memory, 400))
        assert results == [CallResult(status="ok", value=1)] * 2
        results = gather(pool, (bad_calls.die_soon,), (bad_calls.sleep, 0.5))
        assert results == [CallResult(status="ok", value="done")] * 2


@needs_proc
def test_a_call_that_kills_the_process_above_fails(mark: str) -> None:
    calls = [(echo, number) for number in range(10)]
    with make_pool(num_workers=2, timeout_s=20.0) as pool:
        assert gather(pool, (bad_calls.kill_the_root,), *calls)[0].status == "crash"
        assert gather(pool, *calls) == [CallResult(status="ok", value=number) for number in range(10)]
    end = time.monotonic() + 10
    while survivors(mark) and time.monotonic() < end:  # the kernel ends the children of the killed one in its own time
        time.sleep(0.01)
    assert survivors(mark) == []


@needs_proc
def test_nothing_starts_before_the_first_call(mark: str) -> None:
    with make_pool() as pool:
        assert survivors(mark) == []
        pid = one(pool, os.getpid).value
        assert pid in survivors(mark)
    assert survivors(mark) == []


def test_calls_under_way_come_back_when_the_pool_is_closed() -> None:
    pool = make_pool()
    futures = [pool.submit(bad_calls.spin), pool.submit(echo, 1)]
    pool.close()
    assert statuses([future.result(timeout=10) for future in futures]) == ["closed", "closed"]
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(echo, 1)


def test_pitfall_26_one_call_without_a_free_file_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    with make_pool() as pool:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socketpair", refuse)
            result = pool.submit(echo, 1).result(timeout=10)
        assert result.status == "crash"
        assert "Too many open files" in result.message
        assert pool.submit(echo, 1).result(timeout=60).value == 1


def test_a_function_that_cannot_be_sent_is_named(pool: Sandbox) -> None:
    lock = threading.Lock()

    def guarded() -> None:
        lock.acquire()

    offset = 5
    assert one(pool, lambda value: value + offset, 2).value == 7  # sent by value
    with pytest.raises(UserError, match=r"function .*guarded cannot be sent to another process"):
        one(pool, guarded)
    with pytest.raises(UserError, match="tuple cannot be sent"):
        one(pool, echo, lock)


SCRIPT = """
import os, pathlib, sys, time
from rlvr.rewards.sandbox import Sandbox

print("training", flush=True)

class Reward:
    scale = 2
    def __call__(self, x):
        print("the verifier talks")
        return self.scale * x

def twice(x):
    return Reward()(x)

def hang(path):
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    pathlib.Path(path).write_text(str(pid))
    time.sleep(1000)

pool = Sandbox(num_workers=4, timeout_s=60.0, max_memory_mb=512)
print(pool.submit(twice, 21).result(), flush=True)
futures = [pool.submit(hang, f"{folder}/{number}") for folder in sys.argv[1:] for number in range(4)]
for future in futures:
    future.result()
"""


def start_script(path: Path, *arguments: str) -> subprocess.Popen[str]:
    path.write_text(SCRIPT)
    command = [sys.executable, str(path), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@needs_proc
def test_a_script_runs_once_and_verifiers_print_to_stderr(mark: str, tmp_path: Path) -> None:
    script = start_script(tmp_path / "script.py")
    output, errors = script.communicate(timeout=60)
    assert output == "training\nCallResult(status='ok', value=42, message='')\n"
    assert errors == "the verifier talks\n"
    assert script.returncode == 0
    assert wait_until(lambda: survivors(mark) == [])  # the pool was not closed


MORE = pytest.param(signal.SIGKILL, marks=pytest.mark.long)


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, *[signal.SIGKILL] * 2, *[MORE] * 4])
def test_pitfall_27_workers_and_forks_end_with_the_program(mark: str, tmp_path: Path, number: signal.Signals) -> None:
    """SIGKILL several times: the end of the program and of the runners is a race."""
    (folder := tmp_path / "pids").mkdir()
    with start_script(tmp_path / "script.py", str(folder)) as script:
        assert wait_until(lambda: len(list(folder.iterdir())) == 4)
        script.send_signal(number)
        script.communicate(timeout=30)
    assert wait_until(lambda: survivors(mark) == [])
