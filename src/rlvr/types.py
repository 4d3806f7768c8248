"""The records that travel between the parts of rlvr. Frozen, plain, and free of torch at import time.

Arrays that sit beside tokens always have the same length as the tokens; a mask says which of them count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor


ToolSchema = Mapping[str, Any]
"""A tool as JSON schema: `{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """What the model wants called: `ToolCall(id="call_0", name="get_document", arguments={"doc_id": "3"})`.

    `problem` says, in words for the model, why what it wrote is no call (no JSON, no name, arguments that are no
    object); name and arguments are then what could be read, or empty.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """`Message(role="user", content="<boe> 3 4 + =")`

    An assistant's message may call tools; a tool's message names the tool and the call that it answers.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    call_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One problem: `Example(id="3 4 +", messages=(Message(...),), answer="7", metadata={"num_operators": 1})`"""

    id: str
    messages: tuple[Message, ...]
    answer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


class StopReason(StrEnum):
    """Why a completion, or a whole episode, ended. Truncation is `LENGTH`; it is never inferred from the length."""

    STOP = "stop"  # a stop token was sampled
    LENGTH = "length"  # max_tokens or the context ran out before a stop token
    MAX_TURNS = "max_turns"  # the environment would have gone on
    ABORTED = "aborted"  # the engine gave the request up


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How one completion is drawn. `temperature=0` is greedy; `top_k=0`, `top_p=1`, `min_p=0` truncate nothing.

    `stop_ids` end the completion and are part of it. The draw is a function of `seed` and the token's position only,
    so it does not depend on the batch the request sits in.

    `priority` changes no draw: of the requests that wait for a place in the local engine those with the smallest number
    go first; among equals, those that came first.
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
        """True when sampling leaves out part of the vocabulary."""
        return self.temperature > 0 and (self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What the engine sampled after a prompt.

    `Completion(token_ids=(5, 12), behavior_logprobs=(-0.1, -0.02), sampling_logprobs=(-0.1, -0.02),
    stop_reason=StopReason.STOP, policy_version=3)`

    `behavior_logprobs[i]` is the log-probability of `token_ids[i]` under softmax(logits / temperature) over the whole
    vocabulary; `sampling_logprobs[i]` the one under the truncated distribution that was really sampled from (the same
    number where nothing is truncated). For greedy requests both are taken at temperature 1.

    `policy_version` is that of the weights the first token was sampled with. Weights that were loaded while the
    completion was sampled stand in `version_changes`: `((5, 4),)` says that tokens 5, 6, ... are of version 4.
    """

    token_ids: tuple[int, ...]
    behavior_logprobs: tuple[float, ...]
    sampling_logprobs: tuple[float, ...]
    stop_reason: StopReason
    policy_version: int
    version_changes: tuple[tuple[int, int], ...] = ()

    @property
    def policy_versions(self) -> tuple[int, ...]:
        """The version each token was sampled with."""
        starts = ((0, self.policy_version), *self.version_changes, (len(self.token_ids), -1))
        return tuple(version for (start, version), (end, _) in pairwise(starts) for _ in range(start, end))


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """`prompt_ids` is everything the model saw before it sampled `completion` (earlier turns included)."""

    prompt_ids: tuple[int, ...]
    completion: Completion


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnText:
    """A turn as text: `TurnText(prompt="<boe> 3 4 + =", completion="7 <eoe>", text="7", ..., num_tokens=2)`.

    `prompt` and `completion` have every special token; `text` lacks only the stop token that ended the completion. Of a
    later turn `prompt` is only what came since the completion before it: the environment's reply, with the header of
    the turn (all of a prompt that restarts). `calls` are the tools that the completion calls.
    """

    prompt: str
    completion: str
    text: str
    stop_reason: StopReason
    num_tokens: int
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What a reward or a metric sees: an example and an episode's completions.

    `Attempt(example=..., completion="7 <eoe>", text="7", stop_reason=StopReason.STOP, num_tokens=2)`

    `completion` has every special token; `text` lacks only the stop token that ended it. Of several turns they are the
    last one's; `num_tokens` (sampled ones) and `calls` are of all `turns`. `state` is what the environment keeps of the
    episode. `retrieved` and `cited` are document ids: those the model was shown and those it cites; empty for tasks
    without documents.
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
    state: Any = None
    format: Any = None  # AnswerFormat: where the prompt asks for the answer
    sandbox: Any = None  # rewards.sandbox.Sandbox: processes for code that can hang

    @property
    def prompt(self) -> str:
        """The messages of the example, line by line."""
        return "\n".join(message.content for message in self.example.messages)

    @property
    def answer(self) -> str | None:
        """The answer, read from where the prompt asks for it; None if there is none. Without `format`: the text."""
        if self.format is not None:
            return self.format.answer_of(self)
        return self.text.strip() or None if self.stop_reason is StopReason.STOP else None

    def with_format(self, answer_format: Any, sandbox: Any) -> Attempt:
        """What `replace` would make of it with this `format` and `sandbox`, in half the time: it is done for each."""
        copy = object.__new__(Attempt)
        for name in self.__slots__:
            object.__setattr__(copy, name, getattr(self, name))
        object.__setattr__(copy, "format", answer_format)
        object.__setattr__(copy, "sandbox", sandbox)
        return copy


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceStep:
    """One step of how an answer was reached, to be drawn: `TraceStep(kind="step", text="0 5 *", ok=True)`.

    The steps of an episode stand in the order in which they were made; documents follow the query that found them.
    `step` is a line of a derivation, `cite` a document that was cited (`id`), `answer` what was answered. `ok` says
    whether a step is right, a document supports the gold answer, an answer is correct; None where it is unknown.
    """

    kind: Literal["query", "document", "cite", "answer", "step"]
    text: str
    ok: bool | None = None
    id: str | None = None
    turn: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What a reward gives an episode: three states, never mixed up.

    - `scored`: `value` is the reward.
    - `invalid`: the completion could not be parsed; `value` is the reward for that (usually 0) and it is counted.
    - `error`: the verifier itself failed; `value` is NaN and the episode is left out of group mean, std and loss.

    `potentials`, if there are any, has one number a turn: how far the episode was before it. Algorithms that give each
    token its own return shape their rewards with them; no optimum moves (`core/algorithms/advantages.py`). `trace` is
    for people: how the answer was reached.
    """

    value: float
    status: Literal["scored", "invalid", "error"] = "scored"
    parts: Mapping[str, float] = field(default_factory=dict)
    diagnostics: Mapping[str, float | str] = field(default_factory=dict)
    potentials: tuple[float, ...] = ()
    trace: tuple[TraceStep, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedAnswer:
    """What a metric says of an episode, apart from any reward: `GradedAnswer(answer="7", correct=True)`.

    `answer` is None if the completion could not be parsed. `failure` says what kept the metric itself from grading:
    such an episode is neither right nor wrong.
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
    """The episodes of one example that are compared with each other."""

    example: Example
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBatch:
    """Rows of tokens ready to be scored and trained on. B rows, T tokens, right-padded; shapes in brackets.

    A row is an episode's whole token sequence (an episode whose template rewrote history gives several rows).
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
    episodes: Tensor  # [B] int64, index of the row's episode: rows of one episode stand together and share a reward
    valid: Tensor  # [B] bool, False for verifier errors: out of group statistics and loss
    truncated: Tensor  # [B] bool, the episode stopped for length
    policy_versions: Tensor | None = None  # [B, T] int64, of the weights each token was sampled with; -1 elsewhere
    potentials: Tensor | None = None  # [B, T] how far the episode was before each sampled token, 0 elsewhere
    old_logprobs: Tensor | None = None  # [B, T] the policy before the update, recomputed by the trainer
    reference_logprobs: Tensor | None = None  # [B, T] the frozen reference
    values: Tensor | None = None  # [B, T] the critic's, before the update
    advantages: Tensor | None = None  # [B, T], 0 where loss_mask is False
    returns: Tensor | None = None  # [B, T], targets of the critic

    def take(self, rows: Sequence[int] | Tensor) -> TokenBatch:
        """The given rows of every array, in that order."""
        arrays = {name: getattr(self, name) for name in self.__dataclass_fields__}
        rows = list(rows) if isinstance(rows, tuple | range) else rows  # a tuple would index several dimensions
        return replace(self, **{name: array[rows] for name, array in arrays.items() if array is not None})
