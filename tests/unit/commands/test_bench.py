"""Steps that `rlvr plan` measures are those of a run: a small one, made here."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain

import pytest
import torch

from rlvr.commands.plan import costs
from rlvr.commands.plan.costs import Bench
from rlvr.run.assemble import assemble
from rlvr.run.opened import opened
from rlvr.tracking.rollouts import rollouts_path
from rlvr.types import TokenBatch
from tests.unit.core.tiny import tiny_config

SMALL = ("model.hidden_size=16", "model.num_layers=1", "model.intermediate_size=16", "trainer.num_threads=1")
RECORDED = ("tracker.rollouts_every=2", "tracker.rollouts_max_groups=2")


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with ExitStack() as stack:
        parts = stack.enter_context(opened(costs._alone(tiny_config(*SMALL, *RECORDED))))
        run = assemble(parts, parts.load_policy())
        stack.enter_context(run.rollouts)
        yield Bench(parts, run, 4)


def test_a_step_is_of_this_size_and_counts_its_tokens(bench: Bench) -> None:
    """Prompts once for a group; the stages are the loop's, and of sampling what passes outside of the engine."""
    before = {name: weight.clone() for name, weight in bench.model.named_parameters()}
    one, batch = bench.step(3, 2, 5)
    assert bench.number == 1
    assert (one.size, one.max_tokens) == ((3, 2, 5), 5)
    episodes = [episode for group in one.groups for episode in group.episodes]
    turns = list(chain.from_iterable(episode.turns for episode in episodes))
    sampled = sum(len(turn.completion.token_ids) for turn in turns)
    assert [len(group.episodes) for group in one.groups] == [2, 2, 2]
    assert max(len(turn.completion.token_ids) for turn in turns) <= 5
    prompts = sum(len(group.episodes[0].turns[0].prompt_ids) for group in one.groups)
    assert (one.num_turns, one.num_rows, one.num_sampled) == (6, 6, sampled)
    assert one.tokens == sampled + prompts
    assert 0 <= one.num_trained <= 6
    assert batch.valid.all()
    assert len(set(batch.rewards.tolist())) == 6  # drawn, so that every row has a gradient
    stages = one.stages
    assert 0 <= stages["turns"] < stages["generation"]
    assert stages["other"] == stages["advantages"] + stages["records"]
    assert not [name for name, weight in bench.model.named_parameters() if not torch.allclose(weight, before[name])]


def test_bytes_of_an_episode_are_those_of_the_file_over_the_groups_that_it_keeps(bench: Bench) -> None:
    bench.number, bench.episode_bytes = 2, -1.0
    bench.step(1, 1, 2)
    assert bench.episode_bytes == -1.0  # every second step is recorded, and this is the third one
    bench.step(3, 2, 2)
    assert bench.number == 4
    file = rollouts_path(bench.setup.folder.rollouts, 4)
    assert bench.episode_bytes == file.stat().st_size / 4  # two of three groups


def test_the_speed_beside_each_other_is_a_half_to_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With u < g seconds alone and `together` seconds at once: u / (together - g + u)."""
    one, batch = bench.step(1, 2, 2)
    now = 0.0
    monkeypatch.setattr(costs.time, "perf_counter", lambda: now)

    def beside(generation: float, update: float, together: float) -> tuple[float, int]:
        nonlocal now
        now, made = 0.0, list[int]()

        def trained(batch: TokenBatch, step: int) -> None:
            nonlocal now
            now = together  # when all updates are made
            made.append(step)

        monkeypatch.setattr(bench.run.trainer, "update", trained)
        alone = replace(one, stages=one.stages | {"generation": generation, "update": update})
        return bench._beside(alone, batch), len(made)

    assert beside(4.0, 2.0, 5.0) == (4.0 / 5.0, 2)  # two updates take as long as the samples
    assert beside(1.0, 4.0, 4.25) == (1.0 / 1.25, 1)
    assert beside(5.0, 2.0, 100.0) == (0.5, 2)
    assert beside(5.0, 2.0, 1.0) == (1.0, 2)
