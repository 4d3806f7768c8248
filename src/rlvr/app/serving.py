"""A model of any kind behind an endpoint: with the words and the format of tool calls that its run taught it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from rlvr.app.inference import open_model
from rlvr.app.policies import ONE_THREAD_BELOW
from rlvr.app.sources import own_config
from rlvr.app.tasks import context_tokens, own_tool_format
from rlvr.chat.rendering import Chat
from rlvr.config import Config
from rlvr.core.engine import LocalEngine
from rlvr.engines.openai import PREFIX
from rlvr.errors import ConfigError, UserError
from rlvr.serve.sampling import Served
from rlvr.types import Message


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """What a user may choose about a served model."""

    names: tuple[str, ...] = ()  # what requests call it; none: as MODEL was given
    max_batch_size: int = 64
    max_queue: int = 512
    max_context_tokens: int | None = None  # None: what the model can
    tool_format: str | None = None  # None: that of the run, or of the chat template


@contextmanager
def open_served(
    model: str, settings: ServeSettings, config_dir: str | None = None
) -> Iterator[tuple[Served, list[str]]]:
    """A run folder, checkpoint, model folder or Hub id ready to be served, and what is unusual about it.

    Raises:
        UserError: there is no such model, it is damaged, or it is an endpoint already.
    """
    if model.startswith(PREFIX):
        raise UserError(f"{model} is an endpoint already: name a folder or a Hub id to serve.")
    config = own_config(model, config_dir=config_dir)
    with open_model(model, config.model.pretrained if config else None) as loaded:
        policy = loaded.policy
        few = 1 if policy.num_weights < ONE_THREAD_BELOW else os.cpu_count() or 1
        torch.set_num_threads((config.trainer.num_threads if config else None) or few)
        chat = Chat(
            policy.tokenizer,
            stop_words(config) if config else (),
            model=policy.model,
            tool_format=settings.tool_format or (own_tool_format(config) if config else "auto"),
        )
        wanted, most = settings.max_context_tokens, context_tokens(policy)
        if wanted is not None and wanted > most:
            raise ConfigError(f"--max-context-tokens {wanted}: the model can do with {most}; ask for that or fewer.")
        context = wanted or most
        engine = LocalEngine(policy.model, max_batch_size=settings.max_batch_size, max_context_tokens=context)
        served = Served(
            names=settings.names or (model,),
            engine=engine,
            chat=chat,
            vocabulary_size=policy.model.config.get_text_config().vocab_size,
            max_context_tokens=context,
            capacity=settings.max_batch_size + settings.max_queue,
        )
        try:
            yield served, _notes(chat)
        finally:
            engine.close()


def stop_words(config: Config) -> tuple[str, ...]:
    """The words that end a completion of the run's own task; its data are not loaded for that."""
    return tuple(dict.fromkeys(word for bundle in config.trained.values() for word in bundle.task.stop_words))


def _notes(chat: Chat) -> list[str]:
    system = (Message(role="system", content="x"), Message(role="user", content="x"))
    note = chat.note(system)
    ends = [] if chat.stop_ids else ["the model names no token that ends a completion: only max_tokens and stop do"]
    return [*([note] if note else []), *ends]
