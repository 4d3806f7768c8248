"""Settings of sampling and of optimization."""

from collections.abc import Mapping
from math import inf
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field

from rlvr.run_view import AlgorithmView
from rlvr.settings import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    Settings,
    Share,
    Usual,
    setting,
)
from rlvr.types import SamplingParams

T = TypeVar("T")
Schedule = Literal["constant", "linear", "cosine"]

LIKELIEST = "mostly the likeliest token alone is left"


def _temperatures(run: Mapping[str, Any]) -> Range:
    """0.1 to 2, and more where unlikely tokens are left out"""
    rollout = run["rollout"]
    cuts = rollout.get("top_p", 1) < 1 or rollout.get("top_k", 0) > 0 or rollout.get("min_p", 0) > 0
    return 0.1, inf if cuts else 2


class RolloutSettings(Settings):
    """How completions are sampled for training."""

    prompts_per_step: PositiveInt = setting(
        32, "examples per step; a step samples group_size completions of each", debug=2, le=10**6
    )
    group_size: PositiveInt = setting(8, "completions of one example, compared with each other", debug=4, le=10**5)
    max_staleness: NonNegativeInt = setting(
        0,
        "most updates between the weights that sample a token and those that train on it; 0: sampling and training "
        "alternate, k: the next k batches are sampled while the trainer works",
        usual=Usual(
            (0, 8), above="samples are those of a policy that is long gone", link="trained"
        ),  # benchmarks/results/stale.md
    )
    dead_groups: Literal["auto", "keep", "drop", "refill"] = setting(
        "auto",
        "groups whose rewards are all equal, which such an algorithm learns nothing from; refill: replace them by new "
        "prompts, then drop the remaining ones; auto: refill for dapo (by its dynamic_sampling), keep for the others",
        only_if="algorithm.compares_groups  # an algorithm that compares the completions of a prompt",
    )
    max_refills: NonNegativeInt = setting(
        3, "rounds of replacement per step; each waits for its completions", only_if="dead_groups == 'refill'"
    )
    max_completion_tokens: PositiveInt = setting(24, "longest completion; longer ones are truncated")
    temperature: PositiveFloat = setting(
        1.0,
        "sampling temperature; the trainer's logprobs use it too",
        usual=Usual(
            _temperatures,
            below="completions of a group are equal",
            above="all tokens become likely, and completions noise",
            link="differs",
        ),
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = setting(
        1.0, "nucleus sampling; 1 turns it off", usual=Usual((0.3, 1), below=LIKELIEST, link="differs")
    )
    top_k: NonNegativeInt = setting(0, "sample from the k likeliest tokens; 0 turns it off")
    min_p: Annotated[float, Field(ge=0, lt=1)] = setting(
        0.0,
        "leave out tokens less likely than min_p x the likeliest; 0 turns it off",
        usual=Usual((0, 0.7), above=LIKELIEST, link="differs"),
    )

    @property
    def truncates(self) -> bool:
        """True if sampling leaves out part of the vocabulary."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    def refills(self, algorithm: AlgorithmView) -> int | None:
        """Rounds in which groups of equal rewards are replaced, then dropped; None keeps them."""
        if self.dead_groups == "auto" or not algorithm.compares_groups:
            return algorithm.refills
        return {"keep": None, "drop": 0, "refill": self.max_refills}[self.dead_groups]

    def fitted(self, algorithm: AlgorithmView) -> Self:
        """The settings with `auto` resolved, unless the algorithm's own settings say what becomes of dead groups."""
        if self.dead_groups != "auto" or not algorithm.compares_groups or algorithm.refills is not None:
            return self
        return self.model_copy(update={"dead_groups": "keep"})

    def params(self, stop_ids: frozenset[int]) -> SamplingParams:
        """Sampling parameters of a draw; the seed is set later."""
        return SamplingParams(
            max_tokens=self.max_completion_tokens,
            stop_ids=stop_ids,
            seed=0,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
        )


def _first_betas(run: Mapping[str, Any]) -> Range:
    """0 to adam_beta2"""
    return 0, run["trainer"]["adam_beta2"]


class TrainerSettings(Settings):
    """Optimization and precision: what the trainer reads; `rlvr.training.settings` adds what a run needs beside it."""

    max_steps: NonNegativeInt = setting(
        60, "steps of the run: rollouts, then update; 0: the warm start alone", debug=3, le=10**9
    )
    optimizer: Literal["adamw", "muon"] = setting(
        "adamw", "muon: hidden matrices by Muon, which needs learning rates of its own, the rest by AdamW"
    )
    learning_rate: PositiveFloat | Literal["auto"] = setting(
        "auto",
        "peak learning rate; auto, for AdamW: 1e-6 for a pretrained model, 1e-5 for its adapters, 4e-4 for a model "
        "made from scratch",
    )
    schedule: Schedule = setting("constant", "learning rate after the warm-up")
    warmup_steps: NonNegativeInt | Annotated[float, Field(gt=0, lt=1)] = setting(
        10, "steps of linear warm-up; a number below 1 is a share of max_steps", debug=0
    )
    final_learning_rate_share: Share = setting(0.1, "learning rate at the end / peak", only_if="schedule != 'constant'")
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = setting(
        0.9,
        "AdamW",
        usual=Usual(_first_betas, above="old gradients are divided by the size of new ones, and steps have any size"),
    )
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = setting(0.95, "AdamW")
    weight_decay: NonNegativeFloat = setting(
        0.0, "AdamW", usual=Usual((0, 1), above="weights shrink whatever is learnt")
    )
    max_grad_norm: PositiveFloat = setting(
        1.0,
        "the gradient is clipped to this norm",
        usual=Usual((1e-4, inf), below="gradients vanish beside Adam's epsilon, and steps with them"),
    )
    microbatch_tokens: PositiveInt | Literal["auto"] = setting(
        "auto",
        "tokens per forward and backward pass; gradients accumulate exactly, only memory and speed change; auto: on a "
        "GPU the most that fit by the memory plan (docs/plan.md), on a CPU 2048, and 512 below adapters from a hidden "
        "size of 512 on",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto",
        "autocast of forward and backward; fp16: with a scaled loss, nearer to float32 than bf16 for activations below "
        "65,504; auto: bf16 on a GPU, and on a CPU with bf16 instructions from hidden size 128 on, where it is faster; "
        "a pretrained model that is trained in full on a CPU takes fp32, as rounded weights lose small updates",
    )
    strategy: Literal["single", "ddp", "fsdp2"] = setting(
        "single", "single: one process; ddp: every process holds the model; fsdp2: each holds a part of it"
    )
    cpu_offload: bool = setting(
        False,
        "fsdp2 on GPUs: keep weights, gradients and moments in CPU memory; slower",
        only_if="strategy == 'fsdp2'",
    )

    @property
    def num_warmup_steps(self) -> int:
        share = self.warmup_steps
        return round(share * self.max_steps) if isinstance(share, float) else share


def known(value: T | Literal["auto"]) -> T:
    """A value that was decided for the run; ValueError for `auto`."""
    if value == "auto":
        raise ValueError("auto was not decided: see rlvr.run.auto")
    return value


def cpu_tokens(setting: int | Literal["auto"]) -> int:
    """`microbatch_tokens` on a CPU: more than 2048 is not faster there, and uses more memory."""
    return 2048 if setting == "auto" else setting
