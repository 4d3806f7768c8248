"""What other RLVR projects call our keys: for `docs/configuration.md` and for the error a foreign key gets."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """`theirs` is a last component or a dotted key; `ours` are keys of the schema; `note` says how they differ."""

    theirs: str
    ours: tuple[str, ...]
    note: str = ""


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

OTHER_SPELLINGS = (
    Spelling(theirs="data_component", ours=("task",)),
    Spelling(theirs="data", ours=("task",)),
    Spelling(theirs="model_component", ours=("model",)),
    Spelling(theirs="predictive_model", ours=("model",)),
    Spelling(theirs="training_loop_component", ours=("algorithm",)),
    Spelling(theirs="reward_component", ours=("reward",)),
    Spelling(theirs="evaluation_component", ours=("evaluation",)),
    Spelling(theirs="model_name_or_path", ours=("model.name_or_path",)),
    Spelling(theirs="per_device_train_batch_size", ours=("rollout.prompts_per_step",)),
    Spelling(theirs="num_generations", ours=("rollout.group_size",)),
    Spelling(theirs="max_completion_length", ours=("rollout.max_completion_tokens",)),
    Spelling(theirs="max_new_tokens", ours=("rollout.max_completion_tokens",)),
    Spelling(theirs="beta", ours=("algorithm.kl_coef",)),
    Spelling(theirs="epsilon", ours=("algorithm.clip_low", "algorithm.clip_high")),
    Spelling(theirs="epsilon_high", ours=("algorithm.clip_high",)),
    Spelling(theirs="lr", ours=("trainer.learning_rate",)),
    Spelling(theirs="save_steps", ours=("trainer.checkpoint_every",)),
    Spelling(theirs="logging_steps", ours=("tracker.log_every",)),
    Spelling(theirs="eval_steps", ours=("evaluation.every",)),
    Spelling(theirs="output_dir", ours=("run_dir",)),
)


def find_spelling(key: str) -> Spelling | None:
    """The entry for a whole foreign key, or for its last component."""
    table = {spelling.theirs: spelling for spelling in RPN_SPELLINGS + OTHER_SPELLINGS}
    return table.get(key) or table.get(key.rpartition(".")[2])
