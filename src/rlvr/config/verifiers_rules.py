"""Rules of task=verifiers, whose environments bring their own prompts and rewards; `rules.py` includes the table."""

from rlvr.config.rule import Rule
from rlvr.config.schema import Config, EnvReward, MixReward, VerifiersTask

OWN_PROMPTS = ("prompt.system", "prompt.user", "prompt.answer_in", "prompt.markers", "prompt.few_shot")


def _other_headline(c: Config) -> bool:
    return isinstance(c.reward, EnvReward) and c.evaluation.headline not in ("accuracy", "sampled_accuracy")


VERIFIERS_RULES = (
    Rule(
        lambda c: (
            isinstance(c.task, VerifiersTask) != isinstance(c.reward, EnvReward) and not isinstance(c.reward, MixReward)
        ),
        "reward: task={c.task.name} cannot be scored by this reward; choose reward={c.task.name}, which follows by "
        "itself.",
    ),
    Rule(
        lambda c: isinstance(c.task, VerifiersTask),
        "with task=verifiers, whose environments write their prompts by themselves; change task.env_args",
        idle=OWN_PROMPTS,
    ),
    Rule(
        _other_headline,
        "evaluation.headline={c.evaluation.headline}: the parts of an environment's reward are not known before it "
        "runs; choose accuracy, and say with task.metric what is right.",
    ),
)
