"""A small checkpoint of Qwen2's architecture that has seen how MuSiQue's tools are called: it searches, lists,
answers with something that shares a word with some answers, or forgets to answer: turns and rewards differ."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rlvr.app.musique import Game, open_game
from rlvr.chat.rendering import Chat
from rlvr.config.compose import load_config
from rlvr.core.env import Env
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_bpe_tokenizer
from rlvr.training.warm_start import warm_start
from rlvr.types import StopReason
from tests.system.harness import DATA
from tests.system.qwen import END, START
from tests.unit.chat.tokenizers import CHATML

CONTEXT_TOKENS = 1024
TASK = (
    f"task.train_sets='{DATA / 'musique'},train'",
    f"task.eval_sets='{DATA / 'musique'},dev'",
    "prompt.system='Answer with tools.'",
    "task.max_turns=4",
)
"""On top of `--config-name musique`."""

WARM_START = (
    "warm_start.num_steps=25",
    "warm_start.batch_size=8",
    "warm_start.learning_rate=0.01",
    "warm_start.warmup_steps=5",
    "warm_start.final_phase_steps=0",
)


def save_tool_qwen(folder: Path) -> Path:
    """100,000 weights in Hub format and a tokenizer of the texts of such episodes."""
    game = open_game(TASK)
    settings = load_config(WARM_START).warm_start
    tokenizer = build_bpe_tokenizer(list(_texts(game)), 1200, TOKENS)
    tokenizer.add_special_tokens({"eos_token": END, "extra_special_tokens": [START]})
    tokenizer.chat_template = CHATML
    policy = HubPolicy(model=_model(tokenizer), tokenizer=tokenizer)
    made = warm_start(
        policy,
        _Demonstrator(game, Chat(tokenizer, model=policy.model), tokenizer),
        settings,
        microbatch_tokens=16384,
        progress=lambda step, loss: None,
        stopped=lambda: False,
    )
    assert made
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

    def __init__(self, game: Game, chat: Chat, tokenizer: PreTrainedTokenizerFast) -> None:
        self._game, self._chat, self._tokenizer = game, chat, tokenizer

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        example = self._game.task.train_example(index)
        return asyncio.run(self._episode(self._game.task.env(example), random.Random(index)))

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


def _texts(game: Game) -> Iterator[str]:
    rng = random.Random(0)
    tools = json.dumps([dict(tool) for tool in game.environments.tools])
    for example in game.training() + game.held_out():
        yield "\n".join(message.content for message in example.messages)
        yield tools
        yield from _turns(rng)
        yield from (f"Document ID: {each.id}\n# {each.title}\n{each.text}" for each in example.metadata["documents"])


def _model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    pad = tokenizer.pad_token_id
    assert isinstance(pad, int)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=pad,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen2ForCausalLM(config).eval()
