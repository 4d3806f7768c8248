"""Rules on what only tasks with tools have; `rules.py` includes the table."""

from rlvr.config.rule import Rule
from rlvr.config.schema import Config, MixTask, MultiHopTask, TwoHopTask, VerifiersTask

WITH_TOOLS = (TwoHopTask, MultiHopTask, VerifiersTask)


def _no_tools(c: Config) -> bool:
    tasks = [part.task for part in c.task.parts.values()] if isinstance(c.task, MixTask) else [c.task]
    return not any(isinstance(task, WITH_TOOLS) for task in tasks)


def tool_formats(c: Config) -> list[str]:
    """Every `prompt.tool_format` of the tasks with tools that are trained on, each once."""
    bundles = c.task.parts.values() if isinstance(c.task, MixTask) else [c]
    return list(dict.fromkeys(b.prompt.tool_format for b in bundles if isinstance(b.task, WITH_TOOLS)))


TOOL_RULES = (
    Rule(
        lambda c: len(tool_formats(c)) > 1,
        "prompt.tool_format: the parts of task=mix have their tools called in more than one way, and a model speaks "
        "one of them; give all the same, e.g. task.parts={{musique: {{set: ['prompt.tool_format=hermes']}}}}.",
    ),
    Rule(
        _no_tools,
        "with task={c.task.name}, which has no tools",
        idle=("algorithm.train_on_tool_tokens", "prompt.tool_format"),
    ),
)
