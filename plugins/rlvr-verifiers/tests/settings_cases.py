"""Settings of task=verifiers, as `test_data_settings` has those of other tasks: two values give something else."""

from rlvr.tasks.base import Task
from rlvr_verifiers.task import VerifiersTask
from scripted import graded
from tests.system.test_data_settings import DataCase, num_different

NUMBERS = ("task=verifiers", "task.env_id=rlvr-test-environments", "task.env_args.kind=numbers")
LETTERS = ("task=verifiers", "task.env_id=rlvr-test-environments", "task.env_args.kind=letters")


def grades(task: Task) -> list[bool]:
    """What the metric says of some texts."""
    assert isinstance(task, VerifiersTask)
    return [graded(task, task.eval_examples(1)[0], text).correct for text in ("e", "ex", "xxxx")]


def num_held_out(task: Task) -> int:
    return len(task.eval_examples(1_000))


CASES = [
    DataCase(key=f"task.{key}", a=a, b=b, look=look, base=base)
    for key, a, b, look, base in (
        ("env_id", "rlvr-test-environments", "rlvr-other-environments", num_held_out, NUMBERS),
        ("env_args", "{num: 30}", "{num: 20}", num_different, LETTERS),
        ("eval_share", "0.1", "0.6", num_held_out, NUMBERS),
        ("metric", "reward", "length", grades, LETTERS),
        ("metric_threshold", "1.0", "0.5", grades, LETTERS),
        ("max_train_examples", "null", "3", num_different, LETTERS),
        ("max_prompt_tokens", "null", "1", num_different, LETTERS),
    )
]
