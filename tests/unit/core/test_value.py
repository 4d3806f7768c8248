"""Values of states: one pass with branches equals a pass for each, and episodes go on from any token."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlvr.core.engine import LocalEngine
from rlvr.core.env import Reply
from rlvr.core.episode import ChatModel
from rlvr.core.packing import Layout
from rlvr.core.policy import Policy
from rlvr.core.value import Branch, State, branch_logprobs, gold_logprobs, resample, state_ids, states
from rlvr.errors import UserError
from rlvr.types import Completion, Episode, Example, Message, SamplingParams, Score, StopReason, TurnText
from tests.unit.core.fakes import FakeChat, FakeEngine, completion, episode
from tests.unit.core.tiny import ARCHITECTURES, tiny_policy

EXAMPLE = Example(id="e", messages=(Message(role="user", content="ab"),), answer="c")
TWO_TURNS = episode(((1, 5, 6), completion(7, 8, 2)), ((1, 5, 6, 7, 8, 2, 9), completion(3, 4, 2)))


@torch.no_grad()
def alone(policy: Policy, branch: Branch) -> float:
    """By a forward pass of the model itself over this one sequence."""
    ids = torch.tensor([[*branch.prompt_ids, *branch.ids]])
    logprobs = torch.log_softmax(policy.model(input_ids=ids).logits[0].float(), -1)
    first = len(branch.prompt_ids)
    return sum(logprobs[first + i - 1, branch.ids[i]].item() for i in branch.counted)


BRANCHES = [
    Branch(prompt_ids=(1, 5, 6), ids=(7, 8, 2)),
    Branch(prompt_ids=(1, 5, 6), ids=(9, 10, 11, 2), start=1, end=3),
    Branch(prompt_ids=(1, 5, 6, 7, 8, 2, 9), ids=(9, 10, 11, 2), start=1, end=3),
    Branch(prompt_ids=(1, 5, 6, 7, 8, 2, 9, 12, 13, 14), ids=(9, 10, 11, 2), start=1, end=3),
    Branch(prompt_ids=(1, 5, 7), ids=(3,)),  # begins as the others and is no part of them
    Branch(prompt_ids=(4,), ids=(5, 6), start=2),  # nothing counts
    Branch(prompt_ids=(1, 5, 6), ids=(7, 8, 2)),
]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("layout", "max_tokens"), [("shared", 8192), ("shared", 12), ("rows", 20)])
def test_one_pass_with_branches_equals_a_pass_for_each(architecture: str, layout: Layout, max_tokens: int) -> None:
    policy = tiny_policy(architecture)
    found = branch_logprobs(policy, BRANCHES, layout=layout, max_tokens=max_tokens)
    assert found == pytest.approx([alone(policy, branch) for branch in BRANCHES], abs=2e-5)
    assert found[5] == 0.0
    assert found[1] != pytest.approx(found[2], abs=1e-3)  # the prompt matters


@pytest.mark.parametrize("max_tokens", [26, 40])
def test_passes_are_no_larger_than_asked(max_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, sizes = tiny_policy(), list[int]()
    hidden = type(policy).hidden

    def noted(self: Any, ids: torch.Tensor, *layout: torch.Tensor) -> torch.Tensor:
        sizes.append(ids.numel())
        return hidden(self, ids, *layout)

    monkeypatch.setattr(type(policy), "hidden", noted)
    branch_logprobs(policy, [Branch(prompt_ids=(k, *range(1, 12)), ids=(2,)) for k in range(7)], max_tokens=max_tokens)
    assert max(sizes) <= max_tokens
    assert len(sizes) < 7


def test_a_branch_needs_a_prompt() -> None:
    with pytest.raises(ValueError, match="needs a prompt"):
        branch_logprobs(tiny_policy(), [Branch(prompt_ids=(), ids=(3,))])


def test_states_are_before_turns_and_inside_of_completions() -> None:
    assert states(TWO_TURNS) == [State(turn=0), State(turn=1)]
    inside = states(TWO_TURNS, 2)
    assert inside == [State(turn=0), State(turn=0, tokens=2), State(turn=1), State(turn=1, tokens=2)]
    assert [state_ids(TWO_TURNS, state) for state in inside] == [
        (1, 5, 6),
        (1, 5, 6, 7, 8),
        (1, 5, 6, 7, 8, 2, 9),
        (1, 5, 6, 7, 8, 2, 9, 3, 4),
    ]
    empty = episode(((1, 5), completion(stop=StopReason.LENGTH)))
    assert states(empty, 1) == [State(turn=0)]


def test_the_gold_answer_is_scored_at_each_state_of_each_episode() -> None:
    policy = tiny_policy()
    other = episode(((1, 9), completion(3, 2)))
    gold, wrong = Branch(prompt_ids=(), ids=(9, 10, 2), start=1, end=2), Branch(prompt_ids=(), ids=(9, 11, 2), start=1)
    places = states(TWO_TURNS, 2)
    found = gold_logprobs(policy, [TWO_TURNS, other], [dict.fromkeys(places, gold), {State(turn=0): wrong}])
    by_hand = [alone(policy, replace(gold, prompt_ids=state_ids(TWO_TURNS, place))) for place in places]
    assert found[0] == pytest.approx(by_hand, abs=2e-5)
    assert found[1] == pytest.approx([alone(policy, replace(wrong, prompt_ids=(1, 9)))], abs=2e-5)


class Asking:
    """Answers each completion with one token, three turns long; notes what it heard. Right: the last token is even."""

    max_turns = 3
    tools = ()

    def __init__(self, reply: str = "5") -> None:
        self.heard: list[str] = []
        self._reply = reply

    async def start(self) -> tuple[Message, ...]:
        return EXAMPLE.messages

    async def step(self, said: Message) -> Reply:
        self.heard.append(said.content)
        return Reply(messages=(Message(role="user", content=self._reply),), done=False)

    async def score(self, turns: Sequence[TurnText]) -> Score:
        return Score(value=float(len(self.heard)))


class Codec(FakeChat):
    """Prompt 1 7; a reply is its number; 2 stops."""

    stop_ids = frozenset({2})

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[object] = ()) -> tuple[int, ...]:
        return (1, 7)

    def next_prompt(
        self,
        prompt_ids: tuple[int, ...],
        completion_ids: tuple[int, ...],
        conversation: Sequence[Message],
        reply: Sequence[Message],
        tools: Sequence[object] = (),
    ) -> tuple[int, ...]:
        return (*prompt_ids, *completion_ids, *(int(message.content) for message in reply))


class Counting(FakeEngine):
    """Samples 9 and the stop token."""

    async def sample(self, sampling: SamplingParams) -> Completion:
        return completion(9, 2, version=4)


RECORDED = episode(
    ((1, 7), completion(3, 4, 2)),
    ((1, 7, 3, 4, 2, 5), completion(6, 8, 2)),
    ((1, 7, 3, 4, 2, 5, 6, 8, 2, 5), completion(8, 2)),
)
SAMPLING = SamplingParams(max_tokens=5, stop_ids=frozenset({2}), seed=0)


def go_on(
    state: State, engine: FakeEngine, *, count: int = 2, reply: str = "5", recorded: Episode = RECORDED, most: int = 5
) -> tuple[list[Episode], list[Asking]]:
    envs: list[Asking] = []

    def new_env() -> Asking:
        envs.append(Asking(reply))
        return envs[-1]

    model = ChatModel(engine=engine, chat=Codec(), max_context_tokens=64)
    sampling = replace(SAMPLING, max_tokens=most)
    work = resample(model, new_env, EXAMPLE, recorded, state, count=count, sampling=sampling, seed=3)
    return asyncio.run(work), envs


def test_an_episode_goes_on_from_a_turn() -> None:
    engine = Counting()
    found, envs = go_on(State(turn=1), engine)
    assert [turn.prompt_ids for turn in found[0].turns[:2]] == [turn.prompt_ids for turn in RECORDED.turns[:2]]
    assert found[0].turns[0].completion == RECORDED.turns[0].completion
    assert found[0].turns[1].completion.token_ids == (9, 2)
    assert len(found[0].turns) == 3
    assert [env.heard for env in envs] == [["3 4 2", "9 2", "9 2"]] * 2  # a fresh one for each
    assert engine.prompts[0] == (1, 7, 3, 4, 2, 5)
    assert len({params.seed for params in engine.requests}) == 4  # two episodes, two sampled turns
    assert found[0].score.value == 3.0
    assert engine.sessions[0] is not None
    assert len(set(engine.sessions)) == 2  # one for each episode: its later turns reuse the cache of the first one


def test_a_completion_goes_on_from_a_token() -> None:
    engine = Counting()
    found, envs = go_on(State(turn=1, tokens=2), engine, count=1)
    begun = found[0].turns[1].completion
    assert begun.token_ids == (6, 8, 9, 2)
    assert begun.behavior_logprobs == (-0.1, -0.2, -0.1, -0.2)
    assert begun.policy_versions == (0, 0, 4, 4)
    assert engine.prompts[0] == (1, 7, 3, 4, 2, 5, 6, 8)
    assert engine.requests[0].max_tokens == 3  # of 5, two are said
    assert envs[0].heard[1] == "6 8 9 2"
    assert found[0].turns[2].completion.token_ids == (9, 2)  # later ones are not begun
    assert len(set(engine.sessions)) == 1
    assert None not in engine.sessions


def test_what_was_begun_keeps_its_own_numbers() -> None:
    done = replace(completion(6, 8, 2), sampling_logprobs=(-1.0, -2.0, -3.0))
    recorded = replace(RECORDED, turns=(RECORDED.turns[0], replace(RECORDED.turns[1], completion=done)))
    (found,), _ = go_on(State(turn=1, tokens=2), Counting(), count=1, recorded=recorded)
    assert found.turns[1].completion.sampling_logprobs == (-1.0, -2.0, -0.1, -0.2)


def test_a_completion_without_room_to_go_on_is_cut_off_there() -> None:
    engine = Counting()
    (found,), (env,) = go_on(State(turn=1, tokens=2), engine, count=1, most=2)
    assert engine.requests == []
    assert found.turns[1].completion.token_ids == (6, 8)
    assert found.stop_reason == StopReason.LENGTH
    assert env.heard == ["3 4 2"]  # what is unfinished is not answered


def test_episodes_of_one_example_go_on_with_draws_of_their_own() -> None:
    seeds = set[int]()
    for index in (0, 1):
        engine = Counting()
        go_on(State(turn=1), engine, recorded=replace(RECORDED, sample_index=index))
        seeds |= {params.seed for params in engine.requests}
    assert len(seeds) == 8


def test_an_environment_that_answers_otherwise_is_refused() -> None:
    with pytest.raises(UserError, match="answers otherwise than it did"):
        go_on(State(turn=1), Counting(), reply="6")


def test_resampling_by_the_engine_repeats_itself_and_differs_between_samples() -> None:
    policy = tiny_policy()

    def again(seed: int) -> list[tuple[int, ...]]:
        engine = LocalEngine(policy.model, max_batch_size=8, max_context_tokens=64)
        model = ChatModel(engine=engine, chat=Codec(), max_context_tokens=64)
        work = resample(
            model,
            Asking,
            EXAMPLE,
            RECORDED,
            State(turn=1),
            count=4,
            sampling=replace(SAMPLING, max_tokens=8),
            seed=seed,
        )
        return [one.turns[1].completion.token_ids for one in asyncio.run(work)]

    first = again(0)
    assert again(0) == first
    assert again(1) != first
    assert len(set(first)) > 1
