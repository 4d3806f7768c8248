"""One prompt, one completion, one score."""

from collections.abc import Sequence

from rlvr.core.env import Reply
from rlvr.rewards.base import Verifier, run_verifier
from rlvr.types import Attempt, Example, Message, Score, ToolSchema, TurnText


class SingleTurnEnv:
    """Ends after one completion, scored against the example's answer.

    `tools` are offered to the model; calls of them are the verifier's to judge. It sees the text of the example's
    messages, without a chat template's markers. `state` is passed to it as `attempt.state`.
    """

    max_turns: int | None = 1
    tools: tuple[ToolSchema, ...] = ()

    def __init__(
        self, example: Example, verifier: Verifier, state: object = None, tools: Sequence[ToolSchema] = ()
    ) -> None:
        self._example, self._verifier, self._state = example, verifier, state
        self.tools = tuple(tools)
        self._started = False

    async def start(self) -> tuple[Message, ...]:
        """The example's messages; RuntimeError the second time."""
        if self._started:
            raise RuntimeError(f"the environment of example {self._example.id!r} is single-use and was started before")
        self._started = True
        return self._example.messages

    async def step(self, said: Message) -> Reply:
        return Reply(messages=(), done=True)

    async def score(self, turns: Sequence[TurnText]) -> Score:
        return await run_verifier(self._verifier, Attempt.of(self._example, turns, self._state))
