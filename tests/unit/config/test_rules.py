"""Rules that span sections: each seen to fire, and none on a default."""

import re
from pathlib import Path

import pytest

from rlvr.config.catalog import choice_models
from rlvr.config.compose import load_config
from rlvr.config.data_rules import ALSO_RULES
from rlvr.config.plan import plan
from rlvr.config.rule import Rule
from rlvr.config.rules import GROUP_ALGORITHMS, RULES
from rlvr.errors import ConfigError
from tests.unit.config import multihop_cases

GSM8K = Path(__file__).parents[2] / "fixtures" / "gsm8k"
HF = "model=hf model.name_or_path=x"
LORA = "model.lora.enabled=true"
BROKEN = {
    # task
    "task.operators=[+,+]": "task.operators",
    "task.operand_range=[6,0]": "write [0,6]",
    "task.operand_range=[0,7]": "task.operand_range=[0,7]",
    "task.operand_range=[-1,6]": "task.operand_range=[-1,6]",
    "task.modulus=null": "task.max_abs_value",
    "task.max_abs_value=50": "task.max_abs_value=50: has no effect with task.modulus=7",
    "task.modulus=null task.max_abs_value=3": "task.operand_range=[0,6]",
    "task.complexity_weights=[1,2]": "task.complexity_weights",
    "task.eval_complexity_weights=[1,2,3,4]": "task.eval_complexity_weights",
    "task.max_prompt_tokens=8": "task.max_prompt_tokens=8",
    "task.complexity_range=[1,1] task.complexity_weights=null task.eval_complexity_weights=null task.shape=chain": (
        "task.shape=chain: has no effect"
    ),
    # tools
    "task=two_hop task.max_turns=2": "two searches and an answer need 3 turns",
    "task=two_hop rollout.max_completion_tokens=3": "a call and an answer of task=two_hop have 4 words",
    "task=two_hop prompt.answer_in=whole": "choose prompt.answer_in=solution",
    "task=two_hop prompt.tool_format=hermes": "leave prompt.tool_format=words",
    "task=two_hop prompt.few_shot=1": "prompt.few_shot=1: has no effect with task=two_hop",
    "algorithm.train_on_tool_tokens=true": "train_on_tool_tokens=true: has no effect with task=rpn, which has no tools",
    "prompt.tool_format=words": "prompt.tool_format=words: has no effect with task=rpn, which has no tools",
    f"task=mix {HF} task.parts={{musique:{{set:['prompt.tool_format=llama']}},wiki2:1}}": "called in more than one way",
    f"task=verifiers task.env_id=x {HF} prompt.few_shot=1": "has no effect with task=verifiers, whose environments",
    f"task=verifiers task.env_id=x {HF} evaluation.headline=part_x": "evaluation.headline=part_x: the parts of an",
    # model and warm start
    "model.num_heads=5": "model.num_heads=5",
    "model.num_heads=64": "model.num_heads=64",
    "model.head_dim=32 model.num_heads=5": "model.num_heads=5: model.hidden_size=64 does not split",
    "model.head_dim=31": "model.head_dim=31: rotary embeddings turn pairs of dimensions; choose an even number",
    "model.max_context_tokens=39": "model.max_context_tokens=39",
    "model=hf model.name_or_path=x warm_start.num_steps=10": "warm_start.num_steps=10: has no effect with model=hf",
    "warm_start.enabled=false warm_start.num_steps=10": "warm_start.num_steps=10: has no effect",
    "warm_start.num_steps=10": "warm_start.final_phase_steps=200",
    "warm_start.final_phase_steps=0 warm_start.final_worked_share=0.5": "final_worked_share=0.5: has no effect",
    "warm_start.final_phase_steps=1000 warm_start.worked_share=0.5": "warm_start.worked_share=0.5: has no effect",
    "warm_start.warmup_steps=2000": "warm_start.warmup_steps=2000",
    # engine
    "engine=vllm engine.urls=[http://a:1,http://a:1/]": "names a server twice",
    "engine=vllm engine.urls=[http://a:1/v1,http://a:1/]": "names a server twice",
    "engine=vllm rollout.temperature=0.005": "rollout.temperature=0.005: vLLM samples at 0.01 where less is asked for",
    f"engine=vllm {HF} {LORA} model.load_in_4bit=true": "model.load_in_4bit=true: engine=vllm would sample from",
    f"engine=vllm {HF} {LORA} model.load_in_8bit=true": "model.load_in_8bit=true: engine=vllm would sample from",
    "engine=vllm engine.sync=adapter": "engine.sync=adapter: there is no adapter to push",
    "engine=vllm engine.sync=broadcast engine.weights_dir=/x": "engine.weights_dir: has no effect with engine.sync=br",
    "engine=vllm engine.broadcast_host=10.0.0.1": "engine.broadcast_host: has no effect without engine.sync=broadcast",
    f"engine=vllm {HF} engine.sync=adapter": "engine.sync=adapter: there is no adapter to push",
    # processes
    f"{HF} {LORA} model.load_in_4bit=true trainer.strategy=fsdp2": "model.load_in_4bit=true: packed weights cannot",
    f"{HF} {LORA} model.load_in_8bit=true trainer.strategy=fsdp2": "model.load_in_8bit=true: packed weights cannot",
    "trainer.cpu_offload=true": "trainer.cpu_offload=true: has no effect with trainer.strategy=single",
    "trainer.cpu_offload=true trainer.strategy=ddp": "set trainer.strategy=fsdp2",
    # weights and adapters
    f"{HF} {LORA} model.load_in_4bit=true model.load_in_8bit=true": "choose one of them",
    f"{HF} model.load_in_4bit=true": "weights of 4 bits cannot be trained; set model.lora.enabled=true",
    f"{HF} model.load_in_8bit=true": "weights of 8 bits cannot be trained; set model.lora.enabled=true",
    f"{HF} model.dtype=bfloat16": "set model.lora.enabled=true, or model.dtype=float32",
    f"{HF} {LORA} model.dtype=bfloat16 trainer.precision=fp32": "model.dtype=bfloat16 computes in bfloat16",
    f"{HF} model.attn_implementation=flash_attention_2 trainer.device=cpu": "needs a GPU, and trainer.device=cpu",
    f"{HF} model.attn_implementation=flash_attention_2 trainer.precision=fp32": "computes in bfloat16; set trainer",
    f"{HF} model.lora.r=8": "model.lora.r=8: has no effect with model.lora.enabled=false; set it to true",
    f"{HF} model.lora.merge_final=true": "model.lora.merge_final=true: has no effect",
    # reward
    "reward.type=combined reward.boxed_weight=0 reward.correct_weight=0": "every reward would be 0",
    "reward.boxed_weight=0.5": "reward.boxed_weight=0.5: has no effect with reward.type=correct",
    "reward.type=boxed reward.correct_weight=1": "reward.correct_weight=1.0: has no effect",
    # task, reward, prompt and model together
    "task=gsm8k": "model=scratch has a tokenizer of the task's words",
    "model=scratch_bpe": "choose model=scratch",
    "reward=numeric": "task=rpn cannot be scored by this reward; choose reward=rpn",
    f"task=gsm8k {HF} reward=rpn": "task=gsm8k cannot be scored by this reward; choose reward=gsm8k",
    f"task=gsm8k {HF} reward=mix": "leave out reward=",
    f"task=mix task.parts={{gsm8k:1}} {HF} reward=numeric": "leave out reward=",
    "prompt=math_reasoning": "leave prompt=plain",
    f"task=mix task.parts={{gsm8k:1}} {HF} prompt.few_shot=1": "prompt.few_shot=1: has no effect with task=mix",
    f"task=gsm8k {HF} reward=numeric prompt=boxed prompt.markers=think": "prompt.markers=think: has no effect",
    f"task=gsm8k {HF} prompt=boxed": "prompt.answer_in=boxed: the reward has parts on format",
    f"task=finqa {HF} task.answer=program": "reward=finqa_program prompt=financial_program",
    f"task=finqa {HF} reward=finqa_program": "reward=finqa prompt=financial_reasoning",
    f"task=gsm8k {HF} reward=finqa_program": "finqa_program scores programs of task=finqa, not task=gsm8k",
    f"task=gsm8k {HF} reward=reasoning_gym": "reasoning_gym scores task=reasoning_gym, not task=gsm8k",
    f"task=gsm8k {HF} +reward.parts.short={{type:length,weight:1,free_tokens:9,max_tokens:9}}": "raise max_tokens",
    f"task=gsm8k {HF} reward=numeric reward.parts.correct.weight=0": "every weight is 0",
    f"task=jsonl {HF} task.path=x task.eval_path=y task.eval_share=0.3": "task.eval_share=0.3: has no effect where",
    f"task=hub {HF} task.path=x task.eval_split=y task.eval_share=0.3": "task.eval_share=0.3: has no effect where",
    f"task=gsm8k {HF} reward.timeout_s=3": "reward.timeout_s=3.0: has no effect where no part",
    f"task=gsm8k {HF} evaluation.also=[gsm8k]": "evaluation.also: names a task that this run evaluates anyway",
    f"task=gsm8k {HF} task.solution_lines=1": "task.solution_lines=1: has no effect with a pretrained model",
    f"task=gsm8k {HF} task.path={GSM8K} task.subset=socratic": "task.subset=socratic: has no effect where task.path=",
    f"task=gsm8k {HF} evaluation.also={{a:{{task:finqa,set:['reward.max_error_share=1']}}}}": "has no effect here; set",
    f"task=gsm8k {HF} evaluation.also={{a:{{task:finqa,set:['task.answer=program']}}}}": "evaluation.also.a: task",
    f"task=mix task.parts={{gsm8k:{{set:['reward.timeout_s=9']}}}} {HF}": (
        "task.parts.gsm8k: reward.timeout_s=9.0: has no effect where no part"
    ),
    f"task=gsm8k {HF} evaluation.also={{a:{{task:finqa,set:['reward.num_workers=7']}}}}": (
        "evaluation.also.a: reward.num_workers=7: has no effect where no part"
    ),
    f"task=gsm8k {HF} evaluation.also={{a:{{task:finqa,set:['task.max_train_examples=7']}}}}": (
        "evaluation.also.a: task.max_train_examples=7: has no effect where a task is only evaluated"
    ),
    "evaluation.headline=part_format": "evaluation.headline=part_format: the reward has no such part",
    "evaluation.headline=sampled_part_boxed": "evaluation.headline=sampled_part_boxed: nothing is sampled",
    f"task=finqa {HF} reward.parts.correct.approximate_credit=0 reward.parts.correct.relative_tolerance=0.05": (
        "reward.parts.correct.relative_tolerance=0.05: has no effect with approximate_credit=0"
    ),
    f"task=finqa {HF} reward.parts.correct.relative_tolerance=0 reward.parts.correct.approximate_credit=0.1": (
        "reward.parts.correct.approximate_credit=0.1: has no effect with relative_tolerance=0"
    ),
    f"task=gsm8k {HF} reward.parts.correct.near_credit=0.5": "near_credit (within 20 %) above its close_credit",
    # what the prompt asks for
    f"task=finqa {HF} prompt=financial_program": "task.answer=number: the prompt asks for a program",
    f"task=finqa {HF} task.answer=program reward=finqa_program": "task.answer=program: prompt.system does not ask",
    f"task=gsm8k {HF} prompt.answer_in=boxed reward=numeric": "prompt.answer_in=boxed: the prompt asks for the answer",
    f"task=gsm8k {HF} prompt=boxed prompt.answer_in=solution": "prompt.answer_in=solution: the prompt asks for the",
    f"task=gsm8k {HF} evaluation.also={{finqa:{{set:['prompt=financial_program']}}}}": "evaluation.also.finqa: task.",
    # algorithm
    "algorithm=ppo algorithm.num_minibatches=3": "algorithm.num_minibatches=3",
    "rollout.top_p=0.9 algorithm.mismatch_correction=truncate": "top_p=0.9",
    "rollout.top_k=5 algorithm.mismatch_correction=mask": "top_k=5",
    "rollout.min_p=0.1 algorithm.mismatch_correction=mask": "min_p=0.1",
    "algorithm.mismatch_cap=3": "algorithm.mismatch_cap=3.0: has no effect",
    "algorithm.kl_estimator=k1": "algorithm.kl_estimator=k1: has no effect with algorithm.kl_coef=0",
    "algorithm.kl_placement=reward": "algorithm.kl_placement=reward: has no effect",
    "algorithm.clip_low=0.1": "algorithm.clip_low=0.1: has no effect",
    "algorithm=cispo algorithm.clip_high=5": "algorithm.clip_high=5.0: has no effect",
    "algorithm=ppo algorithm.num_epochs=1 algorithm.num_minibatches=1 algorithm.target_kl=0.1": "target_kl=0.1: has no",
    "algorithm=ppo algorithm.value_coef=0 algorithm.value_clip=0.1": "algorithm.value_clip=0.1: has no effect",
    "algorithm=ppo algorithm.clip_low=1.5": "algorithm.clip_low=1.5",
    "algorithm=dapo algorithm.dynamic_sampling=false algorithm.max_refills=9": "algorithm.max_refills=9: has no effect",
    "algorithm=dapo algorithm.overlong_buffer_tokens=0 algorithm.overlong_penalty=2": "overlong_penalty=2.0: has",
    "algorithm=dapo algorithm.overlong_penalty=0 algorithm.overlong_buffer_tokens=2": "buffer_tokens=2: has no effect",
    "algorithm=dapo algorithm.overlong_buffer_tokens=24": "algorithm.overlong_buffer_tokens=24",
    "rollout.max_staleness=1 algorithm.num_epochs=2": "rollout.max_staleness=1: with algorithm.num_epochs=2",
    "rollout.max_staleness=1 algorithm=ppo": "set algorithm.mismatch_correction=truncate",
    "rollout.max_staleness=1 algorithm=gspo": "num_minibatches=4 updates per batch",
    "algorithm.mismatch_correction=geometric_mask": "algorithm.mismatch_cap=2.0: algorithm.mismatch_correction=geom",
    "rollout.max_staleness=1 rollout.top_p=0.9 algorithm.mismatch_correction=truncate": "top_p=0.9",
    "rollout.max_staleness=1 algorithm.clip_low=0.1": "algorithm.clip_low=0.1: has no effect with one update per",
    # trainer and tracker
    "trainer.final_learning_rate_share=0.5": "final_learning_rate_share=0.5: has no effect with trainer.schedule",
    "trainer.warmup_steps=70": "trainer.warmup_steps=70",
    "trainer.checkpoint_every=null trainer.keep_last=7": "trainer.keep_last=7: has no effect with trainer",
    "tracker.rollouts_every=null tracker.rollouts_max_groups=3": "tracker.rollouts_max_groups=3: has no effect",
    "tracker.console=none tracker.log_every=5": "tracker.log_every=5: has no effect",
    "tracker.report_to=[wandb,wandb]": "tracker.report_to: names a tracker twice",
    "tracker.run_name=x": "tracker.run_name=x: has no effect with tracker.report_to=[]; name a tracker",
    "tracker=wandb tracker.mlflow.experiment=x": "tracker.mlflow.experiment=x: has no effect where tracker.report_to",
    "tracker=tensorboard tracker.rollouts_every=null tracker.max_completions=3": "max_completions=3: has no effect",
    "tracker=tensorboard tracker.upload_timeout_s=3": "upload_timeout_s=3.0: has no effect where no tracker keeps",
    "tracker=mlflow tracker.mlflow.tracking_uri=postgresql://me:secret@db/x": "MLFLOW_TRACKING_URI=...",
    "resume=true": "run_dir=",
} | multihop_cases.BROKEN


@pytest.mark.parametrize("overrides", BROKEN)
def test_a_broken_rule_names_key_value_and_remedy(overrides: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides.split())
    assert BROKEN[overrides] in str(caught.value)
    assert "{c." not in str(caught.value)


@pytest.mark.parametrize("algorithm", choice_models("algorithm"))
def test_only_group_algorithms_need_a_group(algorithm: str) -> None:
    overrides = [f"algorithm={algorithm}", "rollout.group_size=1"]
    if algorithm in GROUP_ALGORITHMS:
        with pytest.raises(ConfigError, match=f"algorithm={algorithm}"):
            load_config(overrides)
    else:
        assert load_config(overrides).rollout.group_size == 1


SILENT = (
    "trainer.max_steps=2",  # shorter than the default warm-up, which nobody touched
    "trainer.final_learning_rate_share=0.1",  # the default, written out
    "warm_start.enabled=false",
    "trainer.schedule=linear trainer.final_learning_rate_share=0.5",
    "algorithm.num_epochs=2 algorithm.clip_low=0.1",
    "algorithm=ppo algorithm.target_kl=0.1",
    "reward.type=combined reward.boxed_weight=0.2 reward.correct_weight=0.8",
    "rollout.top_p=0.9",
    "algorithm.kl_coef=0.1 algorithm.kl_estimator=k1 algorithm.kl_placement=reward",
    "task.modulus=null task.max_abs_value=20 task.operand_range=[0,4]",
    "algorithm.mismatch_correction=truncate algorithm.mismatch_cap=3",
    "algorithm.mismatch_correction=geometric_mask algorithm.mismatch_cap=1.2",
    "rollout.max_staleness=1",  # a plain policy gradient on slightly old data
    "rollout.max_staleness=1 rollout.top_p=0.9",
    "rollout.max_staleness=4 algorithm=ppo algorithm.mismatch_correction=truncate",
    f"{HF} {LORA} model.lora.r=8 model.load_in_4bit=true model.dtype=bfloat16 trainer.precision=bf16",
    "trainer.checkpoint_every=null",
    f"task=finqa {HF} reward.parts.correct.relative_tolerance=0",
    f"task=finqa {HF} reward.parts.correct.approximate_credit=0",
    f"task=finqa {HF} task.answer=program reward=finqa_program prompt=financial_program",
    f"task=gsm8k {HF} prompt.answer_in=boxed prompt.system=null reward=numeric",
    f"task=gsm8k {HF} reward.parts.correct.close_credit=0.5 reward.parts.correct.near_credit=0.5",
    f"task=gsm8k {HF} reward.parts.correct.wrong_value=-1 reward.parts.correct.invalid_value=-2",
    "task=gsm8k model=scratch_bpe prompt.answer_in=boxed reward=numeric",  # follows no instruction
    f"{HF} {LORA} model.load_in_8bit=true model.lora.target_modules=[all-linear] model.lora.merge_final=true",
    *multihop_cases.SILENT,
)


@pytest.mark.parametrize("overrides", SILENT)
def test_rules_are_silent_where_a_value_works_or_is_untouched(overrides: str) -> None:
    load_config(overrides.split())


def test_what_follows_a_task_inside_a_configuration_is_no_change_of_the_users() -> None:
    inside = "{a:{task:finqa,set:['prompt.few_shot=1','task.max_train_examples=7']}}"
    config = load_config(["task=mix", "task.parts={gsm8k:2,rpn:1}", f"evaluation.also={inside}", *HF.split()])
    assert config.evaluation.also["a"].task.max_train_examples == 7  # type: ignore[union-attr]


def test_turning_the_warm_start_off_is_no_error_in_a_configuration_that_changes_it() -> None:
    assert not load_config(["warm_start.enabled=false"], config_name="rpn_test").warm_start.enabled


def said(rule: Rule, text: str) -> bool:
    """Whether all of a rule's words, without the values filled in, are in a message."""
    words = rule.message.replace("{{", "{").replace("}}", "}")
    return all(piece in text for piece in re.split(r"\{c\.[^}]*\}", words))


def test_every_rule_is_broken_by_an_example() -> None:
    fired = set()
    for overrides in [*BROKEN, "rollout.group_size=1", "task.complexity_range=[3,1]"]:
        with pytest.raises(ConfigError) as caught:
            load_config(overrides.split())
        fired |= {rule for rule in RULES + ALSO_RULES if said(rule, str(caught.value))}
    assert [rule.message for rule in RULES + ALSO_RULES if rule not in fired] == []


@pytest.mark.parametrize("truncation", ["rollout.top_p=0.9", "rollout.top_k=5", "rollout.min_p=0.1"])
def test_pitfall_20_a_correction_with_truncated_sampling_is_refused(truncation: str) -> None:
    # The sampled distribution is renormalized over fewer tokens; the trainer's is not, so the weight would be wrong.
    with pytest.raises(ConfigError, match="whole vocabulary"):
        load_config([truncation, "algorithm.mismatch_correction=truncate"])


@pytest.mark.parametrize("key", ["wrong_value", "invalid_value"])
@pytest.mark.parametrize("task", ["gsm8k", "finqa"])
def test_nothing_pays_more_than_a_right_answer(task: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"reward\.parts\.correct\.{key}=2"):
        load_config([f"task={task}", *HF.split(), f"reward.parts.correct.{key}=2.0"])


def notes(*overrides: str, config_name: str = "gsm8k") -> list[str]:
    return [line for line in plan(load_config(overrides, config_name=config_name)) if line.startswith("note: ")]


def test_a_prompt_that_does_not_say_where_the_answer_goes_is_noted() -> None:
    (note,) = notes("prompt.system=null")
    assert "gsm8k: neither prompt.system nor prompt.user says where" in note
    assert "prompt.answer_in=solution" in note
    assert len(notes(*HF.split(), config_name="gsm8k_smoke")) == 1  # for another model it was meant
    assert notes("evaluation.also={mine:{task:finqa,set:['prompt.system=null']}}")[0].startswith("note: mine: ")
    assert len(notes("task=mix", "task.parts={gsm8k:1,finqa:{set:['prompt.system=null']}}")) == 1


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["prompt=boxed", "reward=numeric"],
        ["prompt=plain", "reward=numeric"],
        ["prompt.system=null", "prompt.few_shot=1"],
        ["prompt.system='Write <SOLUTION>18</SOLUTION>.'"],
        ["prompt.system='End with #### 18.'", "prompt.answer_in=hash", "reward=numeric"],
    ],
)
def test_nothing_is_noted_where_the_prompt_says_it(overrides: list[str]) -> None:
    assert notes(*overrides) == []
    assert notes(config_name="gsm8k_smoke") == []
