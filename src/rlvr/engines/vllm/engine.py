"""Sampling on vLLM servers: requests go to the least busy one, new weights to all.

A server may die at any time. Its requests are resent with their seeds, to another server or after its return;
completions from unexpected weights are discarded. So no completion is lost or doubled, and every token's version is the
one the server reported.

`load_weights` blocks the event loop while the servers pause; answers wait in the sockets.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlvr.core.engine.base import OnToken, empty_completion, within_context
from rlvr.core.world import ALONE, World
from rlvr.engines.settings import VllmEngineSettings
from rlvr.engines.vllm.extension.rlvr_vllm_launch import CONFIG_KEYS, vocabulary_digest
from rlvr.engines.vllm.fleet import Fleet
from rlvr.engines.vllm.push import Expected, Push, make_probe, make_prompts
from rlvr.engines.vllm.server import (
    RefusedError,
    Server,
    ServerGoneError,
    Span,
    client_settings,
    read_sampled,
    request_body,
    to_completion,
)
from rlvr.engines.vllm.weights import Parcel, WeightsFolder, as_served, full_weights, use_address
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.types import Completion, SamplingParams

if TYPE_CHECKING:
    from httpx2 import AsyncClient

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0


@dataclass(frozen=True, kw_only=True)
class _Connection:
    loop: asyncio.AbstractEventLoop
    client: AsyncClient
    gate: asyncio.Semaphore
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class VllmEngine:
    """Engine over the servers in `settings.urls`. Call `load_weights` before sampling.

    Raises UserError for a server that is missing or does not fit the policy. Once `stopped()` (called in any thread),
    it no longer waits for lost servers.
    """

    def __init__(
        self,
        policy: HubPolicy,
        settings: VllmEngineSettings,
        weights_dir: Path,
        *,
        max_context_tokens: int,
        world: World = ALONE,
        on_note: Callable[[str], None] = lambda text: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._policy, self._settings, self._world = policy, settings, world
        self._expected = expect(policy, sync=settings.sync)
        servers = [Server(url, timeout_s=settings.timeout_s) for url in settings.urls]
        first = world.rank % len(servers)  # idle ranks choose different servers
        servers = servers[first:] + servers[:first]
        self._run = world.first(uuid.uuid4().hex[:12])  # version names differ between runs
        self._fleet = Fleet(
            servers,
            self._expected,
            wait_s=settings.wait_s,
            on_note=on_note,
            stopped=stopped,
            locks=Path(tempfile.gettempdir(), f"rlvr-{self._run}") if world.size > 1 else None,
        )
        self._vocab_size = int(policy.model.config.get_text_config().vocab_size)
        if settings.broadcast_host is not None and world.is_first:  # the address belongs to rank 0's machine
            use_address(settings.broadcast_host)
        self.max_context_tokens = min(max_context_tokens, *(m.facts.max_model_len for m in self._fleet.members))
        self.release = self._fleet.release
        self.policy_version = 0
        self._noise: Mapping[torch.dtype, float] | None = None  # of the probe; measured at the first push
        self._folder = WeightsFolder(weights_dir)
        self._connection: _Connection | None = None

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        """See `Engine.generate`. A session's calls go to one server, for its prefix cache; `on_token` is called for all
        tokens at the end.

        UserError if no server is left, or one keeps returning invalid answers.
        """
        sampling = within_context(prompt_ids, sampling, self.max_context_tokens)
        if sampling.max_tokens <= 0:
            return empty_completion(self.policy_version)
        connection = self._connected()
        async with connection.gate:
            completion = await self._sample(connection, prompt_ids, sampling, session)
        if on_token is not None:
            for token, logprob in zip(completion.token_ids, completion.behavior_logprobs, strict=True):
                on_token(token, logprob)
        return completion

    async def _sample(
        self, connection: _Connection, prompt_ids: Sequence[int], sampling: SamplingParams, session: Hashable | None
    ) -> Completion:
        for attempt in itertools.count(1):
            member = await self._fleet.choose(connection.turn, session)
            num_looks, push = member.num_looks, self._fleet.newest
            body = request_body(push.adapter or member.model, prompt_ids, sampling)
            member.load += 1
            try:
                answer = await member.server.sample(connection.client, body)
                sampled = read_sampled(answer, sampling, self._vocab_size)
                if push.adapter is not None:  # a request keeps its adapter, whatever version the server reports by then
                    sampled = replace(sampled, spans=(Span(version=push.name, start=0, end=len(sampled.token_ids)),))
                versions = [self._number(span.version, push.version) for span in sampled.spans]
                return to_completion(sampled, sampling, versions)
            except (ServerGoneError, RefusedError) as error:
                problem = error
            finally:
                member.load -= 1
            if attempt > self._settings.max_retries:
                raise UserError(
                    f"the server {member.url} did not give a completion in {attempt} attempts ({problem}); see its "
                    "log, repair it, and go on with resume=true."
                )
            await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S))
            await self._fleet.recheck(connection.turn, member, num_looks, problem)
        raise AssertionError("count() does not end")

    def _number(self, name: str, oldest: int) -> int:
        """The version of a name. ServerGoneError for unexpected weights."""
        run, _, number = name.rpartition("/")
        if run != self._run or not number.isdecimal():
            raise ServerGoneError(f"it sampled with weights {name[:80]!r} that are not this run's")
        if not oldest <= int(number) <= self.policy_version:
            raise ServerGoneError(f"it sampled with the weights of version {number}, not {oldest}")
        return int(number)

    def load_weights(self, version: int) -> None:
        """Push the policy's weights to every server, and compare its logprobs with the policy's.

        Requests in flight pause and continue with the new weights. Collective; rank 0 writes and pushes. A server that
        is down gets the weights when it is back. UserError as in `push_to`, or if no server is up after
        `engine.wait_s`.
        """
        problem = None
        try:
            self._fleet.announce(self._publish(version))
            self.policy_version = version
            if self._world.is_first:
                self._fleet.deliver()
        except UserError as error:
            problem = str(error)
        problem = self._world.first(problem) or problem
        if problem is not None:
            raise UserError(problem)

    def _publish(self, version: int) -> Push:
        """Prepare the weights and the trainer's own probe logprobs.

        All ranks go through all tensors: gathering a sharded one is collective.
        """
        sync, source = self._settings.sync, self._folder.of(version)
        prompts = make_prompts(self._policy, self.max_context_tokens)
        probe = make_probe(self._policy, prompts, self._noise)  # collective, so before steps that may fail on one rank
        self._noise = probe.noise
        weights = iter(()) if sync == "adapter" else full_weights(self._policy)
        if sync == "broadcast":  # on every rank: each may have to update a server
            source = Parcel(
                tensors={name: as_served(value, self._dtype, copy=True) for name, value in weights},
                device=self._policy.model.device,
            )
        try:
            if sync == "folder" and self._world.is_first:
                self._folder.write(version, weights, self._dtype)
            if sync == "adapter" and self._world.is_first:
                self._folder.write_adapter(version, self._policy)
        finally:
            for _ in weights:
                pass
        return Push(
            version=version,
            name=f"{self._run}/{version}",
            source=source,
            adapter=f"{self._run}-{version}" if sync == "adapter" else None,
            probe=probe,
            tolerance=self._settings.max_logprob_gap,
        )

    @property
    def _dtype(self) -> torch.dtype:
        """Precision of the servers; float32 if they differ."""
        names = {member.facts.dtype for member in self._fleet.members}
        return getattr(torch, names.pop()) if len(names) == 1 else torch.float32

    def close(self) -> None:
        """Remove the weight files; servers keep their weights."""
        self._fleet.close()
        if self._world.is_first:
            self._folder.clear()

    def _connected(self) -> _Connection:
        import httpx2

        loop = asyncio.get_running_loop()
        if self._connection is None or self._connection.loop is not loop:
            urls = (member.url for member in self._fleet.members)
            client = httpx2.AsyncClient(**client_settings(*urls, read_s=self._settings.timeout_s))
            gate = asyncio.Semaphore(self._settings.max_batch_size)
            self._connection = _Connection(loop=loop, client=client, gate=gate)
        return self._connection


def expect(policy: HubPolicy, *, sync: str) -> Expected:
    """The properties a server needs to sample for the policy with `engine.sync`."""
    config = policy.model.config.get_text_config()
    rank = None
    if sync == "adapter":
        adapters: Any = policy.model.peft_config
        rank = max(one.r for one in adapters.values())
    return Expected(
        config={key: getattr(config, key, None) for key in CONFIG_KEYS},
        tokenizer=vocabulary_digest(policy.tokenizer.get_vocab()),
        is_float32=policy.dtype == torch.float32,
        adapter_rank=rank,
    )
