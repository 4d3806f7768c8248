"""The engine under any order of calls: hypothesis plays users, and a small model says what must come out.

The model knows which requests wait and run, what each has heard, and what is kept of each session. Batches, slots,
chunks and prefixes are the engine's own matter: whatever it does with them, a request gets what it would get alone.
"""

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rlvr.core.engine import LocalEngine, sampler, scheduler
from rlvr.core.engine.base import Alternatives
from rlvr.core.engine.runner import CachedRunner
from rlvr.types import SamplingParams, StopReason
from tests.unit.core.engine.alone import CONTEXT, VOCABULARY, WEIGHTS, Asked, check_alone, tiny_model

CHUNK = 24  # tokens of a forward that starts rows
# ------------------------------------------------------------------------------------------------ what users do

PROMPTS = [(3, 1, 4, 1, 5), (1,), (4, 9), (3, 1, 4, 1, 5, 9, 2), tuple(range(11)), tuple(range(2, 12)) * 3]
tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=4).map(tuple)
wishes = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 8),
    stop_ids=st.sampled_from([frozenset[int](), frozenset({3}), frozenset({1, 5, 7})]),
    seed=st.integers(0, 5),
    temperature=st.sampled_from([1.0, 0.0, 0.6, 1.5]),
    top_p=st.sampled_from([1.0, 1.0, 0.6]),
    top_k=st.sampled_from([0, 0, 3]),
    min_p=st.sampled_from([0.0, 0.0, 0.2]),
    priority=st.sampled_from([0, 0, 1, -1]),
)
extras = st.fixed_dictionaries(
    {},
    optional={
        "allowed": st.integers(2, 4).map(
            lambda step: lambda ids: (torch.arange(VOCABULARY) + len(ids)) % step != 0  # another set at each token
        ),
        "alternatives": st.integers(1, 4),
    },
)
sessions = st.integers(0, 4)
pauses = st.sampled_from([2, 0, 1, 9, 30])  # steps before the next call


class Calls(RuleBasedStateMachine):
    """Calls of the engine beside the model of what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.waiting: list[Asked] = []
        self.running: list[Asked] = []
        self.parked: dict[
            Hashable, tuple[int, tuple[int, ...]]
        ] = {}  # session -> number of the step, tokens; oldest first
        self.last: dict[int, tuple[int, ...]] = {}  # session -> all tokens of its last turn
        self.version = self.num_steps = 0
        self.tasks: dict[Asked, asyncio.Task[None]] = {}
        self.prefilled: list[list[int]] = []  # rows of the forwards of this step that are no decoding
        self.breaks = False
        self.stale = False

    @initialize(num_slots=st.sampled_from([3, 1, 16, 1]))
    def start(self, num_slots: int) -> None:
        self.num_slots, self.budget = num_slots, num_slots * CONTEXT
        model = tiny_model(0)
        parameters = lambda: WEIGHTS[self.version % 3].named_parameters()  # noqa: E731
        self.engine = LocalEngine(model, max_batch_size=num_slots, max_context_tokens=CONTEXT, weights=parameters)
        self.own_step, self.engine._step = self.engine._step, self.step
        model.register_forward_pre_hook(self.watch, with_kwargs=True)

    # -------------------------------------------------------------------------------------------- calls

    @rule(prompt=st.sampled_from(PROMPTS), sampling=wishes, extra=extras, pause=pauses)
    def ask(
        self,
        prompt: tuple[int, ...],
        sampling: SamplingParams,
        extra: dict[str, Any],
        session: int | None = None,
        pause: int = 0,
    ) -> None:
        extra = extra | ({"alternatives": Alternatives(count=extra["alternatives"])} if "alternatives" in extra else {})
        asked = Asked(prompt=prompt, sampling=sampling, session=session, **extra)
        self.tasks[asked] = self.loop.create_task(self.call(asked))
        self.go_on(pause)

    @rule(prompt=st.sampled_from(PROMPTS), sampling=wishes, count=st.sampled_from([5, 2, 19]), pause=pauses)
    def ask_as_a_group(self, prompt: tuple[int, ...], sampling: SamplingParams, count: int, pause: int) -> None:
        for number in range(min(count, self.num_slots + 3)):
            limit = 1 + (7 * number * number + sampling.max_tokens) % 11
            each = replace(sampling, seed=sampling.seed + number, max_tokens=limit)
            self.ask(prompt, each, {"alternatives": 1 + number % 3} if number % 2 else {})
        self.go_on(pause)

    @rule(
        which=st.lists(sessions, min_size=1, max_size=4),
        prompt=st.sampled_from(PROMPTS),
        sampling=wishes,
        dropped=st.sampled_from([0, 0, 1, 5, CONTEXT]),
        more=tokens,
        pause=pauses,
    )
    def take_turns(
        self,
        which: list[int],
        prompt: tuple[int, ...],
        sampling: SamplingParams,
        dropped: int,
        more: tuple[int, ...],
        pause: int,
    ) -> None:
        """The first of a session, or one that goes on from the last one, of which the end may be rewritten."""
        for place, session in enumerate(which):
            ids = self.last.get(session, ())
            ids = (ids[: max(0, len(ids) - dropped)] + more)[:CONTEXT]
            self.ask(
                ids or prompt,
                replace(sampling, seed=session, max_tokens=1 + (sampling.max_tokens + 3 * place) % 8),
                {},
                session,
            )
        self.go_on(pause)

    @precondition(lambda self: self.tasks)
    @rule(count=st.integers(1, 9))
    def go_on(self, count: int) -> None:
        until = self.num_steps + count
        while self.num_steps < until and self.tasks:
            self.turn()

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.tasks) - 1))
        list(self.tasks.values())[number].cancel()
        self.turn()

    @precondition(lambda self: self.parked or self.running)
    @rule(times=st.sampled_from([0, 1, 0, 2]), pause=pauses)
    def new_weights(self, times: int, pause: int) -> None:
        for _ in range(times):
            self.version += 1
            self.parked.clear()
            self.stale = bool(self.running)
            self.engine.load_weights(self.version)
            assert self.engine.policy_version == self.version
        self.go_on(pause)

    @precondition(lambda self: self.parked)
    @rule(session=sessions)
    def release(self, session: int) -> None:
        self.parked.pop(session, None)
        self.engine.release(session)

    @precondition(lambda self: self.running)
    @rule(how=st.sampled_from(["break", "close", "wait"]))
    def empty(self, how: str) -> None:
        self.breaks = how == "break"
        if how == "close":
            self.engine.close()
            self.forget()
        self.drain()

    def drain(self) -> None:
        while self.tasks or self.running:
            self.turn()
        assert not self.waiting

    # -------------------------------------------------------------------------------------------- what must come out

    def turn(self) -> None:
        """One turn of the event loop; what has ended is looked at."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        for asked, task in list(self.tasks.items()):
            if task.done():
                del self.tasks[asked]
                if not task.cancelled() and (error := task.exception()) is not None and str(error) != "broken":
                    raise error

    async def call(self, asked: Asked) -> None:
        """The model hears of a call and of its end at the same moment as the engine."""

        def hear(token: int, logprob: float) -> None:
            asked.heard.append((token, logprob))
            asked.versions.append(self.version)

        if asked.limit:
            place = sum(other.sampling.priority <= asked.sampling.priority for other in self.waiting)
            self.waiting.insert(place, asked)
        more = {name: getattr(asked, name) for name in ("session", "allowed", "alternatives")}
        try:
            done = await self.engine.generate(asked.prompt, asked.sampling, on_token=hear, **more)
        except asyncio.CancelledError:
            asked.aborted = True
            if asked in self.waiting:
                self.waiting.remove(asked)
            raise
        if asked.limit:
            check_alone(asked, done)
        else:
            assert (done.token_ids, done.stop_reason) == ((), StopReason.LENGTH)
        if asked.session is not None:
            self.last[asked.session] = asked.prompt + done.token_ids

    def forget(self) -> None:
        self.waiting.clear()
        self.running.clear()
        self.parked.clear()
        self.stale = False

    def watch(self, module: object, args: object, inputs: dict[str, Any]) -> None:
        """Every forward: how many rows it has, and which tokens."""
        ids = inputs["input_ids"]
        assert len(ids) == 1 or inputs["grouping"] is not None or ids.numel() <= CHUNK
        if inputs["grouping"] is None:
            self.prefilled += ids.tolist()
        elif self.breaks:
            self.breaks = False
            raise RuntimeError("broken")

    def step(self) -> None:
        """A step of the engine, and what it must have changed."""
        self.num_steps += 1
        self.prefilled = []
        expected = [asked.prompt + asked.tokens[:-1] for asked in self.running] if self.stale else []
        self.stale = False
        before = sum(len(ids) for _, ids in self.parked.values())
        admitted = self.admit()
        expected += self.to_prefill(admitted)
        due = [len(asked.heard) + (0 if asked.aborted else 1) for asked in self.running]
        spare = self.budget - sum(map(self.room_of, self.running)) - before
        try:
            self.own_step()
            for asked, count in zip(self.running, due, strict=True):  # those that start get two tokens, or end
                assert len(asked.heard) == count + (asked in admitted and len(asked.heard) != 1)
            assert sorted(map(trimmed, self.prefilled)) == sorted(map(trimmed, expected))
            self.leave()
            self.evict(spare)
        except BaseException:
            self.forget()
            raise

    def leave(self) -> None:
        """What is finished is parked."""
        leaving = [asked for asked in self.running if asked.done or asked.aborted]
        self.running = [asked for asked in self.running if asked not in leaving]
        found = self.engine._scheduler.parked
        for asked in leaving:
            ids = asked.prompt + asked.tokens[:-1]
            if asked.session is None or asked.aborted:
                continue
            twice = self.parked.get(asked.session, (0, ()))[0] == self.num_steps  # two turns of it ended: either stays
            if twice and asked.session in found and found[asked.session][0] != ids:
                continue
            self.parked.pop(asked.session, None)
            self.parked[asked.session] = self.num_steps, ids

    def room_of(self, asked: Asked) -> int:
        return len(asked.prompt) + asked.limit

    def admit(self) -> list[Asked]:
        """As many as there are slots, but a full batch waits until an eighth of its slots are free."""
        free = self.num_slots - len(self.running)
        if self.running and free < max(1, min(len(self.waiting), self.num_slots // 8)):
            return []
        admitted, self.waiting = self.waiting[:free], self.waiting[free:]
        self.running += admitted
        return admitted

    def to_prefill(self, admitted: Sequence[Asked]) -> list[tuple[int, ...]]:
        """Each distinct prompt once, of a session only what is new, at least a token."""
        fresh, rest = set[tuple[int, ...]](), []
        for asked in admitted:
            _, ids = self.parked.pop(asked.session, (0, ())) if asked.session is not None else (0, ())
            same = takewhile(lambda pair: pair[0] == pair[1], zip(ids, asked.prompt[:-1], strict=False))
            if count := len(list(same)):
                rest.append(asked.prompt[count:])
            else:
                fresh.add(asked.prompt)
        return [*fresh, *rest]

    def evict(self, spare: int) -> None:
        """What the engine let go was needed, and parked no later than what it keeps. Sessions that were parked in one
        step may go in any order."""
        found = self.engine._scheduler.parked
        gone = self.parked.keys() - found.keys()
        kept_since = min((self.parked[session][0] for session in found), default=self.num_steps)
        assert all(self.parked[session][0] <= kept_since for session in gone)
        added = sum(len(ids) for step, ids in self.parked.values() if step == self.num_steps)
        assert not gone or spare < added
        for session in gone:
            del self.parked[session]
        used = sum(map(self.room_of, self.running)) + sum(len(ids) for _, ids in self.parked.values())
        assert used <= self.budget or not self.parked

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        assert engine.num_running == len(self.running) <= self.num_slots
        assert [request.prompt_ids for request in engine._scheduler.waiting] == [a.prompt for a in self.waiting]
        assert len(engine._scheduler.undelivered) == len(self.waiting) + sum(not a.aborted for a in self.running)
        found = engine._scheduler.parked
        steps = [self.parked[session][0] for session in found]
        assert steps == sorted(steps)
        assert {session: ids for session, (ids, _) in found.items()} == {s: ids for s, (_, ids) in self.parked.items()}
        assert all(len(states) == len(ids) for ids, stored in found.values() for _, states in stored)
        runner = engine._scheduler.rows.runner
        assert isinstance(runner, CachedRunner)
        prefixes = {owner for owner in runner._owners if owner >= 0}
        assert len(runner._owners) == len(self.running)
        assert prefixes == set(range(len(runner._prefix_lengths))), "a prompt that no row uses has left its slot"

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.drain()
            self.turn()
            self.turn()  # its driver ends
            self.holds_what_the_model_holds()
        self.loop.close()


def trimmed(ids: Sequence[int]) -> list[int]:
    """Without padding, which is 0, as a token may be."""
    length = max((place for place, token in enumerate(ids, 1) if token), default=0)
    return list(ids[:length])


def play(monkeypatch: pytest.MonkeyPatch, *, num_examples: int, num_calls: int) -> None:
    monkeypatch.setattr(scheduler, "MAX_PREFILL_TOKENS", CHUNK)
    monkeypatch.setattr(sampler, "MAX_CHUNK_ELEMENTS", 2 * VOCABULARY + 1)  # two rows
    how = settings(
        max_examples=num_examples,
        stateful_step_count=num_calls,
        deadline=None,
        derandomize=True,  # the same calls at every run: a draw within rounding of the next token would be no bug
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        database=None,
        phases=[Phase.generate],  # shrinking takes minutes: add Phase.shrink to see the fewest calls
    )
    run_state_machine_as_test(Calls, settings=how)


def test_any_order_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, num_examples=30, num_calls=20)


@pytest.mark.long
def test_many_orders_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, num_examples=120, num_calls=40)
