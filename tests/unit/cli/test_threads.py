import asyncio
import os
import signal
import threading

import pytest

from rlvr.cli.functions import Stopped, in_a_thread


def test_work_has_an_event_loop_of_its_own() -> None:
    async def number() -> int:
        await asyncio.sleep(0)
        return 7

    async def in_a_notebook() -> int:
        return in_a_thread(lambda stopped: asyncio.run(number()))

    assert asyncio.run(in_a_notebook()) == 7
    assert in_a_thread(lambda stopped: asyncio.run(number())) == 7


def test_ctrl_c_lets_the_work_end_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def work(stopped: Stopped) -> None:
        assert not stopped()
        os.kill(os.getpid(), signal.SIGINT)
        while not stopped():
            threading.Event().wait(0.001)
        seen.append("saved")

    with pytest.raises(KeyboardInterrupt):
        in_a_thread(work)
    assert seen == ["saved"]
    assert capsys.readouterr().err.count("\n") == 1


def test_a_second_ctrl_c_does_not_wait() -> None:
    asked, go = threading.Event(), threading.Event()

    def work(stopped: Stopped) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while not stopped():
            threading.Event().wait(0.001)
        asked.set()
        os.kill(os.getpid(), signal.SIGINT)
        go.wait(30)

    with pytest.raises(KeyboardInterrupt):
        in_a_thread(work)
    assert asked.is_set()
    assert not go.is_set()
    go.set()
