"""A small checkpoint of Qwen2's architecture that has seen how MuSiQue's tools are called: it searches, lists,
answers with something that shares a word with some answers, or forgets to answer: turns and rewards differ."""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from rlvr.chat.rendering import Chat
from rlvr.config.compose import load_config, load_task_config
from rlvr.core.env import Env
from rlvr.run.tasks import open_tasks
from rlvr.tasks.dataset import DatasetTask
from rlvr.types import StopReason
from tests.system.harness import DATA, split
from tests.system.qwen import END, chat_policy, show

TASK = (
    f"task.train_sets='{DATA / 'musique'},train'",
    f"task.eval_sets='{DATA / 'musique'},dev'",
    "prompt.system='Answer with tools.'",
    "task.max_turns=4",
)
"""On top of `--config-name musique`."""

WARM_START = split("""
    warm_start.num_steps=25 warm_start.batch_size=8 warm_start.learning_rate=0.01 warm_start.warmup_steps=5
    warm_start.final_phase_steps=0
""")


def save_tool_qwen(folder: Path) -> Path:
    """100,000 weights in Hub format and a tokenizer of the texts of such episodes."""
    with open_tasks(load_task_config("musique", TASK), "qwen2", {}) as tasks:
        task = tasks.own
        assert isinstance(task, DatasetTask)
        policy = chat_policy(list(_texts(task)), 1200, TOKENS, intermediate_size=64, max_position_embeddings=1024)
        tokenizer = policy.tokenizer
        demonstrator = _Demonstrator(task, Chat(tokenizer, model=policy.model), tokenizer)
        show(policy, demonstrator, load_config(WARM_START), 16384)
    policy.save(folder)
    return folder


SEARCH = '<tool_call>\n{"name": "retrieve_documents", "arguments": {"query": "designed", "top_n": 2}}\n</tool_call>'
LIST = '<tool_call>\n{"name": "list_documents", "arguments": {}}\n</tool_call>'
ANSWERS = tuple(
    '<tool_call>\n{"name": "complete", "arguments": {"reasoning": "So.", '
    f'"final_answer": "{name}", "cited_doc_ids": ["{first}", "{first + 2}"]}}}}\n</tool_call>'
    for first, name in enumerate(("train0", "train1", "train2", "dev0"))
)
TOKENS = (SEARCH, LIST, *ANSWERS)
"""One token each: so small a model does not learn JSON in so short a time."""


def _turns(rng: random.Random) -> list[str]:
    """What the model is shown to say."""
    last = rng.choice(ANSWERS)
    return rng.choice([[SEARCH, last], [last], [SEARCH, LIST, last], [SEARCH, "I do not know."]])


class _Demonstrator:
    """Episodes as the chat template renders them."""

    stop_words = ()

    def __init__(self, task: DatasetTask, chat: Chat, tokenizer: PreTrainedTokenizerBase) -> None:
        self._task, self._chat, self._tokenizer = task, chat, tokenizer

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        env = self._task.env(self._task.train_example(index))
        return asyncio.run(self._episode(env, random.Random(index)))

    async def _episode(self, env: Env, rng: random.Random) -> tuple[str, ...]:
        chat = self._chat
        conversation = list(await env.start())
        prompt = chat.encode_prompt(conversation, env.tools)
        parts = [chat.decode(prompt)]
        for text in _turns(rng):
            completion = tuple(self._tokenizer.encode(text + END, add_special_tokens=False))
            said = chat.parse(completion, StopReason.STOP, env.tools)
            reply = await env.step(said)
            parts.append(text)
            if reply.done:
                break
            conversation.append(said)
            following = chat.next_prompt(prompt, completion, conversation, reply.messages, env.tools)
            parts.append(chat.decode(following[len(prompt) + len(completion) :]))
            conversation += reply.messages
            prompt = following
        return tuple(parts[: len(parts) - len(parts) % 2])


def _texts(task: DatasetTask) -> Iterator[str]:
    rng = random.Random(0)
    assert task.sizes is not None
    assert task.environments is not None
    num_train, num_eval = task.sizes
    tools = json.dumps([dict(tool) for tool in task.environments.tools])
    for example in [*map(task.train_example, range(num_train)), *task.eval_examples(num_eval)]:
        yield "\n".join(message.content for message in example.messages)
        yield tools
        yield from _turns(rng)
        yield from (f"Document ID: {each.id}\n# {each.title}\n{each.text}" for each in example.metadata["documents"])
