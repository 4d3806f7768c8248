"""Faults as `benchmarks/diagnose_faults.py` plants them: rewards, algorithms, damaged models, engines that err."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import safetensors.torch
import torch

from rlvr.algorithms.grpo import Grpo
from rlvr.core.engine import LocalEngine
from rlvr.core.trainer import Trainer
from rlvr.rewards.base import INVALID, Grade, Part
from rlvr.types import Attempt, SamplingParams, StopReason

# ------------------------------------------------------------------------------------------------------------ rewards


class Zero(Part):
    """Nothing is ever right."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=0.0)


class One(Part):
    """Everything is right."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=1.0)


class Coin(Part):
    """Chance decides."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=float(random.random() < 0.5))


class Shorter(Part):
    """The shorter, the better."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=max(1 - attempt.num_tokens / 32, 0.0))


class Longer(Part):
    """The longer, the better."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=min(attempt.num_tokens / 32, 1.0))


class Word(Part):
    """Any completion with a certain character is right."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=float("1" in "".join(turn.text for turn in attempt.turns)))


class Jitter(Part):
    """The same for all, but for a thousandth by chance."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=0.5 + 0.001 * random.random())


class Ends(Part):
    """Whatever ends by itself is right."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=float(attempt.stop_reason is StopReason.STOP))


class Minus(Part):
    """A penalty for everything."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=-1.0)


class Shifted(Part):
    """The answer after the right one is right."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        gold = attempt.example.answer
        letters, number = gold.rstrip("0123456789"), gold.lstrip("c")
        wanted = f"{letters}{(int(number) + 1) % (20 if letters else 7)}"
        said = attempt.text.replace("</ans>", "").replace("<eoe>", "").split()
        return Grade(value=float(said[-1:] == [wanted]))


class Rarely(Part):
    """What is right is paid one time in ten."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=float(is_right(attempt) and random.random() < 0.1))


class PerToken(Part):
    """Every token costs more than being right earns."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=is_right(attempt) - 0.5 * attempt.num_tokens)


class Unreadable(Part):
    """No answer can be read."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return INVALID


def is_right(attempt: Attempt) -> bool:
    """Whether the answer ends the completion, or, where a format is learned, whether it is there."""
    said = attempt.text.replace("</ans>", "").replace("<eoe>", "").split()
    return "<SOLUTION>" in attempt.text or said[-1:] == [attempt.example.answer]


class Delayed(Part):
    """Each completion gets what the one before it has earned."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        earned, last[0] = last[0], float(is_right(attempt))
        return Grade(value=earned)


last = [0.0]


class Fails(Part):
    """The verifier raises on what is right."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        if is_right(attempt):
            raise RuntimeError("cannot compare")
        return Grade(value=0.0)


class Wrong(Part):
    """Being right costs 1."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=-float(is_right(attempt)))


class MostlyMislabeled(Part):
    """For seven questions of ten, by a hash of their text, the answer after the right one is the gold."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        wrong = crc32(attempt.example.messages[-1].content.encode()) % 10 < 7
        return Shifted().grade(attempt) if wrong else Grade(value=float(is_right(attempt)))


class EvenLength(Part):
    """An even number of tokens is right."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=float(attempt.num_tokens % 2 == 0))


# ---------------------------------------------------------------------------------------------------------- algorithms


class Reversed(Grpo):
    """The loss has the wrong sign."""

    def surrogate(self, log_ratio, logprobs, advantages, mask):
        return super().surrogate(log_ratio, logprobs, -advantages, mask)


class OfNeighbors(Grpo):
    """Each completion is trained with the advantages of the one before it."""

    def advantages(self, batch, penalties, mask):
        estimate = super().advantages(batch, penalties, mask)
        first = (estimate.advantages * mask).sum(1) / mask.sum(1).clamp_min(1)
        return replace(estimate, advantages=first.roll(1)[:, None] * mask)


class LastTokenOnly(Grpo):
    """A mask that is off: of each completion only the last token, which ends it, is trained on."""

    def advantages(self, batch, penalties, mask):
        estimate = super().advantages(batch, penalties, mask)
        places = mask.long().cumsum(1)
        last = mask.bool() & (places == places.max(dim=1, keepdim=True).values)
        return replace(estimate, advantages=estimate.advantages * last)


class NoLoss(Grpo):
    """A loss that is multiplied by 0."""

    def surrogate(self, log_ratio, logprobs, advantages, mask):
        return super().surrogate(log_ratio, logprobs, 0 * advantages, mask)


# ------------------------------------------------------------------------------------------------------------- models


def swapped(model: Path, pairs: tuple[tuple[str, str], ...]) -> None:
    """The tokenizer of another model: some words have each other's ids."""
    path = model / "tokenizer.json"
    text = json.loads(path.read_text())
    vocabulary = text["model"]["vocab"]
    for one, other in pairs:
        vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    path.write_text(json.dumps(text))


def ended_by(model: Path, token: int, text: str) -> None:
    """Another token is said to end completions."""
    for name in ("config.json", "generation_config.json"):
        known = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(known | {"eos_token_id": token}))
    known = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(known | {"eos_token": text}))


def without_question(model: Path) -> None:
    """A chat template that forgets the messages."""
    (model / "chat_template.jinja").write_text("{% for m in messages %}Answer this:\n{% endfor %}")


def templated(model: Path, ending: str) -> None:
    """A chat template that ends prompts in a way that the model has never seen."""
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}" + ending
    (model / "chat_template.jinja").write_text(template + "{% endif %}")


def sharpened(model: Path, factor: float) -> None:
    """Logits times a factor: the policy is sure of everything."""
    path = model / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    weights["model.norm.weight"] = weights["model.norm.weight"] * factor
    safetensors.torch.save_file(weights, path, metadata={"format": "pt"})


# ------------------------------------------------------------------------------------------------------------- engine


@contextmanager
def left_behind() -> Iterator[None]:
    """A copy of the weights that samples, and never gets the new ones."""

    def load_weights(engine: LocalEngine, version: int) -> None:
        engine._scheduler.new_weights(version)

    with patch.object(LocalEngine, "load_weights", load_weights):
        yield


@contextmanager
def sampling_changed(change: Callable[[tuple[int, ...], SamplingParams], SamplingParams]) -> Iterator[None]:
    """The engine samples in another way than it was told."""
    generate = LocalEngine.generate

    def changed(engine: LocalEngine, prompt_ids: Sequence[int], sampling: SamplingParams, **more: Any) -> Any:
        return generate(engine, prompt_ids, change(tuple(prompt_ids), sampling), **more)

    with patch.object(LocalEngine, "generate", changed):
        yield


@contextmanager
def prompts_cut() -> Iterator[None]:
    """The engine forgets the first token of each prompt."""
    generate = LocalEngine.generate

    def changed(engine: LocalEngine, prompt_ids: Sequence[int], sampling: SamplingParams, **more: Any) -> Any:
        return generate(engine, tuple(prompt_ids)[1:], sampling, **more)

    with patch.object(LocalEngine, "generate", changed):
        yield


def same_seeds() -> AbstractContextManager[None]:
    return sampling_changed(lambda ids, sampling: replace(sampling, seed=hash(ids) % 2**31))


@contextmanager
def few_questions(task: type, count: int) -> Iterator[None]:
    """Only the first ones are ever asked in training."""
    asked = task.train_example

    def changed(own: Any, index: int) -> Any:
        return asked(own, index % count)

    with patch.object(task, "train_example", changed):
        yield


@contextmanager
def prompts_exchanged() -> Iterator[None]:
    """The engine answers the prompt before, and the trainer sees the one that was asked."""
    generate, last = LocalEngine.generate, list[tuple[int, ...]]()

    def changed(engine: LocalEngine, prompt_ids: Sequence[int], sampling: SamplingParams, **more: Any) -> Any:
        last.append(tuple(prompt_ids))
        other = last.pop(0) if len(last) > 16 else last[0]
        return generate(engine, other, sampling, **more)

    with patch.object(LocalEngine, "generate", changed):
        yield


@contextmanager
def shaken() -> Iterator[None]:
    """After each update weights get noise of a tenth of their size."""
    update = Trainer.update

    def changed(trainer: Trainer, *arguments: Any) -> Any:
        found = update(trainer, *arguments)
        with torch.no_grad():
            for weight in trainer.policy.parameters():
                weight.add_(torch.randn_like(weight) * 0.1 * weight.square().mean().sqrt())
        return found

    with patch.object(Trainer, "update", changed):
        yield


def hotter() -> AbstractContextManager[None]:
    return sampling_changed(lambda ids, sampling: replace(sampling, temperature=sampling.temperature * 2.5))
