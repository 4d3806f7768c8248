"""Which engine a configuration gets."""

from pathlib import Path

import pytest
import torch

from rlvr.commands.train.body import train
from rlvr.config.compose import load_config
from rlvr.core.engine import LocalEngine
from rlvr.core.world import World
from rlvr.engines.vllm import VllmEngine
from rlvr.errors import UserError
from rlvr.run.policies import open_engine
from rlvr.run.ranks import note_of_rank
from rlvr.run.tasks import context_tokens
from tests.unit.engines.vllm.fake import running
from tests.unit.engines.vllm.world import fake_of, make_policy


def test_the_local_engine_shares_or_copies_the_weights() -> None:
    policy = make_policy()
    for overrides, shares in (([], True), (["rollout.max_staleness=1"], False), (["trainer.strategy=fsdp2"], False)):
        engine = open_engine(load_config(overrides), policy, Path("unused"))
        assert isinstance(engine, LocalEngine)
        assert (engine._model is policy.model) == shares
        assert engine.max_context_tokens == context_tokens(policy)


@pytest.mark.parametrize(
    ("said", "width", "found"),
    [
        ("trainer.precision=bf16 engine.dtype=auto", 512, torch.bfloat16),
        ("trainer.precision=bf16 engine.dtype=auto", 256, torch.float32),  # would be slower
        ("trainer.precision=fp32 engine.dtype=auto", 512, torch.float32),
        ("trainer.precision=bf16 engine.dtype=float32", 512, torch.float32),
        ("trainer.precision=fp32 engine.dtype=bfloat16", 8, torch.bfloat16),
        ("trainer.precision=bf16 engine.dtype=float16", 512, torch.float16),
        ("trainer.precision=fp16 engine.dtype=auto", 512, torch.float16),
    ],
)
def test_the_local_engine_samples_in_bfloat16_where_it_pays(said: str, width: int, found: torch.dtype) -> None:
    policy = make_policy()
    policy.model.config.hidden_size = width
    config = load_config(said.split())
    assert config.engine.sampling_dtype(policy, config) == found


def test_a_bfloat16_copy_has_the_new_weights_after_every_update() -> None:
    policy, notes = make_policy(), []
    engine = open_engine(load_config(["engine.dtype=bfloat16"]), policy, Path("unused"), on_note=notes.append)
    assert isinstance(engine, LocalEngine)
    assert notes == ["sampling from a bfloat16 copy of the weights (engine.dtype)"]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.5)
    engine.load_weights(1)
    for (name, copied), own in zip(engine._model.named_parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(copied, own.bfloat16()), name
        assert not copied.requires_grad
    for copied, own in zip(engine._model.buffers(), policy.model.buffers(), strict=True):
        assert torch.equal(copied, own)  # rotary frequencies
        assert copied.dtype == own.dtype


def test_servers_read_weights_from_run_folder_or_weights_dir(tmp_path: Path) -> None:
    policy = make_policy()
    fake = fake_of(policy)
    with running(fake):
        lines = ["engine=vllm", f"engine.urls=[{fake.url}/v1]"]
        for more, folder in (
            ([], tmp_path / "run" / "weights"),
            ([f"engine.weights_dir={tmp_path}/all"], tmp_path / "all" / "run"),
        ):
            config = load_config([*lines, *more])
            config.engine.check(None)
            engine = open_engine(config, policy, tmp_path / "run")
            assert isinstance(engine, VllmEngine)
            assert engine.max_context_tokens == context_tokens(policy)
            engine.load_weights(4)
            assert [file.name for file in (folder / "v000004").iterdir()] == ["00000.safetensors"]
            engine.close()


def test_ranks_begin_with_different_servers_and_log_their_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = make_policy()
    fakes = [fake_of(policy), fake_of(policy)]
    notes: list[str] = []
    with running(*fakes):
        config = load_config(["engine=vllm", f"engine.urls=[{fakes[0].url},{fakes[1].url}]"])
        for rank, fake in enumerate(fakes):
            world = World(rank=rank)
            engine = open_engine(config, policy, tmp_path, world, note_of_rank(config, world, notes.append))
            assert isinstance(engine, VllmEngine)
            assert engine._fleet.members[0].url == fake.url
            engine._fleet._on_note("lost")
    assert notes == ["lost"]
    assert capsys.readouterr().err == "process 1: lost\n"
    note_of_rank(load_config(["tracker.console=none"]), World(rank=1), notes.append)("nothing")
    assert notes == ["lost", "nothing"], "the note of a quiet console says nothing"


def test_an_unsuitable_server_is_refused_before_the_warm_start(tmp_path: Path) -> None:
    fake = fake_of(make_policy())
    run = tmp_path / "run"
    with running(fake), pytest.raises(UserError, match=r"has a model with vocab_size=\d+, the policy has"):
        train(load_config(["engine=vllm", f"engine.urls=[{fake.url}]", f"run_dir={run}", "tracker.console=none"]))
    assert not (run / "warm_start").exists()
