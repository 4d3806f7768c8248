"""Opens a model for `rlvr serve`, with its run's prompt markers and tool format."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace

import torch

from rlvr.chat.rendering import Chat
from rlvr.config import Config
from rlvr.core.engine import LocalEngine
from rlvr.errors import ConfigError, UserError
from rlvr.models.layout import computes_logprobs
from rlvr.models.policy import HubPolicy
from rlvr.run.inference import open_model
from rlvr.run.policies import ONE_THREAD_BELOW
from rlvr.run.sources import own_config, servable
from rlvr.run.tasks import context_tokens, open_tasks, own_tool_format
from rlvr.serve.constraints import Constraints
from rlvr.serve.sampling import Served
from rlvr.types import Message

WORDS = (
    "The library opens at nine in the morning and closes at six in the evening. Anna borrows three books on Monday and "
    "brings back two of them on Friday. How many does she still have at the weekend, and when is the last hour to "
    "return them?"
)
"""What a server's model may be asked."""


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    names: tuple[str, ...] = ()  # model names in requests; empty: MODEL
    max_batch_size: int = 64
    max_queue: int = 512
    max_context_tokens: int | None = None  # None: the model's limit
    tool_format: str | None = None  # None: the run's, or the chat template's


@contextmanager
def open_served(
    model: str, settings: ServeSettings, config_dir: str | None = None
) -> Iterator[tuple[Served, list[str]]]:
    """Load a run folder, checkpoint, model folder or Hub id for serving, with notes for the user. UserError if the
    model is missing or damaged, or is an endpoint already."""
    servable(model)
    config = own_config(model, config_dir=config_dir)
    with ExitStack() as stack:
        loaded = stack.enter_context(open_model(model, config.model.pretrained if config else None))
        policy = loaded.model
        assert isinstance(policy, HubPolicy)
        few = 1 if policy.num_weights < ONE_THREAD_BELOW else os.cpu_count() or 1
        torch.set_num_threads((config.trainer.num_threads if config else None) or few)
        trained = config.trained.values() if config else ()
        chat = Chat(
            policy.tokenizer,
            tuple(dict.fromkeys(word for bundle in trained for word in bundle.task.stop_words)),
            model=policy.model,
            tool_format=settings.tool_format or (own_tool_format(config) if config else "auto"),
        )
        context, most = settings.max_context_tokens or context_tokens(policy), context_tokens(policy)
        if context > most:
            raise ConfigError(f"--max-context-tokens {context}: the model supports at most {most}; choose fewer.")
        policy = replace(policy, prompts=_asked(chat))
        most = settings.max_batch_size
        engine = LocalEngine(policy.model, max_batch_size=most, max_context_tokens=context, prompts=policy.prompts)
        vocabulary_size = policy.model.config.get_text_config().vocab_size
        served = Served(
            names=settings.names or (model,),
            engine=engine,
            policy=policy,
            has_own_head=computes_logprobs(policy),
            chat=chat,
            constraints=Constraints(policy.tokenizer, chat.stop_ids, vocabulary_size),
            vocabulary_size=vocabulary_size,
            max_context_tokens=context,
            capacity=settings.max_batch_size + settings.max_queue,
            form=stack.enter_context(_form(config)) if config else None,
        )
        note = chat.note((Message(role="system", content="x"), Message(role="user", content="x")))
        ends = "" if chat.stop_ids else "the model names no token that ends a completion: only max_tokens and stop do"
        with closing(engine):
            yield served, [line for line in (note, ends) if line]


def _asked(chat: Chat) -> tuple[tuple[int, ...], ...]:
    """A prompt of plain words; none where the tokenizer knows only those of its task."""
    with suppress(UserError):
        return (chat.encode_prompt((Message(role="user", content=WORDS),)),)
    return ()


@contextmanager
def _form(config: Config) -> Iterator[Callable[[str], tuple[Message, ...]] | None]:
    """How a question becomes the prompt of a task made of words: `3 4 +` becomes `<boe> 3 4 + =`.

    A model that follows instructions gets messages as they are.
    """
    if not config.task.made_of_words:
        yield None
        return
    with open_tasks(config, None, {}, reads="nothing") as tasks:

        def formed(text: str) -> tuple[Message, ...]:
            with suppress(UserError):  # it is a prompt already, or none of the task
                return tasks.own.example(text).messages
            return (Message(role="user", content=text),)

        yield formed
