"""Settings that exclude each other or have no effect are refused, all others are silent."""

import re
from pathlib import Path

import pytest

from rlvr.commands.train.summary import summary
from rlvr.config.compose import load_config, read_yaml, to_yaml
from rlvr.errors import ConfigError

pytestmark = pytest.mark.slow

GSM8K = Path(__file__).parents[2] / "fixtures" / "gsm8k"
SHORT = {
    "HF": "model=hf model.name_or_path=x",
    "TUNED": "warm_start.enabled=true",
    "LORA": "model=hf model.name_or_path=x model.lora.enabled=true",
    "QA": "task=musique model=hf model.name_or_path=x",
    "CORPUS": "task.retrieval.scope=corpus task.retrieval.corpus=c.jsonl",
    "REPORT": "tracker.report_to=",
    "GSM8K": str(GSM8K),
}


def lines(text: str) -> list[str]:
    """The overrides of a line of a table."""
    return re.sub("|".join(SHORT), lambda match: SHORT[match[0]], text).split()


def table(text: str) -> list[tuple[str, str]]:
    """`overrides -> message`, a line each."""
    rows = [line.split(" -> ") for line in text.strip().splitlines() if not line.startswith("#")]
    return [(overrides, said) for overrides, said in rows]


REFUSED = table(r"""
# tasks and their tools; checks of one section are tested beside its class
task.operators=[+,+] task.operand_range=[6,0] -> task.operators=["+","+"]: names an operator twice; name each once.
task=two_hop prompt.tool_format=hermes -> task=two_hop needs words
task=mix HF task.parts={musique:{set:['prompt.tool_format=llama']},wiki2:1} -> called in more than one way
QA task.tools=[complete,complete] -> task.tools=["complete","complete"]: names a tool twice; name each once
QA task.tools=[retrieve_documents] -> prompt.answer_in=complete: is complete if and only if task.tools has complete
task=gsm8k HF reward=numeric prompt=musique -> prompt.answer_in=complete: task=gsm8k has no tool complete
QA prompt.tool_format=words -> prompt.tool_format=words: task=musique has tools whose arguments
QA CORPUS prompt.user='{question}{documents}' -> prompt.user: {documents} lists the question's own
QA CORPUS prompt.user='{question}{paragraphs}' -> prompt.user: {paragraphs} lists the question's own
QA task.tools=[] -> prompt.answer_in=complete: is complete if and only if task.tools has complete
QA task.tools=[] prompt=plain task.max_turns=3 -> task.max_turns=3: has no effect; it needs a task with tools
QA task.tools=[] prompt=plain prompt.tool_format=llama -> prompt.tool_format=llama: has no effect; it needs
QA task.top_n=6 -> task.top_n=6: is more than task.max_top_n=5; lower it
QA task.retrieval.scope=corpus -> needs a file of passages with task.retriever=bm25; set task.retrieval.corpus
QA CORPUS task.retriever=rerank -> task.retriever=rerank: orders the question's own paragraphs
QA task.progress_coef=0.5 -> task.progress_coef=0.5: has no effect; it needs a task that
task=mix task.parts={musique:{set:['task.progress_coef=1']}} HF -> it needs a task that is trained on and algorithm=ppo
task=gsm8k HF evaluation.also={musique:{set:['task.progress_coef=1']}} -> task.progress_coef=1.0: has no effect
# the model and its warm start
model.max_context_tokens=39 -> model.max_context_tokens=39: too small for the longest prompt
warm_start.num_steps=10 -> warm_start.final_phase_steps=20: is more than warm_start.num_steps=10; lower it
warm_start.num_steps=null warm_start.num_epochs=null -> warm_start.num_steps=null: and num_epochs are both null
HF TUNED warm_start.optimizer=muon -> warm_start.learning_rate=auto: is a rate of AdamW
trainer.optimizer=muon -> trainer.learning_rate=auto: is a rate of AdamW
trainer.optimizer=muon trainer.learning_rate=1e-3 trainer.strategy=fsdp2 -> trainer.optimizer=muon: needs whole matrices
trainer.warmup_steps=70 -> trainer.warmup_steps=70: is more than max_steps=40
LORA model.load_in_4bit=true model.load_in_8bit=true -> model.load_in_4bit=true: and load_in_8bit=true: choose one
HF model.load_in_8bit=true -> model.load_in_8bit=true: quantized weights cannot be trained; set model.lora.enabled=true
HF model.dtype=bfloat16 -> set model.lora.enabled=true, or model.dtype=float32
HF model.attn_implementation=flash_attention_2 trainer.device=cpu -> flash_attention_2: needs a GPU; choose
HF model.attn_implementation=flash_attention_2 trainer.device=mps -> flash_attention_2: needs a GPU; choose
trainer.precision=fp16 trainer.strategy=fsdp2 -> trainer.precision=fp16: is not possible with trainer.strategy=fsdp2;
LORA model.load_in_4bit=true trainer.strategy=fsdp2 -> model.load_in_4bit=true: packed weights cannot
# engines
LORA model.dtype=bfloat16 engine.dtype=float32 -> engine.dtype=float32: with model.dtype=bfloat16 the frozen weights
LORA model.load_in_4bit=true engine.dtype=bfloat16 -> engine.dtype=bfloat16: with model.load_in_4bit=true the frozen
engine=vllm engine.urls=['127.0.0.1:8000'] -> engine.urls[0]=127.0.0.1:8000: must begin with http:// or https:// (addr
engine=vllm LORA model.load_in_8bit=true -> model.load_in_8bit=true: engine=vllm would sample from
engine=vllm HF engine.sync=adapter -> engine.sync=adapter: there is no adapter to push
# task, reward, prompt and model together
task=gsm8k -> task=gsm8k: model=scratch has a tokenizer of the task's words, and this task has none; choose model=hf
model=scratch_bpe -> model=scratch_bpe: task=rpn is made of words, one token each; choose model=scratch
task=mix task.parts={gsm8k:1} HF reward=numeric -> reward: task=mix scores its episodes by itself; leave out reward=
prompt=math_reasoning -> prompt: task=rpn writes its prompts by itself, so these settings would have no effect
task=mix task.parts={gsm8k:1} HF prompt.few_shot=1 -> prompt.few_shot=1: has no effect; it needs a task that does not
task=gsm8k HF reward=rpn -> reward: a part of type rpn_boxed scores tasks with the words <eoe> and =, not task=gsm8k
reward=numeric -> a part of type numeric reads the whole completion, and task=rpn writes its steps
task=gsm8k HF prompt=boxed -> prompt.answer_in=boxed: the reward has a part of type format_exact, which reads markers
task=gsm8k HF reward=musique prompt=boxed -> scores tasks with documents (musique, hotpotqa, wiki2), not task=gsm8k
task=rpn tracker=none -> tracker=none: tracker is a section, and nothing to choose
task=rpn tracker=wandb -> tracker=wandb: tracker is a section, and nothing to choose; set tracker.report_to=[wandb]
task=rpn prompt=gsm8k -> prompt=gsm8k: task=gsm8k brings its own prompt
task=gsm8k HF reward=numeric reward.parts.correct.weight=0 -> have weights of 0 only, so every reward would be 0
task=gsm8k HF evaluation.also=[gsm8k] -> evaluation.also: names a task that this run evaluates anyway, gsm8k
evaluation.headline=part_format -> evaluation.headline=part_format: the reward has no such part
evaluation.headline=sampled_part_boxed -> evaluation.headline=sampled_part_boxed: nothing is sampled
resume=true -> resume=true: needs the folder of the run to go on with; add run_dir=FOLDER
# the form of the answer
task=finqa HF task.answer=program -> task.answer=program: the prompt asks for a number
task=finqa HF prompt=financial_program -> task.answer=number: the prompt asks for a program, so no answer
task=gsm8k HF prompt.answer_in=boxed reward=numeric -> prompt.answer_in=boxed: the prompt asks for the answer in another
# algorithms against the run
algorithm=ppo algorithm.num_minibatches=3 -> algorithm.num_minibatches=3: does not divide
rollout.max_staleness=1 algorithm=ppo algorithm.mismatch_correction=none -> set algorithm.mismatch_correction=truncate
rollout.group_size=1 -> rollout.group_size=1: algorithm=grpo compares the completions of a group and needs at least 2
""")

IDLE = table(r"""
task.max_abs_value=50 -> task.modulus=null
task.complexity_range=[1,1] task.shape=chain -> task.complexity_range[1] > 1
task=two_hop prompt.few_shot=1 -> a task that does not write its prompts itself and a task whose examples can be shown
prompt.tool_format=words -> a task with tools
HF warm_start.num_steps=1500 -> warm_start.enabled
HF TUNED warm_start.num_steps=1500 -> warm_start.enabled, and a model made from scratch or warm_start.num_epochs=null
HF warm_start.loss_on=all -> warm_start.enabled
HF warm_start.learning_rate=0.01 -> warm_start.enabled
HF warm_start.cache=false -> warm_start.enabled
HF warm_start.source=own -> warm_start.enabled=true and model=hf
HF TUNED warm_start.samples=4 -> warm_start.enabled=true and model=hf and warm_start.source=own
warm_start.num_epochs=2 -> warm_start.enabled, and model=hf or warm_start.num_steps=null
warm_start.num_examples=9 -> warm_start.enabled, and model=hf or warm_start.num_steps=null
HF task=gsm8k task.demonstration_field=shown -> warm_start.enabled or prompt.few_shot > 0
HF task=gsm8k task.solution_lines=1 -> a model made from scratch, warm_start.enabled or prompt.few_shot > 0
engine=vllm engine.sync=broadcast engine.weights_dir=/x -> engine.sync != broadcast
engine=vllm engine.broadcast_host=10.0.0.1 -> engine.sync == broadcast
trainer.strategy=ddp trainer.cpu_offload=true -> trainer.strategy == fsdp2
trainer.final_learning_rate_share=0.5 -> trainer.schedule != constant
HF model.lora.r=8 -> model.lora.enabled
HF task=gsm8k prompt=boxed reward=numeric prompt.markers=think -> a prompt with markers
HF task=gsm8k reward.timeout_s=3.0 -> a part or a metric that runs in a separate process
HF task=gsm8k task.path=GSM8K task.subset=socratic -> a repository with several configurations
HF task=jsonl task.path=x task.eval_path=y task.eval_share=0.3 -> task.eval_path=null
QA task.hops=[3] task.curriculum=hops -> several numbers of hops
QA task.retriever=semantic task.retrieval.stem=false -> task.retriever=bm25, hybrid or filtered
QA task.retrieval.corpus=c.jsonl -> task.retrieval.scope == corpus
QA CORPUS task.noise_rate=0.5 -> task.retrieval.scope == paragraphs
algorithm.kl_estimator=k1 -> algorithm.kl_coef > 0
algorithm.clip_low=0.1 -> algorithm.num_epochs * algorithm.num_minibatches > 1
tracker.console=none tracker.log_every=5 -> tracker.console != none
tracker.run_name=x -> tracker.report_to
trainer.precision=fp32 model.head_dtype=float32 -> another trainer.precision than fp32, or 16 bits for frozen weights
REPORT[wandb] tracker.mlflow.experiment=x -> its name in tracker.report_to
task=mix HF task.parts={gsm8k:{set:['reward.timeout_s=9.0']}} -> a part or a metric that runs in a separate process
""")

SILENT = """
trainer.schedule=linear trainer.final_learning_rate_share=0.5
algorithm.num_epochs=2 algorithm.clip_low=0.1
algorithm.kl_coef=0.1 algorithm.kl_estimator=k1 algorithm.kl_placement=reward
reward=rpn_combined reward.parts.boxed.weight=0.2
task.modulus=null task.max_abs_value=20 task.operand_range=[0,4]
rollout.max_staleness=1 rollout.top_p=0.9
rollout.max_staleness=4 algorithm=ppo algorithm.mismatch_correction=truncate
LORA model.lora.r=8 model.load_in_4bit=true model.dtype=bfloat16 trainer.precision=bf16
LORA model.load_in_8bit=true model.lora.target_modules=[all-linear] model.lora.merge_final=true
task=finqa HF task.answer=program reward=finqa_program prompt=financial_program
task=gsm8k HF reward.parts.correct.wrong_value=-1 reward.parts.correct.invalid_value=-2
task=gsm8k model=scratch_bpe prompt.answer_in=boxed reward=numeric
task=mix HF task.parts={gsm8k:2,rpn:1} evaluation.also={a:{task:finqa,set:['prompt.few_shot=1']}}
QA task.progress_coef=0.5 algorithm=reinforce_pp
QA task.retriever=rerank task.retrieval.rerank_url=u task.retrieval.max_retries=1 task.tool_timeout_s=30
QA CORPUS task.retriever=hybrid task.retrieval.stem=false task.retrieval.index_dir=d
QA prompt=musique_tags task.tools=[retrieve_documents,get_document]
QA task.hops=[2,3] task.curriculum=hops task.eval_order=balanced
task=gsm8k HF evaluation.also=[musique,hotpotqa,wiki2]
task=gsm8k HF TUNED warm_start.num_examples=20 task.solution_lines=1 trainer.max_steps=0
HF TUNED warm_start.num_epochs=null warm_start.num_steps=50 warm_start.loss_on=all
HF TUNED warm_start.optimizer=muon warm_start.learning_rate=1e-3
warm_start.num_steps=null warm_start.num_epochs=2 warm_start.num_examples=500
trainer.optimizer=muon trainer.learning_rate=1e-3
task=gsm8k HF TUNED warm_start.source=own warm_start.samples=4 warm_start.warmup_steps=0.2
task=jsonl HF task.path=x TUNED task.demonstration_field=shown warm_start.learning_rate=1e-4 warm_start.batch_size=8
HF warm_start.enabled=false
trainer.precision=fp32 engine.dtype=bfloat16 model.head_dtype=float32
model.head_dtype=float32
""".strip().splitlines()


@pytest.mark.parametrize(("overrides", "said"), REFUSED)
def test_settings_that_exclude_each_other_are_refused(overrides: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(lines(overrides))
    assert said in str(caught.value)


@pytest.mark.parametrize(("overrides", "condition"), IDLE)
def test_a_value_without_effect_is_refused(overrides: str, condition: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(lines(overrides))
    last = lines(overrides)[-1].removesuffix("']}}").rpartition("['")[2]
    assert f"{last}: has no effect; it needs {condition}" in str(caught.value)


@pytest.mark.parametrize("overrides", SILENT)
def test_values_that_work_are_silent(overrides: str) -> None:
    assert load_config(lines(overrides)).notes == ()


MINE = "defaults: [rpn, _self_]\nalgorithm: {kl_coef: 0.1, kl_estimator: k1}\n"


def mine(folder: Path, text: str, *overrides: str) -> tuple[str, ...]:
    """The notes on a file of the user's own."""
    (folder / "mine.yaml").write_text(text)
    return load_config(overrides, config_name="mine", config_dir=str(folder)).notes


def test_an_idle_value_of_a_file_is_an_error(tmp_path: Path) -> None:
    assert mine(tmp_path, MINE) == ()
    kl = "algorithm.kl_estimator=k1{}: has no effect; it needs algorithm.kl_coef > 0"
    kl, of_file = kl.format(""), kl.format(f" ({tmp_path / 'mine.yaml'})")
    assert mine(tmp_path, MINE, "algorithm.kl_coef=0") == (of_file,)
    with pytest.raises(ConfigError, match=re.escape(f"{of_file}.")):
        mine(tmp_path, MINE.replace("0.1", "0"))
    with pytest.raises(ConfigError, match=re.escape(f"{kl}.")):
        mine(tmp_path, MINE, "algorithm.kl_coef=0", "algorithm.kl_estimator=k1")  # says it again
    tools = "defaults: [two_hop, _self_]\nprompt: {tool_format: words}\n"
    assert mine(tmp_path, tools) == ()
    (note,) = mine(tmp_path, tools, "task=rpn")  # a choice changes a condition as well
    assert note == f"prompt.tool_format=words ({tmp_path / 'mine.yaml'}): has no effect; it needs a task with tools"
    (note,) = mine(tmp_path, "defaults: [rpn, _self_]\nwarm_start: {num_steps: 500}\n", "warm_start.enabled=false")
    assert note.startswith(f"warm_start.num_steps=500 ({tmp_path / 'mine.yaml'}): has no effect")


def test_a_note_names_the_file_that_says_the_value(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("warm_start: {num_steps: 500}\n")
    (note,) = mine(tmp_path, "defaults: [rpn, base, _self_]\nseed: 3\n", "warm_start.enabled=false")
    assert note.startswith(f"warm_start.num_steps=500 ({tmp_path / 'base.yaml'}): has no effect")


def test_values_of_our_own_files_are_never_idle() -> None:
    assert not load_config(["warm_start.enabled=false"], config_name="rpn_test").warm_start.enabled
    config = load_config(["algorithm.num_epochs=1", "algorithm.num_minibatches=1"], config_name="rpn_small")
    assert config.notes == ()


def test_a_warm_start_fits_its_model() -> None:
    """`auto` is resolved, and what our files say of models made from scratch is not said of others."""

    def fitted(*overrides: str) -> tuple[object, ...]:
        warm = load_config(lines(" ".join(overrides))).warm_start
        return warm.enabled, warm.batch_size, warm.learning_rate, warm.warmup_steps

    assert fitted() == (True, 64, 0.015, 10)
    assert fitted("warm_start.warmup_steps=0.05") == (True, 64, 0.015, 20)
    assert fitted("HF") == (False, 16, 1e-5, 0.1)
    assert fitted("LORA", "TUNED", "warm_start.batch_size=8") == (True, 8, 1e-4, 0.1)
    assert load_config([], config_name="gsm8k").warm_start == load_config(lines("HF")).warm_start
    from_scratch = ["model=scratch_bpe", "rollout.max_completion_tokens=64", "task.max_prompt_tokens=64"]
    assert load_config(from_scratch, config_name="gsm8k").warm_start.learning_rate == 0.015


def test_a_run_of_an_earlier_version_is_repeated_without_a_warm_start(tmp_path: Path) -> None:
    """Its file has `warm_start.enabled: true` with a pretrained model, where that had no effect."""
    text = to_yaml(load_config(lines("HF")))
    kept = [line for line in text.splitlines() if line not in ("  source: demonstrations", "  enabled: false")]
    old = "\n".join(kept).replace("warm_start:", "warm_start:\n  enabled: true")
    (tmp_path / "config.yaml").write_text(old)
    assert not load_config([], config_name="config", config_dir=str(tmp_path)).warm_start.enabled
    assert not read_yaml(old).warm_start.enabled
    assert read_yaml(to_yaml(load_config(lines("HF TUNED")))).warm_start.enabled


def notes(*overrides: str, config_name: str = "gsm8k") -> list[str]:
    return [line for line in summary(load_config(overrides, config_name=config_name)) if line.startswith("note: ")]


def test_a_prompt_without_a_place_for_the_answer_is_noted() -> None:
    (note,) = notes("prompt.system=null")
    assert "prompt: neither prompt.system nor prompt.user says where" in note
    assert "prompt.answer_in=solution" in note
    assert notes("evaluation.also={mine:{task:finqa,set:['prompt.system=null']}}")[0].startswith(
        "note: evaluation.also.mine.prompt: "
    )
    assert len(notes("task=mix", "task.parts={gsm8k:1,finqa:{set:['prompt.system=null']}}")) == 1


def test_a_headline_of_another_reward_falls_back_to_accuracy() -> None:
    config = load_config(["reward=numeric", "prompt=boxed", "prompt.user='{question}'"], config_name="gsm8k_smoke")
    assert config.evaluation.headline == "accuracy"
    assert "evaluation.headline=accuracy: the reward has no part format" in config.notes


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("reward=musique_later", "algorithm=grpo"), "reward.parts.combined"),
        (("reward.parts.em.hop_weight=linear", "algorithm=dapo"), "reward.parts.em"),
    ],
)
def test_a_factor_for_hops_that_the_algorithm_cancels_is_noted(overrides: tuple[str, ...], key: str) -> None:
    (note,) = load_config(["model.name_or_path=x", *overrides], config_name="musique").notes
    assert note.startswith(f"{key}: all episodes of a question share its factor for hops, which algorithm.std_norm")


def test_a_factor_for_hops_stays_where_the_batch_is_normalized() -> None:
    words = ["model.name_or_path=x", "reward=musique_later", "algorithm=grpo", "algorithm.std_normalization=batch"]
    assert load_config(words, config_name="musique").notes == ()


def test_a_task_that_is_only_evaluated_is_not_trained_on() -> None:
    with pytest.raises(ConfigError, match="needs a task that is trained on"):
        load_config(["evaluation.also={mine:{task:gsm8k,set:['task.max_train_examples=5']}}"])
