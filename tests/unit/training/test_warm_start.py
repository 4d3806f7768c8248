from typing import Any

import pytest
import torch

from rlvr.errors import UserError
from rlvr.models.policy import Policy
from rlvr.training.warm_start import _loss, warm_start
from tests.unit.training.tiny import tiny_config, tiny_policy

PAIRS = [("<boe> 1 2 + =", "3 <eoe>"), ("<boe> 1 2 + 4 + =", "3 4 + = 7 <eoe>"), ("<boe> 5 =", "5 <eoe>")]


class Copies:
    """Demonstrations `<boe> n = n <eoe>`, or with a step between; remembers what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, float]] = []

    def demonstration(self, index: int, worked_share: float) -> tuple[str, str]:
        self.asked.append((index, worked_share))
        return f"<boe> {index % 10} =", f"{index % 10} <eoe>"


def run(policy: Policy, task: Any, *overrides: str, stop_at: int | None = None) -> tuple[bool, list[tuple[int, float]]]:
    few = ["warm_start.num_steps=8", "warm_start.warmup_steps=2", "warm_start.final_phase_steps=3"]
    settings = tiny_config(*few, "warm_start.batch_size=4", *overrides).warm_start
    reports: list[tuple[int, float]] = []
    polls = iter(range(1000))
    done = warm_start(
        policy,
        task,
        settings,
        progress=lambda step, loss: reports.append((step, loss)),
        stopped=lambda: stop_at is not None and next(polls) >= stop_at,
    )
    return done, reports


def by_hand(policy: Policy, prompt: str, completion: str) -> list[torch.Tensor]:
    """Negative logprobs of the completion's tokens, from a plain forward pass over one row."""
    ids = torch.tensor([policy.tokenizer(f"{prompt} {completion}", add_special_tokens=False)["input_ids"]])
    logprobs = torch.log_softmax(policy.model(input_ids=ids, use_cache=False).logits[0, :-1].float(), -1)
    chosen = logprobs.gather(1, ids[0, 1:, None])[:, 0]
    return list(-chosen[len(prompt.split()) - 1 :])


def test_pitfall_04_only_the_completions_are_trained_on() -> None:
    policy = tiny_policy()
    tokens = [loss for prompt, completion in PAIRS for loss in by_hand(policy, prompt, completion)]
    assert len(tokens) == sum(len(completion.split()) for _, completion in PAIRS)
    assert _loss(policy, PAIRS).item() == pytest.approx(torch.stack(tokens).mean().item(), abs=1e-5)


def test_padding_and_company_change_nothing() -> None:
    policy = tiny_policy()
    alone = sum(_loss(policy, [pair]).item() * len(pair[1].split()) for pair in PAIRS)
    count = sum(len(completion.split()) for _, completion in PAIRS)
    assert _loss(policy, PAIRS).item() == pytest.approx(alone / count, abs=1e-5)


def test_every_demonstration_is_fresh_and_the_last_phase_has_its_own_share() -> None:
    task = Copies()
    assert run(tiny_policy(), task, "warm_start.worked_share=0.9", "warm_start.final_worked_share=0.2")[0]
    assert [index for index, _ in task.asked] == list(range(32))
    assert [share for _, share in task.asked] == [0.9] * 20 + [0.2] * 12


def test_it_learns() -> None:
    policy = tiny_policy()
    more = ["warm_start.num_steps=150", "warm_start.batch_size=16", "warm_start.learning_rate=0.01"]
    done, reports = run(policy, Copies(), *more)
    assert done
    assert reports[-1][0] == 150
    assert reports[-1][1] < 0.2
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in policy.parameters())


def test_two_of_one_seed_are_equal_bit_for_bit() -> None:
    one, two = tiny_policy(), tiny_policy()
    run(one, Copies())
    run(two, Copies())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_a_stop_ends_it() -> None:
    task = Copies()
    assert run(tiny_policy(), task, stop_at=3)[0] is False
    assert len(task.asked) == 3 * 4


def test_a_loss_that_is_nan_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"warm start's loss is not finite .* lower warm_start\.learning_rate"):
        run(tiny_policy(), Copies(), "warm_start.learning_rate=1e30")
