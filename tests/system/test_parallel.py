"""Training spread over real ranks: whatever their number, the losses are those of one process."""

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from rlvr.core import parallel
from rlvr.core import policy as policy_module
from rlvr.core.engine import LocalEngine
from rlvr.core.errors import NonFiniteError
from rlvr.core.parallel import Float16
from rlvr.core.trainer import Trainer
from rlvr.core.world import ALONE, World
from rlvr.engines.vllm.push import make_probe
from rlvr.engines.vllm.weights import full_weights
from rlvr.models import devices
from rlvr.models.adapters import adapter_weights
from rlvr.models.policy import HubPolicy
from rlvr.models.recompute import recompute_in_backward
from rlvr.run.errors import in_the_users_words
from rlvr.scale.fsdp import make_parallel
from rlvr.scale.sharding import is_sharded, own_rows, whole
from rlvr.types import Completion, SamplingParams, TokenBatch
from tests.ranks import RankError, Ranks
from tests.unit.core.tiny import tiny_batch, tiny_config, tiny_objective, tiny_policy, tiny_trainer
from tests.unit.engines.tiny import generate
from tests.unit.models.checkpoints import adapted, save_model
from tests.variants import variants

AGGREGATIONS = ("token_mean", "sequence_mean", "sequence_sum", "fixed_length")
ARCHITECTURES = ("llama", "qwen2", "mixtral", "gemma3")
GRPO = ("algorithm=grpo", "algorithm.kl_coef=0.1", "trainer.max_grad_norm=0.5")
PPO = ("algorithm=ppo", "algorithm.num_epochs=2", "algorithm.num_minibatches=2", "algorithm.entropy_coef=0.01", GRPO[2])
NUM_UPDATES = {GRPO: 1, PPO: 4}
"""Of one step."""

Lines = list[dict[str, float]]

# ------------------------------------------------------------------------------------------------ what the ranks run


def one_layer(*, critic: bool = False, architecture: str = "qwen2") -> HubPolicy:
    """Qwen2 ties its head to its embeddings."""
    more = {"layer_types": ["full_attention"]} if architecture == "gemma3" else {}
    return tiny_policy(architecture, critic=critic, num_hidden_layers=1, **more)


def trainer_of(policy: HubPolicy, strategy: str, world: World, *overrides: str) -> Trainer:
    small = ("trainer.microbatch_tokens=60", "trainer.learning_rate=0.003", "trainer.precision=fp32")
    return tiny_trainer(policy, f"trainer.strategy={strategy}", *small, *overrides, world=world)


def begin(world: World, strategy: str, *overrides: str) -> tuple[Trainer, TokenBatch]:
    """A trainer, and a batch that its policy has sampled."""
    policy = one_layer()
    batch = tiny_batch(policy)
    return trainer_of(policy, strategy, world, *overrides), batch


def step_on(trainer: Trainer, batch: TokenBatch, step: int = 0) -> tuple[dict[str, float], TokenBatch]:
    return trainer.update(trainer.objective.advantages(trainer.score(batch)), step)


def gradient_of(trainer: Trainer) -> list[float]:
    return torch.cat([whole(p.grad).flatten() for p in trainer.policy.parameters() if p.grad is not None]).tolist()


def weights_of(policy: HubPolicy) -> list[float]:
    return torch.cat([whole(p).flatten() for p in policy.parameters()]).tolist()


def train(world: World, strategy: str, overrides: tuple[str, ...]) -> tuple[Lines, list[float]]:
    """20 updates on recorded episodes: what they log, and the weights that they end with."""
    policy = one_layer(critic=overrides == PPO)
    batches = [tiny_batch(policy, seed=seed) for seed in range(20 // NUM_UPDATES[overrides])]
    trainer = trainer_of(policy, strategy, world, *overrides)
    lines = [step_on(trainer, batch, step)[0] for step, batch in enumerate(batches)]
    return lines, weights_of(policy)


def aggregated_gradients(world: World, strategy: str) -> list[list[float]]:
    """The gradient of one batch for every way to aggregate, added up in many messages."""
    batch = tiny_batch(one_layer())
    trainers = [
        trainer_of(one_layer(), strategy, world, f"algorithm.aggregation={mode}", "trainer.max_grad_norm=1e9")
        for mode in AGGREGATIONS
    ]
    with patch.object(parallel, "BUCKET_NUMBERS", 1000):
        for trainer in trainers:
            step_on(trainer, batch)
    return [gradient_of(trainer) for trainer in trainers]


def gradients_of_architectures(world: World, strategy: str, *, spare: bool) -> list[list[float]]:
    """`spare`: layers are computed again in the backward pass, and so are logits, in chunks of three tokens."""
    found = []
    for name in ARCHITECTURES:
        policy = one_layer(architecture=name)
        batch = tiny_batch(policy)
        if spare:
            recompute_in_backward(policy.model)
        chunk, policy_module.LOGITS_PER_CHUNK = policy_module.LOGITS_PER_CHUNK, 51 if spare else 1 << 24
        trainer = trainer_of(policy, strategy, world, "trainer.max_grad_norm=1e9")
        step_on(trainer, batch)
        policy_module.LOGITS_PER_CHUNK = chunk
        found.append(gradient_of(trainer))
    return found


def few_rows(world: World, strategy: str) -> tuple[dict[str, float], list[float], list[list[float]]]:
    """Two rows that can be trained on, of one prompt, critic and all; the logprobs that come back, too."""
    policy = one_layer(critic=True)
    batch = tiny_batch(policy).take([4, 5])
    trainer = trainer_of(policy, strategy, world, "algorithm=ppo", "trainer.max_grad_norm=1e9")
    metrics, after = step_on(trainer, batch)
    return metrics, gradient_of(trainer), after.columns["old_logprobs"].tolist()


def apart(world: World, strategy: str) -> list[float]:
    """Ranks whose weights differ in the last bits, as after a warm start on different machines."""
    policy = one_layer()
    batch = tiny_batch(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1 + 1e-3 * world.rank)
    step_on(trainer_of(policy, strategy, world), batch)
    return weights_of(policy)


def poisoned(world: World, strategy: str, where: str) -> tuple[str, list[int], bool]:
    """An update on a batch with one bad row: what was raised, its rows, and whether the weights stayed."""
    trainer, batch = begin(world, strategy)
    ready = trainer.objective.advantages(trainer.score(batch))
    before = weights_of(trainer.policy)
    assert ready.advantages is not None
    if where == "loss":
        ready.advantages[5, :] = math.nan
    else:  # finite, but not its square
        ready.advantages[5, :] = 1e30
    try:
        trainer.update(ready, 0)
    except NonFiniteError as error:
        return error.what, error.rows, weights_of(trainer.policy) == before
    return "nothing", [], False


def in_precision(world: World, strategy: str, precision: str) -> tuple[Lines, bool]:
    """Four updates; whether all weights are float32 between them."""
    policy = one_layer()
    batches = [tiny_batch(policy, seed=seed) for seed in range(4)]
    trainer = trainer_of(policy, strategy, world, *GRPO, f"trainer.precision={precision}")
    lines = [step_on(trainer, batch, step)[0] for step, batch in enumerate(batches)]
    return lines, all(p.dtype is torch.float32 for p in policy.parameters())


def precise_gradients(world: World, strategy: str) -> tuple[str, bool]:
    """How the trainer calls its precision, and whether bfloat16 could hold the gradient of several microbatches."""
    trainer, batch = begin(world, strategy, "trainer.precision=bf16")
    step_on(trainer, batch)
    gradient = torch.tensor(gradient_of(trainer))
    return trainer.precision, torch.equal(gradient, gradient.bfloat16().float())


def precision_of(world: World, strategy: str) -> str:
    """`trainer.precision=auto` where the first machine would be faster in bf16 and the others would not."""
    with patch.object(devices, "bf16_pays", lambda model: world.is_first):
        return trainer_of(one_layer(), strategy, world, "trainer.precision=auto").precision


def stopped_early(world: World, strategy: str) -> list[float]:
    """Number of updates in each of some steps that end when the policy has moved too far."""
    policy = one_layer(critic=True)
    batches = [tiny_batch(policy, seed=seed) for seed in range(6)]
    trainer = trainer_of(policy, strategy, world, *PPO, "algorithm.num_epochs=6", "algorithm.target_kl=0.02")
    return [step_on(trainer, batch, step)[0]["policy/updates"] for step, batch in enumerate(batches)]


def short_of_memory(world: World, strategy: str) -> tuple[dict[str, float], list[float]]:
    """The last rank's first backward pass does not fit into its memory."""
    trainer, batch = begin(world, strategy, "trainer.microbatch_tokens=300", "trainer.max_grad_norm=1e9")
    backward, failures = trainer._backward, [RuntimeError("out of memory: tried to allocate 9 GiB")]

    def failing(*arguments: Any) -> list[int]:
        if failures and world.rank == world.size - 1 and strategy != "single":
            raise failures.pop()
        return backward(*arguments)

    with in_the_users_words(), patch.object(trainer, "_backward", failing):
        return step_on(trainer, batch)[0], gradient_of(trainer)


def cut_parts(world: World, strategy: str) -> dict[str, Any]:
    """What of a policy and of the reference it is compared with this rank holds, and what is gathered by itself."""
    trainer, _ = begin(world, strategy, *GRPO)
    policy = trainer.policy
    [frozen] = trainer.frozen.values()
    with frozen() as reference:
        models = [policy.model, reference.model]
        return {
            "rows": [[own_rows(p).shape[0] for p in model.parameters()] for model in models],
            "cut": all(is_sharded(p) for model in models for p in model.parameters()),
            "trained": [any(p.requires_grad for p in model.parameters()) for model in models],
            "sample": trainer.parallel.weight_sample(policy, 50).tolist(),
            "layers": [sum(isinstance(module, FSDPModule) for module in model.modules()) for model in models],
        }


def with_adapters(world: World, strategy: str, folder: str) -> dict[str, Any]:
    """20 updates of adapters, with a KL to the model without them."""
    policy = adapted(Path(folder))
    batches = [tiny_batch(policy, seed=seed) for seed in range(20)]
    frozen = {name: p.detach().clone() for name, p in policy.model.named_parameters() if not p.requires_grad}
    trainer = trainer_of(policy, strategy, world, *GRPO)
    start = trainer.score(batches[0]).columns["reference_logprobs"]
    lines = [step_on(trainer, batch, step)[0] for step, batch in enumerate(batches)]
    after = trainer.score(batches[0]).columns["reference_logprobs"]
    assert start is not None
    assert after is not None
    parameters = dict(policy.model.named_parameters())
    return {
        "lines": lines,
        "adapters": [weight.tolist() for weight in adapter_weights(policy.model).values()],
        "reference stays": torch.equal(start, after),
        "base stays": all(torch.equal(whole(parameters[name]), weight) for name, weight in frozen.items()),
        "base is cut": all(is_sharded(parameters[name]) for name in frozen),
        "adapters are cut": any(map(is_sharded, adapter_weights(policy.model).values())),
    }


def save_and_load(world: World, strategy: str, folder: str) -> dict[str, Any]:
    """Train, write, train on, and go back to what was written."""
    trainer, batch = begin(world, strategy)
    policy = trainer.policy
    step_on(trainer, batch)
    policy.save(Path(folder) / strategy, writes=world.is_first)
    world.gather(None)
    written = weights_of(policy)
    step_on(trainer, batch)
    further = weights_of(policy)
    policy.load_weights(Path(folder) / strategy)
    full = dict(policy.full_state())
    return {
        "written": written,
        "further": further,
        "loaded": weights_of(policy),
        "names": sorted(full),
        "whole": all(not is_sharded(weight) for weight in [*full.values(), *dict(policy.trained_weights()).values()]),
        "rows": [own_rows(p).shape[0] for p in policy.parameters()],
    }


def sample_after_an_update(world: World, strategy: str) -> dict[str, Any]:
    """What an engine with a copy of the model samples before and after an update, and what the trainer says of it."""
    policy = one_layer()
    batch = tiny_batch(policy)
    copied = copy.deepcopy(policy.model).requires_grad_(False)
    engine = LocalEngine(copied, max_batch_size=4, max_context_tokens=40, weights=policy.trained_weights)
    request = [((1, 5, 3), SamplingParams(max_tokens=12, stop_ids=frozenset(), seed=3))]
    before = generate(engine, request)[0]
    twice = ("algorithm.num_epochs=2", "trainer.learning_rate=0.05")  # so that there are logprobs before the update
    trainer = trainer_of(policy, strategy, world, *twice)
    step_on(trainer, batch)
    engine.load_weights(1)
    after = generate(engine, request)[0]
    weights = dict(copied.named_parameters())
    scored = trainer.score(row_of((1, 5, 3), after)).columns["old_logprobs"]
    assert scored is not None
    return {
        "copied": all(torch.equal(weights[name], whole(p)) for name, p in policy.model.named_parameters()),
        "moved": abs(before.behavior_logprobs[0] - after.behavior_logprobs[0]),
        "gap": largest_gap(scored[0, 3:].tolist(), list(after.behavior_logprobs)),
    }


def pushed(world: World, strategy: str, precision: str) -> dict[str, Any]:
    """What is pushed to servers after an update, and what is compared with their answers."""
    trainer, batch = begin(world, strategy, f"trainer.precision={precision}")
    step_on(trainer, batch)
    probe, again = (make_probe(trainer.policy, [(1, 5, 3), (4,)]) for _ in range(2))
    return {
        "weights": [(name, weight.tolist()) for name, weight in full_weights(trainer.policy)],
        "logprobs": probe.logprobs.tolist(),
        "exact": probe.exact,
        "stays": torch.equal(probe.logprobs, again.logprobs),
    }


def row_of(prompt: tuple[int, ...], completion: Completion) -> TokenBatch:
    """A batch of one row."""
    length, num_sampled = len(prompt) + len(completion.token_ids), len(completion.token_ids)
    one = torch.zeros(1, dtype=torch.int64)
    return TokenBatch(
        ids=torch.tensor([[*prompt, *completion.token_ids]]),
        lengths=torch.tensor([length]),
        prompt_lengths=torch.tensor([len(prompt)]),
        loss_mask=torch.tensor([[False] * len(prompt) + [True] * num_sampled]),
        behavior_logprobs=torch.zeros(1, length),
        rewards=torch.zeros(1),
        groups=one,
        episodes=one,
        valid=torch.ones(1, dtype=torch.bool),
        truncated=torch.zeros(1, dtype=torch.bool),
    )


# ---------------------------------------------------------------------------------------------------------- the tests


COPY = ("algorithm=distill", "algorithm.teacher=start", "algorithm.refresh_every=2", "algorithm.reward_coef=1")


def follow_the_policy(world: World, strategy: str) -> tuple[list[float], bool]:
    """The distance to a copy of the policy that is renewed every two steps, and whether the copy is cut."""
    trainer, batch = begin(world, strategy, *COPY, "rollout.group_size=4")
    distances = []
    for step in range(4):
        trainer.refresh(step)
        distances.append(step_on(trainer, batch, step)[0]["policy/teacher_kl"])
    (copy,) = trainer.frozen.values()
    return distances, all(map(is_sharded, copy.weights().values()))


class Remote:
    """A teacher on a server: a token's logprob is minus its id."""

    num_rows = 0

    def logprobs(self, batch: TokenBatch) -> torch.Tensor:
        self.num_rows += len(batch.ids)
        return -(batch.ids * batch.loss_mask).float()


def ask_a_server(world: World, strategy: str) -> tuple[bool, int]:
    """Whether each token has its logprob, and the number of rows that this rank has asked for."""
    teacher, policy = Remote(), one_layer()
    config = tiny_config("algorithm=distill", "algorithm.teacher=big", f"trainer.strategy={strategy}")
    trainer = Trainer(
        policy=policy,
        objective=tiny_objective(config, 1.0),
        settings=config.trainer,
        seed=0,
        parallel=make_parallel(config.trainer, world, bf16=False),
        teachers={"big": teacher},
    )
    batch = tiny_batch(policy)
    return torch.equal(trainer.score(batch).columns["teacher"], Remote().logprobs(batch)), teacher.num_rows


def overflow_on_one(world: World, strategy: str) -> bool:
    """Whether a gradient in float16 counts as finite where it is not on the last rank alone."""
    policy = one_layer()
    for parameter in policy.parameters():
        parameter.grad = torch.full_like(parameter, math.inf if world.rank == world.size - 1 else 1.0)
    return Float16(world).unscale(policy, 1.0)


def largest_gap(a: Any, b: Any) -> float:
    """Largest difference of two nested lists; NaN is equal to NaN."""
    return (torch.tensor(a) - torch.tensor(b)).nan_to_num(0.0).abs().max().item()


def check_alike(name: str, answers: list[Any]) -> Any:
    """Ranks must agree to the last bit, or they drift apart; what they agree on."""
    assert all(answer == answers[0] for answer in answers), name
    return answers[0]


def check_same_lines(lines: Lines, alone: Lines) -> None:
    for line, expected in zip(lines, alone, strict=True):
        assert line.keys() == expected.keys()
        for name, value in expected.items():
            assert line[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
        assert abs(line["loss/total"] - expected["loss/total"]) < 1e-5


@pytest.mark.parametrize(
    ("overrides", "strategy", "size"),
    [
        pytest.param(GRPO, "ddp", 2, id="grpo-ddp", marks=pytest.mark.long),
        pytest.param(PPO, "fsdp2", 4, id="ppo-fsdp2"),
        pytest.param(GRPO, "fsdp2", 4, id="grpo-fsdp2", marks=pytest.mark.long),
        pytest.param(PPO, "ddp", 2, id="ppo-ddp", marks=pytest.mark.long),
    ],
)
def test_pitfall_09_any_number_of_ranks_gives_the_same_losses(
    overrides: tuple[str, ...], strategy: str, size: int, ranks: Ranks
) -> None:
    """20 updates, to 1e-5: with a KL to a frozen copy, and with critic, epochs, minibatches and an entropy bonus."""
    alone, weights = train(ALONE, "single", overrides)
    assert sum(line["policy/updates"] for line in alone) == 20
    assert max(line["policy/grad_norm"] for line in alone) > 0.5  # so that gradients are clipped
    lines, spread_weights = check_alike("lines", ranks(size, strategy, train, strategy, overrides))
    check_same_lines(lines, alone)
    assert largest_gap(spread_weights, weights) < 1e-3
    assert largest_gap(weights, weights_of(one_layer(critic=overrides == PPO))) > 0.02


@pytest.mark.parametrize(("size", "strategy"), variants([(3, "fsdp2"), (2, "ddp"), (1, "fsdp2")]))
def test_pitfall_09_aggregations_divide_by_all_ranks(size: int, strategy: str, ranks: Ranks) -> None:
    alone = aggregated_gradients(ALONE, "single")
    gradients = check_alike("gradients", ranks(size, strategy, aggregated_gradients, strategy))
    for mode, gradient, expected in zip(AGGREGATIONS, gradients, alone, strict=True):
        assert max(map(abs, expected)) > 1e-3
        assert largest_gap(gradient, expected) < 1e-5, mode


def test_layers_and_logits_computed_twice_have_the_same_gradient(ranks: Ranks) -> None:
    alone = gradients_of_architectures(ALONE, "single", spare=False)
    gradients = check_alike("gradients", ranks(2, "fsdp2", partial(gradients_of_architectures, spare=True), "fsdp2"))
    for name, gradient, expected in zip(ARCHITECTURES, gradients, alone, strict=True):
        assert largest_gap(gradient, expected) < 1e-5 * max(1.0, max(map(abs, expected))), name


@pytest.mark.parametrize("strategy", variants(["fsdp2", "ddp"]))
def test_ranks_without_rows_take_part_in_what_the_others_do(strategy: str, ranks: Ranks) -> None:
    metrics, gradient, logprobs = few_rows(ALONE, "single")
    found = check_alike("answers", ranks(4, strategy, few_rows, strategy))
    check_same_lines([found[0]], [metrics])
    assert max(map(abs, gradient)) > 1e-3
    assert largest_gap(found[1], gradient) < 1e-5
    assert largest_gap(found[2], logprobs) < 1e-5


@pytest.mark.parametrize("strategy", variants(["fsdp2", "ddp"]))
def test_pitfall_30_all_ranks_start_from_the_first_ones_weights(strategy: str, ranks: Ranks) -> None:
    weights = check_alike("weights", ranks(2, strategy, apart, strategy))
    assert largest_gap(weights, apart(ALONE, "single")) < 1e-5


@pytest.mark.parametrize("strategy", variants(["fsdp2", "ddp"]))
def test_pitfall_30_a_sampler_gets_whole_weights_from_shards(strategy: str, ranks: Ranks) -> None:
    for answer in ranks(2, strategy, sample_after_an_update, strategy):
        assert answer["copied"]
        assert answer["moved"] > 0.01
        assert answer["gap"] < 1e-5


@pytest.mark.parametrize("precision", variants(["fp32", "bf16"]))
def test_pitfall_30_servers_get_whole_weights(precision: str, ranks: Ranks) -> None:
    alone = pushed(ALONE, "single", "fp32")
    found = check_alike("answers", ranks(2, "fsdp2", pushed, "fsdp2", precision))
    assert [name for name, _ in found["weights"]] == [name for name, _ in alone["weights"]]
    assert all(largest_gap(a, b) < 1e-2 for (_, a), (_, b) in zip(found["weights"], alone["weights"], strict=True))
    assert largest_gap(found["logprobs"], alone["logprobs"]) < (1e-4 if precision == "fp32" else 0.2)
    assert found["stays"]
    assert found["exact"] == (precision == "fp32")


@pytest.mark.parametrize("where", variants(["loss", "norm"]))
@pytest.mark.parametrize("strategy", variants(["fsdp2", "ddp"]))
def test_a_loss_that_is_not_finite_ends_all_ranks_alike(strategy: str, where: str, ranks: Ranks) -> None:
    what, rows, untouched = check_alike("errors", ranks(2, strategy, poisoned, strategy, where))
    assert what == ("the loss" if where == "loss" else "the gradient norm")
    assert 5 in rows
    assert len(rows) < (8 if where == "loss" else 9)
    assert untouched


def test_pitfall_33_sharded_weights_stay_float32(ranks: Ranks) -> None:
    alone, _ = in_precision(ALONE, "single", "bf16")
    exact, _ = in_precision(ALONE, "single", "fp32")
    lines, float32 = check_alike("lines", ranks(2, "fsdp2", in_precision, "fsdp2", "bf16"))
    assert float32
    for line, expected, precise in zip(lines, alone, exact, strict=True):
        for name in ("policy/entropy", "policy/grad_norm", "loss/total"):
            assert line[name] == pytest.approx(expected[name], rel=0.1, abs=0.02), name
        assert line["policy/entropy"] != precise["policy/entropy"]


def test_pitfall_33_bf16_gradients_are_summed_in_float32(ranks: Ranks) -> None:
    precision, coarse = check_alike("answers", ranks(2, "fsdp2", precise_gradients, "fsdp2"))
    assert precision == "bf16"
    assert not coarse


@pytest.mark.parametrize(("strategy", "precision"), [("ddp", "bf16 autocast"), ("fsdp2", "bf16")])
def test_all_ranks_compute_in_the_precision_of_the_first(strategy: str, precision: str, ranks: Ranks) -> None:
    assert ranks(2, strategy, precision_of, strategy) == [precision] * 2


@pytest.mark.parametrize("strategy", variants(["fsdp2", "ddp"]))
def test_pitfall_22_all_ranks_stop_at_the_same_update(strategy: str, ranks: Ranks) -> None:
    alone = stopped_early(ALONE, "single")
    assert len(set(alone)) > 1
    assert check_alike("numbers of updates", ranks(2, strategy, stopped_early, strategy)) == alone


def test_a_rank_that_is_short_of_memory_cuts_its_share_finer(ranks: Ranks) -> None:
    expected, gradient = short_of_memory(ALONE, "single")
    metrics, found = check_alike("answers", ranks(2, "ddp", short_of_memory, "ddp"))
    assert largest_gap(found, gradient) < 1e-5
    assert metrics.pop("system/microbatch_tokens") == 150
    assert expected.pop("system/microbatch_tokens") == 300
    check_same_lines([metrics], [expected])


def test_a_pass_that_other_ranks_take_part_in_is_not_made_anew(ranks: Ranks) -> None:
    remedy = r"UserError: out of memory at 300 .* go on with resume=true trainer.microbatch_tokens=150"
    with pytest.raises(RankError, match=remedy):
        ranks(1, "fsdp2", short_of_memory, "fsdp2")


def test_a_model_and_its_reference_are_sharded_by_layer(ranks: Ranks) -> None:
    found = ranks(2, "fsdp2", cut_parts, "fsdp2")
    alone = cut_parts(ALONE, "single")
    for answer in found:
        assert answer["cut"]
        assert answer["trained"] == [True, False]
        assert answer["layers"] == [1, 1]
    assert sorted(found[0]["sample"] + found[1]["sample"]) == sorted(alone["sample"])  # as much as one process looks at
    pairs = zip(*(answer["rows"] for answer in found), alone["rows"], strict=True)
    assert all(a + b == both for one, two, all_rows in pairs for a, b, both in zip(one, two, all_rows, strict=True))
    for answer in ranks(2, "ddp", cut_parts, "ddp"):
        assert answer["rows"] == alone["rows"]
        assert answer["layers"] == [0, 0]


@pytest.mark.parametrize("strategy", variants(["fsdp2", "ddp"]))
def test_pitfall_09_adapters_on_two_ranks_learn_the_same(strategy: str, ranks: Ranks, tmp_path: Path) -> None:
    save_model(tmp_path, "qwen2", num_hidden_layers=1)
    alone = with_adapters(ALONE, "single", str(tmp_path))
    found = check_alike("answers", ranks(2, strategy, with_adapters, strategy, str(tmp_path)))
    check_same_lines(found["lines"], alone["lines"])
    for weight, expected in zip(found["adapters"], alone["adapters"], strict=True):
        assert largest_gap(weight, expected) < 1e-3
    assert found["reference stays"]
    assert found["base stays"]
    assert found["base is cut"] == (strategy == "fsdp2")
    assert not found["adapters are cut"]


def test_pitfall_37_shards_are_saved_whole_and_loaded_in_parts(ranks: Ranks, tmp_path: Path) -> None:
    alone = save_and_load(ALONE, "single", str(tmp_path))
    found = ranks(2, "fsdp2", save_and_load, "fsdp2", str(tmp_path))
    for answer, other in zip(found, reversed(found), strict=True):
        assert answer["names"] == alone["names"]
        assert answer["whole"]
        assert answer["written"] == answer["loaded"] == other["loaded"]
        assert largest_gap(answer["further"], answer["written"]) > 1e-3
        assert largest_gap(answer["written"], alone["written"]) < 1e-5
    rows = [answer["rows"] for answer in (*found, alone)]
    assert all(first + second == both for first, second, both in zip(*rows, strict=True))
    names = [sorted(path.name for path in (tmp_path / strategy).iterdir()) for strategy in ("single", "fsdp2")]
    assert names[0] == names[1]
    config = [(tmp_path / strategy / "config.json").read_text() for strategy in ("single", "fsdp2")]
    assert config[0] == config[1]
    reloaded = type(one_layer().model).from_pretrained(tmp_path / "fsdp2")
    assert torch.cat([p.flatten() for p in reloaded.parameters()]).tolist() == found[0]["written"]


@pytest.mark.parametrize("strategy", variants(["fsdp2", "ddp"]))
def test_a_copy_of_the_policy_follows_it_on_all_ranks(strategy: str, ranks: Ranks) -> None:
    alone, _ = follow_the_policy(ALONE, "single")
    assert abs(alone[3]) > 1e-3
    for distances, is_cut in ranks(2, strategy, follow_the_policy, strategy):
        assert distances == pytest.approx(alone, rel=1e-3, abs=1e-5)
        assert is_cut == (strategy == "fsdp2")


def test_each_rank_asks_a_served_teacher_for_its_share(ranks: Ranks) -> None:
    (right, every), answers = ask_a_server(ALONE, "single"), ranks(2, "ddp", ask_a_server, "ddp")
    assert right
    assert all(right for right, _ in answers)
    assert sum(asked for _, asked in answers) == every


def test_a_gradient_that_overflows_on_one_rank_is_computed_again_by_all(ranks: Ranks) -> None:
    assert ranks(2, "ddp", overflow_on_one, "ddp") == [False, False]
