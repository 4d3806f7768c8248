"""The bound on the age of tokens, in a simulation in which completions take as many ticks as they have tokens."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, TypeVar

import pytest
import torch

from rlvr.core.batch import check_staleness, to_batch
from rlvr.core.episode import ChatModel
from rlvr.core.executor import Executor
from rlvr.core.rollout import RolloutSchedule, RolloutSource
from rlvr.samplers.base import Checked
from rlvr.samplers.uniform import Uniform
from rlvr.types import Completion, SamplingParams, TokenBatch
from tests.unit.core.fakes import FakeChat, FakeEngine, completion, episode, group
from tests.unit.core.test_rollout import SETTINGS, ParityTask

T = TypeVar("T")
STEPS, PROMPTS = 40, 3
LONG = 60


class OneThread(Executor):
    """As the executor with a thread, but on ours: its loop runs while something is waited for, so that nothing depends
    on the clock."""

    def start(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        loop = self._runner.get_loop()
        task = loop.create_task(work)
        return lambda: loop.run_until_complete(task)


async def ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def length_of(seed: int) -> int:
    """Most completions are short, some take many steps of the trainer."""
    return 1 + seed % 4 if seed % 5 else LONG + seed % 40


class SlowEngine(FakeEngine):
    """A tick a token; notes the version of each, as engines do whose weights change while they sample."""

    async def sample(self, sampling: SamplingParams) -> Completion:
        first, changes = self.policy_version, []
        count = length_of(sampling.seed)
        now = first
        for number in range(count):
            if self.policy_version != now:
                now = self.policy_version
                changes.append((number, now))
            await asyncio.sleep(0)
        sampled = completion(*(2,) * (count - 1), sampling.seed % 2, version=first)
        return replace(sampled, version_changes=tuple((number, version) for number, version in changes if number))


class LastToken(FakeChat):
    def decode(self, ids: Sequence[int]) -> str:
        return str(ids[-1]) if ids else ""


def make_source(engine: SlowEngine) -> RolloutSource:
    settings = SETTINGS.model_copy(update={"prompts_per_step": PROMPTS, "max_completion_tokens": 500})
    model = ChatModel(engine=engine, chat=LastToken(), max_context_tokens=1000)
    return RolloutSource(task=ParityTask(), model=model, settings=settings, seed=5)


def make_schedule(max_staleness: int, *, refills: int | None = None) -> tuple[RolloutSchedule, OneThread]:
    executor = OneThread()
    made = RolloutSchedule(
        source=make_source(SlowEngine()),
        executor=executor,
        prompts=Checked(Uniform()),
        refills=refills,
        max_error_share=0.0,
        max_staleness=max_staleness,
    )
    return made, executor


def in_issue_order(max_staleness: int, *, refills: int | None = None) -> list[TokenBatch]:
    """The batches of a run whose updates take their time; the age of every token has been checked."""
    draw = random.Random(0)
    made, executor = make_schedule(max_staleness, refills=refills)
    batches = []
    with made:
        for step in range(STEPS):
            batches.append(to_batch(made.next_batch(step, last=STEPS).groups))
            check_staleness(batches[-1], step, max_staleness)
            executor.run(ticks(draw.randrange(2, 12)))  # an update, shorter than a long completion
            made.advance(step + 1)
    return batches


def sampled_versions(batch: TokenBatch) -> list[list[int]]:
    """Of the sampled tokens of each row."""
    assert batch.policy_versions is not None
    return [row[mask].tolist() for row, mask in zip(batch.policy_versions, batch.loss_mask, strict=True)]


def lengths(batches: Sequence[TokenBatch]) -> list[int]:
    return [int(count) for batch in batches for count in batch.loss_mask.sum(1)]


def sampled_lengths(num_prompts: int) -> list[int]:
    """Of the completions of the first prompts, sampled with nothing else going on."""
    with OneThread() as executor:
        groups = executor.run(make_source(SlowEngine()).sample(range(num_prompts), step=0))
    return lengths([to_batch(groups)])


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 4])
def test_pitfall_24_delivery_in_issue_order_keeps_the_bound(max_staleness: int) -> None:
    versions = [sampled_versions(batch) for batch in in_issue_order(max_staleness)]
    ages = [step - min(map(min, rows)) for step, rows in enumerate(versions)]
    assert max(ages) == max_staleness  # and it is used up
    if max_staleness:  # new weights came in the middle of completions
        assert any(len(set(row)) > 1 for rows in versions for row in rows)


def test_pitfall_24_later_batches_begin_before_the_wait() -> None:
    made, executor = make_schedule(2)
    diary: list[str] = []
    start = executor.start

    def noting(work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        diary.append("begin")
        result = start(work)

        def wait() -> T:
            diary.append("wait")
            return result()

        return wait

    executor.start = noting  # type: ignore[method-assign]
    with made:
        for step in range(4):
            made.next_batch(step, last=5)
            made.advance(step + 1)
    assert diary == ["begin", "begin", "begin", "wait", "begin", "wait", "begin", "wait", "wait"]


@pytest.mark.parametrize("max_staleness", [0, 1, 4])
def test_pitfall_25_trained_episodes_are_as_long_as_sampled(max_staleness: int) -> None:
    sampled = sampled_lengths(STEPS * PROMPTS)
    assert max(sampled) > LONG
    assert lengths(in_issue_order(max_staleness)) == sampled


def test_pitfall_25_replacements_are_sampled_by_the_prompt() -> None:
    seen = [lengths(in_issue_order(max_staleness, refills=2)) for max_staleness in (0, 2)]
    assert sorted(seen[0])[-5:] == sorted(seen[1])[-5:]
    assert abs(fmean(seen[0]) - fmean(seen[1])) < 0.2 * fmean(seen[0])


def one_row(*versions: int, prompt: int = 0) -> TokenBatch:
    """Of a row whose tokens after the prompt are sampled."""
    batch = to_batch([group(episode(((), completion(*versions))))])
    sampled = torch.arange(len(versions))[None] >= prompt
    return replace(batch, policy_versions=torch.tensor([versions]), loss_mask=sampled)


def test_the_ages_of_sampled_tokens_by_hand() -> None:
    mean = pytest.approx(2 / 3)
    assert check_staleness(one_row(3, 3, 4), 4, 2) == {"rollout/staleness_mean": mean, "rollout/staleness_max": 1.0}
    assert check_staleness(one_row(4, 4, 4), 4, 0) == {}
    assert check_staleness(one_row(-1, -1, 4, prompt=2), 4, 1)["rollout/staleness_max"] == 0.0


@pytest.mark.parametrize(
    ("versions", "step", "limit"), [([3, 4], 4, 0), ([1, 4], 4, 2), ([4, 5], 4, 2), ([-1, 0], 0, 1), ([-1, 0], 3, 9)]
)
def test_pitfall_24_a_token_too_old_is_an_error(versions: list[int], step: int, limit: int) -> None:
    with pytest.raises(RuntimeError, match=f"step {step} would train on tokens .* versions {versions[0]} to"):
        check_staleness(one_row(*versions), step, limit)


def test_pitfall_37_a_resume_loses_and_doubles_no_prompt() -> None:
    for stop in range(1, 6):
        made, executor = make_schedule(3)
        trained: list[str] = []
        with made:
            for step in range(stop):
                trained += [group.example.id for group in made.next_batch(step, last=8).groups]
                executor.run(ticks(5))
                made.advance(step + 1)
            state = json.loads(json.dumps(made.state()))
        assert len(state["indices"]) == 3
        for max_staleness in (3, 1, 0):  # the bound may change
            resumed, _ = make_schedule(max_staleness)
            resumed.restore(state)
            again = list(trained)
            with resumed:
                for step in range(stop, 8):
                    resumed.advance(step)
                    again += [group.example.id for group in resumed.next_batch(step, last=8).groups]
            assert again == [str(number) for number in range(8 * PROMPTS)]


def test_pitfall_37_a_restored_state_saves_the_same() -> None:
    made, _ = make_schedule(2)
    with made:
        made.next_batch(0, last=8)
        state = made.state()
    resumed, _ = make_schedule(2)
    resumed.restore(state)
    assert resumed.state() == state


def test_nothing_is_begun_that_no_step_will_train_on() -> None:
    made, _ = make_schedule(4)
    with made:
        for step in range(3):
            made.next_batch(step, last=3)
            made.advance(step + 1)
        assert made.state() == {"sampler": {"cursor": 3 * PROMPTS}, "indices": []}
