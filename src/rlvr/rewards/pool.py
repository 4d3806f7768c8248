"""Processes that can be killed, for verifiers that may hang, eat memory or crash.

Every worker leads its own process group and dies with it, by SIGKILL, at the deadline. One bad call costs only itself:
the calls that were waiting behind it run elsewhere, and a call that dies in a worker which earlier calls may have
damaged is tried once more in a fresh one. `pebble` was tried and left (docs/benchmarks/verifiers.md): it asks
a worker to end by SIGTERM and waits three seconds before it insists, lets forked children live, and runs the user's
`__main__` again in each worker.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Self

import cloudpickle

from rlvr.errors import UserError
from rlvr.rewards.pool_manager import Call, CallResult, PoolManager
from rlvr.rewards.pool_worker import load

__all__ = ["CallResult", "VerifierPool", "packed_function"]

_MAX_PACKED = 256


class VerifierPool:
    """Runs functions in `num_workers` processes, at most `timeout_s` seconds and `max_memory_mb` of address space each.

        with VerifierPool(num_workers=2, timeout_s=5.0, max_memory_mb=1024) as pool:
            result = await pool.call("package.module:function", "an argument")   # CallResult(status="ok", value=...)

    Lazy: nothing starts before the first call. It may be used from any thread and from several event loops; results
    come back to the loop that asked. `close` leaves no process behind, and neither does the end of this program,
    however it ends. Loading a function (importing its module) does not count towards its deadline. A process that a
    call started is ended with it. What a worker prints goes to stderr. macOS enforces no limit of the address space.
    """

    def __init__(self, *, num_workers: int, timeout_s: float, max_memory_mb: int) -> None:
        if num_workers < 1 or timeout_s <= 0 or max_memory_mb < 1:
            raise ValueError("num_workers, timeout_s and max_memory_mb must be positive")
        self._manager = PoolManager(num_workers=num_workers, timeout_s=timeout_s, max_memory_mb=max_memory_mb)
        self._packed: dict[int, tuple[Callable[..., object] | str, bytes]] = {}
        self._ids = itertools.count()
        self._lock = threading.Lock()

    def preload(self, module: str) -> None:
        """Import `module` once, where the workers are forked from, so that each of them starts with it."""
        self._manager.preload(module)

    async def call(self, function: Callable[..., object] | str, *args: object) -> CallResult:
        """`function(*args)` in a worker; never raises for what the call does.

        `function` is a path `"package.module:function"` or any callable: what can be imported is sent by name, other
        functions (of `__main__`, of notebooks, lambdas) by value. It must return plain data: what JSON can carry.
        Raises UserError if the function cannot be sent to another process.
        """
        return await asyncio.wrap_future(self.submit(function, *args))

    def submit(self, function: Callable[..., object] | str, *args: object) -> Future[CallResult]:
        """`call` for programs without an event loop."""
        packed = self._pack(function)
        try:
            arguments = cloudpickle.dumps(args)
        except Exception as error:  # foreign objects fail in any way they like
            future: Future[CallResult] = Future()
            future.set_result(CallResult(status="exception", message=f"its arguments cannot be sent: {error}"[:500]))
            return future
        call = Call(id=next(self._ids), function=packed, arguments=arguments)
        self._manager.submit(call)
        return call.future

    def _pack(self, function: Callable[..., object] | str) -> bytes:
        with self._lock:
            if id(function) not in self._packed:
                if len(self._packed) >= _MAX_PACKED:
                    self._packed.clear()
                self._packed[id(function)] = function, packed_function(function)  # kept, so that its id stays its own
            return self._packed[id(function)][1]

    def close(self) -> None:
        """End all processes; calls that are not done come back as `closed`."""
        self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def packed_function(function: Callable[..., Any] | str) -> bytes:
    """`function` as bytes for a worker, or UserError."""
    if isinstance(function, str):
        return pickle.dumps(_Import(function))
    try:
        return cloudpickle.dumps(function)
    except Exception as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise UserError(
            f"function {name} cannot be sent to another process ({error}); let it use no open files, locks or models "
            "from outside, or put it into a module and name it as package.module:function."
        ) from error


class _Import:
    """Unpickles as the function that a path names."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return load, (self._path,)
