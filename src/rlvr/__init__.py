"""rlvr: reinforcement learning from verifiable rewards, from a laptop CPU to many GPUs.

The commands as functions, with the same configurations and run folders:

run = rlvr.train(model="Qwen/Qwen2.5-0.5B-Instruct", data=[{"question": "1 + 1?", "answer": "2"}, ...], reward=fn)
run.metrics[-1]["eval/jsonl/accuracy"]
run.rollouts()[0].turns[0].completion
rlvr.evaluate(run, samples_per_example=4)["jsonl"].metrics["eval/jsonl/pass_at_4"]
rlvr.open(run, step=10).sample(...)     # its policy, engine, chat, task and rewards
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr.commands.audit.function import audit
    from rlvr.commands.diagnose.function import diagnose
    from rlvr.commands.doctor.function import doctor
    from rlvr.commands.eval.function import evaluate
    from rlvr.commands.plan.function import plan
    from rlvr.commands.replay.function import replay
    from rlvr.commands.train.function import train
    from rlvr.research.opened import Opened
    from rlvr.research.opened import open_run as open
    from rlvr.run.result import Run

__version__ = "0.2.0"
__all__ = ["Opened", "Run", "__version__", "audit", "diagnose", "doctor", "evaluate", "open", "plan", "replay", "train"]
_PLACES = {
    "Run": "run.result.Run",
    "Opened": "research.opened.Opened",
    "open": "research.opened.open_run",
}


def __getattr__(name: str) -> Any:
    """Import `rlvr.train` and the like on first use: `import rlvr` stays light."""
    if name not in __all__:
        raise AttributeError(f"module 'rlvr' has no attribute {name!r}")
    folder = "eval" if name == "evaluate" else name
    module, _, found = _PLACES.get(name, f"commands.{folder}.function.{name}").rpartition(".")
    return getattr(import_module(f"rlvr.{module}"), found)
