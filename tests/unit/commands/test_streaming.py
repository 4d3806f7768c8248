"""Output to a terminal while a completion is sampled."""

import asyncio
from collections.abc import Hashable, Sequence

from rlvr.chat.spelling import ByteStream
from rlvr.commands.predict import StreamedEngine
from rlvr.core.engine.base import OnToken
from rlvr.printable import printable
from rlvr.types import Completion, SamplingParams, StopReason

PARAMS = SamplingParams(max_tokens=9, stop_ids=frozenset(), seed=0)


class Bytes:
    """A byte is a token: characters beyond ASCII have several."""

    stop_ids: frozenset[int] = frozenset()

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def stream(self) -> ByteStream:
        return ByteStream(lambda token, _: bytes([token]))


class Saying:
    """An engine of given completions, which notes what was written at each token."""

    policy_version = 0

    def __init__(self, *texts: str) -> None:
        self.texts, self.written, self.seen = list(texts), "", list[str]()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        ids = tuple(self.texts.pop(0).encode())
        for token in ids:
            assert on_token is not None
            on_token(token, -0.5)
            self.seen.append(self.written)
        numbers = (-0.5,) * len(ids)
        return Completion(
            token_ids=ids,
            behavior_logprobs=numbers,
            sampling_logprobs=numbers,
            stop_reason=StopReason.STOP,
            policy_version=0,
        )

    def write(self, text: str) -> None:
        self.written += text


def test_tokens_are_written_at_once_characters_whole() -> None:
    engine = Saying("né🙂!")
    streamed = StreamedEngine(engine, Bytes(), engine.write)
    heard: list[int] = []
    completion = asyncio.run(streamed.generate(b"p", PARAMS, on_token=lambda token, logprob: heard.append(token)))
    assert engine.seen == ["n", "n", "né", "né", "né", "né", "né🙂", "né🙂!"]
    assert engine.written == "né🙂!"
    assert tuple(heard) == completion.token_ids


def test_the_reply_between_two_turns_is_written() -> None:
    engine = Saying("ask", "answer")
    streamed = StreamedEngine(engine, Bytes(), engine.write)
    asyncio.run(streamed.generate(b"p", PARAMS))
    asyncio.run(streamed.generate(b"pask<reply>", PARAMS))
    assert engine.written == "ask\n<reply>\nanswer"


def test_control_characters_reach_no_terminal() -> None:
    engine = Saying("\x1b[2Jred\x07\n\tdone")
    asyncio.run(StreamedEngine(engine, Bytes(), engine.write).generate(b"p", PARAMS))
    assert engine.written == "\\x1b[2Jred\\x07\n\tdone" == printable("\x1b[2Jred\x07\n\tdone")
