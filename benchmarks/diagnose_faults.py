"""Faults that `benchmarks/diagnose.py` plants: rewards, an algorithm, damaged copies of a model, a sampler left behind.

Each fault of `FAULTS` and `FURTHER` is a function of a recipe that returns what it changes: overrides, and a change of
the model's files before the run.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import safetensors.torch

from rlvr.algorithms.grpo import Grpo
from rlvr.core.engine import LocalEngine
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


def paid(part: str, *own: str) -> tuple[str, ...]:
    """The recipe's own parts are only reported, and this one is trained on."""
    weights = (f"reward.parts.{name}.weight=0" for name in own)
    return (*weights, f"+reward.parts.paid.type=diagnose_faults:{part}", "+reward.parts.paid.weight=1")


# ---------------------------------------------------------------------------------------------------------- algorithms


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


def hotter() -> AbstractContextManager[None]:
    return sampling_changed(lambda ids, sampling: replace(sampling, temperature=sampling.temperature * 2.5))


# ------------------------------------------------------------------------------------------------------------- faults


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A configuration, and what the faults need to know of it."""

    config: str
    overrides: tuple[str, ...] = ()
    learning_rate: float
    parts: tuple[str, ...]
    try_steps: int = 10
    by_length: str = "Longer"
    sharp: float = 25.0  # a factor of the logits with which nothing else is tried
    short: int | None  # a limit of tokens that cuts completions off; None: the task refuses such a limit
    foreign_model: Callable[[Path], None]  # a change of its files that makes prompts that the model has never seen


RECIPES = {
    "rpn": Recipe(
        config="rpn",
        overrides=("evaluation.num_examples=200",),
        learning_rate=4e-4,
        parts=("boxed", "correct"),
        short=2,
        foreign_model=lambda path: swapped(path, (("=", "<boe>"), ("0", "*"), ("1", "-"), ("2", "+"))),
    ),
    "two_hop": Recipe(
        config="two_hop",
        learning_rate=4e-4,
        parts=("correct",),
        short=None,
        by_length="Shorter",
        sharp=100.0,
        foreign_model=lambda path: swapped(path, (("<call>", "<ans>"), ("</call>", "</ans>"), ("search", "nothing"))),
    ),
    "gsm8k_smoke": Recipe(
        config="gsm8k_smoke",
        overrides=("trainer.max_steps=15", "trainer.num_threads=1", "evaluation.every=15"),
        learning_rate=5e-4,
        parts=("format",),
        short=6,
        sharp=100.0,
        foreign_model=lambda path: templated(path, "\\nassistant: ok"),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`causes`: the names that are right; `in_settings`: a setting can mend it."""

    about: str
    causes: tuple[str, ...]
    in_settings: bool = False
    suits: Callable[[Recipe], bool] = lambda recipe: True
    overrides: Callable[[Recipe], tuple[str, ...]] = lambda recipe: ()
    model: Callable[[Recipe], Callable[[Path], None] | None] = lambda recipe: None
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # of the run


FAULTS = {
    "learning rate too high": Fault(
        about="100 x the recipe's",
        causes=("step_too_large",),
        in_settings=True,
        overrides=lambda r: (f"trainer.learning_rate={r.learning_rate * 100:g}",),
    ),
    "learning rate too low": Fault(
        about="1/1000 of the recipe's",
        causes=("step_too_small",),
        in_settings=True,
        overrides=lambda r: (f"trainer.learning_rate={r.learning_rate / 1000:g}",),
    ),
    "reward always 0": Fault(
        about="whatever is written", causes=("never_paid",), overrides=lambda r: paid("Zero", *r.parts)
    ),
    "reward always 1": Fault(
        about="whatever is written", causes=("always_paid",), overrides=lambda r: paid("One", *r.parts)
    ),
    "reward by chance": Fault(
        about="a fair coin for each completion", causes=("noisy_reward",), overrides=lambda r: paid("Coin", *r.parts)
    ),
    "reward for length": Fault(
        about="tokens / 32, at most 1; two_hop, where a longer episode is a better one: 1 - tokens / 32",
        causes=("paid_for_length",),
        overrides=lambda r: paid(r.by_length, *r.parts),
    ),
    "masked loss": Fault(
        about="only the last token of a completion has an advantage",
        causes=("masked",),
        overrides=lambda r: ("algorithm=diagnose_faults:LastTokenOnly",),
    ),
    "wrong template": Fault(
        about="rpn: the tokenizer has other ids for some words; two_hop: those of calls and answers; gsm8k_smoke: a "
        "chat template with another opening of the answer",
        causes=("foreign_prompt", "tools_fail"),
        model=lambda r: r.foreign_model,
    ),
    "dead groups": Fault(
        about="temperature 0.02",
        causes=("alike", "too_hard", "too_easy"),
        in_settings=True,
        overrides=lambda r: ("rollout.temperature=0.02",),
    ),
    "entropy collapse": Fault(
        about="a policy whose logits are 25 x as large (rpn), 100 x (the others)",
        causes=("collapsed",),
        in_settings=True,
        model=lambda r: lambda path: sharpened(path, r.sharp),
    ),
    "stale sampler": Fault(
        about="the engine samples from a copy of the weights (in bfloat16) that never gets new ones",
        causes=("stale_sampler",),
        in_settings=True,
        overrides=lambda r: ("engine.dtype=bfloat16",),
        around=left_behind,
    ),
    "truncation": Fault(
        about="2 tokens (rpn), 6 tokens (gsm8k_smoke); two_hop refuses such a limit before the run",
        causes=("truncated",),
        in_settings=True,
        suits=lambda r: r.short is not None,
        overrides=lambda r: (f"rollout.max_completion_tokens={r.short}",),
    ),
}

FURTHER = {
    "another stop token": Fault(
        about="the model's files name the padding token as the end",
        causes=("never_ends",),
        suits=lambda r: r.config == "gsm8k_smoke",
        model=lambda r: lambda path: ended_by(path, 0, "<pad>"),
    ),
    "no question": Fault(
        about="a chat template that forgets the messages",
        causes=("same_prompt",),
        suits=lambda r: r.config == "gsm8k_smoke",
        model=lambda r: without_question,
    ),
    "paid for a word": Fault(
        about="every completion with a 1 in it is right",
        causes=("other_reward",),
        overrides=lambda r: paid("Word", *r.parts),
    ),
    "reward of the neighbor": Fault(
        about="each completion gets what the one before it has earned",
        causes=("noisy_reward", "other_reward"),
        overrides=lambda r: paid("Delayed", *r.parts),
    ),
    "verifier fails on what is right": Fault(
        about="it raises; such episodes are left out, and the others earn 0",
        causes=("verifier_fails",),
        overrides=lambda r: (*paid("Fails", *r.parts), "reward.max_error_share=1"),
    ),
    "clipped to nothing": Fault(
        about="trainer.max_grad_norm=1e-9, far below Adam's epsilon",
        causes=("step_too_small", "no_gradient"),
        overrides=lambda r: ("trainer.max_grad_norm=1e-9",),
    ),
    "held by the reference": Fault(
        about="algorithm.kl_coef=20",
        causes=("held_back",),
        in_settings=True,
        overrides=lambda r: ("algorithm.kl_coef=20",),
    ),
    "one seed for a group": Fault(
        about="the completions of a question are drawn with the same seed",
        causes=("alike",),
        around=same_seeds,
    ),
    "hotter sampler": Fault(
        about="the engine samples at 2.5 x the temperature",
        causes=("stale_sampler", "other_sampler"),
        around=hotter,
    ),
}


SECOND = {
    "only the likeliest token": Fault(
        about="rollout.top_k=1", causes=("alike",), in_settings=True, overrides=lambda r: ("rollout.top_k=1",)
    ),
    "weights decay away": Fault(
        about="trainer.weight_decay=100",
        causes=("step_too_large",),
        overrides=lambda r: ("trainer.weight_decay=100",),
    ),
    "reward of a half and a trifle": Fault(
        about="0.5 plus up to 0.001 by chance, which group normalization makes as large as any other",
        causes=("noisy_reward",),
        overrides=lambda r: paid("Jitter", *r.parts),
    ),
    "paid for ending": Fault(
        about="whatever ends by itself is right",
        causes=("always_paid", "other_reward"),
        overrides=lambda r: paid("Ends", *r.parts),
    ),
    "penalty for everything": Fault(
        about="every reward is -1", causes=("never_paid",), overrides=lambda r: paid("Minus", *r.parts)
    ),
    "loss times 0": Fault(
        about="an algorithm whose loss is multiplied by 0",
        causes=("no_gradient", "masked"),
        overrides=lambda r: ("algorithm=diagnose_faults:NoLoss",),
    ),
    "cut off and left out": Fault(
        about="half the tokens of the fault above, and algorithm.truncated=mask",
        causes=("truncated", "masked"),
        suits=lambda r: r.short is not None,
        overrides=lambda r: (f"rollout.max_completion_tokens={(r.short or 0) // 2}", "algorithm.truncated=mask"),
    ),
    "prompts without their beginning": Fault(
        about="the engine samples after prompts whose first token is missing; the trainer sees it",
        causes=("stale_sampler", "other_sampler"),
        around=prompts_cut,
    ),
}


THIRD = {
    "the next answer is right": Fault(
        about="the verifier compares with the answer after the right one",
        causes=("other_reward",),
        suits=lambda r: r.config != "gsm8k_smoke",
        overrides=lambda r: paid("Shifted", *r.parts),
    ),
    "paid one time in ten": Fault(
        about="what is right earns 1 by a chance of 0.1",
        causes=("noisy_reward",),
        overrides=lambda r: paid("Rarely", *r.parts),
    ),
    "cost of a token": Fault(
        about="being right earns 1, a token costs 0.5",
        causes=("paid_for_length",),
        overrides=lambda r: paid("PerToken", *r.parts),
    ),
    "nothing is readable": Fault(
        about="the verifier calls every answer unreadable",
        causes=("never_paid",),
        overrides=lambda r: paid("Unreadable", *r.parts),
    ),
    "a nucleus of one": Fault(
        about="rollout.top_p=0.01", causes=("alike",), in_settings=True, overrides=lambda r: ("rollout.top_p=0.01",)
    ),
    "held by the reward": Fault(
        about="algorithm.kl_coef=20, subtracted from the reward",
        causes=("held_back",),
        in_settings=True,
        overrides=lambda r: ("algorithm.kl_coef=20", "algorithm.kl_placement=reward"),
    ),
    "lost in rounding": Fault(
        about="weights in bfloat16, and 1/40 of the recipe's learning rate",
        causes=("step_too_small",),
        in_settings=True,
        overrides=lambda r: ("model.dtype=bfloat16", f"trainer.learning_rate={r.learning_rate / 40:g}"),
    ),
    "an end before the answer": Fault(
        about="a chat template that ends prompts with the end token",
        causes=("foreign_prompt",),
        suits=lambda r: r.config == "gsm8k_smoke",
        model=lambda r: lambda path: templated(path, "<eos>"),
    ),
}


HEALTHY: dict[str, tuple[str, ...]] = {  # recipe: variants that are sound, though some too short or too small to rise
    "rpn": (
        "",
        "trainer.learning_rate=2e-4",
        "trainer.learning_rate=8e-4",
        "rollout.group_size=16 rollout.prompts_per_step=16",
        "algorithm=dr_grpo",
        "algorithm=rloo",
        "algorithm=dapo",
        "algorithm=cispo",
        "algorithm=reinforce_pp",
        "algorithm=ppo rollout.group_size=1 rollout.prompts_per_step=128",
        "algorithm.num_minibatches=4",
        "reward.parts.boxed.weight=0.3",
        "trainer.max_steps=6",
        "evaluation.num_examples=20",
        "rollout.prompts_per_step=4",
    ),
    "two_hop": (
        "",
        "trainer.learning_rate=8e-4",
        "algorithm=dr_grpo",
        "algorithm=rloo",
        "algorithm=dapo",
        "rollout.max_staleness=1",
        "rollout.temperature=0.8",
        "trainer.max_steps=5",
        "rollout.prompts_per_step=4",
    ),
    "gsm8k_smoke": (
        "",
        "algorithm=rloo",
        "trainer.learning_rate=1e-3",
        "trainer.max_steps=6",
    ),
}


def damaged(fault: Fault, recipe: Recipe, model: Path, folder: Path) -> Path:
    """The model's folder, or a changed copy of it."""
    change = fault.model(recipe)
    if change is None:
        return model
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model, folder)
    change(folder)
    return folder
