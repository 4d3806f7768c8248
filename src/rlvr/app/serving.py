"""A model of any kind behind an endpoint: with the words and the format of tool calls that its run taught it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from rlvr.app.chats import own_tool_format
from rlvr.app.inference import open_model, run_of
from rlvr.app.policies import ONE_THREAD_BELOW, context_tokens
from rlvr.chat.rendering import Chat
from rlvr.config import Config
from rlvr.config.compose import NO_TRACKER, load_config
from rlvr.engines.local import LocalEngine
from rlvr.engines.openai import PREFIX
from rlvr.errors import ConfigError, UserError
from rlvr.models.settings import PretrainedModel
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
def open_served(model: str, settings: ServeSettings) -> Iterator[tuple[Served, list[str]]]:
    """A run folder, checkpoint, model folder or Hub id ready to be served, and what is unusual about it.

    Raises:
        UserError: there is no such model, it is damaged, or it is an endpoint already.
    """
    if model.startswith(PREFIX):
        raise UserError(f"{model} is an endpoint already: name a folder or a Hub id to serve.")
    root = run_of(Path(model))
    config = None if root is None else load_config([NO_TRACKER], config_name="config", config_dir=str(root))
    kept = config.model if config is not None and isinstance(config.model, PretrainedModel) else None
    with open_model(model, kept) as loaded:
        policy = loaded.policy
        few = 1 if policy.num_weights < ONE_THREAD_BELOW else os.cpu_count() or 1
        torch.set_num_threads((config.trainer.num_threads if config is not None else None) or few)
        own_format = own_tool_format(config) if config is not None else "auto"
        chat = Chat(
            policy.tokenizer,
            () if config is None else stop_words(config),
            model=policy.model,
            tool_format=settings.tool_format or own_format,
        )
        context = _context(settings.max_context_tokens, context_tokens(policy))
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


def _context(wanted: int | None, most: int) -> int:
    if wanted is not None and wanted > most:
        raise ConfigError(f"--max-context-tokens {wanted}: the model can do with {most}; ask for that or fewer.")
    return wanted or most


def stop_words(config: Config) -> tuple[str, ...]:
    """The words that end a completion of the run's own task; its data are not loaded for that."""
    return tuple(dict.fromkeys(word for bundle in config.trained.values() for word in bundle.task.stop_words))


def _notes(chat: Chat) -> list[str]:
    system = (Message(role="system", content="x"), Message(role="user", content="x"))
    note = chat.note(system)
    ends = [] if chat.stop_ids else ["the model names no token that ends a completion: only max_tokens and stop do"]
    return [*([note] if note else []), *ends]
