"""Whether a run's rewards need the policy, and what grades their late parts."""

from rlvr.chat.rendering import Chat
from rlvr.config import Config
from rlvr.errors import UserError
from rlvr.models.layout import choose_layout
from rlvr.models.policy import HubPolicy
from rlvr.tasks.base import Task
from rlvr.tasks.late import LateGrader, NoLateGrades


def late_grader(
    config: Config, policy: HubPolicy, chat: Chat, task: Task, max_context_tokens: int
) -> LateGrader | NoLateGrades:
    """What completes the scores of the task's episodes."""
    if not late_parts(config, task):
        return NoLateGrades()
    layout = choose_layout(policy)
    return LateGrader(policy=policy, chat=chat, task=task, layout=layout, max_context_tokens=max_context_tokens)


def late_parts(config: Config, task: Task) -> list[str]:
    """The names of the parts that need the policy, of the task or of a part of its mix."""
    bundles = [config.bundles.get(part.name, config) for part in (task, *task.eval_sets())]
    return [name for bundle in bundles for name, part in bundle.reward.parts.items() if part.needs_policy]


def refuse_late(config: Config, task: Task) -> None:
    """UserError if the reward needs the probabilities of a policy: an endpoint gives none for other prompts."""
    if names := late_parts(config, task):
        raise UserError(
            f"reward.parts.{names[0]}: needs the probabilities of a model in this process, which an endpoint does not "
            f"give; leave it out with reward.parts.{names[0]}=null."
        )
