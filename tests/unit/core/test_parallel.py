"""How work and weights are dealt out; what real ranks make of it is in tests/system/test_parallel.py."""

import random

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy

from rlvr.core import parallel
from rlvr.core.packing import Layout, Microbatch, microbatches, share_out
from rlvr.core.parallel import Spread, decoder_layers
from rlvr.core.sharding import copy_into, is_sharded, own_rows, row_range, whole
from rlvr.core.world import ALONE, World
from rlvr.errors import ConfigError
from rlvr.models.devices import move
from tests.unit.core.tiny import ARCHITECTURES, tiny_batch, tiny_config, tiny_model, tiny_policy, tiny_trainer

LAYOUTS: tuple[Layout, ...] = ("shared", "packed", "rows")


@pytest.mark.parametrize("num_shares", [2, 3, 4])
def test_no_share_has_more_than_the_smallest_by_more_than_one_piece(num_shares: int) -> None:
    rng = random.Random(num_shares)
    for _ in range(50):
        sizes = [rng.randint(1, 90) for _ in range(rng.randint(0, 40))]
        shares = share_out(sizes, num_shares)
        assert sorted(i for share in shares for i in share) == list(range(len(sizes)))
        assert all(share == sorted(share) for share in shares)
        sums = [sum(sizes[i] for i in share) for share in shares]
        assert max(sums) - min(sums) <= max(sizes, default=0)


def dealt(size: int, layout: Layout, *, in_lockstep: bool, rows: list[int] | None = None) -> list[list[Microbatch]]:
    """The microbatches of each of `size` ranks."""
    batch = tiny_batch(tiny_policy())
    chosen = list(range(12)) if rows is None else rows
    return [
        list(
            microbatches(
                batch,
                chosen,
                budget_tokens=40,
                layout=layout,
                world=World(rank=rank, size=size),
                in_lockstep=in_lockstep,
            )
        )
        for rank in range(size)
    ]


def places(parts: list[Microbatch]) -> list[tuple[int, int]]:
    return [place for part in parts for place in zip(part.rows.tolist(), part.tokens.tolist(), strict=True)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_token_is_predicted_on_exactly_one_rank(size: int, layout: Layout) -> None:
    batch = tiny_batch(tiny_policy())
    ranks = [places(parts) for parts in dealt(size, layout, in_lockstep=True)]
    assert sorted(place for rank in ranks for place in rank) == [tuple(p) for p in batch.loss_mask.nonzero().tolist()]
    rows = [{row for row, _ in rank} for rank in ranks]
    assert sum(map(len, rows)) == 12  # a row is never cut
    assert all(rows[:3])  # three groups: a fourth rank may have nothing


def test_in_lockstep_all_ranks_make_as_many_passes_and_the_missing_ones_are_empty() -> None:
    for rows in ([0], [0, 1, 4], list(range(12))):
        ranks = dealt(4, "shared", in_lockstep=True, rows=rows)
        assert len({len(parts) for parts in ranks}) == 1
        free = dealt(4, "shared", in_lockstep=False, rows=rows)
        assert [places(parts) for parts in free] == [places(parts) for parts in ranks]
        assert sum(map(len, free)) < sum(map(len, ranks)) or len(rows) == 12
        empty = [part for parts in ranks for part in parts if not len(part.targets)]
        assert all(part.ids.shape == (1, 1) and part.allowed() is not None for part in empty)
    assert dealt(2, "shared", in_lockstep=True, rows=[]) == [[], []]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_of_an_architecture_are_found(architecture: str) -> None:
    model = tiny_model(architecture)
    assert len(decoder_layers(model)) == 2
    assert decoder_layers(torch.nn.Linear(2, 2)) == []


def test_a_cpu_has_nowhere_to_offload_to() -> None:
    settings = tiny_config("trainer.strategy=fsdp2", "trainer.cpu_offload=true").trainer
    with pytest.raises(ConfigError, match=r"^trainer\.cpu_offload=true: the model is in the CPU's memory already"):
        Spread(settings, ALONE, bf16=False).add(tiny_policy())


def test_what_is_cut_on_a_gpu_is_kept_on_the_cpu_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it can be seen without one: what FSDP is told about every part."""
    told: dict[nn.Module, dict[str, object]] = {}
    for name in ("set_gradient_divide_factor", "set_force_sum_reduction_for_comms"):
        monkeypatch.setattr(nn.Module, name, lambda module, value: None, raising=False)
    monkeypatch.setattr(parallel, "FSDPModule", nn.Module)
    monkeypatch.setattr(parallel, "init_device_mesh", lambda *shape: None)
    monkeypatch.setattr(parallel, "fully_shard", lambda module, **options: told.update({module: options}))
    policy = tiny_policy()
    move(policy.model, torch.device("meta"))
    settings = tiny_config("trainer.strategy=fsdp2", "trainer.cpu_offload=true").trainer
    Spread(settings, ALONE, bf16=False).add(policy)
    assert [type(module).__name__ for module in told] == ["LlamaDecoderLayer"] * 2 + ["_Root"]
    assert all(type(options["offload_policy"]) is CPUOffloadPolicy for options in told.values())


def test_the_gradient_of_one_process_is_clipped_as_torch_does_it() -> None:
    policy = tiny_policy()
    for index, parameter in enumerate(policy.parameters()):
        parameter.grad = torch.full_like(parameter, 0.1 * index)
    expected = torch.linalg.vector_norm(
        torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    )
    spread = Spread(tiny_config().trainer, ALONE, bf16=False)
    assert spread.clip(policy, 1.0) == pytest.approx(expected.item(), rel=1e-5)
    assert spread.clip(policy, 1.0) == pytest.approx(1.0, rel=1e-5)


def test_the_share_of_changed_weights_is_told_from_the_first_of_every_tensor() -> None:
    policy = tiny_policy()
    spread = Spread(tiny_config().trainer, ALONE, bf16=False)
    before = spread.weight_sample(policy, per_tensor=10)
    assert len(before) == 10 * len(list(policy.parameters()))
    with torch.no_grad():
        next(policy.parameters()).view(-1)[:5] += 1
    after = spread.weight_sample(policy, per_tensor=10)
    assert spread.changed_share(before, after) == pytest.approx(5 / len(before))
    assert len(Spread(tiny_config().trainer, World(rank=1, size=2), bf16=False).weight_sample(policy)) == 0


def test_a_plain_tensor_is_whole_on_every_rank() -> None:
    tensor = torch.arange(6.0).view(3, 2)
    assert not is_sharded(tensor)
    assert row_range(tensor) == (0, 3)
    assert whole(tensor).data_ptr() == own_rows(tensor).data_ptr() == tensor.data_ptr()
    copy_into(tensor, torch.ones(3, 2))
    assert tensor.eq(1).all()
    with pytest.raises(ValueError, match=r"a tensor of shape \(3, 1\) does not fit one of \(3, 2\)"):
        copy_into(tensor, torch.ones(3, 1))


def test_precision_that_weights_were_cut_with_stays() -> None:
    trainer = tiny_trainer(tiny_policy(), "trainer.precision=fp32")
    trainer.bf16 = True  # of a checkpoint: another machine decides as the first one did
    assert trainer.bf16
    trainer._spread.in_lockstep = True
    with pytest.raises(ConfigError, match=r"^trainer\.precision=fp32: the run was begun in fp32.*=fp32\.$"):
        trainer.bf16 = False
