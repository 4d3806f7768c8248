"""A small checkpoint of Qwen2's architecture that writes the asked-for format and is sometimes right: no reward that it
earns is the same for all of its completions."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr.algorithms.objective import Objective
from rlvr.chat.rendering import Chat
from rlvr.config import Config
from rlvr.config.compose import load_config
from rlvr.core.packing import Packing
from rlvr.core.supervised import Sft, train_supervised
from rlvr.core.trainer import Trainer
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_bpe_tokenizer
from rlvr.run.tasks import open_tasks
from rlvr.tasks.base import Task
from rlvr.training.warm_start import from_stream
from tests.system.harness import DATA, split
from tests.system.small_qwen import small_model
from tests.unit.chat.tokenizers import CHATML

MARKERS = ("<start_working_out>", "<end_working_out>", "<SOLUTION>", "</SOLUTION>")
START, END = "<|im_start|>", "<|im_end|>"
WARM_START = split("""
    warm_start.num_steps=80 warm_start.batch_size=16 warm_start.learning_rate=0.01 warm_start.warmup_steps=5
    warm_start.final_phase_steps=0
""")


def save_qwen(folder: Path) -> Path:
    """60,000 weights in Hub format that have seen the prompts of the fixtures with right and wrong solutions."""
    data = [f"task.path={DATA / 'gsm8k'}", "model=scratch_bpe", "rollout.max_completion_tokens=32"]
    also = f"evaluation.also={{finqa: {{set: ['task.path={DATA / 'finqa'}']}}}}"
    config = load_config(["task=gsm8k", *data, also, *WARM_START])
    with open_tasks(config, "qwen2", {}) as tasks:
        texts = [text for task in (tasks.own, *tasks.also) for text in task.texts()]
        policy = chat_policy(texts, 700, MARKERS, intermediate_size=48, max_position_embeddings=512)
        demonstrator = _Demonstrator(Chat(policy.tokenizer, model=policy.model), (tasks.own, *tasks.also))
        show(policy, demonstrator, config, 16384)
    policy.save(folder)
    return folder


def chat_policy(texts: Sequence[str], vocabulary_size: int, words: Sequence[str], **size: int) -> HubPolicy:
    """A small model, untrained, and a tokenizer of the texts; the words are one token each."""
    tokenizer = build_bpe_tokenizer(texts, vocabulary_size, words)
    tokenizer.add_special_tokens({"eos_token": END, "extra_special_tokens": [START]})
    tokenizer.chat_template = CHATML
    ids = {"eos_token_id": tokenizer.convert_tokens_to_ids(END), "pad_token_id": tokenizer.pad_token_id}
    model = small_model(tokenizer, initializer_range=0.1, **ids, **size)
    return HubPolicy(model=model.eval(), tokenizer=tokenizer)


def show(policy: HubPolicy, demonstrator: Any, config: Config, microbatch_tokens: int) -> None:
    """Let it see the demonstrations."""
    lessons = from_stream(policy, demonstrator, config.warm_start, config.model, config.seed)
    trainer = Trainer(
        policy=policy,
        objective=Objective(algorithm=Sft(), max_completion_tokens=1, temperature=1.0),
        settings=config.warm_start.of_trainer(config.trainer, lessons.num_steps),
        seed=config.seed,
        packing=Packing(max_tokens=microbatch_tokens),
    )
    assert len(list(train_supervised(trainer, lessons))) == lessons.num_steps


class _Demonstrator:
    """The training prompts as the chat template renders them, with completions of which a third are wrong."""

    stop_words = ()

    def __init__(self, chat: Chat, tasks: tuple[Task, ...]) -> None:
        self._chat, self._tasks = chat, tasks

    def demonstration(self, index: int, worked_share: float) -> tuple[str, str]:
        example = self._tasks[index % 4 == 0].train_example(index)
        wrong = random.Random(index).random() < 1 / 3
        answer = str(index % 50) if wrong else example.answer
        reasoning_start, reasoning_end, solution_start, solution_end = MARKERS
        completion = f"{reasoning_start}It is {answer}.{reasoning_end}{solution_start}{answer}{solution_end}"
        return self._chat.decode(self._chat.encode_prompt(example.messages)), completion
