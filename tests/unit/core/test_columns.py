"""Columns: what the trainer computes for an algorithm beside its batch."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.algorithms.columns import Column, FromGold, Logprobs, OfPolicy, PerEpisode, PerTurn
from rlvr.algorithms.grpo import Grpo
from rlvr.algorithms.losses import Surrogate
from rlvr.algorithms.objective import AlgorithmError, Objective
from rlvr.core.batch import to_batch
from rlvr.core.packing import Packing
from rlvr.core.trainer import LocalTeacher, Trainer
from rlvr.core.value import Branch, State, states
from rlvr.errors import ConfigError, UserError
from rlvr.models.policy import HubPolicy
from rlvr.types import Group, Score, TokenBatch
from tests.unit.core.fakes import completion, episode, group
from tests.unit.core.tiny import plain_logprobs, tiny_batch, tiny_config, tiny_policy

TWO_TURNS = episode(
    ((1, 7), completion(5, 9)), ((1, 7, 5, 9, 3, 4), completion(6, 2)), score=Score(value=1.0, parts={"brief": 0.5})
)
ONE_TURN = episode(((1, 7), completion(8, 10, 2)), score=Score(value=0.0, parts={"brief": 0.25}))
GROUPS = (group(TWO_TURNS, ONE_TURN), group(replace(ONE_TURN, score=Score(value=2.0, parts={"brief": 1.0}))))


class WithColumns(Grpo):
    """GRPO with the columns of a test."""

    def columns(self) -> dict[str, Column]:
        return {**super().columns(), **COLUMNS}


COLUMNS: dict[str, Column] = {}


def trainer_with(
    policy: HubPolicy, columns: Mapping[str, Column], *, algorithm: Any = WithColumns, **others: HubPolicy
) -> Trainer:
    COLUMNS.clear()
    COLUMNS.update(columns)
    config = tiny_config("trainer.warmup_steps=0", "trainer.learning_rate=0.01")
    teachers = {name: LocalTeacher(partial(nullcontext, one), Packing(layout="rows")) for name, one in others.items()}
    objective = Objective(algorithm=algorithm(), max_completion_tokens=16, temperature=1.0)
    return Trainer(policy=policy, objective=objective, settings=config.trainer, seed=0, teachers=teachers)


def scored(columns: Mapping[str, Column], groups: tuple[Group, ...] = GROUPS, **others: HubPolicy) -> TokenBatch:
    return trainer_with(tiny_policy(), columns, **others).score(to_batch(groups), groups)


def test_logprobs_of_another_model() -> None:
    """A shallower one, laid out as it needs."""
    other = tiny_policy("qwen3", num_hidden_layers=1)
    batch = scored({"teacher": Logprobs("other")}, other=other)
    assert torch.allclose(batch.columns["teacher"], plain_logprobs(other, batch) * batch.loss_mask, atol=1e-5)
    assert "old_logprobs" not in batch.columns  # nobody asked for it


def test_logprobs_under_another_prompt() -> None:
    """The same completions behind a prompt of the hint's length, in both turns; NaN where there is none."""

    def hint(group: Group, one: Any) -> tuple[int, ...] | None:
        return (*one.turns[0].prompt_ids, 11, 12, 1) if len(one.turns) == 2 else None

    policy = tiny_policy()
    found = scored({"hinted": Logprobs("start", prompt=hint)}).columns["hinted"]
    moved = episode(((1, 7, 11, 12, 1), completion(5, 9)), ((1, 7, 11, 12, 1, 5, 9, 3, 4), completion(6, 2)))
    alone = to_batch([group(moved)])
    expected = plain_logprobs(policy, alone)[alone.loss_mask]
    mask = to_batch(GROUPS).loss_mask
    assert torch.allclose(found[0][mask[0]], expected, atol=1e-5)
    assert found[1:][mask[1:]].isnan().all()
    assert (found[~mask] == 0).all()


def test_a_prompt_that_a_template_rewrote_cannot_be_replaced() -> None:
    rewritten = episode(((1, 7), completion(5, 9)), ((1, 8, 3), completion(6, 2)))
    with pytest.raises(AlgorithmError, match="raised ValueError for its hinted") as raised:
        scored({"hinted": Logprobs("start", prompt=lambda group, one: (1, 1))}, (group(rewritten),))
    assert "does not begin with the first prompt" in str(raised.value.__cause__)


def test_numbers_of_episodes_and_turns() -> None:
    brief = PerEpisode(lambda group, one: one.score.parts["brief"])
    both = PerEpisode(lambda group, one: [one.score.value, len(group.episodes)])
    turns = PerTurn(lambda group, one: [10.0 + number for number in range(len(one.turns))])
    batch = scored({"brief": brief, "both": both, "turn": turns})
    assert batch.columns["brief"].tolist() == [0.5, 0.25, 1.0]
    assert batch.columns["both"].tolist() == [[1, 2], [0, 2], [2, 1]]
    assert batch.columns["turn"].tolist() == [[0, 0, 10, 10, 0, 0, 11, 11], *[[0, 0, 10, 10, 10, 0, 0, 0]] * 2]
    assert batch.take([2, 0]).columns["brief"].tolist() == [1.0, 0.5]


def test_how_likely_the_answer_was_before_each_turn() -> None:
    """The same as a pass over each state alone; given group by group, and put at the tokens of each turn."""
    policy, asked = tiny_policy(), list[int]()

    def answers(groups: Sequence[Group]) -> list[dict[State, Branch]]:
        episodes = [one for each in groups for one in each.episodes]
        return [{state: Branch(prompt_ids=(), ids=(9, 2), end=1) for state in states(one)} for one in episodes]

    def value(group: Group, gold: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
        asked.append(len(gold))
        return gold

    trainer = trainer_with(policy, {"gold": FromGold(value)})
    trainer.answers = answers
    found = trainer.score(to_batch(GROUPS), GROUPS).columns["gold"]
    assert asked == [2, 1]
    first, second = (
        torch.log_softmax(policy.model(torch.tensor([ids])).logits[0, -1], -1)[9].item()
        for ids in (turn.prompt_ids for turn in TWO_TURNS.turns)
    )
    row = [0, 0, first, first, first, 0, 0, 0]
    torch.testing.assert_close(found, torch.tensor([[0, 0, first, first, 0, 0, second, second], row, row]))


def test_numbers_of_turns_in_several_rows() -> None:
    """A rewritten history gives an episode two rows; each has the numbers of its own turns."""
    rewritten = episode(((1, 7), completion(5, 9)), ((1, 8, 3), completion(6, 2)), ((1, 8, 3, 6, 2, 4), completion(5)))
    turns = PerTurn(lambda group, one: [10.0 + number for number in range(len(one.turns))])
    column = scored({"turns": turns}, (group(ONE_TURN, rewritten),)).columns["turns"]
    assert column.tolist() == [[0, 0, 10, 10, 10, 0, 0], [0, 0, 10, 10, 0, 0, 0], [0, 0, 0, 11, 11, 0, 12]]


@pytest.mark.parametrize("numbers", [[1.0], [1.0, 2.0, 3.0]], ids=["too few", "too many"])
def test_each_turn_has_one_number(numbers: list[float]) -> None:
    with pytest.raises(AlgorithmError, match="raised ValueError for its turns"):
        scored({"turns": PerTurn(lambda group, one: numbers)}, (group(TWO_TURNS),))


def test_without_answers_that_is_not_known() -> None:
    with pytest.raises(UserError, match="nothing says what the right answers of a batch are"):
        scored({"gold": FromGold(lambda group, gold: gold)})


def test_all_rows_of_an_episode_have_its_number() -> None:
    """A rewritten history gives it several."""
    rewritten = episode(((1, 7), completion(5, 9)), ((1, 8, 3), completion(6, 2)))
    numbered = PerEpisode(lambda group, one: float(len(one.turns)))
    assert scored({"turns": numbered}, (group(rewritten, ONE_TURN),)).columns["turns"].tolist() == [2, 2, 1]


def test_a_teacher_has_a_layout_of_its_own() -> None:
    trainer, layouts = trainer_with(tiny_policy(), {"teacher": Logprobs("other")}, other=tiny_policy()), []
    trainer.packing = Packing(layout="shared")
    predict = trainer.predict
    trainer.predict = lambda policy, batch, packing: layouts.append(packing.layout) or predict(policy, batch, packing)  # type: ignore[method-assign]
    trainer.score(to_batch(GROUPS))
    assert layouts == ["rows"]


def test_the_entropy_and_old_logprobs_come_from_one_pass() -> None:
    policy = tiny_policy()
    batch = tiny_batch(policy)
    trainer, passes = trainer_with(policy, {"entropy": OfPolicy("entropy")}), []
    predict = trainer.predict
    trainer.predict = lambda *arguments: passes.append(1) or predict(*arguments)  # type: ignore[method-assign]
    found = trainer.score(batch)
    assert passes == [1]
    logits = policy.model(input_ids=batch.ids, use_cache=False).logits.log_softmax(-1)
    entropy = -(logits.exp() * logits).sum(-1).roll(1, dims=1) * batch.loss_mask
    assert torch.allclose(found.columns["entropy"], entropy, atol=1e-5)
    assert torch.allclose(found.columns["old_logprobs"], batch.behavior_logprobs, atol=1e-5)


def test_a_copy_of_the_start_follows_after_every_n_updates() -> None:
    policy = tiny_policy()
    batch = tiny_batch(policy)
    columns = {"start": Logprobs("start"), "near": Logprobs("start", refresh_every=2)}
    trainer = trainer_with(policy, columns)
    seen = []
    for step in range(5):
        trainer.refresh(step)
        seen.append(trainer.score(batch))
        trainer.update(trainer.objective.advantages(seen[-1]), step)
    before = [batch.columns["near"] for batch in seen]
    assert torch.equal(before[0], before[1])
    assert torch.equal(before[2], before[3])
    assert not torch.equal(before[1], before[2])
    assert not torch.equal(before[3], before[4])
    assert all(torch.equal(batch.columns["start"], before[0]) for batch in seen)
    assert torch.allclose(before[4], plain_after(seen, policy, trainer, batch), atol=1e-5)


def plain_after(seen: list[TokenBatch], policy: HubPolicy, trainer: Trainer, batch: TokenBatch) -> Tensor:
    """What the policy itself says after four updates from the same start."""
    again = tiny_policy()
    other = trainer_with(again, {})
    for step in range(4):
        other.update(other.objective.advantages(other.score(batch)), step)
    return plain_logprobs(again, batch) * batch.loss_mask


def test_the_distance_to_a_teacher_is_logged() -> None:
    other, policy = tiny_policy("qwen3", num_hidden_layers=1), tiny_policy()
    batch = tiny_batch(policy)
    trainer = trainer_with(policy, {"teacher": Logprobs("other")}, other=other)
    metrics, _ = trainer.update(trainer.objective.advantages(trainer.score(batch)), 0)
    gap = (plain_logprobs(policy_before := tiny_policy(), batch) - plain_logprobs(other, batch))[batch.loss_mask]
    assert policy_before is not policy
    assert metrics["policy/teacher_kl"] == pytest.approx(gap.mean().item(), abs=1e-4)


@dataclass(frozen=True)
class Wrong(Column):
    def compute(self, passes: Any) -> Any:
        return torch.zeros(1)


def test_a_column_of_another_size_names_the_algorithm() -> None:
    with pytest.raises(AlgorithmError, match="must give odd a tensor of 3 rows"):
        scored({"odd": Wrong()})


def test_a_column_that_raises_is_named() -> None:
    with pytest.raises(AlgorithmError, match=r"its method columns raised KeyError for its short") as raised:
        scored({"short": PerEpisode(lambda group, one: one.score.parts["short"])})
    assert isinstance(raised.value.__cause__, KeyError)


def test_what_is_no_column_is_named_with_the_settings() -> None:
    COLUMNS.clear()
    COLUMNS["teacher"] = "runs/first"  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="its columns give teacher a str; give it a Column"):
        WithColumns().check_run(tiny_config())


def test_only_the_start_follows() -> None:
    with pytest.raises(ConfigError, match="only 'start' follows"):
        Logprobs("runs/first", refresh_every=2)


class EntropyLoss(WithColumns):
    """Lowers the entropy of the tokens that a column marks, whatever their advantage."""

    def token_loss(self, log_ratio: Tensor, predicted: Any, rows: TokenBatch, mask: Tensor) -> Surrogate:
        plain = super().token_loss(log_ratio, predicted, rows, mask)
        return replace(plain, loss=0.0 * plain.loss + predicted.entropy * rows.columns["marked"][:, None])


def test_a_loss_of_tokens_reads_columns_and_has_the_entropy_s_gradient() -> None:
    """Rows without an advantage are trained too; the gradient is autograd's on transformers' own forward pass."""
    policy = tiny_policy()
    marked = PerEpisode(lambda group, one: float(one is TWO_TURNS))
    trainer = trainer_with(policy, {"marked": marked}, algorithm=EntropyLoss)
    batch = trainer.objective.advantages(trainer.score(to_batch(GROUPS), GROUPS))
    batch = replace(batch, advantages=torch.zeros_like(batch.advantages))
    trainer.gradient(batch, range(3), torch.zeros_like(batch.behavior_logprobs))
    found = torch.cat([p.grad.flatten() for p in policy.parameters()])

    logits = policy.model(input_ids=batch.ids, use_cache=False).logits.log_softmax(-1)
    entropy = -(logits.exp() * logits).sum(-1).roll(1, dims=1)
    loss = (entropy * batch.loss_mask)[0].sum() / batch.loss_mask.sum()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(policy.parameters()))])
    assert expected.norm() > 1e-2
    assert torch.allclose(found, expected, atol=1e-5)
