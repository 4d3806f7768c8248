"""The local engine: asynchronous interface to the scheduler."""

import asyncio
import logging
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlvr.core.devices import current, first_line, free, is_out_of_memory
from rlvr.core.engine.base import Allowed, Alternatives, OnToken, empty_completion, within_context
from rlvr.core.engine.packed import PackedLinears
from rlvr.core.engine.request import Request
from rlvr.core.engine.rows import Rows
from rlvr.core.engine.scheduler import Scheduler
from rlvr.core.engine.select import choose_runner
from rlvr.core.engine.shared_prefix import engine_attention
from rlvr.core.errors import SamplingMemoryError
from rlvr.core.noise import Prompts
from rlvr.errors import UserError
from rlvr.types import Completion, SamplingParams

log = logging.getLogger(__name__)


class LocalEngine:
    """In-process continuous batching over the weights of `model` itself, without a copy.

    At most `max_batch_size` completions run at once. Calls are admitted by priority, then in call order, so a fixed
    order of calls gives fixed results. One task of the event loop steps the batch while requests remain and lets other
    tasks run between steps.

    Call `load_weights(version)` after the weights have changed: cached keys and values belong to the old ones. For a
    model that is a copy of the policy, `weights` yields the tensors copied by name at every load. At the start the
    cache is compared with plain forward passes on text of `prompts`.

    After out of memory, unfinished completions restart with half the batch size. With the same seeds the tokens are the
    same, up to rounding in smaller batches.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_batch_size: int,
        max_context_tokens: int,
        weights: Callable[[], Iterable[tuple[str, Tensor]]] | None = None,
        on_note: Callable[[str], None] = log.warning,
        prompts: Prompts = (),
    ):
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if limit is not None and max_context_tokens > limit:
            raise ValueError(f"max_context_tokens={max_context_tokens} exceeds the model's {limit} positions")
        self._model, self._weights = model, weights
        self._max_batch_size = max_batch_size
        self.max_context_tokens = max_context_tokens  # of prompt and completion together
        self._note = on_note
        self._packed = PackedLinears(model)
        with self._serving(), engine_attention(model):
            self._make_runner, reason = choose_runner(model, prompts)
        self.without_cache = reason  # why completions are sampled without one, slowly; None: they are not
        # a plain forward keeps its own attention: some models compute another one than they are switched to (Falcon)
        self._attention = engine_attention if reason is None else nullcontext
        self._scheduler = self._make_scheduler()
        if reason is not None:
            warnings.warn(
                f"{type(model).__name__} has {reason}: completions are sampled without a key/value cache, slowly",
                stacklevel=2,
            )
        self._driver: asyncio.Task[None] | None = None

    @property
    def policy_version(self) -> int:
        return self._scheduler.policy_version

    @property
    def num_running(self) -> int:
        """Completions in the batch."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests not started yet."""
        return len(self._scheduler.waiting)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        on_token: OnToken | None = None,
        alternatives: Alternatives | None = None,
        allowed: Allowed | None = None,
    ) -> Completion:
        """Sample one completion; see `Engine.generate`. `alternatives` collects the likeliest tokens; `allowed` says
        which tokens may come next.

        A completion that does not fit the context is cut, with `StopReason.LENGTH`. Raises ValueError for an empty
        prompt or one longer than the context, and any error of a step of its batch.
        """
        sampling = within_context(prompt_ids, sampling, self.max_context_tokens)
        if sampling.max_tokens <= 0:
            return empty_completion(self.policy_version)
        loop = asyncio.get_running_loop()
        request = Request(
            prompt_ids=tuple(prompt_ids),
            sampling=sampling,
            future=loop.create_future(),
            session=session,
            on_token=on_token,
            alternatives=alternatives,
            allowed=allowed,
        )
        self._scheduler.submit(request)
        if self._driver is None or self._driver.done() or self._driver.get_loop() is not loop:
            self._driver = loop.create_task(self._drive())
        try:
            return await request.future
        except asyncio.CancelledError:
            self._scheduler.abort(request)
            raise

    def release(self, session: Hashable) -> None:
        self._scheduler.release(session)

    def load_weights(self, version: int) -> None:
        """The policy has new weights: drop every cached key and value.

        Completions in flight continue with the new weights; see `Completion.version_changes`.
        """
        if self._weights is not None:
            parameters = dict(self._model.named_parameters())
            with torch.no_grad():
                for name, value in self._weights():
                    parameters[name].copy_(value)
        self._packed.clear()
        self._scheduler.new_weights(version)

    def close(self) -> None:
        """Drop the cache; cancel waiting callers."""
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
        self._fail_all(asyncio.CancelledError())

    async def _drive(self) -> None:
        """Step until no request remains."""
        try:
            with self._attention(self._model):
                while self._scheduler.has_work:
                    await self._settle()
                    if self._scheduler.has_work:
                        self._step_or_halve()
        except GeneratorExit:  # the event loop and its callers are gone
            raise
        except BaseException as error:
            self._fail_all(error)
            if not isinstance(error, Exception):  # callers have got it
                raise

    async def _settle(self) -> None:
        """Let other tasks run until they make no new requests, so that those are batched together."""
        waiting = -1
        while waiting != self.num_waiting:
            waiting = self.num_waiting
            await asyncio.sleep(0)

    def _step(self) -> None:
        """Sample the first token of requests that start, then one for every running row."""
        with self._serving(), self._packed.active():
            self._scheduler.step()

    def _make_scheduler(self) -> Scheduler:
        num_slots = self._max_batch_size
        with self._serving():  # recorded steps belong to the model's device, in any thread
            rows = Rows(self._make_runner(self._model, num_slots), self._model.device)
        budget = num_slots * self.max_context_tokens
        return Scheduler(rows, num_slots=num_slots, max_cached_tokens=budget)

    def _step_or_halve(self) -> None:
        try:
            self._step()
            return
        except BaseException as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)
        # outside `except`: the traceback no longer holds the tensors of the failed step
        self._halve(reason)

    def _halve(self, reason: str) -> None:
        """Restart unfinished requests with half the batch size; SamplingMemoryError if it was 1."""
        together = min(self._max_batch_size, len(self._scheduler.undelivered))
        error = SamplingMemoryError(together, reason)
        if together <= 1:
            raise error
        self._max_batch_size = together // 2
        scheduler = self._make_scheduler()
        scheduler.new_weights(self._scheduler.policy_version)
        requests = self._scheduler.drop_all()
        self._scheduler = scheduler
        free()
        self._note(f"{error}: going on with {self._max_batch_size} at a time")
        for request in requests:
            if request.on_token is not None and request.policy_version >= 0:  # its first tokens are delivered
                request.fail(UserError(f"{error}: ask again"))
            else:
                request.restart()
                scheduler.submit(request)

    def _fail_all(self, error: BaseException) -> None:
        """A failed step leaves no valid state: fail every request, drop every cache."""
        for request in self._scheduler.drop_all():
            request.fail(error)

    @contextmanager
    def _serving(self) -> Iterator[None]:
        if self._model.training:
            self._model.train(False)
        with torch.inference_mode(), current(self._model.device):
            yield
