"""rlvr: reinforcement learning from verifiable rewards, from a laptop CPU to many GPUs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr.api import Run, audit, doctor, evaluate, plan, replay, train

__version__ = "0.2.0"
__all__ = ["Run", "__version__", "audit", "doctor", "evaluate", "plan", "replay", "train"]


def __getattr__(name: str) -> Any:
    """Import `rlvr.train` and the like on first use: `import rlvr` stays light."""
    if name in ("Run", "audit", "doctor", "evaluate", "plan", "replay", "train"):
        from rlvr import api

        return getattr(api, name)
    raise AttributeError(f"module 'rlvr' has no attribute {name!r}")
