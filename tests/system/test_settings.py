"""Every setting does something: two values of each give runs that differ where the setting says they should.

A key that is missing in the table fails the test at the end, so no setting without effect can slip in.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP

import rlvr.models.loading
from rlvr import registry
from rlvr.commands.train.body import train
from rlvr.config import Config
from rlvr.config.compose import load_config
from rlvr.config.config import all_keys, keys
from rlvr.core.engine.scheduler import Scheduler
from rlvr.models.policy import HubPolicy
from rlvr.records.rollouts import EpisodeRecord, read_rollouts
from rlvr.settings import dumped
from tests.docs.pages import ROOT
from tests.system.harness import DATA, ON_DATA, SCRATCH, SMALL, metrics, once, pretrained, split
from tests.system.multihop_settings import MULTIHOP_CASES
from tests.system.test_data_settings import DATA_CASES
from tests.system.test_tracker_settings import TRACKER_CASES

pytestmark = pytest.mark.long  # every setting of the configuration, one after another

# -------------------------------------------------------------------------------------------------- what can be seen


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A run and what was counted in it."""

    folder: Path
    err: str
    calls: Counter[str]
    load_options: dict[str, Any]
    threads: int

    @property
    def rows(self) -> list[dict[str, float]]:
        return metrics(self.folder)

    @property
    def records(self) -> list[EpisodeRecord]:
        """What was sampled at the first step."""
        return read_rollouts(self.folder / "rollouts" / "step_000001.jsonl.gz")

    @property
    def prompts(self) -> list[str]:
        return [record.turns[0].prompt for record in self.records]

    def files(self, folder: str) -> list[str]:
        path = self.folder / folder
        return sorted(file.name for file in path.iterdir()) if path.exists() else []


def metric(name: str, step: int = 1) -> Callable[[Seen], Any]:
    """The value of a metric; None where it is not written."""
    return lambda seen: seen.rows[step].get(name)


def weights(seen: Seen) -> bytes:
    return (seen.folder / "final" / "model.safetensors").read_bytes()


def start(seen: Seen) -> bytes:
    """The weights after the warm start."""
    return (seen.folder / "warm_start" / "model.safetensors").read_bytes()


def adapter(seen: Seen) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the adapter that came out."""
    found = load_file(seen.folder / "final" / "adapter_model.safetensors")
    return {name: tuple(tensor.shape) for name, tensor in found.items()}


def shape(name: str) -> Callable[[Seen], Any]:
    """A number of the configuration of the model that came out."""
    return lambda seen: json.loads((seen.folder / "final" / "config.json").read_text())[name]


def evaluation(seen: Seen) -> Any:
    return {name: value for name, value in seen.rows[0].items() if name.startswith("eval/")}


def sampled(seen: Seen) -> Any:
    return [record.turns[0].completion for record in seen.records]


def drawn(seen: Seen) -> Any:
    """The prompts of the last step."""
    return [record.turns[0].prompt for record in read_rollouts(sorted((seen.folder / "rollouts").iterdir())[-1])]


def behavior(seen: Seen) -> Any:
    """The first probability of all."""
    return seen.records[0].turns[0].behavior_logprobs[0]


# ---------------------------------------------------------------------------------------------------------- the table

Kind = Literal["rpn", "scratch", "qwen", "bpe"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """`a` and `b` are values of `key`; with `base` around them, `look` must see something else.

    `rpn` runs start from a shared model, `scratch` runs make one of their own; `qwen` and `bpe` do the same on GSM8K.
    """

    key: str
    a: str
    b: str
    look: Callable[[Seen], Any]
    base: tuple[str, ...]
    kind: Kind

    @property
    def owners(self) -> set[tuple[str, str]]:
        """The key and whose it is, as `every_setting` has them."""
        group, _, rest = self.key.partition(".")
        if group in ("algorithm", "sampler"):
            chosen = [word.partition("=")[2] for word in self.base if word.startswith(f"{group}=")]
            return {(self.key, (chosen or ["grpo"])[0])}
        if group == "model":
            return {(self.key, {"scratch": "scratch", "bpe": "scratch_bpe"}.get(self.kind, "hf"))}
        if rest.startswith("parts."):
            return {("reward.parts.<name>.weight", f"rpn_{rest.split('.')[1]}")}
        return {(self.key, "rpn" if group == "task" else "")}


def case(key: str, a: Any, b: Any, look: Callable[[Seen], Any], *base: str, kind: Kind = "rpn") -> Case:
    return Case(key=key, a=str(a), b=str(b), look=look, base=base, kind=kind)


FEW = ("warm_start.num_steps=6", "warm_start.warmup_steps=1", "warm_start.final_phase_steps=2")
PLAIN_INTEGERS = ("task.modulus=null", "task.max_abs_value=12")


def of_task(key: str, a: Any, b: Any, look: Callable[[Seen], Any], *base: str) -> Case:
    """A setting of the task, with a model made for it."""
    return case(f"task.{key}", a, b, look, "rollout.prompts_per_step=24", *FEW, *base, kind="scratch")


def words(seen: Seen) -> set[str]:
    return {word for prompt in seen.prompts for word in prompt.split()}


def num_operators(seen: Seen) -> list[int]:
    return [(len(prompt.split()) - 3) // 2 for prompt in seen.prompts]


def largest_answer(seen: Seen) -> int:
    return max(abs(int(record.answer)) for record in seen.records)


def is_chain(seen: Seen) -> bool:
    """Whether no operator follows another one in any prompt: `1 2 + 3 +`, and not `1 2 3 + +`."""
    return not any("+ +" in prompt for prompt in seen.prompts)


TASK = [
    of_task("operators", "[+]", "[+,-]", lambda seen: "-" in words(seen)),
    of_task("operand_range", "[0,4]", "[0,2]", lambda seen: {"3", "4"} & words(seen)),
    of_task("modulus", 5, 9, lambda seen: largest_answer(seen) > 4),
    of_task("max_abs_value", 6, 12, lambda seen: largest_answer(seen) > 6, *PLAIN_INTEGERS),
    of_task("shape", "chain", "tree", is_chain, "task.complexity_range=[2,3]"),
    of_task("complexity_range", "[1,2]", "[3,4]", lambda seen: max(num_operators(seen))),
    of_task("complexity_weights", "[100,1]", "[1,100]", lambda seen: sum(num_operators(seen)) > 36),
    of_task("held_out_share", 0.1, 0.6, lambda seen: seen.prompts),
    case("task.eval_complexity_weights", "[100,1]", "[1,100]", evaluation),
]

NARROW = ("trainer.precision=bf16", "engine.dtype=bfloat16")
COLD = "warm_start.enabled=false"


def of_scratch(key: str, a: Any, b: Any, look: Callable[[Seen], Any], *base: str) -> list[Case]:
    """A setting that both kinds of models made from scratch have."""
    return [case(f"model.{key}", a, b, look, *base, kind=kind) for kind in ("scratch", "bpe")]


MODEL = [
    *of_scratch("hidden_size", 32, 48, shape("hidden_size"), COLD),
    *of_scratch("head_dtype", "auto", "float32", behavior, COLD, *NARROW),
    *of_scratch("num_layers", 2, 1, shape("num_hidden_layers"), COLD),
    *of_scratch("num_heads", 2, 4, start, *FEW),
    *of_scratch("head_dim", "null", 32, shape("head_dim"), COLD),
    *of_scratch("intermediate_size", 64, 80, shape("intermediate_size"), COLD),
    *of_scratch("init_std", 0.06, 0.2, start, COLD),
    *of_scratch("rope_theta", 100, 10000, start, *FEW),
    *of_scratch("max_context_tokens", 200, 300, shape("max_position_embeddings"), COLD),
    case("model.vocabulary_size", 400, 380, shape("vocab_size"), COLD, kind="bpe"),
    case("model.tie_embeddings", "true", "false", shape("tie_word_embeddings"), COLD, kind="bpe"),
    case("model.embedding_init_std", 0.05, 0.5, start, COLD, kind="bpe"),
]


def loaded_with(name: str) -> Callable[[Seen], Any]:
    """An option that transformers was given."""
    return lambda seen: str(seen.load_options[name])


def of_hf(key: str, a: Any, b: Any, look: Callable[[Seen], Any], *base: str) -> Case:
    """A setting of a pretrained model."""
    return case(f"model.{key}", a, b, look, *base, kind="qwen")


LORA = ("model.lora.enabled=true", "model.lora.r=2", "model.lora.target_modules=[q_proj,down_proj]")
PRETRAINED = [
    of_hf("trust_remote_code", "false", "true", loaded_with("trust_remote_code")),
    of_hf("head_dtype", "auto", "float32", behavior, *NARROW),
    of_hf("dtype", "float32", "bfloat16", behavior, *LORA),
    of_hf("attn_implementation", "sdpa", "eager", loaded_with("attn_implementation")),
    of_hf("gradient_checkpointing", "false", "true", lambda seen: seen.calls["forward"]),
    of_hf("load_in_4bit", "false", "true", behavior, *LORA),
    of_hf("load_in_8bit", "false", "true", behavior, *LORA),
    of_hf("lora.enabled", "true", "false", lambda seen: seen.files("final")),
    of_hf("lora.r", 2, 4, adapter, *LORA),
    of_hf("lora.alpha", 32, 8, metric("policy/grad_norm"), *LORA),
    of_hf("lora.target_modules", "[q_proj,down_proj]", "[all-linear]", adapter, *LORA),
    of_hf("lora.merge_final", "false", "true", lambda seen: seen.files("final"), *LORA),
]

TUNED = ("warm_start.enabled=true", "warm_start.num_examples=24")
EPOCHS = ("warm_start.num_steps=null", "warm_start.batch_size=8", "warm_start.warmup_steps=1")
WARM_START = [
    case("warm_start.enabled", "true", "false", start, kind="scratch"),
    case("warm_start.source", "demonstrations", "own", start, *TUNED),
    case("warm_start.num_examples", 8, 16, start, TUNED[0]),
    case("warm_start.num_epochs", 1, 2, start, *TUNED),
    case("warm_start.samples", 2, 8, start, *TUNED, "warm_start.source=own"),
    case("warm_start.loss_on", "completion", "all", start, *TUNED),
    case("warm_start.loss_on", "completion", "all", start, *FEW, kind="scratch"),
    case("warm_start.optimizer", "adamw", "muon", start, *TUNED, "warm_start.learning_rate=0.01"),
    case("warm_start.optimizer", "adamw", "muon", start, *FEW, kind="scratch"),
    case("warm_start.num_steps", 2, 3, start, *TUNED, "warm_start.num_epochs=null"),
    case("warm_start.num_steps", 6, 8, start, *FEW[1:], kind="scratch"),
    case("warm_start.num_examples", 16, 24, start, *EPOCHS, kind="scratch"),
    case("warm_start.num_epochs", 1, 2, start, *EPOCHS, "warm_start.num_examples=16", kind="scratch"),
    case("warm_start.batch_size", 8, 16, start, *FEW, kind="scratch"),
    case("warm_start.learning_rate", 1e-3, 2e-3, start, *FEW, kind="scratch"),
    case("warm_start.warmup_steps", 1, 5, start, FEW[0], FEW[2], kind="scratch"),
    case("warm_start.final_learning_rate_share", 0.0, 1.0, start, *FEW, kind="scratch"),
    case("warm_start.weight_decay", 0.0, 5.0, start, *FEW, kind="scratch"),
    case("warm_start.worked_share", 1.0, 0.0, start, *FEW, kind="scratch"),
    case("warm_start.final_phase_steps", 2, 4, start, *FEW[:2], kind="scratch"),
    case("warm_start.final_worked_share", 0.0, 1.0, start, *FEW, kind="scratch"),
]

SAMPLES = "evaluation.samples_per_example=4"
TRUNCATION = (("temperature", 1.0, 0.3), ("top_p", 1.0, 0.3), ("top_k", 0, 1), ("min_p", 0.0, 0.9))
TWO = "trainer.max_steps=2"
ROLLOUT = [
    case("reward.parts.boxed.weight", 0.2, 0.4, metric("reward/mean")),
    case("reward.parts.correct.weight", 0.2, 0.4, metric("reward/mean")),
    case("rollout.prompts_per_step", 8, 5, metric("rollout/episodes")),
    case("rollout.group_size", 4, 2, metric("rollout/episodes")),
    case("rollout.max_staleness", 0, 1, metric("rollout/staleness_max", 2), TWO),
    case("rollout.dead_groups", "keep", "drop", metric("rollout/dropped_groups")),
    case("rollout.dead_groups", "auto", "refill", metric("rollout/refilled_groups")),
    case("rollout.max_refills", 0, 2, metric("rollout/refilled_groups"), "rollout.dead_groups=refill"),
    case("rollout.max_completion_tokens", 16, 2, lambda seen: max(len(text.split()) for text in sampled(seen)) > 2),
    case("rollout.temperature", 1.0, 0.5, sampled),
    case("rollout.top_p", 1.0, 0.5, sampled),
    case("rollout.top_k", 0, 1, metric("rollout/zero_advantage_share")),
    case("rollout.min_p", 0.0, 0.9, sampled),
    *(case(f"rollout.{key}", a, b, evaluation, SAMPLES) for key, a, b in TRUNCATION),
]

SIX, FINITE = "trainer.max_steps=6", "task.complexity_range=[1,1]"
SAMPLER = [
    case("sampler.weights", "{1_operators: 0}", "{1_operators: 9}", drawn, "sampler=by_tag"),
    case("sampler.other", 0, 9, drawn, "sampler=by_tag", "sampler.weights={1_operators: 1}"),
    case("sampler.floor", 0.01, 1.0, drawn, "sampler=pass_rate", SIX),
    case("sampler.part", "null", "boxed", drawn, "sampler=pass_rate", SIX, "sampler.floor=0.01"),
    case("sampler.part", "null", "boxed", drawn, "sampler=unsolved", SIX),
    case("sampler.solved_at", 0.1, 1.0, drawn, "sampler=unsolved", SIX, FINITE),
]

GRPO_LIKE = ("grpo", "dapo", "gspo", "cispo", "distill")
CLIPPED = ("grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "gspo", "ppo", "distill")
REWARDED = ("algorithm.teacher=start", "algorithm.reward_coef=1.0")
ALL = (*CLIPPED, "cispo")
SEVERAL = ("algorithm.num_epochs=3", "algorithm.num_minibatches=1", "trainer.learning_rate=0.01")
ONE = ("algorithm.num_epochs=1", "algorithm.num_minibatches=1")
KL = ("algorithm.kl_coef=0.5", *SEVERAL)
MASKED = "algorithm.mismatch_correction=mask"
OFF_POLICY = ("trainer.precision=bf16", *ONE)
TIGHT = "algorithm.mismatch_cap=1.0001"


def of(algorithms: tuple[str, ...], key: str, a: Any, b: Any, look: Callable[[Seen], Any], *base: str) -> list[Case]:
    """The same case for several algorithms."""
    more = {"distill": REWARDED}
    return [
        case(f"algorithm.{key}", a, b, look, f"algorithm={name}", *more.get(name, ()), *base) for name in algorithms
    ]


PPO, DAPO, DISTILL = ("ppo",), ("dapo",), ("distill",)
NOT_DAPO, NOT_GSPO = (tuple(name for name in ALL if name != one) for one in ("dapo", "gspo"))
SHORT = ("rollout.max_completion_tokens=2", "algorithm.entropy_coef=0.1")
OVERLONG, BUFFER = "algorithm.overlong_buffer_tokens=1", "algorithm.overlong_buffer_tokens=4"
DEAD = ("trainer.max_steps=1",)
ALGORITHM = [
    *of(ALL, "aggregation", "token_mean", "sequence_sum", metric("policy/grad_norm"), *ONE),
    *of(("grpo",), "aggregation", "token_mean", "prompt_mean", metric("policy/grad_norm"), *ONE),
    *of(CLIPPED, "dual_clip", "null", 1.0001, weights, *SEVERAL, "algorithm.clip_high=9"),
    *of(ALL, "kl_coef", 0.0, 0.5, metric("policy/reference_kl"), *ONE),
    *of(ALL, "kl_estimator", "k1", "k3", weights, *KL, "trainer.max_steps=2"),
    *of(ALL, "kl_placement", "loss", "reward", weights, *KL),
    *of(ALL, "kl_unbiased", "false", "true", weights, *KL, "algorithm.kl_placement=loss", "algorithm.kl_estimator=k3"),
    *of(ALL, "entropy_coef", 0.0, 0.1, metric("loss/total"), *ONE),
    *of(NOT_DAPO, "truncated", "keep", "mask", metric("policy/trained_tokens"), *SHORT),
    *of(DAPO, "truncated", "keep", "mask", metric("policy/trained_tokens"), *SHORT, OVERLONG),
    *of(ALL, "num_epochs", 1, 2, metric("policy/updates")),
    *of(ALL, "num_minibatches", 1, 2, metric("policy/updates")),
    *of(ALL, "mismatch_correction", "truncate", "mask", weights, *OFF_POLICY, TIGHT),
    *of(ALL, "mismatch_correction", "none", "mask", weights, *OFF_POLICY),
    *of(("grpo",), "mismatch_correction", "sequence_truncate", "sequence_mask", weights, *OFF_POLICY, TIGHT),
    *of(("grpo",), "mismatch_correction", "sequence_mask", "geometric_mask", weights, *OFF_POLICY, TIGHT),
    *of(("grpo",), "mismatch_correction", "geometric_mask", "geometric_mask_tokens", weights, *OFF_POLICY, TIGHT),
    *of(ALL, "mismatch_cap", 1.0001, 2.0, metric("policy/mismatch_capped"), *OFF_POLICY, MASKED),
    *of(CLIPPED, "clip_low", 1e-4, 0.9, metric("policy/clip_low"), *SEVERAL),
    *of(NOT_GSPO, "clip_high", 1e-4, 9.0, metric("policy/clip_high"), *SEVERAL),
    *of(("gspo",), "clip_high", 1e-4, 9.0, weights, *SEVERAL, "trainer.max_steps=2"),
    *of(GRPO_LIKE, "std_normalization", "sample", "population", metric("policy/grad_norm"), *ONE),
    *of(("grpo",), "std_normalization", "sample", "batch", metric("policy/grad_norm"), *ONE),
    *of(GRPO_LIKE, "std_normalization", "sample", "none", metric("policy/grad_norm"), *ONE),
    *of(DAPO, "dynamic_sampling", "true", "false", metric("rollout/refilled_groups"), *DEAD),
    *of(DAPO, "max_refills", 0, 2, metric("rollout/refilled_groups"), *DEAD),
    *of(DAPO, "overlong_buffer_tokens", 1, 4, weights, "rollout.max_completion_tokens=5"),
    *of(DAPO, "overlong_penalty", 0.5, 1.0, weights, "rollout.max_completion_tokens=5", BUFFER),
    *of(("reinforce_pp", "ppo"), "gamma", 1.0, 0.5, weights),
    *of(PPO, "gae_lambda", 1.0, 0.5, weights, "trainer.max_steps=3"),
    *of(PPO, "value_coef", 0.1, 0.5, weights),
    *of(PPO, "value_clip", "null", 1e-4, weights, *SEVERAL),
    *of(PPO, "whiten_advantages", "true", "false", metric("policy/grad_norm")),
    *of(PPO, "target_kl", "null", 1e-6, metric("policy/updates"), *SEVERAL),
    *of(DISTILL, "reward_coef", 0.5, 1.0, metric("policy/grad_norm")),
    *of(DISTILL, "max_gap", 1e-4, 10.0, weights, "trainer.max_steps=3"),
    *of(DISTILL, "refresh_every", "null", 2, metric("policy/teacher_kl", 3), "trainer.max_steps=3"),
]

LINEAR = ("trainer.schedule=linear", TWO)
EACH_STEP = ("trainer.max_steps=3", "trainer.checkpoint_every=1", "evaluation.every=1")
WORSE = ("trainer.learning_rate=1.0", "trainer.keep_last=1")
TRAINER = [
    case("trainer.max_steps", 1, 2, lambda seen: len(seen.rows)),
    case("trainer.learning_rate", 1e-4, 2e-4, metric("policy/learning_rate")),
    case("trainer.schedule", "constant", "linear", metric("policy/learning_rate", 2), TWO),
    case("trainer.schedule", "cosine", "linear", metric("policy/learning_rate", 2), "trainer.max_steps=4"),
    case("trainer.warmup_steps", 0, 2, metric("policy/learning_rate"), TWO),
    case("trainer.final_learning_rate_share", 0.1, 0.5, metric("policy/learning_rate", 2), *LINEAR),
    case("trainer.optimizer", "adamw", "muon", weights, "trainer.learning_rate=0.01"),
    case("trainer.adam_beta1", 0.9, 0.5, weights, TWO),  # the first step depends on no beta
    case("trainer.adam_beta2", 0.95, 0.5, weights, "trainer.learning_rate=1e-3", TWO),
    case("trainer.weight_decay", 0.0, 5.0, weights),
    case("trainer.max_grad_norm", 1.0, 0.01, weights),
    case("trainer.microbatch_tokens", 16384, 64, lambda seen: seen.calls["hidden"]),
    case("trainer.precision", "fp32", "bf16", weights),
    case("trainer.precision", "bf16", "fp16", weights),
    case("trainer.num_threads", 1, 2, lambda seen: seen.threads),
    case("trainer.checkpoint_every", "null", 1, lambda seen: seen.files("checkpoints")),
    case("trainer.keep_last", 1, 3, lambda seen: len(seen.files("checkpoints")), *EACH_STEP),
    case("trainer.keep_best", "true", "false", lambda seen: seen.files("checkpoints"), *EACH_STEP, *WORSE),
]

PLAIN = ("tracker.console=plain",)
REST = [
    case("seed", 0, 1, lambda seen: seen.prompts),
    case("debug", "false", "true", lambda seen: "---- step 1, group 1" in seen.err, "tracker.console=plain"),
    case("engine.max_batch_size", 256, 3, lambda seen: seen.calls["step"]),
    case("evaluation.every", 1, 100, lambda seen: ["eval/rpn/accuracy" in row for row in seen.rows], TWO),
    case("evaluation.num_examples", 10, 16, metric("eval/rpn/num_examples", 0)),
    case("evaluation.samples_per_example", 0, 2, lambda seen: set(evaluation(seen))),
    case("evaluation.headline", "accuracy", "part_boxed", lambda seen: "part boxed" in seen.err, *PLAIN),
    case("evaluation.also", "null", "[finqa]", lambda seen: "eval/finqa/accuracy" in seen.rows[1], kind="qwen"),
    case("tracker.console", "none", "plain", lambda seen: seen.err == ""),
    case("tracker.log_every", 1, 2, lambda seen: seen.err.count("\n"), *PLAIN, TWO),
    case("tracker.rollouts_every", 2, 1, lambda seen: seen.files("rollouts"), "trainer.max_steps=3"),
    case("tracker.rollouts_every", "null", 1, lambda seen: seen.files("rollouts")),
    case("tracker.rollouts_max_groups", 1, 8, lambda seen: len(seen.records)),
]

CASES = [*TASK, *MODEL, *PRETRAINED, *WARM_START, *ROLLOUT, *SAMPLER, *ALGORITHM, *TRAINER, *REST]
UNIT, SYSTEM = "tests/unit/", "tests/system/"
RANKS = f"{SYSTEM}test_distributed.py::"
SERVERS = f"{UNIT}engines/vllm/"
ELSEWHERE = {  # what takes several processes, runs or a server, and the test of it
    "algorithm.teacher": f"{SYSTEM}test_distill.py::test_a_policy_follows_its_teacher",
    "reward.max_error_share": f"{SYSTEM}test_bad_rewards.py::test_more_failures_than_allowed_stop_the_run",
    "name": f"{UNIT}run/test_run_folder.py::test_the_default_name_holds_the_time_and_latest_points_to_it",
    "run_dir": f"{SYSTEM}test_bad_input.py::test_a_run_folder_is_never_overwritten",
    "resume": f"{SYSTEM}test_resume.py::test_more_steps_than_at_first_and_no_more_of_a_finished_run",
    "model.name_or_path": f"{SYSTEM}test_zero_code.py::test_model_steps_and_learning_rate",
    "task.max_prompt_tokens": f"{UNIT}tasks/test_rpn.py::test_contradicting_settings_are_named_with_their_remedy",
    "trainer.device": f"{UNIT}models/test_devices.py::test_without_a_gpu_auto_is_the_cpu",
    "trainer.strategy": f"{RANKS}test_processes_that_would_train_alone_are_refused",
    "trainer.world_size": f"{RANKS}test_a_launcher_that_starts_one_process_is_noticed",
    "trainer.cpu_offload": f"{UNIT}scale/test_fsdp.py::test_a_cpu_has_nowhere_to_offload_to",
    "warm_start.cache": f"{SYSTEM}test_train.py::test_a_warm_start_is_computed_once",
    "task.retrieval.max_error_share": f"{UNIT}retrieval/test_services.py::test_pitfall_26_a_search_may_fail",
    "engine.urls": f"{SERVERS}test_engine.py::test_requests_are_spread_and_a_session_keeps_its_server",
    "engine.sync": f"{SERVERS}test_push.py::test_pitfall_32_the_merged_model_is_pushed",
    "engine.broadcast_host": f"{SERVERS}test_push.py::test_an_address_that_is_not_this_machines_is_refused",
    "engine.weights_dir": f"{UNIT}run/test_engines.py::test_servers_read_weights_from_run_folder_or_weights_dir",
    "reward.parts.<name>.max_tests": f"{UNIT}rewards/test_code.py::test_tests_are_drawn_once_for_an_example",
    "reward.parts.<name>.timeout_s": f"{UNIT}rewards/test_code.py::test_why_a_program_fails_is_said",
    "reward.parts.<name>.memory_mb": f"{UNIT}rewards/test_code.py::test_a_program_has_so_much_memory",
    "reward.parts.<name>.num_jails": f"{UNIT}rewards/test_code.py::test_so_many_programs_run_at_once",
    "reward.parts.<name>.isolation": f"{UNIT}rewards/test_code.py::test_isolation_is_what_was_chosen",
    "engine.timeout_s": f"{SERVERS}test_faults.py::test_a_server_that_hangs_is_not_waited_for",
    "engine.wait_s": f"{SERVERS}test_faults.py::test_a_server_that_does_not_come_back_ends_the_run",
    "engine.max_retries": f"{SERVERS}test_faults.py::test_a_server_that_is_always_wrong_ends_the_run",
    "engine.max_logprob_gap": f"{SERVERS}test_push.py::test_pitfall_30_the_probe_finds_a_head_with_old_weights",
}


# ----------------------------------------------------------------------------------------------------------- running

ONE_STEP = ("rollout.prompts_per_step=8", "trainer.max_steps=1")
BPE = split("""
    model=scratch_bpe model.hidden_size=32 model.num_layers=2 model.num_heads=2 model.intermediate_size=64
    model.init_std=0.06 model.rope_theta=100 model.max_context_tokens=200 model.vocabulary_size=400
    warm_start.batch_size=8 reward=numeric prompt=boxed
""")


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Runs by their resolved configuration: many cases share one of their two, or both."""

    root: Path
    models: dict[Kind, Path]
    known: dict[str, Seen]

    def config(self, kind: Kind, *overrides: str) -> Config:
        """What a case runs; without warm start its settings would have no effect."""
        made: dict[Kind, tuple[str, ...]] = {
            "rpn": (*SMALL, *ONE_STEP, *pretrained(self.models["rpn"])),
            "scratch": (*SMALL, *ONE_STEP, *SCRATCH),
            "qwen": (*ON_DATA, f"model.name_or_path={self.models['qwen']}"),
            "bpe": (*ON_DATA, *BPE),
        }
        words = [word for word in made[kind] if COLD not in overrides or not word.startswith("warm_start.")]
        return load_config(once(*words, *overrides), config_name="rpn" if kind in ("rpn", "scratch") else "gsm8k")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, model: Path, qwen: Path) -> Runs:
    return Runs(root=tmp_path_factory.mktemp("settings"), models={"rpn": model, "qwen": qwen}, known={})


@pytest.fixture
def watch(runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[Config], Seen]:
    """Run a configuration and count forward passes, engine steps and what the model was loaded with."""
    monkeypatch.setenv("RLVR_DATA", str(DATA))
    calls: Counter[str] = Counter()
    options: dict[str, Any] = {}

    def noted(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*args: Any, **more: Any) -> Any:
            calls[name] += 1
            if name == "from_pretrained":
                options.update(more)
            return function(*args, **more)

        monkeypatch.setattr(owner, name, call)

    noted(HubPolicy, "hidden")
    noted(Qwen2MLP, "forward")
    noted(Scheduler, "step")
    noted(rlvr.models.loading.AutoModelForCausalLM, "from_pretrained")

    def run(config: Config) -> Seen:
        key = json.dumps(dumped(config))
        if key not in runs.known:
            calls.clear()
            capsys.readouterr()
            folder = Path(tempfile.mkdtemp(dir=runs.root))
            train(config.model_copy(update={"run_dir": str(folder)}))
            seen = {"err": capsys.readouterr().err, "threads": torch.get_num_threads()}
            runs.known[key] = Seen(folder=folder, calls=calls.copy(), load_options=dict(options), **seen)
        return runs.known[key]

    return run


def name_of(case: Case) -> str:
    """`algorithm.gamma-ppo-1.0-0.5`"""
    return "-".join([case.key, *(owner for _, owner in case.owners), case.a, case.b])


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_setting_does_what_it_says(case: Case, runs: Runs, watch: Callable[[Config], Seen]) -> None:
    one, two = (watch(runs.config(case.kind, *case.base, f"{case.key}={value}")) for value in (case.a, case.b))
    assert case.look(one) != case.look(two)


# ------------------------------------------------------------------------------------------------------ completeness


OWNED = {name: name for name in ("task", "model", "sampler", "algorithm")} | {"reward.parts.<name>": "reward"}
"""Where a key belongs to each of the components that have it."""


TWINS = ("smollm2",)
"""Choices that differ from another one by a default alone."""


def every_setting() -> set[tuple[str, str]]:
    """Each key with the component whose it is: `("algorithm.gamma", "ppo")`, `("trainer.max_steps", "")`."""
    owned = {
        (path, name)
        for prefix, group in OWNED.items()
        for name, component in registry.ours(group).items()
        if name not in TWINS
        for path, _ in keys(component, f"{prefix}.")
    }
    others = [path for path in all_keys({"engine": "vllm"}) if not path.startswith((*OWNED, "reward.parts"))]
    for_tools = {("task.max_turns", "generator"), ("task.tool_timeout_s", "generator")}  # of a subclass with tools
    return (owned - for_tools) | {(path, "") for path in others}


def test_no_setting_is_left_out() -> None:
    others = (*DATA_CASES, *MULTIHOP_CASES, *TRACKER_CASES)
    found = {owner for case in CASES for owner in case.owners} | {(case.path, case.owner) for case in others}
    everything = every_setting()
    assert {(path, owner) for path, owner in everything - found if path not in ELSEWHERE} == set()
    assert found - everything == set()  # no key that is none
    assert set(ELSEWHERE) <= {path for path, _ in everything}
    places = [test.split("::") for test in ELSEWHERE.values()]
    assert [name for file, name in places if f"def {name}" not in (ROOT / file).read_text()] == []
