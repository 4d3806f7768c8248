"""Rules between task, reward, prompt and model; the table in `rules.py` includes them."""

from pathlib import Path

from rlvr.config.rule import Rule
from rlvr.config.schema import (
    Config,
    CustomPart,
    FinqaNumericPart,
    FinqaProgramPart,
    FinqaTask,
    FormatApproximatePart,
    FormatExactPart,
    GeneratorTask,
    Gsm8kTask,
    HubTask,
    JsonlTask,
    LengthPart,
    MathPart,
    MixReward,
    MixTask,
    NumberCheckPart,
    NumericPart,
    PartsReward,
    PretrainedModel,
    ReasoningGymPart,
    ReasoningGymTask,
    RpnReward,
    RpnTask,
    ScratchBpeModel,
    ScratchModel,
    TwoHopTask,
)

POOLED = (MathPart, CustomPart, ReasoningGymPart)
MARKED = (FormatExactPart, FormatApproximatePart, NumberCheckPart)
FILE_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
PLACEHOLDERS = ("{reasoning_start}", "{reasoning_end}", "{solution_start}", "{solution_end}")


def _parts(c: Config, *types: type) -> list[str]:
    """The names of the reward's parts of these types."""
    if not isinstance(c.reward, PartsReward):
        return []
    return [name for name, part in c.reward.parts.items() if isinstance(part, types)]


def _needs_words(c: Config) -> bool:
    has_words = isinstance(c.task, RpnTask | TwoHopTask) or (
        isinstance(c.task, GeneratorTask) and c.task.vocabulary is not None
    )
    return type(c.model) is ScratchModel and not has_words


def _own_prompt(c: Config) -> bool:
    """Rpn writes its prompts by itself: anything but `prompt=plain` would change nothing."""
    plain = c.prompt.system is None and c.prompt.user == "{question}"
    return isinstance(c.task, RpnTask) and not (plain and c.prompt.answer_in == "whole" and c.prompt.few_shot == 0)


def _without_markers(c: Config) -> bool:
    """Nothing in prompt or reward uses markers."""
    text = f"{c.prompt.system}{c.prompt.user}"
    return c.prompt.answer_in != "solution" and not any(place in text for place in PLACEHOLDERS)


def _own_name_again(c: Config) -> bool:
    own = set(c.task.parts) if isinstance(c.task, MixTask) else {c.task.name}
    return bool(own & set(c.evaluation.also))


def _headline_of_no_part(c: Config) -> bool:
    name = c.evaluation.headline.removeprefix("sampled_").removeprefix("part_")
    if name == "accuracy":
        return False
    parts = c.reward.parts if isinstance(c.reward, PartsReward) else ("boxed", "correct")
    return isinstance(c.task, MixTask) or name not in parts


def _program_and_number(c: Config) -> bool:
    wrong = FinqaNumericPart if isinstance(c.task, FinqaTask) and c.task.answer == "program" else FinqaProgramPart
    return isinstance(c.task, FinqaTask) and bool(_parts(c, wrong))


def _no_length_range(c: Config) -> bool:
    parts = c.reward.parts.values() if isinstance(c.reward, PartsReward) else ()
    return any(isinstance(part, LengthPart) and part.max_tokens <= part.free_tokens for part in parts)


def _nearer_is_worse(c: Config) -> bool:
    parts = c.reward.parts.values() if isinstance(c.reward, PartsReward) else ()
    return any(isinstance(part, NumericPart) and part.near_credit > part.close_credit for part in parts)


def _finqa_keys(c: Config, idle: str, other: str) -> tuple[str, ...]:
    """`reward.parts.<name>.<idle>` for the parts whose `other` is 0."""
    names = _parts(c, FinqaNumericPart)
    values = c.reward.parts if isinstance(c.reward, PartsReward) else {}
    return tuple(f"reward.parts.{name}.{idle}" for name in names if getattr(values[name], other) == 0)


def _tolerances(c: Config) -> tuple[str, ...]:
    return _finqa_keys(c, "relative_tolerance", "approximate_credit")


def _credits(c: Config) -> tuple[str, ...]:
    return _finqa_keys(c, "approximate_credit", "relative_tolerance")


def _no_weight(c: Config) -> bool:
    return isinstance(c.reward, PartsReward) and all(part.weight == 0 for part in c.reward.parts.values())


def _shows_no_solution(c: Config) -> bool:
    """No demonstration, no shown example and no tokenizer is made of solutions."""
    return isinstance(c.model, PretrainedModel) and c.prompt.few_shot == 0


def _without_subsets(c: Config) -> bool:
    """The data is a folder with a file for each split, and no repository with several configurations."""
    if not isinstance(c.task, Gsm8kTask | FinqaTask | HubTask):
        return False
    folder, first = Path(c.task.path).expanduser(), c.task.train_split.partition("+")[0]
    return any((folder / f"{first}{ending}").is_file() for ending in FILE_ENDINGS)


def _held_out_given(c: Config) -> bool:
    if isinstance(c.task, JsonlTask):
        return c.task.eval_path is not None
    return isinstance(c.task, HubTask) and c.task.eval_split is not None


def _nothing_pooled(c: Config) -> bool:
    judged_by_math = getattr(c.task, "metric", None) == "math"
    return isinstance(c.reward, PartsReward) and not _parts(c, *POOLED) and not judged_by_math


DATA_RULES = (
    Rule(
        _needs_words,
        "task={c.task.name}: model=scratch has a tokenizer of the task's words, and this task has none; choose "
        "model=hf model.name_or_path=..., or model=scratch_bpe.",
    ),
    Rule(
        lambda c: isinstance(c.task, RpnTask | TwoHopTask) and isinstance(c.model, ScratchBpeModel),
        "model=scratch_bpe: task={c.task.name} is made of words, one token each; choose model=scratch.",
    ),
    Rule(
        lambda c: (
            isinstance(c.task, RpnTask) != isinstance(c.reward, RpnReward) and not isinstance(c.reward, MixReward)
        ),
        "reward: task={c.task.name} cannot be scored by this reward; choose reward={c.task.name}, which follows by "
        "itself.",
    ),
    Rule(
        lambda c: isinstance(c.task, MixTask) != isinstance(c.reward, MixReward),
        "reward: a mix has the rewards of its parts, and no other task has reward=mix; leave out reward=..., which "
        "follows the task.",
    ),
    Rule(
        _own_prompt,
        "prompt: task=rpn writes its prompts by itself, so these settings would have no effect; leave prompt=plain.",
    ),
    Rule(
        lambda c: isinstance(c.task, MixTask),
        "with task=mix, whose parts have prompts of their own; write task.parts={{gsm8k: "
        '{{set: ["prompt.few_shot=1"]}}}}',
        idle=("prompt.system", "prompt.user", "prompt.answer_in", "prompt.markers", "prompt.few_shot"),
    ),
    Rule(
        _without_markers,
        "with prompt.answer_in={c.prompt.answer_in} and no marker in prompt.system and prompt.user",
        idle=("prompt.markers",),
    ),
    Rule(
        _shows_no_solution,
        "with a pretrained model and prompt.few_shot=0, where no solution is shown",
        idle=("task.solution_lines",),
    ),
    Rule(
        _without_subsets,
        "where task.path={c.task.path} is a folder with a file for each split",
        idle=("task.subset",),
    ),
    Rule(
        lambda c: c.prompt.answer_in != "solution" and bool(_parts(c, *MARKED)),
        "prompt.answer_in={c.prompt.answer_in}: the reward has parts on format and markers (format_exact, "
        "format_approximate, number_check), which need prompt.answer_in=solution; choose another prompt or reward.",
    ),
    Rule(
        _program_and_number,
        "task.answer={c.task.answer}: the reward scores the other kind of answer; a program goes with "
        "reward=finqa_program prompt=financial_program, a number with reward=finqa prompt=financial_reasoning.",
    ),
    Rule(
        lambda c: not isinstance(c.task, FinqaTask | MixTask) and bool(_parts(c, FinqaProgramPart)),
        "reward: a part of type finqa_program scores programs of task=finqa, not task={c.task.name}; use numeric.",
    ),
    Rule(
        lambda c: not isinstance(c.task, ReasoningGymTask) and bool(_parts(c, ReasoningGymPart)),
        "reward: a part of type reasoning_gym scores task=reasoning_gym, not task={c.task.name}; use numeric or text.",
    ),
    Rule(
        _no_length_range,
        "reward: a part of type length needs max_tokens above free_tokens; raise max_tokens.",
    ),
    Rule(
        _nearer_is_worse,
        "reward: a part of type numeric has a near_credit (within 20 %) above its close_credit (within 10 %), so a "
        "worse answer would earn more; lower near_credit or raise close_credit.",
    ),
    Rule(
        lambda c: bool(_tolerances(c)),
        "with approximate_credit=0, where an approximate answer earns nothing",
        idle=_tolerances,
    ),
    Rule(
        lambda c: bool(_credits(c)),
        "with relative_tolerance=0, where no wrong answer is near enough",
        idle=_credits,
    ),
    Rule(
        _no_weight,
        "reward.parts: every weight is 0, so every reward would be 0; give one part a weight.",
    ),
    Rule(
        _held_out_given,
        "where the held-out examples are named by themselves",
        idle=("task.eval_share",),
    ),
    Rule(
        _nothing_pooled,
        "where no part of the reward (math, custom, reasoning_gym) runs in a process of its own",
        idle=("reward.timeout_s", "reward.num_workers", "reward.max_memory_mb"),
    ),
    Rule(
        _headline_of_no_part,
        "evaluation.headline={c.evaluation.headline}: the reward has no such part; choose accuracy, or part_<name> or "
        "sampled_part_<name> of a part of the reward.",
    ),
    Rule(
        lambda c: c.evaluation.headline.startswith("sampled_") and c.evaluation.samples_per_example == 0,
        "evaluation.headline={c.evaluation.headline}: nothing is sampled with evaluation.samples_per_example=0; raise "
        "it.",
    ),
    Rule(
        _own_name_again,
        "evaluation.also: names a task that this run evaluates anyway; leave it out, or give it another name: "
        "{{other: {{task: {c.task.name}}}}}.",
    ),
)

ALSO_RULES = (
    Rule(
        lambda c: c.prompt.few_shot == 0,
        "where a task is only evaluated and prompt.few_shot=0",
        idle=("task.max_train_examples", "task.solution_lines", "task.complexity_weights"),
    ),
)
"""What has no effect on a task that is evaluated beside the run's own."""
