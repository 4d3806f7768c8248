"""What ranks tell each other, between real processes."""

import pytest
import torch

from rlvr.core.world import ALONE, World
from rlvr.errors import ConfigError
from tests.ranks import RankError, Ranks


def talk(world: World) -> dict[str, object]:
    items = list("abcde")
    return {
        "ranks": world.gather((world.rank, world.size, world.local_rank, world.local_size)),
        "joined": world.gather_shares([item.upper() for item in world.share(items)]),
        "first": world.first(f"rank {world.rank}"),
        "any": (world.any(world.rank == 1), world.any(False)),
        "sum": world.add(torch.tensor([1.0, world.rank])).tolist(),
        "copied": world.broadcast(torch.tensor([5.0 + world.rank])).tolist(),
        "speaks": world.is_first,
    }


def attempts(world: World) -> list[object]:
    """What comes back where all succeed, and what is raised where two of three fail."""

    def fails() -> None:
        if world.rank:
            raise ConfigError(f"rank {world.rank}: disk full.")

    with pytest.raises(ConfigError) as error:
        world.gather_results(fails)
    return [world.gather_results(lambda: world.rank), str(error.value)]


def fail_on_the_last(world: World) -> None:
    if world.rank == world.size - 1:
        raise RuntimeError("this one has had enough")
    world.gather(0)


def test_alone_everything_is_given_back() -> None:
    alone = {"joined": list("ABCDE"), "sum": [1.0, 0.0], "copied": [5.0], "any": (False, False)}
    assert talk(ALONE).items() >= alone.items()


@pytest.mark.slow
def test_ranks_agree_and_a_failure_ends_all(ranks: Ranks) -> None:
    answers = ranks(3, "ddp", talk)
    assert [answer.pop("speaks") for answer in answers] == [True, False, False]
    expected = {
        "ranks": [(0, 3, 0, 3), (1, 3, 1, 3), (2, 3, 2, 3)],
        "joined": list("ABCDE"),
        "first": "rank 0",
        "any": (True, False),
        "sum": [3.0, 3.0],
        "copied": [5.0],
    }
    assert answers == [expected] * 3
    assert ranks(3, "ddp", attempts) == [[[0, 1, 2], "rank 1: disk full."]] * 3
    assert ranks(1, "fsdp2", talk)[0]["ranks"] == [(0, 1, 0, 1)]
    with pytest.raises(RankError, match="this one has had enough"):
        ranks(2, "ddp", fail_on_the_last)
