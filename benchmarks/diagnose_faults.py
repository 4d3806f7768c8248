"""Faults that `benchmarks/diagnose.py` plants in recipes, and sound variants of them.

Levels were set with `FAULTS`. `FURTHER`, `SECOND`, `THIRD` and `FOURTH` were invented afterwards, one after the other;
`MADE_FOR` are what no cause had a name for.
"""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from diagnose_parts import (
    ended_by,
    few_questions,
    hotter,
    left_behind,
    prompts_cut,
    prompts_exchanged,
    same_seeds,
    shaken,
    sharpened,
    swapped,
    templated,
    without_question,
)

from rlvr.tasks.rpn import RpnTask
from rlvr.tasks.two_hop import TwoHopTask


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A configuration, and what the faults need to know of it."""

    config: str
    overrides: tuple[str, ...] = ()
    learning_rate: float
    parts: tuple[str, ...]
    task: type | None = None  # whose questions can be made fewer
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
        task=RpnTask,
        short=2,
        foreign_model=lambda path: swapped(path, (("=", "<boe>"), ("0", "*"), ("1", "-"), ("2", "+"))),
    ),
    "two_hop": Recipe(
        config="two_hop",
        learning_rate=4e-4,
        parts=("correct",),
        task=TwoHopTask,
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
    """`causes`: the names that are right; `in_settings`: a setting can fix it."""

    about: str
    causes: tuple[str, ...]
    in_settings: bool = False
    suits: Callable[[Recipe], bool] = lambda recipe: True
    overrides: Callable[[Recipe], tuple[str, ...]] = lambda recipe: ()
    model: Callable[[Recipe], Callable[[Path], None] | None] = lambda recipe: None
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # of the run
    around_of: Callable[[Recipe], AbstractContextManager[None]] = lambda recipe: nullcontext()


def paid(part: str, *own: str) -> tuple[str, ...]:
    """The recipe's own parts are only reported, and this one is trained on."""
    weights = (f"reward.parts.{name}.weight=0" for name in own)
    return (*weights, f"+reward.parts.paid.type=diagnose_parts:{part}", "+reward.parts.paid.weight=1")


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
        overrides=lambda r: ("algorithm=diagnose_parts:LastTokenOnly",),
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
        overrides=lambda r: ("algorithm=diagnose_parts:NoLoss",),
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


MADE_FOR = {  # missed by earlier rounds' rules; those of today were made for them, with levels set on rpn
    "gradient reversed": Fault(
        about="the loss has the wrong sign",
        causes=("wrong_way",),
        overrides=lambda r: ("algorithm=diagnose_parts:Reversed",),
    ),
    "sampled far hotter": Fault(
        about="rollout.temperature=4, and evaluation at its own",
        causes=("too_hot",),
        in_settings=True,
        overrides=lambda r: ("rollout.temperature=4",),
    ),
    "one question": Fault(
        about="only one question is ever asked in training",
        causes=("learnt_by_heart",),
        suits=lambda r: r.task is not None,
        around_of=lambda r: few_questions(r.task or object, 1),
    ),
}


FOURTH = {
    "warm-up without end": Fault(
        about="trainer.warmup_steps=100000",
        causes=("step_too_small",),
        in_settings=True,
        overrides=lambda r: ("trainer.warmup_steps=100000",),
    ),
    "adapters that weigh nothing": Fault(
        about="model.lora.alpha=0.001",
        causes=("step_too_small", "no_gradient"),
        overrides=lambda r: ("model.lora.enabled=true", "model.lora.alpha=0.001"),
    ),
    "the wrong sign": Fault(
        about="being right costs 1", causes=("other_reward",), overrides=lambda r: paid("Wrong", *r.parts)
    ),
    "most golds are wrong": Fault(
        about="for seven questions of ten the verifier compares with another answer",
        causes=("other_reward", "noisy_reward"),
        suits=lambda r: r.config != "gsm8k_smoke",
        overrides=lambda r: paid("MostlyMislabeled", *r.parts),
    ),
    "answers to another prompt": Fault(
        about="the engine answers a prompt that was asked before, and the trainer sees the one that was asked",
        causes=("other_sampler", "stale_sampler"),
        around=prompts_exchanged,
    ),
    "weights shaken": Fault(
        about="noise of a tenth of their size after each update",
        causes=("step_too_large", "collapses"),
        around=shaken,
    ),
    "paid for even length": Fault(
        about="an even number of tokens is right",
        causes=("paid_for_length", "other_reward", "noisy_reward"),
        overrides=lambda r: paid("EvenLength", *r.parts),
    ),
    "advantages of the neighbor": Fault(
        about="each completion is trained with the advantages of the one before it",
        causes=("wrong_way",),
        overrides=lambda r: ("algorithm=diagnose_parts:OfNeighbors",),
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
