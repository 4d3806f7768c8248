from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from rlvr.algorithms.objective import Objective
from rlvr.core.batch import to_batch
from rlvr.core.packing import Packing
from rlvr.core.supervised import Sft, everything, train_supervised
from rlvr.core.trainer import Trainer
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.models.settings import ScratchModel
from rlvr.training.settings import TrainingSettings, WarmStartSettings
from rlvr.training.warm_start import Lessons, encode, episode_of, from_stream, in_epochs
from rlvr.types import Episode
from tests.unit.core.fakes import group
from tests.unit.core.tiny import tiny_policy

TURNS = ("<boe> 1 2", "3 + =", "4 5", "6 <eoe>", "7", "8 <eoe>")
"""A prompt, then completions and replies in turn."""
PAIRS = [("<boe> 1 2 + =", "3 <eoe>"), ("<boe> 1 2 + 4 + =", "3 4 + = 7 <eoe>"), ("<boe> 5 =", "5 <eoe>")]


class Copies:
    """Demonstrations `<boe> n = n <eoe>`; remembers what was asked for."""

    stop_words: tuple[str, ...] = ("<eoe>",)

    def __init__(self) -> None:
        self.asked: list[tuple[int, float]] = []

    def demonstration(self, index: int, worked_share: float) -> tuple[str, str]:
        self.asked.append((index, worked_share))
        return f"<boe> {index % 10} =", f"{index % 10} <eoe>"


class WithoutEnd(Copies):
    """A task whose text does not say where a completion ends."""

    stop_words = ()

    def demonstration(self, index: int, worked_share: float) -> tuple[str, str]:
        prompt, completion = super().demonstration(index, worked_share)
        return prompt, completion.removesuffix(" <eoe>")


def lessons_of(policy: HubPolicy, task: Any, **changes: Any) -> Lessons:
    given: dict[str, Any] = {"num_steps": 8, "warmup_steps": 2, "final_phase_steps": 3, "batch_size": 4} | changes
    return from_stream(policy, task, WarmStartSettings(**given).fitted(ScratchModel()), ScratchModel(), 0)


def trainer_of(policy: HubPolicy, lessons: Lessons, microbatch_tokens: int = 2048) -> Trainer:
    return Trainer(
        policy=policy,
        objective=Objective(algorithm=Sft(), max_completion_tokens=8, temperature=1.0),
        settings=lessons.settings.of_trainer(TrainingSettings(max_grad_norm=1e9), lessons.num_steps),
        seed=0,
        packing=Packing(max_tokens=microbatch_tokens),
    )


def by_hand(policy: HubPolicy, prompt: str, completion: str, first: int) -> list[torch.Tensor]:
    """Negative logprobs of the tokens from `first` on, from a plain forward pass over one row."""
    ids = torch.tensor([policy.tokenizer(f"{prompt} {completion}", add_special_tokens=False)["input_ids"]])
    logprobs = torch.log_softmax(policy.model(input_ids=ids, use_cache=False).logits[0, :-1].float(), -1)
    chosen = logprobs.gather(1, ids[0, 1:, None])[:, 0]
    return list(-chosen[first - 1 :])


def loss_of(
    policy: HubPolicy, pairs: Sequence[tuple[str, ...]], loss_on: str = "completion", microbatch_tokens: int = 2048
) -> float:
    """The loss, whose gradient is left in the parameters."""
    episodes = list(map(episode_of, encode(policy, Copies(), pairs)))
    trainer = trainer_of(policy, lessons_of(policy, Copies()), microbatch_tokens)
    batch = to_batch([group(*(map(everything, episodes) if loss_on == "all" else episodes))])
    batch = trainer.objective.advantages(batch)
    sums = trainer.gradient(batch, range(len(batch.ids)), torch.zeros_like(batch.behavior_logprobs))
    return sums.mean("policy_loss")


def gradient(policy: HubPolicy) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


def test_pitfall_04_only_the_completions_are_trained_on() -> None:
    policy = tiny_policy()
    tokens = [loss for pair in PAIRS for loss in by_hand(policy, *pair, first=len(pair[0].split()))]
    assert len(tokens) == sum(len(completion.split()) for _, completion in PAIRS)
    assert loss_of(policy, PAIRS) == pytest.approx(torch.stack(tokens).mean().item(), abs=1e-5)


def test_pitfall_05_tool_replies_are_not_learnt() -> None:
    policy = tiny_policy()
    tokens = by_hand(policy, " ".join(TURNS[:-1]), TURNS[-1], first=1)  # of every token but the first
    ends = [0, 3, 6, 8, 10, 11, 13]
    learnt = [tokens[place - 1] for i in (1, 3, 5) for place in range(ends[i], ends[i + 1])]
    assert len(learnt) == 7
    assert loss_of(policy, [TURNS]) == pytest.approx(torch.stack(learnt).mean().item(), abs=1e-5)
    assert loss_of(policy, [TURNS], "all") == pytest.approx(torch.stack(tokens).mean().item(), abs=1e-5)


@pytest.mark.parametrize(
    ("task", "turns", "completions"),
    [
        (Copies, ("<boe> 1 =", "1 <eoe>"), [[6, 2]]),
        (Copies, ("<boe> 2 =", "2"), [[7]]),
        (WithoutEnd, ("<boe> 1 =", "1 <eoe>"), [[6, 2, 2]]),
        (WithoutEnd, ("<boe> 2 =", "2"), [[7, 2]]),
        (WithoutEnd, ("<boe> 2 =", "2", "3", "4", "5", "6"), [[7, 2], [9, 2], [11, 2]]),
    ],
)
def test_pitfall_03_completions_end_with_the_end_token_once(
    task: type[Copies], turns: tuple[str, ...], completions: list[list[int]]
) -> None:
    """Added where the text does not say where a completion ends, and to no reply."""
    policy = tiny_policy()
    (row,) = encode(policy, task(), [turns])
    assert list(row[1::2]) == completions
    assert not any(2 in part for part in row[::2])


def test_one_turn_and_several_are_learnt_together() -> None:
    policy = tiny_policy()
    mixed: list[tuple[str, ...]] = [TURNS, *PAIRS, TURNS[:4]]
    rows = encode(policy, Copies(), mixed)
    counts = [sum(len(part) for part in row[1::2]) for row in rows]
    alone = [loss_of(policy, [texts]) for texts in mixed]
    expected = sum(loss * count for loss, count in zip(alone, counts, strict=True)) / sum(counts)
    for limit in (2048, 30, 1):
        assert loss_of(policy, mixed, microbatch_tokens=limit) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("loss_on", ["completion", "all"])
def test_pitfall_09_gradients_ignore_microbatches_and_padding(loss_on: str) -> None:
    policy = tiny_policy()
    pairs = [PAIRS[i % 3] for i in (0, 2, 1, 1, 2)]
    rows = encode(policy, Copies(), pairs)
    tokens = [len(p) + len(c) - (len(p) if loss_on == "completion" else 1) for p, c in rows]
    expected = 0.0
    for pair, count in zip(pairs, tokens, strict=True):  # each by itself, weighted by its share of the tokens
        policy.model.zero_grad()
        loss_of(policy, [pair], loss_on)
        expected = expected + gradient(policy) * count / sum(tokens)
    for limit in (2048, 30, 20, 1):
        loss_of(policy, pairs, loss_on, limit)
        torch.testing.assert_close(gradient(policy), expected, atol=1e-6, rtol=1e-4)


def test_a_tokenizer_without_an_end_token_is_a_sentence() -> None:
    policy = tiny_policy()
    policy.tokenizer.eos_token = None
    with pytest.raises(UserError, match=r"names no end token.*warm_start\.enabled=false"):
        next(iter(lessons_of(policy, WithoutEnd())))


def test_demonstrations_are_fresh_and_shares_follow_the_phase() -> None:
    task = Copies()
    lessons = lessons_of(tiny_policy(), task, worked_share=0.9, final_worked_share=0.2)
    assert [len(episodes) for episodes in lessons] == [4] * 8
    assert [index for index, _ in task.asked] == list(range(32))
    assert [share for _, share in task.asked] == [0.9] * 20 + [0.2] * 12


def test_in_epochs_the_same_demonstrations_come_again() -> None:
    task = Copies()
    task.num_examples = lambda wanted: wanted  # type: ignore[attr-defined]
    lessons = lessons_of(tiny_policy(), task, num_steps=None, num_epochs=3, num_examples=6, final_phase_steps=2)
    assert (lessons.num_steps, lessons.size) == (5, 6)
    assert [len(episodes) for episodes in lessons] == [4, 4, 4, 4, 2]
    indices = [index for index, _ in task.asked]
    assert [sorted(indices[first : first + 6]) for first in (0, 6, 12)] == [list(range(6))] * 3
    assert indices[:6] != indices[6:12]
    assert [share for _, share in task.asked] == [1.0] * 12 + [0.15] * 6


def examples(num: int = 6) -> list[Episode]:
    texts = [Copies().demonstration(index, 1.0) for index in range(num)]
    return list(map(episode_of, encode(tiny_policy(), Copies(), texts)))


class Pretrained:
    from_scratch = False
    adapted = False


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, [4, 4, 4, 4, 2]),  # three epochs
        ({"num_steps": 2}, [4, 4, 4, 4, 2]),
        ({"num_epochs": None, "num_steps": 2}, [4, 4]),
        ({"num_epochs": None, "num_steps": 7}, [4] * 7),
    ],
)
def test_a_pretrained_model_sees_epochs_or_steps(changes: dict[str, Any], sizes: list[int]) -> None:
    model: Any = Pretrained()
    settings = WarmStartSettings(**{"batch_size": 4} | changes).fitted(model)
    lessons = in_epochs(examples(), settings, model, seed=0)
    seen = list(lessons)
    assert [len(episodes) for episodes in seen] == sizes
    assert lessons.num_steps == len(sizes)
    assert lessons.longest == 5
    assert seen == list(lessons)
    assert [len(one.turns[0].prompt_ids) for one in seen[0]] == [3] * 4


def test_all_tokens_are_learned_where_it_is_said() -> None:
    model: Any = Pretrained()
    settings = WarmStartSettings(loss_on="all", batch_size=6).fitted(model)
    first = next(iter(in_epochs(examples(), settings, model, seed=0)))
    assert [len(one.turns[0].prompt_ids) for one in first] == [1] * 6


@pytest.mark.parametrize(("final", "share", "after"), [(3, 0.2, 5), (0, 0.2, None), (8, 0.2, None), (3, 0.9, None)])
def test_it_is_known_when_the_loss_rises(final: int, share: float, after: int | None) -> None:
    """After the step behind which most of the work is hidden, if there were others before."""
    changes = {"final_phase_steps": final, "worked_share": 0.9, "final_worked_share": share}
    assert lessons_of(tiny_policy(), Copies(), **changes).hides_after == after


def losses(optimizer: Any, lines: int) -> Iterator[float]:
    policy = tiny_policy()
    lessons = lessons_of(policy, Copies(), num_steps=30, optimizer=optimizer, learning_rate=0.01)
    yield from train_supervised(trainer_of(policy, lessons, lines), lessons)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_copies_are_learned(optimizer: str) -> None:
    made = list(losses(optimizer, 2048))
    assert made[-1] < 0.5 * made[0]
    assert list(losses(optimizer, 64))[:9] == pytest.approx(made[:9], rel=1e-3)


@pytest.mark.parametrize(("strategy", "expected"), [("single", "single"), ("ddp", "ddp"), ("fsdp2", "ddp")])
def test_muon_keeps_matrices_whole(strategy: Any, expected: str) -> None:
    for optimizer, wanted in (("muon", expected), ("adamw", strategy)):
        settings = WarmStartSettings(optimizer=optimizer, learning_rate=0.01).fitted(ScratchModel())  # type: ignore[arg-type]
        assert settings.of_trainer(TrainingSettings(strategy=strategy), 10).strategy == wanted
