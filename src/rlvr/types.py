"""The records shared by all parts of rlvr: frozen dataclasses, free of torch at import time.

Arrays that go with tokens have the same length as the tokens; a mask says which tokens count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rlvr.reasoning import THINK, Marks, split

if TYPE_CHECKING:
    from torch import Tensor


ToolSchema = Mapping[str, Any]
"""A tool as JSON schema: `{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A tool call of the model: `ToolCall(id="call_0", name="get_document", arguments={"doc_id": "3"})`.

    `problem` tells the model why its text is no valid call (invalid JSON, no name, arguments that are no object); name
    and arguments then hold the readable part, or are empty.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """`Message(role="user", content="<boe> 3 4 + =")`

    An assistant's message may call tools; a tool's message names the tool and the call it answers. Data and clients may
    give an assistant's `reasoning` apart; that of a completion stays in its content, between the model's marks.
    `unread` are their other fields, which rlvr does not know and a chat template might.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    call_id: str | None = None
    reasoning: str | None = None
    unread: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One problem: `Example(id="3 4 +", messages=(Message(...),), answer="7", metadata={"num_operators": 1})`

    `tools` are offered by the example itself: the model may call them, and they are not executed. `row` are the fields
    that the data give it, as they are there; `metadata` is what tasks and rewards know of it, under names of theirs.
    """

    id: str
    messages: tuple[Message, ...]
    answer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[ToolSchema, ...] = ()
    row: Mapping[str, Any] = field(default_factory=dict)


class StopReason(StrEnum):
    """Why a completion, or a whole episode, ended. Truncation is `LENGTH`; it is never inferred from the length."""

    STOP = "stop"  # a stop token was sampled
    LENGTH = "length"  # max_tokens or the context ran out before a stop token
    MAX_TURNS = "max_turns"  # the environment would have continued
    ABORTED = "aborted"  # the engine dropped the request


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """Sampling of one completion. `temperature=0` is greedy; `top_k=0`, `top_p=1`, `min_p=0` truncate nothing.

    `stop_ids` end the completion and are part of it. The draw is a function of `seed` and the token's position only,
    not of the batch.

    `priority` changes no draw: the local engine admits waiting requests by smallest `priority`, then by arrival.
    """

    max_tokens: int
    stop_ids: frozenset[int]
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    priority: int = 0

    @property
    def truncates(self) -> bool:
        """Whether sampling truncates the vocabulary."""
        return self.temperature > 0 and (self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """The engine's output for a prompt.

    `Completion(token_ids=(5, 12), behavior_logprobs=(-0.1, -0.02), sampling_logprobs=(-0.1, -0.02),
    stop_reason=StopReason.STOP, policy_version=3)`

    `behavior_logprobs[i]` is the log-probability of `token_ids[i]` under softmax(logits / temperature) over the whole
    vocabulary; `sampling_logprobs[i]` that under the truncated distribution it was sampled from (equal without
    truncation). For greedy requests both use temperature 1.

    `policy_version` is the version of the weights for the first token. `version_changes` lists weights loaded during
    sampling: `((5, 4),)` means that tokens 5, 6, ... are of version 4.
    """

    token_ids: tuple[int, ...]
    behavior_logprobs: tuple[float, ...]
    sampling_logprobs: tuple[float, ...]
    stop_reason: StopReason
    policy_version: int
    version_changes: tuple[tuple[int, int], ...] = ()

    @property
    def policy_versions(self) -> tuple[int, ...]:
        """The version of the weights for each token."""
        starts = ((0, self.policy_version), *self.version_changes, (len(self.token_ids), -1))
        return tuple(version for (start, version), (end, _) in pairwise(starts) for _ in range(start, end))

    def followed_by(self, rest: Completion) -> Completion:
        """One completion of both; each token keeps its version."""
        length = len(self.token_ids)
        changes = [(0, rest.policy_version), *rest.version_changes]
        moved = tuple((length + place, version) for place, version in changes)
        return replace(
            rest,
            token_ids=self.token_ids + rest.token_ids,
            behavior_logprobs=self.behavior_logprobs + rest.behavior_logprobs,
            sampling_logprobs=self.sampling_logprobs + rest.sampling_logprobs,
            policy_version=self.policy_version,
            version_changes=self.version_changes + moved,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """`prompt_ids` is everything the model saw before `completion`, earlier turns included, unless it `restarts`."""

    prompt_ids: tuple[int, ...]
    completion: Completion
    restarts: bool = False  # the environment replaced the conversation before this turn


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnText:
    """A turn as text: `TurnText(prompt="<boe> 3 4 + =", completion="7 <eoe>", text="7", ..., num_tokens=2)`.

    `prompt` and `completion` include all special tokens; `text` lacks only the final stop token. In later turns
    `prompt` holds only what follows the previous completion: the environment's reply and the turn's header (the whole
    prompt if it restarts). `calls` are the completion's tool calls. `marks` enclose its reasoning, which the prompt may
    have `opened`.
    """

    prompt: str
    completion: str
    text: str
    stop_reason: StopReason
    num_tokens: int
    calls: tuple[ToolCall, ...] = ()
    marks: Marks = THINK
    opened: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """The input of rewards and metrics: an example and an episode's completions.

    `Attempt(example=..., completion="7 <eoe>", text="7", stop_reason=StopReason.STOP, num_tokens=2)`

    `completion` includes all special tokens; `text` lacks only the final stop token. With several turns both come from
    the last one; `num_tokens` (sampled) and `calls` cover all `turns`. `state` belongs to the environment. `retrieved`
    and `cited` are ids of documents shown to the model and cited by it; empty for tasks without documents.
    """

    example: Example
    completion: str
    text: str
    stop_reason: StopReason
    num_tokens: int
    calls: tuple[ToolCall, ...] = ()
    turns: tuple[TurnText, ...] = ()
    retrieved: tuple[str, ...] = ()
    cited: tuple[str, ...] = ()
    marks: Marks = THINK  # of reasoning, in the last turn
    opened: bool = False  # whether its prompt opened reasoning
    state: Any = None
    format: Any = None  # AnswerFormat: the answer format the prompt asks for
    sandbox: Any = None  # rewards.sandbox.Sandbox: runs code that can hang

    @classmethod
    def of(cls, example: Example, turns: Sequence[TurnText], state: object | None = None) -> Attempt:
        """The attempt of an episode with these turns."""
        last = turns[-1]
        return cls(
            example=example,
            completion=last.completion,
            text=last.text,
            stop_reason=last.stop_reason,
            num_tokens=sum(turn.num_tokens for turn in turns),
            calls=tuple(call for turn in turns for call in turn.calls),
            turns=tuple(turns),
            marks=last.marks,
            opened=last.opened,
            state=state,
        )

    @property
    def prompt(self) -> str:
        """The messages of the example, line by line."""
        return "\n".join(message.content for message in self.example.messages)

    @property
    def answer(self) -> str | None:
        """The answer in the format the prompt asks for; None if missing. Without `format`: the text."""
        if self.format is not None:
            return self.format.answer_of(self)
        return self.said.strip() or None if self.stop_reason is StopReason.STOP else None

    @property
    def said(self) -> str:
        """The text without reasoning, where answers stand; empty if reasoning does not end."""
        return split(self.text, self.marks, opened=self.opened)[1]

    def with_own_example(self) -> Attempt:
        """With a copy of its example for a user's code, which may change it: the episodes of a question share one."""
        return replace(self, example=deepcopy(self.example))

    def with_format(self, answer_format: Any, sandbox: Any) -> Attempt:
        """`replace(self, format=..., sandbox=...)` in half the time; called for every episode."""
        copy = object.__new__(Attempt)
        for name in self.__slots__:
            object.__setattr__(copy, name, getattr(self, name))
        object.__setattr__(copy, "format", answer_format)
        object.__setattr__(copy, "sandbox", sandbox)
        return copy


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceStep:
    """One step of a reasoning trace, for display: `TraceStep(kind="step", text="0 5 *", ok=True)`.

    Steps are in the order they were made; documents follow the query that found them. `step` is a line of a derivation,
    `cite` a cited document (`id`), `answer` the answer. `ok` says whether a step is right, a document supports the gold
    answer, or an answer is correct; None if unknown.
    """

    kind: Literal["query", "document", "cite", "answer", "step"]
    text: str
    ok: bool | None = None
    id: str | None = None
    turn: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LateGrade:
    """A part of a reward that depends on how likely the gold answer is to the policy.

    `prompts` ask the example's question again; `value` maps the probabilities of its answer after each (the geometric
    mean of its tokens') to the unweighted value of the part.
    """

    weight: float
    prompts: tuple[tuple[Message, ...], ...]
    value: Callable[[Sequence[float]], float]


LARGEST_REWARD = 1e12
"""An update squares rewards and adds them up in float32, which ends at 3e38."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The reward of an episode, with one of three statuses:

    - `scored`: `value` is the reward.
    - `invalid`: the completion could not be parsed; `value` is the reward for that (usually 0) and it is counted.
    - `error`: the verifier itself failed; `value` is NaN and the episode is left out of group mean, std and loss.

    `potentials` is empty or has one number per turn: the potential before it. Algorithms with token returns use them
    for reward shaping, which keeps the optimal policy (`algorithms/advantages.py`). `trace` shows how the answer
    was reached. `late` has the parts that only the policy can grade, by name: they are not in `value` and `parts` yet.
    """

    value: float
    status: Literal["scored", "invalid", "error"] = "scored"
    parts: Mapping[str, float] = field(default_factory=dict)
    diagnostics: Mapping[str, float | str] = field(default_factory=dict)
    potentials: tuple[float, ...] = ()
    trace: tuple[TraceStep, ...] = ()
    late: Mapping[str, LateGrade] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedAnswer:
    """A metric's verdict on an episode, independent of the reward: `GradedAnswer(answer="7", correct=True)`.

    `answer` is None if the completion could not be parsed. `failure` says why the metric could not grade the episode,
    which then counts as neither right nor wrong.
    """

    answer: str | None
    correct: bool
    failure: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """One rollout of one example.

    `turns[i + 1].prompt_ids` starts with turn i's prompt + completion, unless a chat template rewrote history.
    """

    example_id: str
    sample_index: int
    seed: int
    turns: tuple[Turn, ...]
    score: Score
    stop_reason: StopReason
    texts: tuple[TurnText, ...] = ()  # of the turns, as verifiers and metrics read them


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The episodes of one example; their rewards are compared."""

    example: Example
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBatch:
    """Token rows to score and train on. B rows, T tokens, right-padded; shapes in brackets.

    A row is an episode's whole token sequence; an episode with a rewritten history has several rows.
    For the episode `prompt=[1, 7] completion=[5, 9]`, with 9 the stop token:

        ids                1     7     5     9
        loss_mask          0     0     1     1      sampled tokens only
        behavior_logprobs  0     0    -.3   -.1     logprob of ids[t] given ids[:t], at the sampling temperature
    """

    ids: Tensor  # [B, T] int64
    lengths: Tensor  # [B] int64, tokens in the row (the rest is padding)
    prompt_lengths: Tensor  # [B] int64, tokens before the first sampled one; shared by the rows of a group
    loss_mask: Tensor  # [B, T] bool
    behavior_logprobs: Tensor  # [B, T] float32, 0 where loss_mask is False
    rewards: Tensor  # [B] float32, the episode's reward (0 where not valid)
    groups: Tensor  # [B] int64, index of the row's group
    episodes: Tensor  # [B] int64, index of the row's episode: rows of one episode are adjacent and share a reward
    valid: Tensor  # [B] bool, False for verifier errors: out of group statistics and loss
    truncated: Tensor  # [B] bool, the episode stopped for length
    policy_versions: Tensor | None = None  # [B, T] int64, of the weights each token was sampled with; -1 elsewhere
    potentials: Tensor | None = None  # [B, T] potential before each sampled token, 0 elsewhere
    advantages: Tensor | None = None  # [B, T], 0 where loss_mask is False
    returns: Tensor | None = None  # [B, T], targets of the critic
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """[B, ...] what the trainer computed for the algorithm, by name: `old_logprobs` (the policy before the update),
    `reference_logprobs`, the critic's `values`, each [B, T], and others (`rlvr.algorithms.columns`)."""

    def with_columns(self, **columns: Tensor) -> TokenBatch:
        return replace(self, columns={**self.columns, **columns})

    def take(self, rows: Sequence[int] | Tensor) -> TokenBatch:
        """These rows of every array, in this order."""
        arrays = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "columns"}
        rows = list(rows) if isinstance(rows, tuple | range) else rows  # a tuple would index several dimensions
        columns = {name: array[rows] for name, array in self.columns.items()}
        taken = {name: array[rows] for name, array in arrays.items() if array is not None}
        return replace(self, columns=columns, **taken)


class Predictions(NamedTuple):
    """fp32 outputs of a forward pass: for the N predicted tokens of a microbatch, or for rows [b, T]."""

    logprobs: Tensor
    entropy: Tensor  # of the distribution the token was drawn from
    values: Tensor | None = None  # the critic's estimate before the token was drawn

    def map(self, function: Callable[[Tensor], Tensor]) -> Predictions:
        logprobs, entropy, values = self
        return Predictions(function(logprobs), function(entropy), None if values is None else function(values))
