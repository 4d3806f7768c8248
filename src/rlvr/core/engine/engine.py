"""The local engine: an asynchronous front of the scheduler."""

import asyncio
import logging
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlvr.core.devices import current, first_line, free, is_out_of_memory
from rlvr.core.engine.base import Alternatives, OnToken, empty_completion, within_context
from rlvr.core.engine.request import Request
from rlvr.core.engine.scheduler import Scheduler
from rlvr.core.engine.select import choose_runner
from rlvr.core.engine.shared_prefix import engine_attention
from rlvr.errors import UserError
from rlvr.types import Completion, SamplingParams

log = logging.getLogger(__name__)


class LocalEngine:
    """Continuous batching in this process over the weights of `model` itself, without a copy.

    At most `max_batch_size` completions run at a time. Calls are admitted by priority, then in the order they were
    made, so a program that makes them in a fixed order gets fixed results. One task of the event loop steps the batch
    while there is work and lets other tasks run between two steps.

    Call `load_weights(version)` after the weights have changed: cached keys and values are of the old ones. A model
    that is a copy of the policy takes `weights`, which are copied by name at every load.

    On out of memory, unfinished completions start again, half as many at a time from then on. With the same seeds the
    tokens are the same, up to the rounding of smaller batches.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_batch_size: int,
        max_context_tokens: int,
        weights: Callable[[], Iterable[tuple[str, Tensor]]] | None = None,
        on_note: Callable[[str], None] = log.warning,
    ):
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if limit is not None and max_context_tokens > limit:
            raise ValueError(f"max_context_tokens={max_context_tokens} exceeds the model's {limit} positions")
        self._model, self._weights = model, weights
        self._max_batch_size = max_batch_size
        self.max_context_tokens = max_context_tokens  # of prompt and completion together
        self._note = on_note
        with self._serving(), engine_attention(model):
            self._make_runner, reason = choose_runner(model)
        self._scheduler = self._make_scheduler()
        if reason is not None:
            warnings.warn(
                f"{type(model).__name__} has {reason}: completions are sampled without a key/value cache, slowly",
                stacklevel=2,
            )
        self._driver: asyncio.Task[None] | None = None

    @property
    def policy_version(self) -> int:
        """See `Engine.policy_version`."""
        return self._scheduler.policy_version

    @property
    def num_running(self) -> int:
        """Completions that are being sampled."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that have not started."""
        return len(self._scheduler.waiting)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        on_token: OnToken | None = None,
        alternatives: Alternatives | None = None,
    ) -> Completion:
        """Sample one completion; see `Engine.generate`. `alternatives` collects likely tokens beside the drawn ones.

        A completion that does not fit the context is cut, with `StopReason.LENGTH`. Raises ValueError for an empty
        prompt and for one longer than the context, and whatever a step of its batch raised.
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
        """Forget what is kept of a session; unknown ones are ignored."""
        self._scheduler.release(session)

    def load_weights(self, version: int) -> None:
        """The weights have changed: drop every cached key and value.

        Completions in flight go on under the new weights; `Completion.version_changes` says from which token on.
        """
        if self._weights is not None:
            own = dict(self._model.named_parameters())
            with torch.no_grad():
                for name, value in self._weights():
                    own[name].copy_(value)
        self._scheduler.new_weights(version)

    def close(self) -> None:
        """Drop what is cached; callers that wait are cancelled."""
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
        self._fail_all(asyncio.CancelledError())

    async def _drive(self) -> None:
        """Step while there is work: one stretch of serving."""
        try:
            with engine_attention(self._model):
                while self._scheduler.has_work:
                    await self._settle()
                    if self._scheduler.has_work:
                        self._step()
        except GeneratorExit:  # its event loop is gone, and its callers with it
            raise
        except BaseException as error:
            self._fail_all(error)
            if not isinstance(error, Exception):  # a caller has got it
                raise

    async def _settle(self) -> None:
        """Let other tasks run until they make no new requests: those are batched together."""
        waiting = -1
        while waiting != self.num_waiting:
            waiting = self.num_waiting
            await asyncio.sleep(0)

    def _make_scheduler(self) -> Scheduler:
        num_slots = self._max_batch_size
        with self._serving():  # in any thread: what records steps belongs to the model's device
            runner = self._make_runner(self._model, num_slots)
        budget = num_slots * self.max_context_tokens
        return Scheduler(runner, num_slots=num_slots, max_cached_tokens=budget, device=self._model.device)

    def _step(self) -> None:
        try:
            with self._serving():
                self._scheduler.step()
            return
        except BaseException as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)
        # out here the error is gone, with the frames that held the tensors of the failed step
        self._halve(reason)

    def _halve(self, reason: str) -> None:
        """Begin again, half as many completions at a time; UserError if it was a single one."""
        together = min(self._max_batch_size, len(self._scheduler.undelivered))
        said = f"out of memory with up to {together} completions sampled together ({reason})"
        if together <= 1:
            raise UserError(f"{said}: lower rollout.max_completion_tokens, or train a smaller model")
        self._max_batch_size = together // 2
        scheduler = self._make_scheduler()
        scheduler.new_weights(self._scheduler.policy_version)
        requests, self._scheduler = self._scheduler.drop_all(), scheduler
        free()
        self._note(f"{said}: going on with {self._max_batch_size} at a time")
        for request in requests:
            if request.on_token is not None and request.policy_version >= 0:  # its first tokens have been told
                request.fail(UserError(f"{said}: ask again"))
            else:
                request.restart()
                scheduler.submit(request)

    def _fail_all(self, error: BaseException) -> None:
        """Nothing of a broken step can be trusted: every caller gets the error, every cache is dropped."""
        for request in self._scheduler.drop_all():
            request.fail(error)

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """No gradients and no dropout, on the model's device."""
        if self._model.training:
            self._model.train(False)
        with torch.inference_mode(), current(self._model.device):
            yield
