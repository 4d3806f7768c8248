"""A completion on a terminal while it is sampled."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr.core.engine.base import Engine, OnToken
    from rlvr.core.episode import ChatCodec
    from rlvr.types import Completion, SamplingParams

Write = Callable[[str], None]


class StreamedEngine:
    """An engine that writes what it samples, and between two turns what came back, as it goes.

    What the model says is shown, never interpreted: control characters are spelled out.
    """

    def __init__(self, engine: Engine, chat: ChatCodec, write: Write) -> None:
        self._engine, self._chat, self._write = engine, chat, write
        self._known = 0  # tokens of the episode that have been shown or asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)  # all else is the engine's

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        """As the engine's, written token by token; no half of a character is."""
        from rlvr.serve.transcript import Transcript

        if self._known:
            self._write(f"\n{shown(self._chat.decode(prompt_ids[self._known :]))}\n")
        transcript = Transcript(self._chat.decode)

        def add(token: int, logprob: float) -> None:
            transcript.add(token)
            self._write(shown(transcript.take()))
            if on_token is not None:
                on_token(token, logprob)

        completion = await self._engine.generate(prompt_ids, sampling, session=session, on_token=add)
        transcript.finish()
        self._write(shown(transcript.take()))
        self._known = len(prompt_ids) + len(completion.token_ids)
        return completion


def shown(text: str) -> str:
    """The text with its control characters spelled out, lines kept: `\\x1b[2J` reaches no terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)
