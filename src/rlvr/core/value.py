"""What a state inside an episode is worth: the logprob of the gold answer there, and the episodes that go on from it.

    <q> where p3              a state before each turn
    <call> search p3 </call>      <ans> c4 </ans>      one branch for each state, in one forward pass:
    <tool> p3 works-at o7 .       <ans> c4 </ans>      a branch sees the episode up to its state, and nothing after it
    <call> search o7 </call>
    <tool> o7 located-in c4 .     <ans> c4 </ans>

`gold_logprobs` says what the text so far gives away of the answer, whatever the policy will do; `resample` shows what
the policy makes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from rlvr.core.env import Env
from rlvr.core.episode import ChatModel, Prefix, run_episode
from rlvr.core.packing import Layout
from rlvr.core.policy import Policy
from rlvr.errors import UserError
from rlvr.seeding import derive_seed
from rlvr.types import Completion, Episode, Example, SamplingParams, StopReason

MAX_TOKENS = 8192
"""Tokens of a forward pass, with padding; a longer line has a pass of its own."""


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A continuation `ids` of a prompt, of which the tokens `ids[start:end]` count."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    start: int = 0
    end: int | None = None

    @property
    def counted(self) -> range:
        """Indices in `ids`."""
        return range(*slice(self.start, self.end).indices(len(self.ids)))


@dataclass(frozen=True, kw_only=True, order=True)
class State:
    """A place in an episode: before completion `turn`, or after the first `tokens` of its tokens."""

    turn: int
    tokens: int = 0


def states(episode: Episode, every: int | None = None) -> list[State]:
    """The states before each turn, and inside of completions after each `every` tokens; never after the last token."""
    places = []
    for number, turn in enumerate(episode.turns):
        length = len(turn.completion.token_ids)
        places += [State(turn=number, tokens=tokens) for tokens in range(0, max(length, 1), every or max(length, 1))]
    return places


def state_ids(episode: Episode, state: State) -> tuple[int, ...]:
    """Everything that the model has seen and said."""
    turn = episode.turns[state.turn]
    return turn.prompt_ids + turn.completion.token_ids[: state.tokens]


# ------------------------------------------------------------------------------------------------- the gold answer


def gold_logprobs(
    policy: Policy,
    episodes: Sequence[Episode],
    answers: Sequence[Mapping[State, Branch]],
    *,
    layout: Layout = "shared",
    max_tokens: int = MAX_TOKENS,
) -> list[list[float]]:
    """For each episode the log-probability of its answer at each of its states, in nats: `[[-3.0, -3.1, -0.04], ...]`.

    `answers` has for each episode its states, with the completion that answers there (its `prompt_ids` are not read;
    see `rlvr.tasks.gold`). `layout` is that of training (`rlvr.models.layout`).
    """
    branches = [
        replace(branch, prompt_ids=state_ids(episode, state))
        for episode, places in zip(episodes, answers, strict=True)
        for state, branch in places.items()
    ]
    logprobs = iter(branch_logprobs(policy, branches, layout=layout, max_tokens=max_tokens))
    return [list(islice(logprobs, len(places))) for places in answers]


@torch.no_grad()
def branch_logprobs(
    policy: Policy, branches: Sequence[Branch], *, layout: Layout = "shared", max_tokens: int = MAX_TOKENS
) -> list[float]:
    """The summed logprob of the counted tokens of each branch, in nats at temperature 1.

    A prompt that begins another one is a part of it: the states of an episode share one copy of its tokens. With
    layout=rows, for models that do not take our attention mask, each branch has a row of its own.
    """
    totals = [0.0] * len(branches)
    for lines in _passes(_lines(branches, shared=layout == "shared"), max_tokens):
        numbers, logprobs = policy.run(_forward, policy, lines, layout == "rows")
        for number, logprob in zip(numbers, logprobs.tolist(), strict=True):
            totals[number] += logprob
    return totals


@dataclass(frozen=True, kw_only=True)
class _Line:
    trunk: tuple[int, ...]
    branches: list[tuple[int, Branch]]  # with their numbers

    @property
    def length(self) -> int:
        return len(self.trunk) + sum(len(branch.ids) for _, branch in self.branches)


def _lines(branches: Sequence[Branch], *, shared: bool) -> list[_Line]:
    """Branches by trunk, in an order in which prompts follow the longer ones that they begin."""
    lines: list[_Line] = []
    for number, branch in sorted(enumerate(branches), key=lambda one: one[1].prompt_ids, reverse=True):
        if not branch.prompt_ids:
            raise ValueError("a branch needs a prompt: its first token has no prediction")
        known = lines[-1].trunk[: len(branch.prompt_ids)] if lines and shared else None
        if known == branch.prompt_ids:
            lines[-1].branches.append((number, branch))
        else:
            lines.append(_Line(trunk=branch.prompt_ids, branches=[(number, branch)]))
    return sorted(lines, key=lambda line: line.length)  # by length: little padding


def _passes(lines: Sequence[_Line], max_tokens: int) -> Iterator[list[_Line]]:
    part: list[_Line] = []
    for line in lines:
        if part and (len(part) + 1) * line.length > max_tokens:
            yield part
            part = []
        part.append(line)
    if part:
        yield part


def _forward(policy: Policy, lines: Sequence[_Line], plain: bool) -> tuple[list[int], Tensor]:
    """The number of the branch and the logprob of each counted token."""
    length = max(line.length for line in lines)
    ids = torch.zeros(len(lines), length, dtype=torch.long)
    positions = torch.zeros_like(ids)
    allowed = torch.eye(length, dtype=torch.bool).repeat(len(lines), 1, 1)  # padding attends to itself
    numbers, predictors, targets = list[int](), list[int](), list[int]()
    for row, line in enumerate(lines):
        start = len(line.trunk)
        ids[row, :start] = torch.tensor(line.trunk)
        positions[row, :start] = torch.arange(start)
        allowed[row, :start, :start] = _causal(start)
        for number, branch in line.branches:
            prompt, size = len(branch.prompt_ids), len(branch.ids)
            ids[row, start : start + size] = torch.tensor(branch.ids)
            positions[row, start : start + size] = torch.arange(prompt, prompt + size)
            allowed[row, start : start + size, :prompt] = True
            allowed[row, start : start + size, start : start + size] = _causal(size)
            before = [prompt - 1, *range(start, start + size - 1)]  # the token that predicts each one
            numbers += [number] * len(branch.counted)
            predictors += [row * length + before[place] for place in branch.counted]
            targets += [branch.ids[place] for place in branch.counted]
            start += size
    device = policy.model.device
    layout = () if plain else (positions.to(device), allowed.to(device))
    hidden = policy.hidden(ids.to(device), *layout).flatten(0, 1)[torch.tensor(predictors, device=device)]
    logprobs = policy.predict(hidden, torch.tensor(targets, device=device), temperature=1.0).logprobs
    return numbers, logprobs.float().cpu()


def _causal(size: int) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool).tril()


# --------------------------------------------------------------------------------------------- going on from a state


async def resample(
    model: ChatModel,
    new_env: Callable[[], Env],
    example: Example,
    episode: Episode,
    state: State,
    *,
    count: int,
    sampling: SamplingParams,
    seed: int = 0,
) -> list[Episode]:
    """`count` episodes that say what the episode said up to the state, and go on from there; scored.

    A fresh environment hears the recorded completions, so that tools run again. The draws are a function of `seed`,
    the episode and the state. UserError if the environment answers otherwise than it did in the episode.
    """
    if not (0 <= state.turn < len(episode.turns)) or state.tokens not in range(
        max(1, len(episode.turns[state.turn].completion.token_ids))
    ):
        raise UserError(f"{state} is no state of an episode of {len(episode.turns)} turns: see rlvr.core.value.states.")
    before = episode.turns[state.turn]
    started = _first(before.completion, state.tokens) if state.tokens else None
    prefix = Prefix(completions=tuple(turn.completion for turn in episode.turns[: state.turn]), started=started)

    async def continued(number: int) -> Episode:
        place = (example.id, episode.sample_index, state.turn, state.tokens, number)

        def params(turn: int) -> SamplingParams:
            return replace(sampling, seed=derive_seed(seed, "value", *place, turn))

        played = await run_episode(example, new_env(), model, params, sample_index=number, seed=seed, prefix=prefix)
        if len(played.turns) <= state.turn or played.turns[state.turn].prompt_ids != before.prompt_ids:
            raise UserError(
                f"the environment of example {example.id!r} answers otherwise than it did in the recorded episode, so "
                f"that there is no going on from turn {state.turn + 1}."
            )
        return played

    return list(await asyncio.gather(*map(continued, range(count))))


def _first(completion: Completion, count: int) -> Completion:
    """The first tokens of a completion, as one that was cut off."""
    changes = tuple(change for change in completion.version_changes if change[0] < count)
    return replace(
        completion,
        token_ids=completion.token_ids[:count],
        behavior_logprobs=completion.behavior_logprobs[:count],
        sampling_logprobs=completion.sampling_logprobs[:count],
        stop_reason=StopReason.LENGTH,
        version_changes=changes,
    )
