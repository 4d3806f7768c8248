"""The servers of a run: choice of the next one, failures, pushes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from rlvr.engines.vllm.broadcast import Meeting
from rlvr.engines.vllm.push import Expected, Member, Push, check_fits, push_to
from rlvr.engines.vllm.server import Server
from rlvr.engines.vllm.wire import RefusedError, ServerGoneError
from rlvr.errors import UserError

POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Locks of one event loop: failed servers are re-checked one at a time."""

    members: dict[Member, asyncio.Lock] = field(default_factory=dict)
    waiting: asyncio.Lock = field(default_factory=asyncio.Lock)


class Fleet:
    """Servers that fit the policy. Raises UserError at once for one that does not, or is not there.

    A server that fails is re-checked: if it answers (restarted, say) it gets the weights, else it is left out until the
    next push, or until no other one is left.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        expected: Expected,
        *,
        wait_s: float,
        on_note: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._expected, self._wait_s, self._on_note, self._stopped = expected, wait_s, on_note, stopped
        self.members = [_join(server, expected) for server in servers]
        self._push: Push | None = None
        self._sessions: dict[Hashable, Member] = {}
        self._gave_up: UserError | None = None

    async def choose(self, turns: Turns, session: Hashable | None) -> Member:
        """The session's server if it is up, else the least busy one. UserError if none comes back."""
        if not self._up():
            await self._wait(turns)
        member = self._sessions.get(session)
        if member is None or not member.is_up:
            member = min(self._up(), key=lambda one: one.load)
        if session is not None:
            self._sessions[session] = member
        return member

    def release(self, session: Hashable) -> None:
        """Forget a session; unknown ones are ignored."""
        self._sessions.pop(session, None)

    async def recheck(self, turns: Turns, member: Member, num_looks: int, problem: Exception) -> None:
        """Re-check a server whose request failed after `num_looks` checks; concurrent failures share one check."""
        async with turns.members.setdefault(member, asyncio.Lock()):
            if member.num_looks == num_looks and not await asyncio.to_thread(self._bring_up, member):
                self._on_note(f"lost the server {member.url} ({problem})")

    async def _wait(self, turns: Turns) -> None:
        async with turns.waiting:
            if not self._up() and self._gave_up is None:
                self._on_note(self._waits)
            deadline = time.monotonic() + self._wait_s
            while not self._up():
                for member in self.members:
                    if self._gave_up is None and await asyncio.to_thread(self._bring_up, member):
                        self._on_note(f"the server {member.url} is back, and has the weights")
                        return
                if self._gave_up is not None or self._is_over(deadline):
                    self._gave_up = self._gave_up or self._none_left(member.url for member in self.members)
                    raise self._gave_up
                await asyncio.sleep(POLL_S)

    def _up(self) -> list[Member]:
        return [member for member in self.members if member.is_up]

    @property
    def newest(self) -> Push:
        """The weights of the servers, or those on their way."""
        assert self._push is not None, "load_weights comes first"
        return self._push

    def announce(self, push: Push) -> None:
        """Set the weights for servers that come back. All count as up: another rank may deliver."""
        self._push, self._gave_up = push, None
        for member in self.members:
            member.is_up = True

    def deliver(self) -> None:
        """Push to all servers in parallel; one that is down gets the weights when it is back.

        Raises UserError: one does not fit, or none is up within the time to wait.
        """
        deadline = time.monotonic() + self._wait_s
        known, waiting = {member for member in self.members if member.problem}, False
        while True:
            parcel, servers = self.newest.parcel, [member.server for member in self.members]
            meeting = Meeting(parcel, servers) if parcel else None
            with ThreadPoolExecutor(len(self.members)) as pool:
                list(pool.map(self._bring_up, self.members, itertools.repeat(meeting)))
            for member in self.members:
                if member.problem and member not in known:
                    self._on_note(f"lost the server {member.url}: it gets the weights when it is back")
                elif not member.problem and member in known:
                    self._on_note(f"the server {member.url} is back, and has the weights")
            if not self._up() and not waiting:
                self._on_note(self._waits)
            known, waiting = {member for member in self.members if member.problem}, True
            if self._up():
                return
            if self._is_over(deadline):
                raise self._none_left(f"{member.url} ({member.problem})" for member in self.members)
            time.sleep(POLL_S)

    def _bring_up(self, member: Member, meeting: Meeting | None = None) -> bool:
        """Push to a server; whether it is up. UserError if it does not fit."""
        with member.lock:  # `newest` is read inside: the newest goes last
            try:
                push_to(member, self.newest, self._expected, meeting)
                member.is_up, member.problem = True, ""
            except ServerGoneError as error:
                member.is_up, member.problem = False, str(error) or "no reason"
            finally:
                if meeting is not None:
                    meeting.leave(member.server)
                member.num_looks += 1
            return member.is_up

    @property
    def _waits(self) -> str:
        return f"no server is left: waiting for one to come back, for engine.wait_s={self._wait_s:g} at most"

    def _is_over(self, deadline: float) -> bool:
        return time.monotonic() >= deadline or self._stopped()

    def _none_left(self, what: Iterable[str]) -> UserError:
        when = "when the run was stopped" if self._stopped() else f"for engine.wait_s={self._wait_s:g}"
        return UserError(
            f"no server answered {when}: {', '.join(what)}; start one again at the same address, and go on from the "
            "last checkpoint with resume=true."
        )


def check_servers(urls: Sequence[str], expected: Expected | None, *, timeout_s: float) -> None:
    """UserError unless a fitting server with our extension answers at every address."""
    for server in [Server(url, timeout_s=timeout_s) for url in urls]:
        with _there(server):
            facts = server.describe()
        if expected is not None:
            check_fits(server.url, facts, expected)


def _join(server: Server, expected: Expected) -> Member:
    with _there(server):
        facts = server.describe()
        check_fits(server.url, facts, expected)
        return Member(server, facts, server.model_name())


@contextmanager
def _there(server: Server) -> Iterator[None]:
    try:
        yield
    except (ServerGoneError, RefusedError) as error:
        port = urlsplit(server.url).port
        more = "" if port in (None, 8000) else f" --port {port}"
        raise UserError(
            f"the server {server.url} does not answer ({error}); start it with: rlvr serve MODEL --engine vllm{more}."
        ) from error
