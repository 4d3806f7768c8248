"""Rules of the two-hop task; `rules.py` includes the table."""

from collections.abc import Callable

from rlvr.config.rule import Rule
from rlvr.config.schema import Config, TwoHopTask

TURNS_NEEDED = 3  # two searches and an answer
WORDS_OF_A_TURN = 4  # <call> search p3 </call>


def _two_hop(broken: Callable[[Config, TwoHopTask], bool]) -> Callable[[Config], bool]:
    """A condition on the two-hop task as one on configurations; no other task breaks it."""
    return lambda c: isinstance(c.task, TwoHopTask) and broken(c, c.task)


TWO_HOP_RULES = (
    Rule(
        _two_hop(lambda c, t: t.max_turns < TURNS_NEEDED),
        "task.max_turns={c.task.max_turns}: two searches and an answer need 3 turns; raise it.",
    ),
    Rule(
        _two_hop(lambda c, t: c.rollout.max_completion_tokens < WORDS_OF_A_TURN),
        "rollout.max_completion_tokens={c.rollout.max_completion_tokens}: a call and an answer of task=two_hop have 4 "
        "words; raise it.",
    ),
    Rule(
        _two_hop(lambda c, t: c.prompt.answer_in != "solution"),
        "prompt.answer_in={c.prompt.answer_in}: task=two_hop answers between markers, `<ans> c4 </ans>`; choose "
        "prompt.answer_in=solution.",
    ),
    Rule(
        _two_hop(lambda c, t: c.prompt.tool_format != "words"),
        "prompt.tool_format={c.prompt.tool_format}: task=two_hop is made of words and shows calls as `<call> search p3 "
        "</call>`; leave prompt.tool_format=words.",
    ),
    Rule(
        _two_hop(lambda c, t: True),
        "with task=two_hop, which shows its demonstrations in the warm start",
        idle=("prompt.few_shot",),
    ),
)
