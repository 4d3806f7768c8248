import itertools
import json
import math
import threading
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import PrivateAttr

from rlvr.core.env import Env, Reply, TurnText
from rlvr.core.episode import ChatModel
from rlvr.core.errors import LargeRewardError
from rlvr.core.executor import Background, Executor
from rlvr.core.rollout import RolloutSchedule, RolloutSource, SampledGroups, check_sizes
from rlvr.core.settings import RolloutSettings
from rlvr.core.world import World
from rlvr.errors import UserError
from rlvr.samplers.base import Checked
from rlvr.samplers.uniform import Uniform
from rlvr.types import Completion, Example, Group, Message, SamplingParams, Score, ToolSchema
from tests.unit.core.fakes import FakeChat, FakeEngine, completion, episode, group

SETTINGS = RolloutSettings(prompts_per_step=3, group_size=2, max_completion_tokens=4)


class EchoEngine(FakeEngine):
    """Samples one token that is the parity of the seed."""

    async def sample(self, sampling: SamplingParams) -> Completion:
        return completion(sampling.seed % 2)


class ParityEnv:
    """Ends after `max_turns` completions; the reward is the first one's token."""

    def __init__(self, fails: bool, max_turns: int) -> None:
        self.fails = fails
        self.max_turns: int | None = max_turns
        self.tools: tuple[ToolSchema, ...] = ()
        self.turns_taken = 0

    async def start(self) -> tuple[Message, ...]:
        return (Message(role="user", content="?"),)

    async def step(self, said: Message) -> Reply:
        self.turns_taken += 1
        return Reply(messages=(), done=self.turns_taken == self.max_turns)

    async def score(self, turns: Sequence[TurnText]) -> Score:
        if self.fails:
            raise RuntimeError("sandbox died")
        return Score(value=float(turns[0].completion))


class ParityTask:
    def __init__(self, failing: Sequence[int] = (), num_turns: int = 1) -> None:
        self.failing = set(failing)
        self.num_turns = num_turns

    def train_example(self, index: int) -> Example:
        return Example(id=str(index), messages=(), answer="1", metadata={"index": index})

    def envs(self, example: Example, count: int) -> list[Env]:
        return [ParityEnv(example.metadata["index"] in self.failing, self.num_turns) for _ in range(count)]


def schedule(
    *,
    seed: int = 0,
    task: ParityTask | None = None,
    settings: dict[str, Any] | None = None,
    engine: EchoEngine | None = None,
    **options: Any,
) -> tuple[RolloutSchedule, EchoEngine]:
    engine = engine or EchoEngine()
    model = ChatModel(engine=engine, chat=FakeChat(), max_context_tokens=16)
    chosen = SETTINGS.model_copy(update=settings)
    source = RolloutSource(task=task or ParityTask(), model=model, settings=chosen, seed=seed)
    parts = {"executor": Executor(), "prompts": Checked(Uniform()), "max_error_share": 0.2} | options
    return RolloutSchedule(source=source, **parts), engine


def batches(made: RolloutSchedule, count: int = 1, *, first: int = 0) -> list[SampledGroups]:
    with made:
        return [made.next_batch(step) for step in range(first, first + count)]


@pytest.fixture
def dead_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their rewards, all groups are dead."""
    monkeypatch.setattr("rlvr.core.rollout.is_dead_group", lambda rewards: True)


def are_dead(rollouts: SampledGroups) -> list[bool]:
    return [len({episode.score.value for episode in group.episodes}) == 1 for group in rollouts.groups]


def test_groups_come_in_issue_order() -> None:
    first, _ = schedule()
    found = batches(first, 2)
    state = first.state()
    third, _ = schedule()
    found.append(batches(third, 3)[2])
    assert [g.example.id for b in found for g in b.groups] == [str(i) for i in range(9)]
    resumed, _ = schedule()
    resumed.restore(json.loads(json.dumps(state)))
    assert batches(resumed, first=2) == found[2:]


def test_batches_in_flight_stay_in_order_with_less_staleness_than_before() -> None:
    made, _ = schedule(max_staleness=1)
    made.restore({"sampler": {"cursor": 12}, "indices": [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]})
    with made:
        made.next_batch(0)
        under_way = made.state()["indices"]
        made.next_batch(1, last=2)
    assert under_way == [[3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_the_state_of_0_2_0_is_read() -> None:
    made, _ = schedule()
    made.restore({"cursor": 9, "under_way": [[3, 6], [6, 9]]})
    assert [g.example.id for b in batches(made, 3, first=1) for g in b.groups] == [str(i) for i in range(3, 12)]


class Odd(Uniform):
    """Odd indices; notes what it observes."""

    _seen: list[list[str]] = PrivateAttr(default_factory=list)

    def take(self, count: int) -> list[int]:
        return [2 * index + 1 for index in super().take(count)]

    def observe(self, groups: Sequence[Group]) -> None:
        self._seen.append([group.example.id for group in groups])


class Skipping(Uniform):
    """Skips as many examples as completions were right."""

    def observe(self, groups: Sequence[Group]) -> None:
        self._cursor += sum(int(episode.score.value) for group in groups for episode in group.episodes)


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_pitfall_37_an_adaptive_sampler_resumes_exactly(max_staleness: int) -> None:
    def rest(made: RolloutSchedule, first: int, end: int = 8) -> list[SampledGroups]:
        return [made.next_batch(step, last=8) for step in range(first, end)]

    options: dict[str, Any] = {"max_staleness": max_staleness, "refills": 1}
    whole, _ = schedule(prompts=Checked(Skipping()), **options)
    with whole:
        found = rest(whole, 0, 4)
        state = json.loads(json.dumps(whole.state()))
        found += rest(whole, 4)
    assert state["sampler"]["cursor"] > 4 * 3 + max_staleness * 3
    assert len(state["indices"]) == max_staleness
    resumed, _ = schedule(prompts=Checked(Skipping()), **options)
    resumed.restore(state)
    with resumed:
        assert rest(resumed, 4) == found[4:]


@pytest.mark.usefixtures("dead_groups")
def test_a_sampler_chooses_replacements_too_and_observes_all_groups() -> None:
    sampler = Odd()
    made, _ = schedule(refills=1, prompts=Checked(sampler), max_staleness=1)
    with made:
        found = [made.next_batch(step, last=2) for step in range(2)]
    assert [[g.example.id for g in batch.groups] for batch in found] == [["13", "15", "17"], ["19", "21", "23"]]
    assert sampler._seen == [["1", "3", "5", "13", "15", "17"], ["7", "9", "11", "19", "21", "23"]]


def test_ranks_train_on_the_prompts_of_the_first() -> None:
    class SecondOfTwo(World):
        def gather(self, item: Any) -> list[Any]:
            return [[40, 41, 42, 43], item] if type(item[0]) is int else [item, item]

    made, _ = schedule(settings={"prompts_per_step": 4}, world=SecondOfTwo(rank=1, size=2))
    assert [group.example.id for group in batches(made)[0].groups] == ["41", "41", "43", "43"]


def test_pitfall_36_every_completion_has_its_own_seed() -> None:
    seeds = []
    for run_seed in (0, 1):
        made, engine = schedule(seed=run_seed, task=ParityTask(num_turns=3))
        batches(made, 4)
        seeds += [request.seed for request in engine.requests]
    assert len(seeds) == 2 * 4 * 3 * 2 * 3
    assert len(set(seeds)) == len(seeds)


def test_pitfall_20_the_engine_samples_with_the_settings() -> None:
    cuts = {"temperature": 0.7, "top_p": 0.9, "top_k": 11, "min_p": 0.05}
    made, engine = schedule(settings={"max_completion_tokens": 5, **cuts})
    batches(made)
    expected = SamplingParams(max_tokens=5, stop_ids=FakeChat.stop_ids, seed=0, **cuts)
    assert {replace(request, seed=0) for request in engine.requests} == {expected}


def test_pitfall_13_dead_groups_are_replaced_and_counted() -> None:
    plain, _ = schedule()
    assert any(are_dead(batches(plain)[0]))
    made, _ = schedule(refills=20)
    rollouts = batches(made)[0]
    assert are_dead(rollouts) == [False] * 3
    assert rollouts.num_refilled == made.state()["sampler"]["cursor"] - 3 > 0


def test_pitfall_13_a_verifier_error_leaves_a_group_dead() -> None:
    class AlwaysRight(ParityEnv):
        async def score(self, turns: Sequence[TurnText]) -> Score:
            return replace(await super().score(turns), value=1.0)

    class OneFailure(ParityTask):
        made = itertools.count()

        def envs(self, example: Example, count: int) -> list[Env]:
            return [AlwaysRight(fails=next(self.made) == 0, max_turns=1) for _ in range(count)]

    made, _ = schedule(refills=1, settings={"prompts_per_step": 1, "group_size": 6}, task=OneFailure())
    assert batches(made)[0].num_refilled == 1


@pytest.mark.usefixtures("dead_groups")
def test_pitfall_25_requests_the_trainer_waits_for_go_first() -> None:
    for made, engine in (schedule(max_staleness=2, task=ParityTask(num_turns=2)), schedule(max_staleness=2, refills=1)):
        with made:
            for step in range(4, 7):
                made.next_batch(step, last=7)
        # half of them are second turns, or replacements
        assert [request.priority for request in engine.requests] == [4] * 12 + [5] * 12 + [6] * 12


@pytest.mark.usefixtures("dead_groups")
def test_pitfall_09_each_rank_samples_its_share() -> None:
    class SecondOfTwo(World):
        def gather(self, item: Any) -> list[Any]:
            return [item, item]  # the other one samples as many

    world = SecondOfTwo(rank=1, size=2, local_size=2)
    made, engine = schedule(settings={"prompts_per_step": 4}, refills=1, world=world)
    rollouts = batches(made)[0]
    assert [group.example.id for group in rollouts.groups] == ["5", "5", "7", "7"]
    assert len(engine.requests) == 2 * 2 + 2 * 2


def test_pitfall_30_the_engine_is_used_in_one_thread() -> None:
    seen: dict[str, str] = {}

    class Noting(EchoEngine):
        async def generate(self, *args: Any, **options: Any) -> Completion:
            seen["generate"] = threading.current_thread().name
            return await super().generate(*args, **options)

        def release(self, session: Hashable) -> None:
            seen["release"] = threading.current_thread().name

        def load_weights(self, version: int) -> None:
            seen["load_weights"] = threading.current_thread().name

        def close(self) -> None:
            seen["close"] = threading.current_thread().name
            raise RuntimeError("the connection is gone")

    made, _ = schedule(
        executor=Background(num_threads=1), max_staleness=1, task=ParityTask(num_turns=2), engine=Noting()
    )

    def use() -> None:
        with made:
            made.next_batch(0, last=9)
            made.advance(1)

    with pytest.raises(RuntimeError, match="the connection is gone"):
        use()
    assert seen == dict.fromkeys(("generate", "release", "load_weights", "close"), "rollouts")
    assert "rollouts" not in {thread.name for thread in threading.enumerate()}


def test_pitfall_26_a_hard_stop_does_not_wait_for_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlvr.core.executor.PATIENCE_S", 0.1)
    waiting, there_again, stopped, closed = (threading.Event() for _ in range(4))

    class Patient(EchoEngine):
        def load_weights(self, version: int) -> None:
            waiting.set()
            there_again.wait()

        def close(self) -> None:
            closed.set()

    def use() -> None:
        executor = Background(num_threads=1)
        made, engine = schedule(executor=executor, engine=Patient())
        try:
            with made:
                executor.start(push(engine))
                waiting.wait()
                raise SystemExit(130)  # as the handler of a second Ctrl-C does, in the middle of `advance`
        except SystemExit:
            stopped.set()

    async def push(engine: EchoEngine) -> None:
        engine.load_weights(1)

    user = threading.Thread(target=use, daemon=True)
    user.start()
    assert stopped.wait(60)
    there_again.set()
    assert closed.wait(60)  # when its turn has come
    user.join(60)


def test_scores_are_completed_before_anything_reads_them() -> None:
    """A group is dead by its complete scores, and replacements are completed too."""
    seen: list[list[str]] = []

    def late(groups: list[Group]) -> list[Group]:
        seen.append([group.example.id for group in groups])
        scores = [[Score(value=float(len(seen) + number)) for number, _ in enumerate(g.episodes)] for g in groups]
        return [
            replace(g, episodes=tuple(replace(e, score=s) for e, s in zip(g.episodes, of_one, strict=True)))
            for g, of_one in zip(groups, scores, strict=True)
        ]

    made, _ = schedule(refills=1, late=late)
    (rollouts,) = batches(made)
    assert seen == [["0", "1", "2"]]
    assert rollouts.num_refilled == 0
    assert [[e.score.value for e in group.episodes] for group in rollouts.groups] == [[1.0, 2.0]] * 3

    def equal(groups: list[Group]) -> list[Group]:
        return [replace(late([g])[0], episodes=g.episodes[:1] * 2) for g in groups]

    seen.clear()
    made, _ = schedule(refills=1, late=equal)
    batches(made)
    assert seen == [["0"], ["1"], ["2"], ["3"], ["4"], ["5"]]


def test_what_is_still_dead_after_the_last_round_is_dropped() -> None:
    made, _ = schedule(refills=0)
    rollouts = batches(made)[0]
    assert 0 < len(rollouts.groups) == 3 - (rollouts.num_dropped or 0) < 3
    assert made.state()["sampler"]["cursor"] == 3


def test_pitfall_26_errors_above_the_limit_stop_the_run() -> None:
    made, _ = schedule(task=ParityTask([0, 1]))
    with pytest.raises(UserError, match=r"4 of 6 episodes .*sandbox died"):
        batches(made)


@pytest.mark.usefixtures("dead_groups")
def test_pitfall_26_verifier_errors_of_replacements_count_too() -> None:
    made, _ = schedule(refills=1, task=ParityTask([3, 4, 5]))
    with pytest.raises(UserError, match="6 of 12 episodes"):
        batches(made)


@pytest.mark.parametrize(("failing", "limit"), [([0], 0.25), ([], 0.0)])
def test_pitfall_26_errors_at_the_limit_do_not_stop_the_run(failing: list[int], limit: float) -> None:
    made, _ = schedule(task=ParityTask(failing), max_error_share=limit, settings={"prompts_per_step": 4})
    assert len(batches(made)[0].groups) == 4


@pytest.mark.parametrize("value", [1e308, -2e12, math.inf])
def test_a_reward_that_overflows_in_the_update_is_named_with_its_example(value: float) -> None:
    turn = ((1,), completion(5))
    good, bad = episode(turn, score=Score(value=1e12)), episode(turn, score=Score(value=value))
    failed = episode(turn, score=Score(value=math.nan, status="error"))
    check_sizes([group(good, failed)])
    with pytest.raises(LargeRewardError, match=f"the reward of example 'x' is {value:g}".replace("+", "[+]")):
        check_sizes([group(good, failed), group(good, bad)])
