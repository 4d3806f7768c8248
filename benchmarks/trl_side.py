"""TRL's side of `vs_trl.py`, which starts it in its own virtual environment; imports nothing of rlvr.

One `GRPOTrainer` trains and pauses after every block of steps. Lines of JSON on stdin and stdout:

    in    {"model": ..., "prompts": ..., "case": ..., ...}      once, the specification
    out   {"ready": true, "versions": {...}}                    once, when the first step could begin
    in    {"steps": 3}                                          run a block ({"steps": 0} ends the run)
    out   {"steps": [{"wall": ..., "cpu": ..., ...}, ...]}      times of each step

A step is timed from the end of the previous one (or the start command) to its own end: data loader, generation,
reward, update.
"""

# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportMissingImports=false

from __future__ import annotations

import json
import os
import resource
import string
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

# before torch loads: spinning threads distort all times on a shared machine
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

CHANNEL = os.fdopen(os.dup(1), "w", buffering=1)  # our own channel; TRL's output goes to stderr
os.dup2(2, 1)

import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402  # pyright: ignore[reportMissingImports]
from datasets import Dataset  # noqa: E402  # pyright: ignore[reportMissingImports]
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer  # noqa: E402  # pyright: ignore[reportMissingImports]


def send(message: dict[str, Any]) -> None:
    """Write one line."""
    CHANNEL.write(json.dumps(message) + "\n")


def receive() -> dict[str, Any]:
    """Read one line; end of input ends the run."""
    return json.loads(sys.stdin.readline() or '{"steps": 0}')


class FixedLengths(LogitsProcessor):
    """Row i of the batch ends with the end token after exactly `lengths[i]` tokens."""

    def __init__(self, lengths: Sequence[int], eos_id: int) -> None:
        self._eos_id = eos_id
        self._ending: dict[int, torch.Tensor] = {}
        for length in set(lengths):
            self._ending[length - 1] = torch.tensor([i for i, other in enumerate(lengths) if other == length])
        self._prompt_width = 0

    def begin(self, prompt_width: int) -> None:
        """Start a new batch with prompts of this (padded) width."""
        self._prompt_width = prompt_width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores `[B, V]` for the next token."""
        scores = scores.clone()
        scores[:, self._eos_id] = -torch.inf
        rows = self._ending.get(input_ids.shape[1] - self._prompt_width)
        if rows is not None:
            scores[rows] = -torch.inf
            scores[rows, self._eos_id] = 0.0
        return scores


def fix_lengths(model: Any, lengths: Sequence[int], eos_id: int) -> None:
    """Add a logits processor to the model's `generate`: GRPOTrainer has no setting for it."""
    processor = FixedLengths(lengths, eos_id)
    generate = model.generate

    def with_processor(input_ids: torch.Tensor, **settings: Any) -> Any:
        processor.begin(input_ids.shape[1])
        return generate(input_ids=input_ids, logits_processor=LogitsProcessorList([processor]), **settings)

    model.generate = with_processor


class Measured(GRPOTrainer):
    """Measures the time of generation, and of generation plus reward and preparation."""

    generation = 0.0
    rollout = 0.0

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = super()._generate_single_turn(*args, **kwargs)
        self.generation += time.perf_counter() - begin
        return result

    def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = super()._generate_and_score_completions(*args, **kwargs)
        self.rollout += time.perf_counter() - begin
        return result


def word_f1(text: str, gold: str) -> float:
    """SQuAD's: harmonic mean of precision and recall of the words, without articles and punctuation."""
    kept = str.maketrans("", "", string.punctuation)
    words, golds = ([w for w in t.lower().translate(kept).split() if w not in ("a", "an", "the")] for t in (text, gold))
    same = sum((Counter(words) & Counter(golds)).values())
    return 2 * same / (len(words) + len(golds)) if same else 0.0


class Reward:
    """Grades by the case's rule, mostly 1 for a right answer; counts the samples."""

    __name__ = "right"

    def __init__(self, tokenizer: Any, rule: str, group_size: int) -> None:
        self._tokenizer, self._ids = tokenizer, tokenizer.get_vocab()
        self._rule, self._group_size = rule, group_size
        self.noted: dict[str, float] = {}

    def __call__(self, completion_ids: Sequence[Sequence[int]], answer: Sequence[str], **columns: Any) -> list[float]:
        """Rewards of one batch, with adjacent groups."""
        rewards = [float(self._grade(list(ids), a)) for ids, a in zip(completion_ids, answer)]  # noqa: B905
        groups = [rewards[i : i + self._group_size] for i in range(0, len(rewards), self._group_size)]
        self.noted = {
            "tokens": sum(len(ids) for ids in completion_ids),
            "reward": sum(rewards) / len(rewards),
            "dead_groups": sum(len(set(group)) == 1 for group in groups) / len(groups),
        }
        return rewards

    def _grade(self, ids: list[int], answer: str) -> float:
        if self._rule == "short_f1":  # an answer that is cut off is none
            text = self._tokenizer.decode(ids, skip_special_tokens=True)
            ended = ids[-1] == self._tokenizer.eos_token_id
            return (word_f1(text, answer) if ended else 0.0) + 0.1 / (1 + len(text))
        if self._rule == "even_ids":
            return sum(i % 2 == 0 for i in ids) / len(ids)
        right = self._ids.get(answer, 0)
        if self._rule == "first_word":
            return ids[0] == right
        equals, eos = self._ids["="], self._ids["<eoe>"]
        return ids == [right, eos] or ids[-3:] == [equals, right, eos]


class Pause(TrainerCallback):
    """Times the steps; after each block sends the times and waits for the next command."""

    def __init__(self, reward: Reward) -> None:
        self._reward = reward
        self.trainer: Measured | None = None
        self._left = 0
        self._steps: list[dict[str, float]] = []
        self._wall = self._cpu = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
        send({"ready": True, "versions": versions})
        self._wait(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """One optimizer step is done."""
        trainer = self.trainer
        assert trainer is not None
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        shares = {
            "generation": trainer.generation,
            "scoring": trainer.rollout - trainer.generation,
            "update": wall - trainer.rollout,
        }
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self._steps.append({"wall": wall, "cpu": cpu, "memory_mb": memory} | shares | self._reward.noted)
        self._left -= 1
        if self._left == 0:
            send({"steps": self._steps})
            self._steps = []
            self._wait(control)
        self._begin()

    def _wait(self, control: Any) -> None:
        self._left = receive()["steps"]
        if not self._left:
            control.should_training_stop = True
        self._begin()

    def _begin(self) -> None:
        if self.trainer is not None:
            self.trainer.generation = self.trainer.rollout = 0.0
        self._wall, self._cpu = time.perf_counter(), time.process_time()


def settings_of(spec: dict[str, Any]) -> GRPOConfig:
    """The fastest settings found for a small model on a CPU: fp32, no gradient checkpointing, plain `generate`.

    Gradients are accumulated over `micro` parts of the batch: at least as fast as one part, with half the memory.
    """
    return GRPOConfig(
        output_dir=spec["output"],
        use_cpu=True,
        seed=spec["seed"],
        shuffle_dataset=False,
        per_device_train_batch_size=spec["num_prompts"] * spec["group_size"] // spec["micro"],
        gradient_accumulation_steps=spec["micro"],
        num_generations=spec["group_size"],
        max_steps=spec["max_steps"],
        max_completion_length=spec["max_new_tokens"],
        generation_kwargs={"min_new_tokens": spec["min_new_tokens"]} if spec["min_new_tokens"] else None,
        temperature=1.0,
        loss_type="dapo",  # the mean over all tokens of the batch
        epsilon=spec["clip"],
        epsilon_high=spec["clip"],
        scale_rewards="group",
        beta=0.0,
        num_iterations=1,
        learning_rate=spec["learning_rate"],
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=0.0,
        adam_beta1=spec["adam_betas"][0],
        adam_beta2=spec["adam_betas"][1],
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        bf16=spec["bf16"],
        fp16=False,
        gradient_checkpointing=spec.get("gradient_checkpointing", False),
        logging_steps=spec["max_steps"] + 1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
    )


def adapters(settings: dict[str, Any] | None) -> Any:
    """peft's settings; None: the whole model is trained."""
    if settings is None:
        return None
    from peft import LoraConfig  # pyright: ignore[reportMissingImports]

    return LoraConfig(**settings, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM")


def main() -> None:
    """Build the trainer of the specification and run it block by block."""
    spec = receive()
    torch.set_num_threads(spec["threads"])
    tokenizer = AutoTokenizer.from_pretrained(spec["model"], padding_side="left")
    dtype = getattr(torch, spec.get("dtype", "float32"))
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=dtype, attn_implementation="sdpa")
    for parameter in model.parameters():  # out of the mapped file, whose pages the system drops while this side waits
        parameter.data = parameter.data.clone()
    if spec["lengths"]:
        fix_lengths(model, spec["lengths"], tokenizer.eos_token_id)
    reward = Reward(tokenizer, spec["rule"], spec["group_size"])
    pause = Pause(reward)
    trainer = Measured(
        model=model,
        reward_funcs=reward,
        args=settings_of(spec),
        train_dataset=Dataset.from_list(spec["prompts"]),
        processing_class=tokenizer,
        callbacks=[pause],
        peft_config=adapters(spec.get("lora")),
    )
    pause.trainer = trainer
    trainer.train()
    if "final" in spec:
        trainer.save_model(spec["final"])


if __name__ == "__main__":
    main()
