"""Long work beside the thread that asked for it."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

Result = TypeVar("Result")
Stopped = Callable[[], bool]


def in_a_thread(work: Callable[[Stopped], Result]) -> Result:
    """`work(stopped)` in a thread of its own, and what it returns or raises.

    A notebook has a running event loop in its thread, where no second one can start. And Ctrl-C reaches the waiting
    thread, which asks the other one to end (`stopped`), waits for it, and raises KeyboardInterrupt. A second Ctrl-C
    does not wait.
    """
    done: Future[Result] = Future()
    stop = threading.Event()

    def run() -> None:
        try:
            done.set_result(work(stop.is_set))
        except BaseException as error:
            done.set_exception(error)

    try:
        threading.Thread(target=run, name="rlvr", daemon=True).start()
        return done.result()
    except KeyboardInterrupt:
        print("rlvr: stopping after this step; once more stops at once, without saving", file=sys.stderr, flush=True)
        stop.set()
        wait([done])
        raise
