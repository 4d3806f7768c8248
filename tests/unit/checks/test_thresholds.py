"""Checks of the model and its training, each just within its threshold and just beyond; the computations that they
judge are put in their place, and tests/unit/commands/test_doctor.py makes them on whole models.

rlvr.checks.numbers, rlvr.checks.steps, rlvr.checks.tools, rlvr.checks.tokens, rlvr.checks.training, rlvr.checks.weights
"""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlvr.checks import numbers, patient, steps, tokens, tools, training, weights
from rlvr.checks.texts import BREAKS, LONG, NUM_AWKWARD, PIECES, asked, awkward
from rlvr.engines.settings import LocalEngineSettings
from rlvr.errors import UserError
from rlvr.tasks.base import Solution
from rlvr.types import Example, Message
from tests.unit.checks.paid import Task

Monkey = pytest.MonkeyPatch


class Batch(SimpleNamespace):
    """Two rows of four tokens, the last two of which are sampled."""

    def __init__(self, **more: Any) -> None:
        mask = torch.tensor([[0, 0, 1, 1]] * 2, dtype=torch.bool)
        ids, lengths = torch.arange(8).reshape(2, 4), torch.tensor([4, 4])
        super().__init__(
            **{"loss_mask": mask, "ids": ids, "lengths": lengths, "behavior_logprobs": torch.zeros(2, 4), **more}
        )


def of(**more: Any) -> Any:
    """A patient in float32, whose batch is scored with zeros."""
    zeros = torch.zeros(2, 4)
    given = {"batch": Batch(), "scored": zeros, "noise": 1e-5, "tolerance": 1e-3, "several_turns": True}
    made = SimpleNamespace(**given | more)
    made.tolerance_in = lambda batch: made.tolerance
    return made


def moved(by: float) -> torch.Tensor:
    """Zeros, and one sampled token's logprob beside them."""
    found = torch.zeros(2, 4)
    found[1, 2] = by
    return found


def failed(check: Any) -> bool:
    assert check.status in ("ok", "fail")
    return check.status == "fail"


# ------------------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize(("gap", "fails"), [(0.9e-5, False), (1.1e-5, True), (math.nan, True)])
def test_two_passes_differ_by_less_than_rounding(gap: float, fails: bool, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(numbers, "logprobs", lambda trainer, batch: moved(gap))
    found = numbers.passes_repeat(of(trainer=lambda layout: layout))
    assert failed(found) == fails
    assert (found.evidence["token_id"], found.evidence["position"]) == (6, 2) or not fails


class Model(torch.nn.Module):
    """Logits that say nothing of what they are given: 0 but for `told`, or with `sees` of the last token."""

    def __init__(self, *, sees: float = 0.0, told: float = 0.0, vocabulary: int = 16) -> None:
        super().__init__()
        self.sees, self.told, self.vocabulary, self.asked = sees, told, vocabulary, list[list[int]]()
        self.config: Any = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=vocabulary))
        self.device = torch.device("cpu")

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        self.asked += input_ids.tolist()
        logits = torch.zeros(*input_ids.shape, self.vocabulary)
        logits[..., 0] = self.told + self.sees * (input_ids[:, -1:] % 2)
        return SimpleNamespace(logits=logits)


@pytest.mark.parametrize(("temperature", "told", "fails"), [(1.0, 0.0, False), (0.5, 3.0, False), (1.0, 3.0, True)])
def test_the_trainer_is_the_model_at_the_runs_temperature(temperature: float, told: float, fails: bool) -> None:
    """Scored as the model at temperature 0.5 scores a token other than the first."""
    scored = torch.full((2, 4), float(torch.log_softmax(torch.tensor([6.0 if told else 0.0, *[0.0] * 15]), 0)[1]))
    config = SimpleNamespace(rollout=SimpleNamespace(temperature=temperature))
    found = numbers.trainer_is_model(of(model=Model(told=told), config=config, scored=scored))
    assert failed(found) == fails


@pytest.mark.parametrize(("sees", "fails"), [(0.0, False), (1e-3, False), (2e-3, True), (math.nan, True)])
def test_a_last_token_changes_nothing_before_it(sees: float, fails: bool, monkeypatch: Monkey) -> None:
    """The larger of two changes of logprobs is the logit's times 15/16; rounding is allowed."""
    monkeypatch.setattr(numbers, "context_tokens", lambda policy: 3)
    model = Model(sees=sees)
    one = of(model=model, policy=None, prompt=lambda index: (None, (5, 6, 15, 9)), noise=0.00125)
    assert failed(numbers.is_causal(one)) == fails
    assert model.asked == [[5, 6, 15], [5, 6, 0]]  # as far as the context goes; the token after the last is the first
    one.prompt = lambda index: (None, (5,))
    assert numbers.is_causal(one).says == "the prompt has one token"


@pytest.mark.parametrize(
    ("unfit", "reason", "of_engine", "status"),
    [
        (None, None, None, "ok"),
        ("a state", None, None, "skipped"),
        (None, "logits that differ", None, "fail"),
        (None, None, "logprobs that differ in bfloat16", "fail"),
        (None, "no cache", None, "skipped"),
    ],
)
def test_a_cache_that_differs_is_told_from_none(
    unfit: str | None, reason: str | None, of_engine: str | None, status: str, monkeypatch: Monkey
) -> None:
    monkeypatch.setattr(numbers, "unfit", lambda config: unfit)
    monkeypatch.setattr(numbers, "probe", lambda model, runner, prompts: reason)
    monkeypatch.setattr(numbers, "engine_attention", lambda model: torch.no_grad())
    policy, engine = SimpleNamespace(prompts=()), SimpleNamespace(without_cache=of_engine)
    assert numbers.cache_is_exact(of(model=Model(), policy=policy, engine=engine)).status == status


@pytest.mark.parametrize(("gap", "fails"), [(0.9e-3, False), (1.1e-3, True)])
@pytest.mark.parametrize(("check", "at"), [(numbers.engine_is_trainer, 1.0), (numbers.engine_is_trainer_cooler, 0.7)])
def test_engine_and_trainer_agree_within_rounding(
    check: Callable[[Any], Any], at: float, gap: float, fails: bool, monkeypatch: Monkey
) -> None:
    asked = list[Any]()
    monkeypatch.setattr(numbers, "to_batch", lambda groups: Batch())
    monkeypatch.setattr(numbers, "logprobs", lambda trainer, batch: moved(gap))
    one = of(sample=lambda temperature: asked.append(temperature), trainer=lambda *given: asked.append(given))
    found = check(one)
    assert failed(found) == fails
    assert asked == [at, (at, "rows")]
    assert f"at temperature {at:g}, with 2 completions" in found.says


@pytest.mark.parametrize(
    ("leak", "shift", "says"),
    [
        (0.9e-3, 0.9e-3, "packed rows have"),
        (1.1e-3, 0.0, "a neighbor's tokens change a packed row's logprob by 0.0011"),
        (0.0, 1.1e-3, "a packed row's logprob differs by 0.0011 from the row alone"),
    ],
)
def test_packed_rows_see_no_neighbor(leak: float, shift: float, says: str, monkeypatch: Monkey) -> None:
    """The longest completion is changed; what changes with it in the other rows has leaked."""
    batch = Batch(prompt_lengths=torch.tensor([2, 3]))
    given = list[Any]()

    def logprobs(trainer: Any, one: Any) -> torch.Tensor:
        given.append(one.ids)
        found = moved(shift)
        found[0, 2] = 7.0 if len(given) == 2 else 0.0  # the changed row's own logprobs
        found[1, 3] = leak if len(given) == 2 else 0.0
        return found

    monkeypatch.setattr(numbers, "logprobs", logprobs)
    monkeypatch.setattr(numbers, "replace", lambda one, **more: Batch(**{**vars(one), **more}))
    one = of(model=Model(vocabulary=4), batch=batch, layout="shared", trainer=lambda layout: layout)
    found = numbers.packed_alone(one)
    assert found.says.startswith(says)
    assert failed(found) == (not says.startswith("packed rows have"))
    assert given[1].tolist() == [[0, 1, 3, 0], [4, 5, 6, 7]]  # other tokens, of the vocabulary


def test_a_model_that_takes_no_packed_rows_is_skipped(monkeypatch: Monkey) -> None:
    batch = Batch(prompt_lengths=torch.tensor([2, 3]))

    def fails(trainer: Any, one: Any) -> torch.Tensor:
        raise ValueError("no mask\nof that kind")

    monkeypatch.setattr(numbers, "logprobs", fails)
    monkeypatch.setattr(numbers, "replace", lambda one, **more: Batch(**{**vars(one), **more}))
    monkeypatch.setattr(numbers, "unfit", lambda config: "a state")
    one = of(model=Model(), batch=batch, layout="shared", trainer=lambda layout: layout)
    assert numbers.packed_alone(one).says.startswith("the model takes no packed rows (ValueError: no mask): it is")
    one.layout = "rows"
    assert numbers.packed_alone(one).says.startswith("the model has a state: it is trained in single rows")


class Slope:
    """A weight of two numbers, whose loss is their sum, bent and with noise; `told` times its gradient is told."""

    def __init__(self, *, told: float = 1.0, bend: float = 0.0, jump: float = 0.0, gradient: float = 1.0) -> None:
        self.told, self.bend, self.jump = told, bend, jump
        self.weight = torch.nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
        self.weight.grad = torch.tensor([gradient, gradient], dtype=torch.float64)
        self.policy = SimpleNamespace(parameters=lambda: [self.weight], dtype=torch.float32)
        self.optimizer = SimpleNamespace(state={1: 2})
        self.asked: dict[str, float] = {}

    def unchanged(self) -> Any:
        return torch.enable_grad()

    def trainer(self, **settings: float) -> Any:
        self.asked = settings
        return self

    def judged(self, trainer: Any) -> Any:
        return None

    def update(self, batch: Any, step: int) -> None: ...

    def loss(self, trainer: Any, batch: Any) -> float:
        by = float(self.weight.detach().sum()) - 7.0
        return (by + self.bend * by**3 + (self.jump if by > 0 else 0.0)) / self.told


@pytest.mark.parametrize(
    ("made", "fails"),
    [
        (Slope(), False),
        (Slope(told=1 / 1.019), False),
        (Slope(told=1 / 0.981), False),
        (Slope(told=1.03), True),
        (Slope(told=0.97), True),
        (Slope(told=1.1), True),
        (Slope(told=0.9), True),
        (Slope(told=2.0), True),
        (Slope(told=1.03, bend=1e3), True),  # the slope is found, not the step at which a bent loss looks right
        (Slope(told=0.9, bend=-1e4), True),
        (Slope(told=0.9, jump=1.0), True),
        (Slope(bend=1e5), False),  # straight enough at the smallest steps
        (Slope(jump=1.0), False),  # a jump on one side
        (Slope(gradient=0.0), True),
    ],
)
def test_a_gradient_is_the_slope_to_two_hundredths(made: Slope, fails: bool, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(numbers, "_loss", made.loss)
    one: Any = made
    found = numbers.gradient_is_slope(one)
    assert failed(found) == fails
    assert made.asked == {"learning_rate": numbers.NO_STEP, "max_grad_norm": 1e30}
    assert made.optimizer.state == {}
    if not float(made.weight.grad.sum() if made.weight.grad is not None else 0.0):
        assert found.says == "the gradient of the loss is 0"


def test_weights_of_half_precision_have_no_slope() -> None:
    one: Any = Slope()
    one.policy.dtype = torch.bfloat16
    assert numbers.gradient_is_slope(one).status == "skipped"


@pytest.mark.parametrize(
    ("padding", "end", "words", "says"),
    [
        (None, (5,), False, ""),
        (1, (5,), False, ""),
        (5, (5,), False, "the token 5 ends a turn and is the padding"),
        (ord("a"), (5,), False, "the token 97 stands inside texts and is the padding"),
        (ord("a"), (5,), True, ""),  # a tokenizer of words reads its own texts only
    ],
)
def test_the_padding_is_no_token_that_is_learnt(
    padding: int | None, end: tuple[int, ...], words: bool, says: str, monkeypatch: Monkey
) -> None:
    monkeypatch.setattr(numbers, "end_of_turn", lambda chat, said: end)
    monkeypatch.setattr(numbers, "answered", lambda one: ["so 7"])
    model = SimpleNamespace(get_input_embeddings=lambda: SimpleNamespace(padding_idx=padding))
    one = of(
        model=model,
        policy=SimpleNamespace(adapters=None),
        chat=None,
        config=SimpleNamespace(seed=0),
        task=SimpleNamespace(vocabulary=("7",) if words else None),
        coder=SimpleNamespace(encode=lambda text: [ord(letter) for letter in text]),
    )
    found = numbers.end_token_learns(one)
    assert failed(found) == bool(says)
    assert not says or found.says.startswith(says)
    if says:
        one.several_turns = False  # then nothing ends a turn
        assert failed(numbers.end_token_learns(one)) == (padding != 5)
    one.policy.adapters = object()
    assert numbers.end_token_learns(one).status == "skipped"


class Learner:
    """Two rows of which the first is rewarded; the update moves them, by its learning rate."""

    def __init__(
        self, up: float, down: float, *, least: float = 0.0, advantages: Sequence[float] = (1.0, -1.0)
    ) -> None:
        self.up, self.down, self.least, self.rates = up, down, least, list[float]()
        self.advantages = torch.tensor([[value] * 4 for value in advantages])
        self.objective = SimpleNamespace(loss_weights=lambda judged: torch.ones(2, 4))

    def step(self, one: Any, **settings: float) -> Any:
        rate = settings.get("learning_rate", 1e-6)
        self.rates.append(rate)
        after = torch.zeros(2, 4)
        if rate >= self.least:
            after[0, 2:], after[1, 2:] = self.up, self.down
        return self, SimpleNamespace(advantages=self.advantages), after


@pytest.mark.parametrize(
    ("learner", "says", "rates"),
    [
        (Learner(0.5, 0.25), "one update moved the logprob of a rewarded token by +0.5, of another by +0.25", 1),
        (Learner(0.25, 0.5, advantages=(3.0, 1.0)), "", 1),  # the sum that the step follows grew
        (Learner(-0.5, 0.25), "one update moved", 1),
        (Learner(0.5, -0.5, least=1e-3), "", 3),  # a step that is larger than rounding
        (Learner(0.5, -0.5, least=1e-4), "", 2),
        (Learner(0.0, 0.0), "one update moved", 4),
        (Learner(0.5, 0.25, advantages=(-1.0, 1.0)), "rewarded completions have the lower advantages", 1),
        (Learner(0.5, 0.25, advantages=(1.0, 1.0)), "rewarded completions have the lower advantages", 1),
    ],
)
def test_a_rewarded_completion_gets_likelier(learner: Learner, says: str, rates: int, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(numbers, "_stepped", learner.step)
    config = SimpleNamespace(algorithm=SimpleNamespace(reward_coef=1.0))
    found = numbers.update_follows_reward(of(batch=Batch(rewards=torch.tensor([1.0, 0.0])), config=config))
    right = (learner.up > learner.down or learner.advantages[0, 0] == 3.0) and float(learner.advantages[0, 0]) > float(
        learner.advantages[1, 0]
    )
    assert failed(found) == (not right)
    assert found.says.startswith(says)
    assert learner.rates == [1e-6, 1e-4, 1e-3, 1e-2][:rates]
    config.algorithm.reward_coef = 0
    assert numbers.update_follows_reward(of(config=config)).status == "skipped"


# -------------------------------------------------------------------------------------------------------------- steps


@pytest.mark.parametrize(
    ("share", "by", "says"),
    [
        (0.0101, 1.0, "one step at trainer.learning_rate=0.001 moves the logprob of a token by 1 nats"),
        (0.0099, 0.1, "a step at trainer.learning_rate=0.001 changes 0.0099 of the weights: the rest are rounded back"),
        (0.5, 1.01, "one step at trainer.learning_rate=0.001 moves the logprob of a token by 1 nats: it destroys"),
        (
            0.5,
            math.nan,
            "one step at trainer.learning_rate=0.001 moves the logprob of a token by inf nats: it destroys",
        ),
    ],
)
def test_a_step_changes_weights_and_leaves_the_policy(share: float, by: float, says: str, monkeypatch: Monkey) -> None:
    after = torch.zeros(2, 4)
    after[0, 2:], after[1, 2:] = by, -by
    after[:, 0] = 99.0  # not sampled
    monkeypatch.setattr(steps, "logprobs", lambda trainer, batch: after)
    made = SimpleNamespace(update=lambda judged, step: ({"policy/changed_weight_share": share}, None))
    config = SimpleNamespace(trainer=SimpleNamespace(learning_rate=1e-3))
    one = of(unchanged=torch.no_grad, trainer=lambda **_: made, judged=lambda trainer: None, config=config)
    found = steps.step_is_sized(one)
    assert found.says.startswith(says)
    assert failed(found) == (":" in says)
    assert found.remedy.startswith("raise" if share < 0.01 else "lower" if failed(found) else "")


# -------------------------------------------------------------------------------------------------------------- tools


def right_episodes(*turns: int) -> Any:
    found = [
        Solution(example=Example(id=f"e{n}", messages=(), answer=""), turns=[*[{"name": "look"}] * (k - 1), "so"])
        for n, k in enumerate(turns)
    ]
    return SimpleNamespace(solutions=lambda num: found[:num])


@pytest.mark.parametrize(
    ("turns", "status", "says"),
    [
        ((1, 1), "skipped", tools.NO_CALLS),
        ((), "skipped", tools.NO_CALLS),
        ((3, 3, 2), "ok", "3 right episodes take up to 3 turns, and an episode has 3"),
        ((4, 4, 2, 2), "ok", "4 right episodes take up to 4 turns"),  # half of them may be longer
        ((4, 4, 4, 2, 2), "fail", "3 of 5 right episodes take up to 4 turns, and an episode has 3"),
        ((2,) * 16 + (9,), "ok", "16 right episodes take up to 2 turns"),
    ],
)
def test_right_episodes_have_enough_turns(turns: tuple[int, ...], status: str, says: str) -> None:
    config = SimpleNamespace(task=SimpleNamespace(num_turns=3))
    found = tools.turns_suffice(of(task=right_episodes(*turns), config=config))
    assert found.status == status
    assert found.says.startswith(says)


@pytest.mark.parametrize(
    ("errors", "longest", "changed", "remedy"),
    [
        (2, 80, 1, ""),  # half of four calls, all of the room, one of three episodes
        (3, 80, 0, tools.CORRECT),
        (0, 81, 0, tools.SHORTEN),
        (0, 80, 2, tools.FORGET),
    ],
)
def test_calls_of_right_episodes_succeed_and_leave_room(
    errors: int, longest: int, changed: int, remedy: str, monkeypatch: Monkey
) -> None:
    """Of three episodes the first has two calls."""
    calls = dict[str, int]()

    def played(one: Any, example: Example, turns: Sequence[Any]) -> Any:
        calls[example.id] = calls.get(example.id, 0) + 1
        number = int(example.id[1:])
        told = {"tool_calls": 2.0 - (number > 0), "tool_errors": float(errors if number == 1 else 0)}
        second = calls[example.id] == 2 and number < changed
        ids = [(0,) * (longest if number == 2 else 5), (1,) * (4 if second else 3)]
        return SimpleNamespace(
            score=SimpleNamespace(diagnostics=told), turns=[SimpleNamespace(prompt_ids=one) for one in ids]
        )

    monkeypatch.setattr(tools, "played", played)
    monkeypatch.setattr(tools, "context_tokens", lambda policy: 100)
    config = SimpleNamespace(rollout=SimpleNamespace(max_completion_tokens=20))
    found = tools.tools_answer(of(task=right_episodes(3, 2, 2, 1), config=config, policy=None))
    assert (failed(found), found.remedy) == (bool(remedy), remedy)
    assert found.evidence == {"calls": 4, "failures": errors, "longest_prompt": longest, "room": 80}
    assert tools.tools_answer(of(task=right_episodes(1, 1))).says == tools.NO_CALLS


# ------------------------------------------------------------------------------------------------------------- tokens


def vocabulary(known: int, rows: int, stops: set[int], spare: float, monkeypatch: Monkey) -> Any:
    chances = torch.zeros(rows)
    chances[-1] = spare
    monkeypatch.setattr(tokens, "next_token", lambda one, ids: chances)
    tokenizer = SimpleNamespace(get_vocab=lambda: {f"t{n}": n for n in range(known)})
    model = SimpleNamespace(get_input_embeddings=lambda: SimpleNamespace(num_embeddings=rows))
    chat = SimpleNamespace(stop_ids=frozenset(stops))
    return tokens.vocabulary_fits(
        of(policy=SimpleNamespace(tokenizer=tokenizer), model=model, chat=chat, prompt=lambda index: (None, (1,)))
    )


@pytest.mark.parametrize(
    ("known", "rows", "stops", "spare", "says"),
    [
        (8, 8, {7}, 1.0, ""),
        (8, 10, {7}, 0.01, ""),
        (8, 10, {7}, 0.011, "2 rows of the model are no token, and they are sampled with probability 0.011"),
        (9, 8, {7}, 0.0, "1 tokens of the tokenizer have no row in the model"),
        (8, 10, {9}, 0.0, ""),  # an end token that the tokenizer does not know has a row
        (8, 10, {10}, 0.0, "the end tokens [10] are beyond the model's 10 rows and unknown to the tokenizer"),
        (9, 8, {10}, 0.0, "1 tokens of the tokenizer have no row in the model"),
    ],
)
def test_tokens_have_rows(known: int, rows: int, stops: set[int], spare: float, says: str, monkeypatch: Monkey) -> None:
    found = vocabulary(known, rows, stops, spare, monkeypatch)
    assert failed(found) == bool(says)
    assert not says or found.says == says
    assert not says or found.remedy.startswith("correct eos" if "end tokens" in says else "use the tokenizer")
    assert (found.evidence["tokens"], found.evidence["rows"]) == (known, rows)


@pytest.mark.parametrize(("chance", "fails"), [(1e-9, True), (1.1e-9, False), (math.nan, True)])
def test_ending_is_possible_somewhere(chance: float, fails: bool, monkeypatch: Monkey) -> None:
    """After the second of four prompts with their right answers, as the sum over the end tokens that have a row."""
    given = list[Any]()

    def next_token(one: Any, ids: Sequence[int]) -> torch.Tensor:
        given.append(tuple(ids))
        chances = torch.zeros(8, dtype=torch.float64)
        chances[3:5] = chance / 2 if len(given) == 2 else 0.0
        return chances

    monkeypatch.setattr(tokens, "next_token", next_token)
    one = of(
        model=Model(vocabulary=8),
        chat=SimpleNamespace(stop_ids=frozenset({3, 4, 99})),
        prompt=lambda index: (None, (index,)),
        task=Task(num=2),
        coder=SimpleNamespace(encode=lambda text: (len(text),)),
    )
    found = tokens.stop_is_possible(one)
    assert failed(found) == fails or math.isnan(chance)
    assert given == [(0, 6), (1, 6), (2,), (3,)]
    assert found.evidence["stop_ids"] == [3, 4, 99]


# ----------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize(("kl", "fails"), [(0.0299, False), (0.0301, True), (math.nan, True)])
def test_sampler_and_trainer_differ_by_less_than_is_wrong(kl: float, fails: bool, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(training, "to_batch", lambda groups: Batch())
    monkeypatch.setattr(training, "logprobs", lambda trainer, batch: moved(0.0))
    monkeypatch.setattr(training, "mismatch_log_weight", lambda old, new: (torch.zeros(2, 4), None))
    values = torch.where(Batch().loss_mask, kl, 9.0)
    monkeypatch.setattr(training, "kl_estimate", lambda gap, kind: values)
    config = SimpleNamespace(rollout=SimpleNamespace(temperature=1.0))
    one = of(sample=lambda temperature: (), trainer=lambda: None, config=config)
    one.as_run = one
    found = training.mismatch(one)
    assert failed(found) == fails
    assert math.isnan(kl) or found.evidence["mismatch_kl"] == pytest.approx(kl)


def test_what_cannot_be_sampled_as_the_run_does_is_told_with_its_settings() -> None:
    def sample(temperature: float) -> Any:
        raise UserError("logits are infinite")

    rollout, trainer = SimpleNamespace(temperature=1.0), SimpleNamespace(precision="fp16")
    config = SimpleNamespace(rollout=rollout, engine=SimpleNamespace(dtype="float16"), trainer=trainer)
    found = training.mismatch(of(as_run=of(sample=sample, config=config)))
    settings = "engine.dtype=float16, trainer.precision=fp16"
    assert found.says == f"in the run's own precision ({settings}) it cannot be sampled: logits are infinite"


@pytest.mark.parametrize(
    ("gap", "after", "fails"),
    [
        (0.9e-3, 1.0, False),
        (1.1e-3, 1.0, True),
        (0.9e-3, 1.7e-3, True),  # more than half of what the update moved
        (0.8e-3, 1.7e-3, False),
        (0.0, 0.0, True),  # nothing moved
    ],
)
def test_new_weights_reach_the_engine(gap: float, after: float, fails: bool, monkeypatch: Monkey) -> None:
    loaded, rates = list[int](), list[Any]()
    found = iter([moved(gap), moved(after)])
    monkeypatch.setattr(training, "to_batch", lambda groups: Batch())
    monkeypatch.setattr(training, "logprobs", lambda trainer, batch: next(found))
    made = SimpleNamespace(update=lambda judged, step: None)
    one = of(
        engine=SimpleNamespace(load_weights=loaded.append),
        unchanged=torch.no_grad,
        judged=lambda trainer: None,
        sample=lambda temperature: (),
        trainer=lambda *_, **settings: rates.append(settings) or made,
    )
    one.as_run = one
    assert failed(training.weights_reach_engine(one)) == fails
    assert loaded[-1] == 0  # the engine has the old weights again
    assert len(loaded) == 2
    assert rates[0] == {"epochs": 1, "learning_rate": training.LARGE_STEP}


@pytest.mark.parametrize(
    ("disk", "pages", "says"),
    [
        (400 + 2 * 200, 400 + 10 * 200, None),
        (400 + 2 * 200 - 1, 10**6, "of disk, and there are"),
        (10**6, 400 + 10 * 200 - 1, "of memory, and there are"),
    ],
)
def test_a_checkpoint_needs_room(disk: int, pages: int, says: str | None, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(training.os, "sysconf", lambda name: 1 if name == "SC_PAGE_SIZE" else pages)
    monkeypatch.setattr(training.shutil, "disk_usage", lambda root: SimpleNamespace(free=disk))
    trained = [torch.zeros(50)]
    one = of(
        root="root",
        model=SimpleNamespace(parameters=lambda: [*trained, torch.zeros(50)]),
        policy=SimpleNamespace(parameters=lambda: trained),
    )
    found = training._no_room(one)
    assert found is None if says is None else says in (found or "")


@pytest.mark.parametrize(
    ("trained", "fails"), [([torch.float32], False), ([torch.bfloat16, torch.float32], True), ([], True)]
)
def test_trained_weights_are_float32(trained: list[torch.dtype], fails: bool) -> None:
    model = SimpleNamespace(config=SimpleNamespace(), parameters=lambda: iter(()), dtype=torch.float32)
    policy = SimpleNamespace(
        model=model,
        adapters=None,
        dtype=torch.float32,
        parameters=lambda: [torch.zeros(1, dtype=dtype) for dtype in trained],
    )
    engine = LocalEngineSettings(dtype="float32")
    config = SimpleNamespace(trainer=SimpleNamespace(precision="fp32"), engine=engine)
    found = training.dtypes(of(policy=policy, as_run=of(config=config)))
    assert failed(found) == fails
    assert found.evidence["trained"] == sorted(str(dtype).removeprefix("torch.") for dtype in trained)
    assert found.evidence["products"] == "float32"


# ------------------------------------------------------------------------------------------------------------ weights


@pytest.mark.parametrize(("gap", "fails"), [(0.9e-5, True), (1.5e-5, False), (math.nan, True)])
def test_questions_give_other_probabilities(gap: float, fails: bool, monkeypatch: Monkey) -> None:
    """The last of four different ones among eight."""
    asked = list[Any]()

    def next_token(one: Any, ids: tuple[int, ...]) -> torch.Tensor:
        asked.append(ids)
        return torch.tensor([0.0, 0.5, 0.5 * math.exp(gap if ids == (4,) else 0.0)], dtype=torch.float64)

    monkeypatch.setattr(weights, "next_token", next_token)
    prompts = [(1,), (1,), (2,), (3,), (3,), (4,), (5,), (6,)]
    assert failed(weights.reads_prompt(of(prompt=lambda index: (None, prompts[index])))) == fails
    assert asked == [(1,), (2,), (3,), (4,)]
    assert weights.reads_prompt(of(prompt=lambda index: (None, (1,)))).status == "skipped"
    two = of(prompt=lambda index: (None, (1 if index < 7 else 4,)))
    assert failed(weights.reads_prompt(two)) == fails


@pytest.mark.parametrize(("nats", "fails"), [(0.9e-4, True), (1e-4, False)])
@pytest.mark.parametrize(
    ("cut", "remedy"),
    [((1, 0, 0), "raise rollout.temperature"), ((1, 5, 0), "sample from more"), ((0.9, 0, 0), "sample from more")],
)
def test_a_completion_has_a_choice(
    nats: float, fails: bool, cut: tuple[float, float, float], remedy: str, monkeypatch: Monkey
) -> None:
    """The least likely one; two turns are two completions."""

    def turn(*logprobs: float) -> Any:
        return SimpleNamespace(completion=SimpleNamespace(sampling_logprobs=logprobs))

    episodes = [SimpleNamespace(turns=[turn(0.0, 0.0)]), SimpleNamespace(turns=[turn(-nats / 2, -nats / 2), turn(0.0)])]
    rollout = SimpleNamespace(temperature=0.7, top_p=cut[0], top_k=cut[1], min_p=cut[2])
    asked = list[Any]()

    def sample(temperature: float, **how: float) -> Any:
        asked.append((temperature, how))
        return [SimpleNamespace(episodes=episodes)]

    found = weights.completions_vary(of(sample=sample, config=SimpleNamespace(rollout=rollout)))
    assert failed(found) == fails
    assert asked == [(0.7, {"top_p": cut[0], "top_k": cut[1], "min_p": cut[2]})]
    assert not fails or (found.says[:29], found.remedy[: len(remedy)]) == ("3 sampled completions have pr", remedy)


# -------------------------------------------------------------------------------------------------------------- texts


def test_every_awkward_piece_and_break_is_tried() -> None:
    texts = awkward(3)
    assert texts == awkward(3) != awkward(4)
    assert len(texts) == NUM_AWKWARD + 6
    whole = "\n".join(texts[:NUM_AWKWARD])
    assert not [piece for piece in PIECES if piece.strip() not in whole]
    assert not [chars for number, chars in enumerate(BREAKS[:-1]) if f"{number}.{chars}" not in texts[NUM_AWKWARD]]
    assert all(text == text.strip() for text in texts)
    assert texts[-5] == f"{texts[0]} {LONG} end"


def test_what_a_task_says_is_said_once() -> None:
    class Twice(Task):
        def train_example(self, index: int) -> Example:
            told = (Message(role="system", content="s"), Message(role="user", content=f"q{index // 2}"))
            return Example(id="e", messages=told, answer="")

    found = asked(of(task=Twice()))
    assert found[:3] == ["s", "q0", "q1"]
    assert len(found) == len(set(found))


def test_texts_are_shown_around_their_first_difference() -> None:
    same = "x" * 60
    found = patient.around(f"{same}abc{same}", f"{same}axc{same}", "one", "other")
    assert found == {"one": f"{'x' * 39}abc{'x' * 38}", "other": f"{'x' * 39}axc{'x' * 38}"}
    assert patient.around("abc", "abcd") == {"appended": "abc", "rendered": "abcd"}
    assert patient.around("b", "a") == {"appended": "b", "rendered": "a"}
