from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.models.settings import ScratchModel
from rlvr.training import warm_start as module
from rlvr.training.settings import WarmStartSettings
from rlvr.training.warm_start import _backward, _encode, _microbatches, warm_start
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


def run(
    policy: HubPolicy,
    task: Any,
    *,
    stop_at: int | None = None,
    progress: Callable[[int, float], None] = lambda step, loss: None,
    **changes: Any,
) -> bool:
    settings = WarmStartSettings(num_steps=8, warmup_steps=2, final_phase_steps=3, batch_size=4, **changes)
    settings = settings.fitted(ScratchModel())
    polls = iter(range(1000))
    return warm_start(
        policy,
        task,
        settings,
        microbatch_tokens=2048,
        progress=progress,
        stopped=lambda: stop_at is not None and next(polls) >= stop_at,
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
    policy.model.zero_grad()
    return _backward(policy, _encode(policy, Copies(), pairs), loss_on, microbatch_tokens)


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
    (row,) = _encode(policy, task(), [turns])
    assert list(row[1::2]) == completions
    assert not any(2 in part for part in row[::2])


def test_one_turn_and_several_are_learnt_together() -> None:
    policy = tiny_policy()
    mixed: list[tuple[str, ...]] = [TURNS, *PAIRS, TURNS[:4]]
    rows = _encode(policy, Copies(), mixed)
    counts = [sum(len(part) for part in row[1::2]) for row in rows]
    alone = [loss_of(policy, [texts]) for texts in mixed]
    expected = sum(loss * count for loss, count in zip(alone, counts, strict=True)) / sum(counts)
    for limit in (2048, 30, 1):
        assert loss_of(policy, mixed, microbatch_tokens=limit) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("loss_on", ["completion", "all"])
def test_pitfall_09_gradients_ignore_microbatches_and_padding(loss_on: str) -> None:
    policy = tiny_policy()
    pairs = [PAIRS[i % 3] for i in (0, 2, 1, 1, 2)]
    rows = _encode(policy, Copies(), pairs)
    tokens = [len(p) + len(c) - (len(p) if loss_on == "completion" else 1) for p, c in rows]
    expected = 0.0
    for row, count in zip(rows, tokens, strict=True):  # each by itself, weighted by its share of the tokens
        policy.model.zero_grad()
        _backward(policy, [row], loss_on, 2048)
        expected = expected + gradient(policy) * count / sum(tokens)
    for limit in (2048, 30, 20, 1):
        loss_of(policy, pairs, loss_on, limit)
        torch.testing.assert_close(gradient(policy), expected, atol=1e-6, rtol=1e-4)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=9), st.integers(1, 24))
def test_microbatches_are_as_full_as_they_may_be(lengths: list[int], max_tokens: int) -> None:
    rows = [([number], [0] * (length - 1)) for number, length in enumerate(lengths)]
    parts = _microbatches(rows, max_tokens)
    assert sorted(row for part in parts for row in part) == rows
    sizes = [(len(part), max(len(own) + len(rest) for own, rest in part)) for part in parts]
    assert all(count * longest <= max_tokens or count == 1 for count, longest in sizes)
    assert all((count + 1) * longest > max_tokens for count, longest in sizes[:-1]), "the next row did not fit"
    if len(rows) * max(lengths) <= max_tokens:
        assert parts == [rows]


def test_a_tokenizer_without_an_end_token_is_a_sentence() -> None:
    policy = tiny_policy()
    policy.tokenizer.eos_token = None
    with pytest.raises(UserError, match=r"names no end token.*warm_start\.enabled=false"):
        run(policy, WithoutEnd())


def test_demonstrations_are_fresh_and_shares_follow_the_phase() -> None:
    task = Copies()
    assert run(tiny_policy(), task, worked_share=0.9, final_worked_share=0.2)
    assert [index for index, _ in task.asked] == list(range(32))
    assert [share for _, share in task.asked] == [0.9] * 20 + [0.2] * 12


def test_the_loss_is_told_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROGRESS_EVERY", 3)
    told = list[tuple[int, float]]()
    run(tiny_policy(), Copies(), progress=lambda step, loss: told.append((step, loss)))
    assert [step for step, _ in told] == [3, 6, 8]
    assert all(loss > 0 for _, loss in told)


def test_a_loss_that_is_not_finite_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"is not finite at step 8; lower warm_start\.learning_rate"):
        run(tiny_policy(), Copies(), learning_rate=1e30)


@pytest.mark.parametrize(("chosen", "kinds"), [("adamw", ["AdamW"]), ("muon", ["Muon", "AdamW"])])
def test_the_optimizer_is_the_one_chosen(chosen: Any, kinds: list[str]) -> None:
    found = module._optimizers(tiny_policy(), WarmStartSettings(optimizer=chosen))
    assert [type(one).__name__ for one in found] == kinds


def test_a_stop_ends_it() -> None:
    task = Copies()
    assert run(tiny_policy(), task, stop_at=3) is False
    assert len(task.asked) == 3 * 4
