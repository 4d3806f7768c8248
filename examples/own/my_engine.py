"""An engine of your own: another process samples, from weights that it reads as files.

In the folder of this file:

    rlvr train --config-name rpn_test engine=my_engine:Elsewhere
    rlvr train --config-name rpn_test engine=my_engine:Elsewhere engine.num_threads=2

Ray, SGLang or a server of yours take the place of the process and its pipe. Its draws are those of engine=local.
"""

import asyncio
import multiprocessing
import shutil
import signal
import threading
from collections.abc import Hashable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from rlvr.core.engine.base import Engine, OnToken, empty_completion, within_context
from rlvr.core.engine.sampler import RowSampling, sample
from rlvr.engines.settings import EngineContext, EngineSettings
from rlvr.errors import ConfigError, UserError
from rlvr.models.loading import load_for_inference
from rlvr.run_view import RunView
from rlvr.settings import PositiveInt, setting
from rlvr.types import Completion, SamplingParams, StopReason


class Elsewhere(EngineSettings):
    """One process that samples one completion at a time."""

    num_threads: PositiveInt = setting(1, "CPU threads of the process")

    def check_run(self, run: RunView) -> None:
        if run.model.adapted:
            raise ConfigError("engine=my_engine:Elsewhere: samples from whole models; set model.lora.enabled=false.")

    def open(self, context: EngineContext) -> Engine:
        return Asking(context, self.num_threads)


class Asking:
    def __init__(self, context: EngineContext, num_threads: int) -> None:
        self.policy_version, self.max_context_tokens = 0, context.max_context_tokens
        self._policy, self._folder = context.policy, context.folder / f"weights_{context.world.rank}"
        self._turn, processes = threading.Lock(), multiprocessing.get_context("spawn")
        self._pipe, its_end = processes.Pipe()
        self._process = processes.Process(target=serve, args=(its_end, num_threads), daemon=True)
        self._process.start()
        its_end.close()  # so that each sees when the other has ended

    def _ask(self, *question: Any) -> Any:
        with self._turn:
            try:
                self._pipe.send(question)
                return self._pipe.recv()
            except (EOFError, OSError) as error:
                raise UserError("the process that samples has ended; go on with resume=true") from error

    def load_weights(self, version: int) -> None:
        self._policy.save(self._folder)
        self._ask(version, str(self._folder))
        self.policy_version = version

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        sampling = within_context(prompt_ids, sampling, self.max_context_tokens)
        if sampling.max_tokens <= 0:
            return empty_completion(self.policy_version)
        completion = await asyncio.to_thread(self._ask, list(prompt_ids), sampling)
        for token, logprob in zip(completion.token_ids, completion.behavior_logprobs, strict=True):
            if on_token is not None:
                on_token(token, logprob)
        return completion

    def release(self, session: Hashable) -> None:
        """It keeps nothing between the turns of an episode."""

    def close(self) -> None:
        self._pipe.close()
        self._process.join()
        shutil.rmtree(self._folder, ignore_errors=True)


def serve(pipe: Connection, num_threads: int) -> None:
    """The other process: reads weights, or samples, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which finishes its step
    torch.set_num_threads(num_threads)
    version, model = 0, None
    while True:
        try:
            first, second = pipe.recv()
        except EOFError:
            return
        if isinstance(first, int):
            version, model = first, load_for_inference(second).model
            pipe.send(None)
        else:
            pipe.send(sampled(model, version, first, second))


@torch.no_grad()
def sampled(model: Any, version: int, ids: list[int], sampling: SamplingParams) -> Completion:
    """One completion, token by token."""
    row, draws, end = RowSampling.of([sampling], torch.device("cpu")), [], StopReason.LENGTH
    while len(draws) < sampling.max_tokens and end == StopReason.LENGTH:
        logits = model(input_ids=torch.tensor([ids])).logits[:, -1]
        draws.append(sample(logits, torch.tensor([len(ids)]), row, truncates=sampling.truncates))
        ids = [*ids, int(draws[-1].ids)]
        end = StopReason.STOP if ids[-1] in sampling.stop_ids else end
    return Completion(
        token_ids=tuple(ids[-len(draws) :]),
        behavior_logprobs=tuple(float(draw.behavior_logprobs) for draw in draws),
        sampling_logprobs=tuple(float(draw.sampling_logprobs) for draw in draws),
        stop_reason=end,
        policy_version=version,
    )
