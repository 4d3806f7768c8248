"""The servers of a run: selection, failures, weight pushes."""

import asyncio
import fcntl
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from rlvr.engines.vllm.push import Expected, Member, Push, check_fits, push_to
from rlvr.engines.vllm.server import RefusedError, Server, ServerGoneError
from rlvr.errors import UserError

POLL_S = 1.0


class Fleet:
    """Servers that fit the policy. Raises UserError at once for one that is missing or does not fit.

    A failed server is re-checked: if it answers (after a restart, say) it gets the weights, else it is left out until
    the next push, or until no other one is left.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        expected: Expected,
        *,
        wait_s: float,
        on_note: Callable[[str], None],
        stopped: Callable[[], bool],
        locks: Path | None = None,
    ) -> None:
        self._expected, self._wait_s, self._on_note, self._stopped = expected, wait_s, on_note, stopped
        self.members = [join(server, expected) for server in servers]
        self._locks = locks
        self._push: Push | None = None
        self._sessions: dict[Hashable, Member] = {}
        self._gave_up: UserError | None = None

    async def choose(self, turn: asyncio.Lock, session: Hashable | None) -> Member:
        """The session's server if it is up, else the least busy one. UserError if none comes back.

        `turn` belongs to the event loop: one task at a time checks failed servers.
        """
        if not self._up():
            async with turn:
                await self._wait()
        member = self._sessions.get(session)
        if member is None or not member.is_up:
            member = min(self._up(), key=lambda one: one.load)
        if session is not None:
            self._sessions[session] = member
        return member

    def release(self, session: Hashable) -> None:
        self._sessions.pop(session, None)

    async def recheck(self, turn: asyncio.Lock, member: Member, num_looks: int, problem: Exception) -> None:
        """Re-check a server whose request failed after `num_looks` checks; concurrent failures share one check."""
        async with turn:
            known = bool(member.problem)
            if member.num_looks == num_looks and not await asyncio.to_thread(self._bring_up, member) and not known:
                self._on_note(f"lost the server {member.url} ({problem})")

    async def _wait(self) -> None:
        """Wait until a server is up. UserError, for all waiting tasks, if none comes back."""
        if self._gave_up is not None:
            raise self._gave_up
        looks = self._looks()
        while not self._up() and await asyncio.to_thread(next, looks, False):
            await asyncio.sleep(POLL_S)

    def _up(self) -> list[Member]:
        return [member for member in self.members if member.is_up]

    @property
    def newest(self) -> Push:
        assert self._push is not None, "load_weights comes first"
        return self._push

    def announce(self, push: Push) -> None:
        """Set the weights for returning servers. All count as up: another rank may deliver."""
        self._push, self._gave_up = push, None
        for member in self.members:
            member.is_up = True

    def deliver(self) -> None:
        """Push to all servers in parallel; one that is down gets the weights when it is back.

        Raises UserError if one does not fit, or none is up within the time to wait.
        """
        for _ in self._looks():
            time.sleep(POLL_S)

    def _looks(self) -> Iterator[bool]:
        """Check the servers until one is up; yields True between checks. UserError after the time to wait."""
        deadline, is_told = time.monotonic() + self._wait_s, False
        while not self._look():
            if not is_told:
                self._on_note(
                    f"no server is left: waiting for one to come back, for engine.wait_s={self._wait_s:g} at most"
                )
                is_told = True
            if self._stopped() or time.monotonic() >= deadline:
                when = "when the run was stopped" if self._stopped() else f"for engine.wait_s={self._wait_s:g}"
                told = ", ".join(f"{member.url} ({member.problem})" for member in self.members)
                self._gave_up = UserError(
                    f"no server answered {when}: {told}; start one again at the same address, and go on from the last "
                    "checkpoint with resume=true."
                )
                raise self._gave_up
            yield True

    def _look(self) -> bool:
        """Push to every server without the newest weights, and report lost and returned ones; returns whether one is
        up."""
        before = {member for member in self.members if member.problem}
        with ThreadPoolExecutor(len(self.members)) as pool:
            list(pool.map(self._bring_up, self.members))
        for member in self.members:
            if member.problem and member not in before:
                self._on_note(f"lost the server {member.url}: it gets the weights when it is back")
            elif not member.problem and member in before:
                self._on_note(f"the server {member.url} is back, and has the weights")
        return bool(self._up())

    def _bring_up(self, member: Member) -> bool:
        """Push to a server; returns whether it is up. UserError if it does not fit."""
        with member.lock, self._turn(member):  # read `newest` inside, so that the newest is pushed last
            try:
                push_to(member, self.newest, self._expected)
                member.is_up, member.problem = True, ""
            except ServerGoneError as error:
                member.is_up, member.problem = False, str(error) or "no reason"
            finally:
                member.num_looks += 1
            return member.is_up

    @contextmanager
    def _turn(self, member: Member) -> Iterator[None]:
        """Serialize the ranks, which all see a server come back: two pushes must not mix. The first rank loads the
        weights, the others find them loaded."""
        if self._locks is None:
            yield
            return
        with Path(f"{self._locks}-{quote(member.url, safe='')}.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed or the process dies
            yield

    def close(self) -> None:
        for member in self.members if self._locks else ():
            Path(f"{self._locks}-{quote(member.url, safe='')}.lock").unlink(missing_ok=True)


def join(server: Server, expected: Expected | None) -> Member:
    """UserError unless the server answers, has our extension, and fits; `expected` is None before the policy exists."""
    try:
        facts = server.describe()
        if expected is not None:
            check_fits(server.url, facts, expected)
        return Member(server, facts, server.model_name())
    except (ServerGoneError, RefusedError) as error:
        raise UserError(
            f"the server {server.url} does not answer ({error}); start it with: rlvr serve MODEL --engine vllm."
        ) from error


def check_servers(urls: Sequence[str], expected: Expected | None, *, timeout_s: float) -> None:
    for server in [Server(url, timeout_s=timeout_s) for url in urls]:
        join(server, expected)
