"""What other RLVR projects call our keys: for `docs/configuration.md` and for the error a foreign key gets."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """`theirs` is a last component or a dotted key; `ours` are keys of the schema; `note` says how they differ.

    Without `ours` there is nothing to set here, and `note` says why. `inside`: so it is for every key inside `theirs`.
    """

    theirs: str
    ours: tuple[str, ...] = ()
    note: str = ""
    inside: bool = False


_STEPS = "trainer.max_steps = num_epochs x min(ceil(samples_per_epoch / batch_size), max_batches_per_epoch)"

# Every parameter of the RPN specification, in its order.
RPN_SPELLINGS = (
    Spelling(
        theirs="num_epochs", ours=("trainer.max_steps",), note=f"{_STEPS}; passes over a batch: algorithm.num_epochs"
    ),
    Spelling(theirs="samples_per_epoch", ours=("trainer.max_steps",), note=_STEPS),
    Spelling(theirs="max_batches_per_epoch", ours=("trainer.max_steps",), note=_STEPS),
    Spelling(theirs="max_prompt_length", ours=("task.max_prompt_tokens",)),
    Spelling(theirs="max_generation_length", ours=("rollout.max_completion_tokens",)),
    Spelling(theirs="complexity_range", ours=("task.complexity_range",)),
    Spelling(theirs="learning_rate", ours=("trainer.learning_rate",)),
    Spelling(theirs="batch_size", ours=("rollout.prompts_per_step",), note="times rollout.group_size completions"),
    Spelling(theirs="mini_batch_size", ours=("algorithm.num_minibatches",), note="batch_size / mini_batch_size"),
    Spelling(
        theirs="gradient_accumulation_steps",
        ours=("trainer.microbatch_tokens",),
        note="gradients accumulate over microbatches of at most so many tokens, exactly as one big batch",
    ),
    Spelling(theirs="ppo_steps", ours=("trainer.max_steps",), note="one step is one batch of rollouts and its update"),
    Spelling(theirs="ppo_epochs", ours=("algorithm.num_epochs",)),
    Spelling(theirs="cliprange", ours=("algorithm.clip_low", "algorithm.clip_high")),
    Spelling(theirs="cliprange_value", ours=("algorithm.value_clip",)),
    Spelling(theirs="vf_coef", ours=("algorithm.value_coef",)),
    Spelling(theirs="target_kl", ours=("algorithm.target_kl",), note="algorithm=ppo has it"),
    Spelling(
        theirs="early_stopping",
        ours=("algorithm.target_kl",),
        note="true: give target_kl a value; false: algorithm.target_kl=null",
    ),
    Spelling(theirs="temperature", ours=("rollout.temperature",)),
    Spelling(theirs="top_p", ours=("rollout.top_p",)),
    Spelling(theirs="reward_type", ours=("reward.type",)),
    Spelling(theirs="boxed_weight", ours=("reward.boxed_weight",)),
    Spelling(theirs="correct_weight", ours=("reward.correct_weight",)),
    Spelling(theirs="log_every", ours=("tracker.log_every",)),
    Spelling(theirs="checkpoint_every", ours=("trainer.checkpoint_every",)),
    Spelling(theirs="seed", ours=("seed",)),
    Spelling(theirs="experiment_name", ours=("name",)),
    Spelling(theirs="run_name", ours=("run_dir",), note="null: runs/<name>-<time>"),
)

_PARTS = "the reward is a sum of named parts, e.g. reward.parts.correct.weight=5.0"

# Every key of the Hydra pipeline's specification.
HYDRA_SPELLINGS = (
    Spelling(theirs="data_component", ours=("task",), note="task=finqa; reward and prompt follow"),
    Spelling(theirs="dataset_name", ours=("task.path",), note="or another task: task=finqa"),
    Spelling(theirs="dataset_path", ours=("task.path",)),
    Spelling(theirs="dataset_config_name", ours=("task.subset",)),
    Spelling(theirs="max_train_samples", ours=("task.max_train_examples",)),
    Spelling(theirs="max_eval_samples", ours=("evaluation.num_examples",)),
    Spelling(theirs="prompting_mode", ours=("prompt",), note="prompt=math_reasoning, or prompt=plain"),
    Spelling(theirs="prompts", ours=("prompt",)),
    Spelling(theirs="model_name_or_path", ours=("model.name_or_path",)),
    Spelling(theirs="max_seq_length", ours=("rollout.max_completion_tokens",), note="and task.max_prompt_tokens"),
    Spelling(theirs="fast_inference", ours=("engine",)),
    Spelling(theirs="full_finetuning", ours=("model.lora.enabled",), note="true: model.lora.enabled=false"),
    Spelling(theirs="use_lora", ours=("model.lora.enabled",)),
    Spelling(theirs="lora_config.r", ours=("model.lora.r",)),
    Spelling(theirs="lora_config.target_modules", ours=("model.lora.target_modules",)),
    Spelling(theirs="lora_config", ours=("model.lora.enabled",), note="and the other keys of model.lora", inside=True),
    Spelling(theirs="lora_r", ours=("model.lora.r",)),
    Spelling(theirs="lora_alpha", ours=("model.lora.alpha",)),
    Spelling(theirs="lora_dropout", note="it is 0: dropout makes a ratio out of noise"),
    Spelling(theirs="lora_bias", note="it is none: biases are not trained"),
    Spelling(theirs="save_model_path", ours=("run_dir",), note="the model is in RUN/final"),
    Spelling(theirs="output_dir", ours=("run_dir",)),
    Spelling(theirs="max_completion_length", ours=("rollout.max_completion_tokens",)),
    Spelling(theirs="per_device_train_batch_size", ours=("rollout.prompts_per_step",), note="x rollout.group_size"),
    Spelling(theirs="warmup_ratio", ours=("trainer.warmup_steps",), note="steps, not a share"),
    Spelling(theirs="lr_scheduler_type", ours=("trainer.schedule",)),
    Spelling(theirs="optim_name", note="the optimizer is AdamW: trainer.adam_beta1, adam_beta2, weight_decay"),
    Spelling(theirs="logging_steps", ours=("tracker.log_every",)),
    Spelling(theirs="save_steps", ours=("trainer.checkpoint_every",)),
    Spelling(theirs="num_generations", ours=("rollout.group_size",)),
    Spelling(theirs="log_completions_to_wandb", ours=("tracker.max_completions",), note="with tracker=wandb; 0: none"),
    Spelling(theirs="report_to", ours=("tracker.report_to",), note="a list; none: []"),
    Spelling(theirs="observers", ours=("tracker.report_to",), note="e.g. [mlflow,wandb,tensorboard]", inside=True),
    Spelling(theirs="logging_level", ours=("tracker.console",)),
    Spelling(theirs="log_dir", ours=("run_dir",)),
    Spelling(theirs="inference", note="try a model with rlvr predict RUN --prompt TEXT", inside=True),
    Spelling(theirs="eval_datasets_names", ours=("evaluation.also",)),
    Spelling(theirs="eval_steps", ours=("evaluation.every",)),
    Spelling(theirs="eval_max_new_tokens", ours=("rollout.max_completion_tokens",)),
    Spelling(theirs="eval_num_samples", ours=("evaluation.num_examples",)),
    Spelling(theirs="eval_batch_size", ours=("engine.max_batch_size",)),
    Spelling(theirs="eval.enabled", note="a run is always evaluated; evaluation.every says how often"),
    Spelling(theirs="reward_functions", ours=("reward.parts.<name>.weight",), note=_PARTS, inside=True),
    Spelling(theirs="correct_reward", ours=("reward.parts.<name>.weight",), note=_PARTS),
    Spelling(theirs="exact_match_reward", ours=("reward.parts.<name>.weight",), note=_PARTS),
    Spelling(theirs="reward_value", ours=("reward.parts.<name>.weight",), note=_PARTS),
    Spelling(theirs="match_score", ours=("reward.parts.<name>.weight",), note=_PARTS),
    Spelling(theirs="per_marker_reward", ours=("reward.parts.<name>.weight",), note=_PARTS),
    Spelling(theirs="per_marker_penalty", ours=("reward.parts.<name>.penalty",)),
    Spelling(theirs="stripped_match_reward", note="numerically equal answers get equal reward"),
    Spelling(theirs="numerical_close_reward_strong", ours=("reward.parts.<name>.close_credit",)),
    Spelling(theirs="numerical_close_reward_weak", ours=("reward.parts.<name>.near_credit",)),
    Spelling(theirs="approx_match_reward", ours=("reward.parts.<name>.approximate_credit",)),
    Spelling(theirs="relative_tolerance", ours=("reward.parts.<name>.relative_tolerance",)),
    Spelling(theirs="wrong_penalty", ours=("reward.parts.<name>.wrong_value",)),
    Spelling(theirs="no_answer_penalty", ours=("reward.parts.<name>.invalid_value",)),
    Spelling(theirs="unparseable_penalty", ours=("reward.parts.<name>.invalid_value",)),
)

# Every option of the MuSiQue project's commands that is called something else here, as a key: --retriever-top-k.
MUSIQUE_SPELLINGS = (
    Spelling(theirs="datasets", ours=("task.train_sets",), note="path,name,split;..."),
    Spelling(theirs="eval_datasets", ours=("task.eval_sets",), note="path,name,split;..."),
    Spelling(theirs="dataset_split", ours=("task.eval_sets",), note="path,name,split"),
    Spelling(theirs="noise", ours=("task.noise_rate",)),
    Spelling(theirs="noise_rate", ours=("task.noise_rate",)),
    Spelling(theirs="retriever", ours=("task.retriever",)),
    Spelling(theirs="retriever_top_k", ours=("task.top_n",), note="at most task.max_top_n, whatever is asked for"),
    Spelling(theirs="few_shot_prob", note="examples of tasks with tools cannot be shown without their calls"),
    Spelling(theirs="n_env_jobs", note="environments run side by side; verifiers have reward.num_workers"),
    Spelling(theirs="max_concurrent", ours=("engine.max_batch_size",)),
    Spelling(theirs="env_id", ours=("task.env_id",), note="with task=verifiers"),
    Spelling(theirs="num_train_examples", ours=("task.max_train_examples",)),
    Spelling(theirs="num_examples", ours=("evaluation.num_examples",)),
    Spelling(theirs="kl_beta", ours=("algorithm.kl_coef",)),
    Spelling(theirs="loss_type", ours=("algorithm",), note="algorithm=dr_grpo"),
    Spelling(theirs="scale_rewards", ours=("algorithm.std_normalization",), note="false: none, or algorithm=dr_grpo"),
    Spelling(theirs="num_iterations", ours=("algorithm.num_epochs",)),
    Spelling(theirs="min_p", ours=("rollout.min_p",)),
    Spelling(theirs="max_tokens", ours=("rollout.max_completion_tokens",)),
    Spelling(theirs="warmup_steps", ours=("trainer.warmup_steps",)),
    Spelling(theirs="max_grad_norm", ours=("trainer.max_grad_norm",)),
    Spelling(theirs="gradient_checkpointing", ours=("model.gradient_checkpointing",)),
    Spelling(theirs="bf16", ours=("trainer.precision",), note="true: trainer.precision=bf16"),
    Spelling(theirs="log_completions", ours=("tracker.rollouts_every",)),
    Spelling(theirs="eval_on_start", note="the first evaluation always comes before the first update"),
    Spelling(theirs="resume_from_checkpoint", ours=("resume",), note="run_dir=FOLDER resume=true"),
    Spelling(theirs="top_n", ours=("task.top_n",)),
)

OTHER_SPELLINGS = (
    Spelling(theirs="data", ours=("task",)),
    Spelling(theirs="train", ours=("trainer",)),
    Spelling(theirs="eval", ours=("evaluation",)),
    Spelling(theirs="model_component", ours=("model",)),
    Spelling(theirs="predictive_model", ours=("model",)),
    Spelling(theirs="training_loop_component", ours=("algorithm",)),
    Spelling(theirs="reward_component", ours=("reward",)),
    Spelling(theirs="evaluation_component", ours=("evaluation",)),
    Spelling(theirs="max_new_tokens", ours=("rollout.max_completion_tokens",)),
    Spelling(theirs="beta", ours=("algorithm.kl_coef",)),
    Spelling(theirs="epsilon", ours=("algorithm.clip_low", "algorithm.clip_high")),
    Spelling(theirs="epsilon_high", ours=("algorithm.clip_high",)),
    Spelling(theirs="lr", ours=("trainer.learning_rate",)),
    Spelling(theirs="logging", ours=("tracker",), note="tracker=mlflow for mlflow_logger, tracker=wandb, ..."),
    Spelling(theirs="logger", ours=("tracker.report_to",), note="e.g. [mlflow,wandb,tensorboard]"),
    Spelling(theirs="use_wandb", ours=("tracker",), note="tracker=wandb"),
    Spelling(theirs="wandb_project", ours=("tracker.wandb.project",), note="with tracker=wandb"),
    Spelling(theirs="wandb_entity", ours=("tracker.wandb.entity",), note="with tracker=wandb"),
    Spelling(theirs="wandb_mode", ours=("tracker.wandb.mode",), note="with tracker=wandb"),
    Spelling(theirs="wandb_run_name", ours=("tracker.run_name",), note="with tracker=wandb"),
    Spelling(theirs="wandb_group", ours=("tracker.group",), note="with tracker=wandb"),
    Spelling(theirs="wandb_tags", ours=("tracker.tags",), note="with tracker=wandb"),
    Spelling(theirs="mlflow_tracking_uri", ours=("tracker.mlflow.tracking_uri",), note="with tracker=mlflow"),
    Spelling(theirs="mlflow_experiment", ours=("tracker.mlflow.experiment",), note="with tracker=mlflow"),
    Spelling(theirs="tensorboard_dir", ours=("tracker.tensorboard.folder",), note="with tracker=tensorboard"),
)


def find_spelling(key: str) -> Spelling | None:
    """The entry for a whole foreign key, for its last component, or for what it is inside of."""
    table = {
        spelling.theirs: spelling for spelling in OTHER_SPELLINGS + MUSIQUE_SPELLINGS + HYDRA_SPELLINGS + RPN_SPELLINGS
    }
    parts = key.split(".")
    tails = [".".join(parts[start:]) for start in range(len(parts))]
    found = next((table[tail] for tail in tails if tail in table), None)
    return found or next((table[part] for part in parts if part in table and table[part].inside), None)
