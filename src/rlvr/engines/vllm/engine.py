"""The engine that samples on vLLM servers: the least busy one gets the next request, all get the new weights.

A server may die at any time. Its requests are issued again, with their seeds, to another one, or to itself once it is
back; what a server sampled with other weights than it should have is thrown away. So no completion is lost or doubled,
and every token's version is what the server itself said.

`load_weights` blocks the event loop, while the servers hold still; answers wait in the sockets until it is done.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import uuid
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from rlvr.engines.base import OnToken
from rlvr.engines.vllm.broadcast import Parcel, own_address
from rlvr.engines.vllm.fleet import Fleet, Turns
from rlvr.engines.vllm.probe import make_probe, probe_prompts
from rlvr.engines.vllm.push import PARTIAL, Expected, Member, Push
from rlvr.engines.vllm.server import Server, client_settings
from rlvr.engines.vllm.weights import WeightsFolder, as_served, full_weights
from rlvr.engines.vllm.wire import (
    GENERATE,
    RefusedError,
    Sampled,
    ServerGoneError,
    Span,
    max_answer_bytes,
    read_sampled,
    request_body,
    to_completion,
)
from rlvr.errors import UserError
from rlvr.models.policy import Policy
from rlvr.types import Completion, SamplingParams, StopReason
from rlvr.world import ALONE, World

if TYPE_CHECKING:
    from httpx2 import AsyncClient

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """See `engine` in docs/configuration.md."""

    urls: tuple[str, ...]
    sync: Literal["folder", "adapter", "broadcast"]
    weights_dir: Path
    max_batch_size: int
    timeout_s: float
    wait_s: float
    max_retries: int
    max_logprob_gap: float | None
    broadcast_host: str | None = None  # None: by which address the servers are reached


@dataclass(frozen=True, kw_only=True)
class _Connection:
    """What belongs to one event loop."""

    loop: asyncio.AbstractEventLoop
    client: AsyncClient
    gate: asyncio.Semaphore
    turns: Turns = field(default_factory=Turns)


class VllmEngine:
    """A client of `settings.urls`. Nothing is sampled before the first `load_weights`.

    Raises UserError at once for a server that is not there or does not fit the policy. Once `stopped()`, which any
    thread may ask, nothing waits for a server that is gone.
    """

    def __init__(
        self,
        policy: Policy,
        settings: Settings,
        *,
        max_context_tokens: int,
        world: World = ALONE,
        on_note: Callable[[str], None] = lambda text: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._policy, self._settings, self._world = policy, settings, world
        self._expected = expect(policy, sync=settings.sync)
        servers = [Server(url, timeout_s=settings.timeout_s) for url in settings.urls]
        first = world.rank % len(servers)  # ranks that are all idle do not all choose the same
        servers = servers[first:] + servers[:first]
        self._fleet = Fleet(servers, self._expected, wait_s=settings.wait_s, on_note=on_note, stopped=stopped)
        self._max_context_tokens = min(max_context_tokens, *(m.facts.max_model_len for m in self._fleet.members))
        self._folder = WeightsFolder(settings.weights_dir)
        self._run = world.first(uuid.uuid4().hex[:12])  # two runs call their versions differently
        self._version = 0
        self._connection: _Connection | None = None

    @property
    def policy_version(self) -> int:
        """Of the weights the next token is sampled with."""
        return self._version

    @property
    def max_context_tokens(self) -> int:
        """Tokens that prompt and completion may have together, on every server."""
        return self._max_context_tokens

    # ---------------------------------------------------------------------------------------------------- sampling

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        """Sample one completion; see `Engine.generate`. A session's calls go to one server, which has its prefix.

        `on_token` hears of all tokens at the end. A completion that does not fit the context is cut, with
        `StopReason.LENGTH`.

        Raises:
            ValueError: the prompt is empty, or longer than the context.
            UserError: no server is there any more, or one keeps giving answers that are none.
        """
        if not len(prompt_ids):
            raise ValueError("the prompt is empty: there is nothing to continue")
        room = self._max_context_tokens - len(prompt_ids)
        if room < 0:
            raise ValueError(
                f"the prompt has {len(prompt_ids)} tokens, more than max_context_tokens={self._max_context_tokens}"
            )
        sampling = replace(sampling, max_tokens=min(room, sampling.max_tokens))
        if sampling.max_tokens <= 0:
            return _nothing(self._version)
        connection = self._connected()
        async with connection.gate:
            sampled, versions = await self._sample(connection, prompt_ids, sampling, session)
        completion = to_completion(sampled, sampling, versions)
        if on_token is not None:
            for token, logprob in zip(completion.token_ids, completion.behavior_logprobs, strict=True):
                on_token(token, logprob)
        return completion

    async def _sample(
        self,
        connection: _Connection,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session: Hashable | None,
    ) -> tuple[Sampled, list[int]]:
        """The completion and its spans' versions, from whichever server gives one."""
        for attempt in itertools.count(1):
            member = await self._fleet.choose(connection.turns, session)
            num_looks, push = member.num_looks, self._fleet.newest
            member.load += 1
            try:
                sampled = await self._ask(connection.client, member, push.adapter, prompt_ids, sampling)
                return self._with_versions(sampled, push)
            except (ServerGoneError, RefusedError) as error:
                problem = error
            finally:
                member.load -= 1
            if attempt > self._settings.max_retries:
                raise UserError(
                    f"the server {member.url} did not give a completion in {attempt} attempts ({problem}); see its "
                    "log, mend it, and go on with resume=true."
                )
            await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S))
            await self._fleet.see_to(connection.turns, member, num_looks, problem)
        raise AssertionError("count() does not end")

    async def _ask(
        self,
        client: AsyncClient,
        member: Member,
        adapter: str | None,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
    ) -> Sampled:
        body = request_body(adapter or member.model, prompt_ids, sampling)
        limit = self._settings.timeout_s
        try:
            async with asyncio.timeout(limit):
                answer = await member.server.sample(client, GENERATE, body, max_answer_bytes(sampling.max_tokens))
        except TimeoutError as error:
            raise ServerGoneError(f"nothing within engine.timeout_s={limit:g}") from error
        return read_sampled(answer, sampling, self._expected.vocab_size)

    def _with_versions(self, sampled: Sampled, push: Push) -> tuple[Sampled, list[int]]:
        """The completion, and our numbers of the weights that its spans were sampled with; `push` was the newest when
        it was asked for. An adapter's requests keep it to their end, whatever the server calls its weights by then.

        Raises ServerGoneError for other weights than should be there.
        """
        if push.adapter is None:
            return sampled, [self._number(span.version, push.version) for span in sampled.spans]
        whole = Span(version=push.name, start=0, end=len(sampled.token_ids))
        return replace(sampled, spans=(whole,)), [push.version]

    def _number(self, name: str, oldest: int) -> int:
        run, _, number = name.rpartition("/")
        if run != self._run or not number.isdecimal():
            hint = "" if name in ("default", PARTIAL) else "; is another run pushing weights to it?"
            raise ServerGoneError(f"it sampled with weights {name[:80]!r} that are not this run's{hint}")
        if not oldest <= int(number) <= self._version:
            raise ServerGoneError(f"it sampled with the weights of version {number}, not {oldest}")
        return int(number)

    def release(self, session: Hashable) -> None:
        """Forget which server a session has; unknown ones are ignored."""
        self._fleet.release(session)

    # ----------------------------------------------------------------------------------------------------- weights

    def load_weights(self, version: int) -> None:
        """Give every server the policy's weights, and compare what they compute with what the policy does.

        What is being sampled stands still meanwhile and goes on with the new weights. Ranks of one world call it
        together: one writes and pushes. A server that is not there gets the weights when it is back.

        Raises:
            UserError: see `push_to`; or no server is there after `engine.wait_s`.
        """
        problem = None
        try:
            self._fleet.announce(self._publish(version))
            self._version = version
            if self._world.is_first:
                self._fleet.deliver()
        except UserError as error:
            problem = str(error)
        problem = self._world.first(problem) or problem
        if problem is not None:
            raise UserError(problem)

    def _publish(self, version: int) -> Push:
        """Write the weights where the servers find them, and what the trainer says with them."""
        adapter = self._settings.sync == "adapter"
        prompts = probe_prompts(self._expected.vocab_size, self._max_context_tokens)
        probe = make_probe(self._policy, prompts)  # by all ranks, and so before what may fail on one of them
        if adapter:
            files = self._folder.of(version)
            if self._world.is_first:
                self._folder.write_adapter(version, self._policy)
            parcel = None
        elif self._settings.sync == "broadcast":
            files, parcel = self._folder.of(version), self._held()
        else:
            files, parcel = self._write(version), None
        return Push(
            version=version,
            name=f"{self._run}/{version}",
            files=files,
            parcel=parcel,
            adapter=f"{self._run}-{version}" if adapter else None,
            probe=probe,
            tolerance=self._settings.max_logprob_gap,
        )

    def _write(self, version: int) -> Path:
        """Every rank goes through all tensors: a cut one is put together by all of them."""
        weights = full_weights(self._policy)
        try:
            if self._world.is_first:
                self._folder.write(version, weights, self._dtype)
        finally:
            for _ in weights:
                pass
        return self._folder.of(version)

    def _held(self) -> Parcel:
        """On every rank, each of which may have to bring a server up to date."""
        weights = full_weights(self._policy)
        return Parcel(
            tensors={name: as_served(value, self._dtype, copy=True) for name, value in weights},
            host=self._settings.broadcast_host or own_address(self._settings.urls),
            limit_s=self._settings.timeout_s,
            has_gpu=self._policy.model.device.type == "cuda",
        )

    @property
    def _dtype(self) -> torch.dtype:
        """As all servers keep the weights; float32 where they differ."""
        names = {member.facts.dtype for member in self._fleet.members}
        return getattr(torch, names.pop()) if len(names) == 1 else torch.float32

    def close(self) -> None:
        """Remove the files of the weights; servers keep what they have."""
        if self._world.is_first:
            self._folder.clear()

    def _connected(self) -> _Connection:
        import httpx2

        loop = asyncio.get_running_loop()
        if self._connection is None or self._connection.loop is not loop:
            urls = (member.url for member in self._fleet.members)
            client = httpx2.AsyncClient(**client_settings(*urls, read_s=None))  # a completion is silent until its end
            gate = asyncio.Semaphore(self._settings.max_batch_size)
            self._connection = _Connection(loop=loop, client=client, gate=gate)
        return self._connection


def expect(policy: Policy, *, sync: str) -> Expected:
    """What a server must have to sample for the policy, whose weights it gets by `engine.sync`."""
    config = policy.model.config.get_text_config()
    rank = None
    if sync == "adapter":
        if policy.adapters is None:
            raise ValueError("engine.sync=adapter: the policy has no adapters")
        settings_of_adapters: Any = policy.model.peft_config
        rank = max(one.r for one in settings_of_adapters.values())
    return Expected(
        vocab_size=int(config.vocab_size),
        hidden_size=int(config.hidden_size),
        num_layers=int(config.num_hidden_layers),
        tokenizer=vocabulary_digest(policy.tokenizer.get_vocab()),
        is_float32=policy.dtype == torch.float32,
        adapter_rank=rank,
    )


def vocabulary_digest(ids: dict[str, int]) -> str:
    """Of which id every token has; as the extension computes it on the server's side."""
    text = "\n".join(f"{index}\t{token}" for token, index in sorted(ids.items(), key=lambda item: (item[1], item[0])))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _nothing(version: int) -> Completion:
    return Completion(
        token_ids=(), behavior_logprobs=(), sampling_logprobs=(), stop_reason=StopReason.LENGTH, policy_version=version
    )
